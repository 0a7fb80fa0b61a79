"""A node: runs its collectors, each in a thread of its own (agent/runner.py), and puts frames together.

The node's thread takes at every interval what each collector gave last, waits for none, and makes a ``Frame`` of it.
What a collector gave goes stale after three of its intervals (two seconds at least): then its columns are absent, which
readers can tell from any value.
"""

from __future__ import annotations

import importlib.metadata
import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

import msgspec
import numpy as np

from agent.collectors.block import Block, Collector
from agent.runner import Runner, Sample, ticks
from agent.schema.clock import Clock, SystemClock
from agent.schema.frame import (
    MAX_RECORDS,
    Column,
    Frame,
    Layout,
    Record,
    Tier,
    make_layout,
)
from agent.sources.proc import read_boot_id

log = logging.getLogger(__name__)

STOP_SECONDS = 2.0
"""How long stopping waits for threads altogether; one that is stuck in a driver is abandoned (they are daemons)."""

NODE_TIER = "node"

Listener = Callable[[Layout, Frame], None]


class Subscription:
    """Frames as they are made, for one reader in a thread of its own; a reader that is slow loses the oldest."""

    def __init__(self, most: int, remove: Callable[[Listener], None]) -> None:
        self._frames: deque[tuple[Layout, Frame]] = deque(maxlen=most)
        self._condition = threading.Condition()
        self._remove = remove
        self._closed = False
        self.lost = 0

    def put(self, layout: Layout, frame: Frame) -> None:
        """Called by the node; never waits for the reader."""
        with self._condition:
            self.lost += len(self._frames) == self._frames.maxlen
            self._frames.append((layout, frame))
            self._condition.notify()

    def get(self, timeout_seconds: float | None = None) -> tuple[Layout, Frame] | None:
        """The oldest frame not yet read; None where the time passes or the subscription is closed meanwhile."""
        with self._condition:
            self._condition.wait_for(lambda: self._frames or self._closed, timeout_seconds)
            return self._frames.popleft() if self._frames else None

    def close(self) -> None:
        """Take no more frames, and let a waiting reader go."""
        self._remove(self.put)
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def __iter__(self) -> Iterator[tuple[Layout, Frame]]:
        while (newest := self.get()) is not None:
            yield newest

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Node:
    """Runs collectors and makes a frame of what they gave, every interval.

    ``start`` sets threads going and ``stop`` ends them; without them, ``tick`` runs everything once in the caller's
    thread, which tests and benchmarks use. Other methods may be called from any thread.
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
        """Raises SourceError where the boot's id cannot be read, ValueError where two collectors share a name."""
        names = [NODE_TIER, *(collector.name for collector in collectors)]
        if len(set(names)) < len(names):
            raise ValueError(f"two collectors of one name: {', '.join(sorted(names))}")
        self.name = name
        self.agent_id = secrets.token_hex(8)
        self.boot_id = read_boot_id(proc_root)
        self.interval_seconds = interval_seconds
        self._clock = clock or SystemClock()
        self._version = version or importlib.metadata.version("gangwatch")
        self._runners = [Runner(collector, self._clock) for collector in collectors]
        self._listeners: tuple[Listener, ...] = ()
        self._listeners_lock = threading.Lock()
        self._newest: tuple[Layout, Frame] | None = None
        self._seq = 0
        self._record_seq = 1
        self._laid_out: list[tuple[Runner, Block | None]] | None = None
        self._layout = make_layout(name, (), (), ())
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    # --- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Set every collector and the node itself going, spread over the first interval, the node last."""
        if self._threads:
            raise RuntimeError(f"node {self.name} is already running")
        now_ns = self._clock.monotonic_ns()
        interval_ns = round(self.interval_seconds * 1e9)
        share_ns = interval_ns // (len(self._runners) + 1)
        for position, runner in enumerate(self._runners):
            self._start_thread(runner.name, runner.run, now_ns + position * share_ns)
        self._start_thread(NODE_TIER, self._run, now_ns + len(self._runners) * share_ns)

    def _start_thread(self, name: str, run: Callable[[threading.Event, int], None], first_ns: int) -> None:
        thread = threading.Thread(target=run, args=(self._stopping, first_ns), name=f"{self.name}/{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self, stopping: threading.Event, first_ns: int) -> None:
        for _ in ticks(stopping, self._clock, first_ns, round(self.interval_seconds * 1e9)):
            self._publish()

    def stop(self) -> None:
        """End the threads, and close the collectors; a collector that is stuck in a driver's call is left behind."""
        self._stopping.set()
        if not self._threads:
            for runner in self._runners:
                runner.close()
            return
        deadline_ns = self._clock.monotonic_ns() + round(STOP_SECONDS * 1e9)
        for thread in self._threads:
            thread.join(max(0, deadline_ns - self._clock.monotonic_ns()) / 1e9)
            if thread.is_alive():
                log.warning("%s does not end and is left behind", thread.name)

    def tick(self) -> tuple[Layout, Frame]:
        """Run every collector once, here and now, and publish the frame of it. Not for a node that is started."""
        if self._threads:
            raise RuntimeError(f"node {self.name} is running by itself")
        for runner in self._runners:
            if not runner.unsupported:
                runner.run_once()
        return self._publish()

    # --- readers -----------------------------------------------------------------------------------------------------

    def newest(self) -> tuple[Layout, Frame] | None:
        """The newest frame and its layout; None before the first."""
        return self._newest

    def add_listener(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every frame from now on, from the node's thread; it must not block.

        Returns what takes it away again. A listener that raises is taken away and logged.
        """
        with self._listeners_lock:
            self._listeners = (*self._listeners, listener)
        return lambda: self._remove_listener(listener)

    def subscribe(self, most: int = 16) -> Subscription:
        """Frames from now on, at most `most` waiting to be read: a slow reader loses the oldest."""
        subscription = Subscription(most, self._remove_listener)
        self.add_listener(subscription.put)
        return subscription

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
                log.exception("a listener of node %s failed and is taken away", self.name)
                self._remove_listener(listener)
        return newest

    def _assemble(self) -> tuple[Layout, Frame]:
        """Make the next frame of each collector's newest sample."""
        # Taken once: a runner replaces its sample at any moment.
        taken = [(runner, runner.sample) for runner in self._runners if not runner.unsupported]
        self._lay_out(taken)
        layout = self._layout
        now_ns = self._clock.monotonic_ns()

        gauges = np.full(len(layout.gauges), np.nan, np.float64)
        counters = np.zeros(len(layout.counters), np.uint64)
        valid = np.zeros(len(layout.counters), np.bool_)
        tier_ns = np.zeros(len(layout.tiers), np.int64)

        # Our own columns stand first, in the order of _own_gauges and _own_counters.
        self._seq += 1
        tier_ns[0] = now_ns
        gauges[0] = 1.0
        counters[0] = self._seq
        gauge_at, counter_at = 1 + 3 * len(taken), 1 + len(taken)
        valid[:counter_at] = True
        for position, (runner, sample) in enumerate(taken):
            stale = runner.is_stale(sample, now_ns)
            gauges[1 + 3 * position] = runner.succeeded and not stale
            gauges[2 + 3 * position] = runner.duration_seconds
            counters[1 + position] = runner.failures
            if sample is None:
                continue
            tier_ns[1 + position] = sample.sampled_ns
            gauges[3 + 3 * position] = (now_ns - sample.sampled_ns) / 1e9
            gauge_end, counter_end = gauge_at + len(sample.gauges), counter_at + len(sample.counters)
            if not stale:
                gauges[gauge_at:gauge_end] = sample.gauges
                counters[counter_at:counter_end] = sample.counters
                valid[counter_at:counter_end] = sample.counters_valid
            gauge_at, counter_at = gauge_end, counter_end

        record_seq, records = self._number_records([runner for runner, _ in taken])
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
        """This frame's records and the number of the first; those that do not fit leave a gap in the numbers."""
        records = [record for runner in runners for record in runner.take_records()]
        first = self._record_seq + max(0, len(records) - MAX_RECORDS)
        self._record_seq += len(records)
        return first, tuple(records[-MAX_RECORDS:])

    def _lay_out(self, taken: list[tuple[Runner, Sample | None]]) -> None:
        """Make a new layout where a collector left or its block is another object than last time."""
        blocks = [(runner, None if sample is None else sample.block) for runner, sample in taken]
        before = self._laid_out
        if (
            before is not None
            and len(before) == len(blocks)
            and all(old[0] is new[0] and old[1] is new[1] for old, new in zip(before, blocks, strict=True))
        ):
            return
        self._laid_out = blocks
        tiers = [Tier(NODE_TIER, self.interval_seconds)]
        gauges = list(self._own_gauges(runner.name for runner, _ in taken))
        counters = list(self._own_counters(runner.name for runner, _ in taken))
        for tier, (runner, block) in enumerate(blocks, 1):
            tiers.append(Tier(runner.name, runner.collector.interval_seconds))
            if block is not None:
                gauges.extend(msgspec.structs.replace(column, tier=tier) for column in block.gauge_columns)
                counters.extend(msgspec.structs.replace(column, tier=tier) for column in block.counter_columns)
        self._layout = make_layout(self.name, tiers, gauges, counters)

    def _own_gauges(self, collectors: Iterator[str]) -> Iterator[Column]:
        yield Column("gangwatch_agent_info", (("boot_id", self.boot_id), ("version", self._version)))
        for name in collectors:
            labels = (("collector", name),)
            yield Column("gangwatch_collector_success", labels)
            yield Column("gangwatch_collector_duration_seconds", labels)
            yield Column("gangwatch_collector_sample_age_seconds", labels)

    @staticmethod
    def _own_counters(collectors: Iterator[str]) -> Iterator[Column]:
        yield Column("gangwatch_agent_frames_total")
        for name in collectors:
            yield Column("gangwatch_collector_failures_total", (("collector", name),))
