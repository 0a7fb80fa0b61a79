"""The agent's node: it runs collectors in worker threads (agent/worker_thread.py) and makes frames (agent/assembly.py).

At every interval the node's thread takes the last sample of each collector and makes a ``Frame``, without waiting
for any collector. A sample becomes stale after three intervals of its collector (at least two seconds), or at once
if the current run is stuck. The values of a stale sample are absent in the frame.
"""

from __future__ import annotations

import importlib.metadata
import logging
import secrets
import threading
from collections.abc import Callable, Sequence

from agent.assembly import NODE_TIER, Assembly, Own
from agent.collectors.block import Collector
from agent.runner import Runner, next_due_ns
from agent.schema.clock import Clock, SystemClock
from agent.schema.frame import MAX_RECORDS, Frame, Layout, Record
from agent.self_usage import Meter
from agent.sources.proc.proc import read_boot_id
from agent.worker_thread import Worker

log = logging.getLogger(__name__)

Listener = Callable[[Layout, Frame], None]

STOP_SECONDS = 2.0
"""Total time in seconds that ``stop`` waits for the threads to end. A thread that is stuck in a driver is abandoned."""


class Node:
    """Runner of collectors that makes a frame of their samples every interval.

    ``start`` starts the threads and ``stop`` ends them. Tests and benchmarks call ``tick`` instead, which runs
    everything once in the caller's thread. Other methods may be called from any thread.
    """

    def __init__(
        self,
        name: str,
        collectors: Sequence[Collector],
        clock: Clock | None = None,
        interval_seconds: float = 1.0,
        *,
        proc_root: str = "/proc",
        version: str | None = None,
    ) -> None:
        """Make a node that is not started.

        Raise SourceError if the boot id cannot be read, ValueError if two collectors have the same name.
        """
        names = [NODE_TIER, *(collector.name for collector in collectors)]
        if len(set(names)) < len(names):
            raise ValueError(f"two collectors have the same name: {', '.join(sorted(names))}")
        self.name = name
        self.agent_id = secrets.token_hex(8)
        self.boot_id = read_boot_id(proc_root)
        self.interval_seconds = interval_seconds
        self._clock = clock or SystemClock()
        version = version or importlib.metadata.version("gangwatch")
        self._assembly = Assembly(name, interval_seconds, self.boot_id, version)
        self._meter = Meter()
        self._lock = threading.RLock()  # guards the next attributes; never held while a collector is called
        self._roots = [Runner(collector, self._clock) for collector in collectors]
        self._runners: tuple[Runner, ...] = tuple(self._roots)
        self._workers: dict[str, Worker] = {}
        self._ended_workers: list[Worker] = []
        self._last_words: list[Runner] = []
        self._released = False
        self._origin_ns = 0

        self._listeners: tuple[Listener, ...] = ()
        self._listeners_lock = threading.Lock()
        self._newest: tuple[Layout, Frame] | None = None
        self._seq = 0
        self._record_seq = 1
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    # --- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the worker threads, then the node's thread.

        The first runs of the collectors are spread over one interval.
        """
        if self._thread is not None:
            raise RuntimeError(f"node {self.name} is already running")
        interval_ns = round(self.interval_seconds * 1e9)
        with self._lock:
            self._origin_ns = self._clock.monotonic_ns()
            self._thread = threading.Thread(
                target=self._run, args=(self._origin_ns + interval_ns,), name=f"{self.name}/{NODE_TIER}", daemon=True
            )
            workers = list(dict.fromkeys(runner.worker for runner in self._runners))
            for position, worker in enumerate(workers):
                delay = 0
                for runner in self._runners:
                    if runner.worker == worker:
                        self._add_to_worker(runner, (position + 1) / (len(workers) + 1), delay)
                        delay += runner.nominal_ns > interval_ns
        self._thread.start()

    def _add_to_worker(self, runner: Runner, worker_phase: float, delay: int) -> None:
        """Schedule a collector and add it to the worker thread that runs it.

        worker_phase: phase of the worker in the node's interval, 0 to 1. delay: number of node intervals before the
        first run. It spreads the runs of collectors with long intervals.
        """
        interval_ns = round(self.interval_seconds * 1e9)
        runner.schedule(self._origin_ns, round(worker_phase * interval_ns) + delay * interval_ns, interval_ns)
        worker = self._workers.get(runner.worker)
        if worker is None:
            worker = Worker(runner.worker, f"{self.name}/{runner.worker}", self._clock, self._follow)
            worker.set_released(self._released)
            self._workers[runner.worker] = worker
            worker.start()
        worker.add(runner)

    def _run(self, due_ns: int) -> None:
        """Make a frame at every due time until the node is stopped. Give the collectors of a stuck thread a new thread.

        Due times that have passed are skipped.
        """
        interval_ns = round(self.interval_seconds * 1e9)
        while True:
            workers = tuple(self._workers.values())
            wake_ns = min([due_ns, *(instant for worker in workers if (instant := worker.hand_over_ns()) is not None)])
            if self._stopping.wait(max(0, wake_ns - self._clock.monotonic_ns()) / 1e9):
                return
            now_ns = self._clock.monotonic_ns()
            for worker in workers:
                worker.hand_over(now_ns)
            if now_ns >= due_ns:
                self._publish()
                due_ns = next_due_ns(due_ns, interval_ns, self._clock.monotonic_ns())

    def stop(self) -> None:
        """End the threads and close the collectors. Abandon a collector that is stuck in a driver call."""
        self._stopping.set()
        if self._thread is None:
            for runner in reversed(self._runners):
                runner.close()
            self._meter.close()
            return
        deadline_ns = self._clock.monotonic_ns() + round(STOP_SECONDS * 1e9)
        with self._lock:
            workers = [*self._workers.values(), *self._ended_workers]
        for worker in workers:
            worker.stop()
        self._thread.join(max(0, deadline_ns - self._clock.monotonic_ns()) / 1e9)
        for worker in workers:
            worker.join(deadline_ns)
        if not self._thread.is_alive():
            self._meter.close()

    def tick(self, *, due_only: bool = False) -> tuple[Layout, Frame]:
        """Run every collector once in this thread and publish a frame. Raise RuntimeError if the node is started.

        due_only: run only collectors whose interval has passed by the node's clock.
        """
        if self._thread is not None:
            raise RuntimeError(f"node {self.name} was started: its threads run the collectors")
        waiting = list(self._runners)
        for runner in waiting:
            due = not due_only or runner.due_ns <= self._clock.monotonic_ns()
            if due and runner in self._runners and not runner.released:
                runner.run_once()
                waiting.extend(self._follow(runner))
        return self._publish()

    def release(self) -> None:
        """Request that every collector releases its device, for example for a reset. Return without waiting.

        ``gangwatch_agent_released`` becomes 1 once all devices are released. The series of the devices are absent until
        ``acquire``.
        """
        self._set_released(True)

    def acquire(self) -> None:
        """Request that collectors reopen the devices that ``release`` closed. Return without waiting."""
        self._set_released(False)

    def _set_released(self, released: bool) -> None:
        with self._lock:
            self._released = released
            workers = list(self._workers.values())
        log.warning("node %s %s", self.name, "releases its devices" if released else "reopens its devices")
        for worker in workers:
            worker.set_released(released)
        if self._thread is None:
            for runner in reversed(self._runners):
                if released:
                    runner.release()
                else:
                    runner.acquire()

    def holds_devices(self) -> bool:
        """Return whether any collector still holds a device open that ``release`` should have closed."""
        return any(runner.releasable is not None and not runner.released for runner in self._runners)

    # --- added and removed collectors --------------------------------------------------------------------------------

    def _follow(self, runner: Runner) -> list[Runner]:
        """Update the members of a parent collector to those that it lists after its run. Return the added members."""
        if runner.unsupported:
            with self._lock:
                if runner in self._roots:
                    self._roots.remove(runner)
                self._let_go(runner)
                self._relist()
            return []
        if runner.parent is None:
            return []
        try:
            collectors = runner.parent.members()
        except Exception as error:
            runner.failures += 1
            runner.errors.add(error, self._clock.monotonic_ns(), "listing members failed")
            return []
        before = runner.members
        if len(collectors) == len(before) and all(
            one.collector is collector for one, collector in zip(before, collectors, strict=True)
        ):
            return []
        with self._lock:
            if runner.leaving or runner not in self._runners:
                return []
            return self._replace_members(runner, collectors)

    def _replace_members(self, runner: Runner, collectors: tuple[Collector, ...]) -> list[Runner]:
        known = {id(one.collector): one for one in runner.members}
        staying = {id(collector) for collector in collectors}
        gone = [one for one in runner.members if id(one.collector) not in staying]
        for one in gone:
            self._let_go(one)
        runner.members = tuple(one for one in runner.members if id(one.collector) in staying)
        self._relist()
        taken = {NODE_TIER, *(one.name for one in self._runners)}
        members: list[Runner] = []
        new: list[Runner] = []
        for collector in collectors:
            member = known.get(id(collector))
            if member is None:
                if collector.name in taken:
                    self._refuse(runner, collector)
                    continue
                taken.add(collector.name)
                member = Runner(collector, self._clock)
                new.append(member)
            members.append(member)
        runner.members = tuple(members)
        self._relist()
        worker_phase = runner.phase_in(self.interval_seconds)
        for delay, member in enumerate(new):
            if self._stopping.is_set():
                member.close()
            elif self._thread is not None:
                self._add_to_worker(member, worker_phase, delay if member.nominal_ns > runner.nominal_ns else 0)
        return new

    def _refuse(self, runner: Runner, collector: Collector) -> None:
        runner.failures += 1
        error = ValueError(f"a collector named {collector.name} already exists")
        runner.errors.add(error, self._clock.monotonic_ns(), "member collector not added")

    def _let_go(self, runner: Runner) -> None:
        """Remove a collector and all of its members. The next frame still contains their last records."""
        if runner.leaving:
            return
        for member in runner.members:
            self._let_go(member)
        self._last_words.append(runner)
        worker = self._workers.get(runner.worker)
        if worker is None:
            runner.leaving = True
            runner.close()
            return
        worker.remove(runner)
        if all(one.leaving for one in self._runners if one.worker == worker.name):
            del self._workers[worker.name]
            self._ended_workers = [*(one for one in self._ended_workers if one.left_behind()), worker]
            worker.stop()

    def _relist(self) -> None:
        """Rebuild the node's list of collectors, in which the members follow their parent."""
        listed: list[Runner] = []

        def put(runners: Sequence[Runner]) -> None:
            for runner in runners:
                if not runner.leaving:
                    listed.append(runner)
                    put(runner.members)

        put(self._roots)
        self._runners = tuple(listed)

    # --- readers -----------------------------------------------------------------------------------------------------

    def newest(self) -> tuple[Layout, Frame] | None:
        """Return the newest frame with its layout, as (layout, frame); None before the first frame."""
        return self._newest

    def add_listener(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every new frame in the node's thread. The listener must not block.

        Return a function that removes the listener. A listener that raises is removed, and the error is logged.
        """
        with self._listeners_lock:
            self._listeners = (*self._listeners, listener)
        return lambda: self._remove_listener(listener)

    def _remove_listener(self, listener: Listener) -> None:
        with self._listeners_lock:
            self._listeners = tuple(one for one in self._listeners if one != listener)

    # --- frames ------------------------------------------------------------------------------------------------------

    def _publish(self) -> tuple[Layout, Frame]:
        newest = self._assemble()
        self._newest = newest
        for listener in self._listeners:
            try:
                listener(*newest)
            except Exception:
                log.exception("a frame listener of node %s failed and was removed", self.name)
                self._remove_listener(listener)
        return newest

    def _assemble(self) -> tuple[Layout, Frame]:
        """Make the next frame from the newest sample of each collector."""
        with self._lock:
            runners = self._runners
            last_words, self._last_words = self._last_words, []
            abandoned = sum(worker.left_behind() for worker in (*self._workers.values(), *self._ended_workers))
        self._seq += 1
        now_ns = self._clock.monotonic_ns()
        own = Own(self._seq, self._meter.read(now_ns), abandoned, self._released and not self.holds_devices())
        tier_ns, gauges, counters, valid = self._assembly.frame(runners, now_ns, own)
        record_seq, records = self._number_records([*last_words, *runners])
        layout = self._assembly.layout
        return layout, Frame(
            node=self.name,
            boot_id=self.boot_id,
            agent_id=self.agent_id,
            seq=self._seq,
            layout_id=layout.layout_id,
            wall_ns=self._clock.wall_ns(),
            monotonic_ns=now_ns,
            tier_ns=tier_ns,
            gauges=gauges,
            counters=counters,
            counters_valid=valid,
            record_seq=record_seq,
            records=records,
        )

    def _number_records(self, runners: list[Runner]) -> tuple[int, tuple[Record, ...]]:
        """Number this frame's records. Return the sequence number of the first record, and the records.

        More than MAX_RECORDS are not sent: the oldest are dropped, which leaves a gap in the numbers.
        """
        records = [record for runner in runners if runner.records is not None for record in runner.take_records()]
        first = self._record_seq + max(0, len(records) - MAX_RECORDS)
        self._record_seq += len(records)
        return first, tuple(records[-MAX_RECORDS:])
