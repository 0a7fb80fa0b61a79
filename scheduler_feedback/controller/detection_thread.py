"""Detection: processes frames into the fleet's telemetry, and runs the detectors once a tick.

The thread that reads the frames also runs detection (``between``). A separate thread would compete with it for Python's
lock, which each thread holds for 5 ms at a time, while a frame takes five system calls. If no frames are read, a thread
of its own runs detection.

A long tick runs in slices, between which other threads get detection's lock and Python's. No frame is processed during
a tick, so its telemetry and its results do not depend on where it was divided.

Frames wait in a bounded queue. If detection is too slow, the oldest frames are dropped and counted, and the gap in the
sequence counts as missing telemetry.

A detector that raises has a bug and an unreliable state, so it is disabled in this process. Other detectors and jobs
continue, the log has the traceback, and readiness names the detector until the controller is restarted (from the
detector's last good snapshot). A bug in the state that they share or in the arbiter disables all of them.

If the processing of a frame raises an exception, that is a bug too: the telemetry of its node is set aside, and tried
again after a minute, then after two, up to ten. A bug in the data combined from all nodes discards that data, and
processing starts again. If that happens too often, processing is disabled until the controller is restarted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice, repeat
from math import inf

from agent.schema.clock import Clock
from agent.schema.errors import FrameError
from agent.schema.frame import AnyLayout, Frame
from agent.schema.sample import AnySample
from scheduler_feedback.controller.frame_age import FrameAge
from scheduler_feedback.core.events import Event, FirstStep, MemoryMeasured, SpeedMeasured
from scheduler_feedback.core.fabric import Fabric
from scheduler_feedback.core.telemetry.fleet import Fleet
from scheduler_feedback.core.telemetry.placements import REFUSED, Placements, Refusal
from scheduler_feedback.core.telemetry.steps.blocked_ranks import Blocked
from scheduler_feedback.core.telemetry.steps.memory_reports import MemoryReports
from scheduler_feedback.core.telemetry.steps.pace import MOST_ROWS, Pace, Paces, Speed
from scheduler_feedback.core.telemetry.steps.speed_reports import SpeedReports
from scheduler_feedback.core.telemetry.steps.step_ring import Requests
from scheduler_feedback.core.telemetry.telemetry import Telemetry
from scheduler_feedback.core.telemetry.telemetry_update import Look
from scheduler_feedback.core.verdict import Finding
from scheduler_feedback.detectors import Detector
from scheduler_feedback.detectors.context import Proposal
from scheduler_feedback.detectors.detection import SHARED, SharedState, in_parts, shared_of
from scheduler_feedback.detectors.straggler.straggler import StragglerDetector
from scheduler_feedback.feed.frame_rate import of_suspects
from scheduler_feedback.part_failures import PartFailures

TICK_SECONDS = 0.5
"""Seconds between two ticks: half of the usual interval of frames. A frame waits at most one tick for the detectors."""

PAUSE_TIMES = 2
"""Pause after a tick in multiples of the time that the tick took, unless more than that is left of TICK_SECONDS. Ticks
take a third of the time at most. Without this limit, a controller with 10,000 nodes did not catch up after a start."""

SLICE_SECONDS = 0.05
"""A tick pauses after this time, at the next gang or part of the tick. No part took more than a tenth of a second with
100,000 ranks (docs/measurements/2026-11-30-ticks.md). Ticks of small clusters end before."""

SLICE_REST_SECONDS = 0.001
"""Pause between two slices: a thread that takes a lock again at once leaves none for others."""

FORGET_SECONDS = 60.0
PATIENCE_SECONDS = 10.0
"""Seconds after which the detection thread takes over, if the thread that reads frames does not run detection."""

MEASURES_WAIT_SECONDS = 2.0
"""Longest time in seconds for which a scrape waits for a running tick: metrics must be there when detection is late."""

BETWEEN_TICKS_SECONDS = 0.02
"""Time after which a scrape that waits for a running tick checks again whether it has ended."""

MEASURED_AT_ONCE, MEASURED_REST_SECONDS = 2000, 0.001
"""Number of metric samples that are computed before a waiting tick may run, which takes some milliseconds, and the
pause after them."""

QUEUE_FRAMES = 65_536
"""Maximum number of queued frames: five seconds of frames from 12,500 nodes, at a frame per second."""

ASIDE_SECONDS, ASIDE_MOST_SECONDS = 60.0, 600.0
"""If processing a frame of a node fails because of a bug, the node's telemetry is ignored for 60 s. Another failure
soon afterwards doubles that time, up to 600 s. The maximum is below the quarter of an hour over which the alert counts
failures, so that the alert stays active while the bug does."""

MOST_RESTARTS, RESTARTS_SECONDS = 3, 3600.0
"""Frame processing that fails because of a bug is restarted at most MOST_RESTARTS times in RESTARTS_SECONDS; then it is
disabled. After a restart the detectors learn each job's usual speed again, which takes minutes. With more restarts they
would cause load without detecting anything."""

_log = logging.getLogger(__name__)


class DetectionThread:
    """Owner of the fleet's telemetry and of the detectors. ``offer`` and ``forget`` may be called from any thread, and
    never block.

    found: called with verdicts and first steps, on the detection thread. fabric: the switch of each node. failures:
    where bugs are reported; None: a private one. placements: which ranks each node may report; None: any, for tests.
    job_of: returns the scheduler's name of the job that agents report as a gang; None: the names are the same.
    """

    def __init__(
        self,
        detectors: Iterable[Detector],
        found: Callable[[Sequence[Event]], None],
        clock: Clock,
        tick_seconds: float = TICK_SECONDS,
        queue_frames: int = QUEUE_FRAMES,
        fabric: Fabric | None = None,
        failures: PartFailures | None = None,
        placements: Placements | None = None,
        job_of: Callable[[str], str] | None = None,
    ) -> None:
        self._fabric = fabric
        self._job_of = job_of
        self._placements = placements
        self._begin()
        self._detectors = {detector.name: detector for detector in detectors}
        self._shared = SharedState()
        self._kept: dict[str, SharedState | Detector] = {SHARED: self._shared, **self._detectors}
        self._found = found
        self._clock = clock
        self._tick_seconds = tick_seconds
        self._queue: deque[tuple[AnyLayout, Frame, int]] = deque(maxlen=queue_frames)
        self._forgotten: deque[str] = deque()
        self._measured_again: deque[str] = deque()
        # Held while the fleet or the detectors are used.
        self._lock = threading.Lock()
        self._running: Generator[None, None, list[Event]] | None = None  # the rest of the tick; None between two ticks
        self._results: deque[list[Event]] = deque()  # of ended ticks, until they are delivered
        self._delivery = threading.Lock()  # keeps the order of the results
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._good: dict[str, bytes] = {}
        self._failures = PartFailures(self._detectors) if failures is None else failures
        self._restarts: deque[int] = deque(maxlen=MOST_RESTARTS)
        self._offered = self._taken = self._refused = self._passed_over = 0
        self._frame_age = FrameAge()
        self._measures: list[AnySample] = []
        self._speeds: dict[str, Speed] | None = None
        self._patience_seconds = 0.0
        self._due_ns = 0
        self.ticks_ns = 0
        self._forgot_ns = self._ticked_ns = clock.monotonic_ns()

    def _begin(self) -> None:
        """Start without any telemetry."""
        self._fleet = Fleet(self._placements)
        self._look = Look(self._fleet, self._fabric)
        self._paces = Paces()
        self._speed_reports = SpeedReports()
        self._memory_reports = MemoryReports()
        self._aside: dict[str, tuple[int, float]] = {}
        """By node, the time for which its telemetry is set aside: (monotonic end in nanoseconds, duration in
        seconds)."""

    # --- any thread --------------------------------------------------------------------------------------------------

    def offer(self, layout: AnyLayout, frame: Frame, received_ns: int) -> None:
        """Queue a frame. received_ns: monotonic time of its receipt."""
        self._offered += 1
        self._queue.append((layout, frame, received_ns))

    def forget(self, job: str) -> None:
        """Drop the data of a job's gangs before the next tick, because the job's attempt has ended."""
        self._forgotten.append(job)

    def measure_again(self, job: str) -> None:
        """Measure the job's speed again from the next tick on, because its power limit has changed."""
        self._measured_again.append(job)

    def broken(self) -> str:
        """Return the parts that are out of service, and why; empty if all parts work."""
        return self._failures.out_of_service()

    def late(self) -> str:
        """Return a sentence for users if detection uses old frames; otherwise ''."""
        return self._frame_age.late()

    def measures(self) -> list[AnySample]:
        """Return the metrics of the fleet and of detection, as of the last tick.

        Waits for a running tick, up to MEASURES_WAIT_SECONDS; then the samples of the last call are returned again.
        """
        found: list[AnySample] = []
        for name, made in self._measures_by_part().items():
            if not self._measure(name, made, found):
                break
        else:
            self._measures = found
        dropped = max(0, self._offered - self._taken - len(self._queue))
        return [
            *self._measures,
            ("gangwatch_watch_frames_dropped_total", (), float(dropped)),
            ("gangwatch_watch_frames_refused_total", (), float(self._refused)),
            ("gangwatch_watch_frames_set_aside_total", (), float(self._passed_over)),
            *self._failures.measures(),
            *(() if (age := self._frame_age.seconds) is None else [("gangwatch_watch_frame_age_seconds", (), age)]),
        ]

    def _measures_by_part(self) -> dict[str, Callable[[], Iterable[AnySample]]]:
        """Return the functions that return metrics, of the fleet and of the detectors in service, by name.

        They are not called in each tick: with 100,000 ranks, that takes longer than some detectors.
        """
        if self._failures.is_out("fleet"):
            return {}
        parts: dict[str, Callable[[], Iterable[AnySample]]] = {}
        if not self._failures.is_out(SHARED):
            parts = {name: detector.measures for name, detector in self._detectors.items()}
            parts[SHARED] = self._shared.measures
        return {name: made for name, made in parts.items() if not self._failures.is_out(name)} | {
            "metrics": self._fleet.measures
        }

    def _measure(self, part: str, made: Callable[[], Iterable[AnySample]], found: list[AnySample]) -> bool:
        """Add the part's samples to `found`. Return False if a tick takes too long.

        The lock is released after each MEASURED_AT_ONCE samples: a tick would wait for the whole list otherwise.
        """
        samples: Iterator[AnySample] | None = None
        while True:
            if not self._lock_between_ticks(MEASURES_WAIT_SECONDS):
                return False
            try:
                samples = iter(made()) if samples is None else samples
                some = list(islice(samples, MEASURED_AT_ONCE))
            except Exception as error:
                self._failures.report(part, error, out=part != "metrics")
                return True
            finally:
                self._lock.release()
            found += some
            if len(some) < MEASURED_AT_ONCE:
                return True
            time.sleep(MEASURED_REST_SECONDS)  # a thread that takes a lock again at once leaves none for others

    def _lock_between_ticks(self, seconds: float) -> bool:
        """Take the lock while no tick is in progress. Return False if that takes too long.

        Metrics are computed for longer than a slice, and would delay each slice of a tick.
        """
        deadline = time.monotonic() + seconds
        while self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            if self._running is None:
                return True
            self._lock.release()
            if time.monotonic() >= deadline:
                break
            time.sleep(BETWEEN_TICKS_SECONDS)
        return False

    def _gang_of(self, job: str, gangs: Collection[str] | None = None) -> str:
        """Return the name under which agents report the job's newest gang, among those of the fleet or these. Needs the
        lock."""
        gangs = self._fleet.gangs if gangs is None else gangs
        if self._job_of is None or job in gangs:
            return job
        return next((gang for gang in reversed(list(gangs)) if self._job_of(gang) == job), job)

    def pace_of(self, job: str, sequence: int = -1, most: int = MOST_ROWS) -> Pace | None:
        """Return at most `most` recent step times of the job's gang, those with sequence numbers above `sequence`.

        None if no step of the gang is known. Waits for a running tick.
        """
        with self._lock:
            return self._paces.since(self._gang_of(job, self._paces.gangs), sequence, most)

    def blocked_of(self, job: str) -> list[Blocked]:
        """Return the newest report of each rank of the job that makes no progress, by rank. Waits for a running
        tick."""
        with self._lock:
            return [report for _, report in sorted(self._fleet.blocked(self._gang_of(job)).items())]

    def speeds(self) -> dict[str, Speed]:
        """Return the current speed of each job with known steps; while a tick runs, those of the last call."""
        if self._lock.acquire(blocking=self._speeds is None):
            try:
                speeds, job_of = self._paces.speeds(), self._job_of
                self._speeds = speeds if job_of is None else {job_of(gang): one for gang, one in speeds.items()}
            finally:
                self._lock.release()
        assert self._speeds is not None
        return self._speeds

    def snapshots(self) -> dict[str, bytes]:
        """Return every detector's baselines, and their shared state, by name. A disabled detector has its last good
        ones.

        A tick in progress is ended first: half of a tick would be lost with a restart.
        """
        with self._lock:
            if self._running is not None:
                self._go_on(inf)
            for name, part in self._kept.items():
                if not self._failures.is_out(name):
                    try:
                        self._good[name] = part.snapshot()
                    except Exception as error:
                        self._failures.report(name, error, out=True)
            good = dict(self._good)
        self._deliver()
        return good

    # --- before the start --------------------------------------------------------------------------------------------

    def restore(self, snapshots: Mapping[str, bytes]) -> None:
        """Restore the detectors' baselines. A detector that cannot read its baselines starts without them, which is
        logged.
        """
        shared = shared_of(snapshots)
        known = snapshots if shared is None else {**snapshots, SHARED: shared}
        for name, part in self._kept.items():
            if name in known:
                try:
                    part.restore(known[name])
                    self._good[name] = known[name]
                except ValueError as error:
                    _log.error(
                        "detector %s: its snapshot is not readable, it starts without baselines: %s", name, error
                    )

    def start(self) -> None:
        self._thread.start()

    def watched_nodes(self) -> dict[str, int]:
        """Return the nodes that must send messages often although the feed is busy, with the largest number of frames
        for one message. Call it on the thread that calls ``between``.

        Every frame: the nodes of gangs whose iteration time is inferred from counters and short. Of gangs that may have
        a straggler, see ``frame_rate.of_suspects``.
        """
        found: dict[str, int] = {}
        parts = {SHARED: self._nodes_of_short_iterations, StragglerDetector.name: self._nodes_of_suspects}
        with self._lock:
            for part, nodes in parts.items():
                if self._failures.is_out(part):
                    continue
                try:
                    for node, every in nodes():
                        found[node] = min(every, found.get(node, every))
                except Exception as error:  # a bug in a detector must not end the feed
                    self._failures.report(part, error, out=True)
        return found

    def _nodes_of_short_iterations(self) -> Iterator[tuple[str, int]]:
        for name in self._shared.speeds.needing_every_sample():
            if (gang := self._fleet.gangs.get(name)) is not None:
                yield from zip(gang.nodes, repeat(1))

    def _nodes_of_suspects(self) -> Iterator[tuple[str, int]]:
        straggler = self._detectors.get(StragglerDetector.name)
        if not isinstance(straggler, StragglerDetector):
            return
        for name, suspects in straggler.suspected():
            if (gang := self._fleet.gangs.get(name)) is not None:
                yield from of_suspects(gang.nodes, suspects).items()

    def between(self) -> float:
        """Process queued frames, and run a tick if it is due; return the seconds until the next one.

        Usually called on the thread that offers frames.

        A tick that takes long is followed by a pause of PAUSE_TIMES its own time, so that the rest of the thread's time
        is left for reading. Ticks that follow each other closely would leave frames unread, and telemetry that is too
        old makes ticks longer still: jobs look as if they had stopped.
        """
        self._patience_seconds = PATIENCE_SECONDS
        now_ns = begun_ns = self._clock.monotonic_ns()
        if now_ns >= self._due_ns:
            self.run_tick()
            now_ns = self._clock.monotonic_ns()
            self.ticks_ns += now_ns - begun_ns
            tick_ns = int(self._tick_seconds * 1e9)
            self._due_ns = max(begun_ns + tick_ns, now_ns + PAUSE_TIMES * (now_ns - begun_ns))
        elif self._queue and not self._failures.is_out("fleet"):
            with self._lock:
                try:
                    self._fold()
                except Exception as error:
                    self._begin_again(error)
        return (self._due_ns - now_ns) / 1e9

    def step_seconds(self, job: str) -> float | None:
        """Return the mean time of the job's newest steps; None if it has none, or if detection is busy."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._fleet.gang_step_seconds(self._gang_of(job))
        finally:
            self._lock.release()

    def requests(self, job: str) -> Requests | None:
        """Return the job's newest steps as requests; None if it has none, or if detection is busy."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._fleet.gang_requests(self._gang_of(job))
        finally:
            self._lock.release()

    def stop(self, timeout_seconds: float = 2.0) -> None:
        """End the thread after the running tick."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.wait(self._tick_seconds):
            if self.is_overdue():
                self.run_tick()

    def is_overdue(self) -> bool:
        """Return whether this object's own thread must run the next tick.

        If another thread runs detection, that is so only if it is late: it may be busy with reading, and it pauses
        after a long tick.
        """
        last_ns = max(self._ticked_ns, self._due_ns)
        return (self._clock.monotonic_ns() - last_ns) / 1e9 >= self._patience_seconds

    def run_tick(self) -> None:
        """Process queued frames, and run one tick of every detector. A tick in progress is ended instead."""
        ended = self.run_slice()
        while not ended:
            time.sleep(SLICE_REST_SECONDS)
            ended = self._running is None or self.run_slice()  # a snapshot may have ended it

    def run_slice(self, seconds: float = SLICE_SECONDS) -> bool:
        """Run the next slice of the tick in progress, or the first one of a new tick. Return whether the tick has
        ended.

        seconds: time after which the tick pauses at the next possible place.
        """
        with self._lock:
            ended = self._go_on(seconds)
        self._deliver()
        return ended

    def _go_on(self, seconds: float) -> bool:
        """Do the work of ``run_slice``, except for the delivery of the results. Needs the lock."""
        self._ticked_ns = begun_ns = self._clock.monotonic_ns()
        tick = self._tick() if self._running is None else self._running
        self._running = None  # if it fails, the next slice begins a new tick
        try:
            while True:
                next(tick)
                if self._clock.monotonic_ns() - begun_ns >= seconds * 1e9:
                    self._running = tick
                    return False
        except StopIteration as end:
            events: list[Event] = end.value
        self._frame_age.tick_ended(self._clock.wall_ns())
        if events:
            self._results.append(events)
        return True

    def _deliver(self) -> None:
        """Report the results of ended ticks, in order."""
        if self._results:
            with self._delivery:
                while self._results:
                    self._found(self._results.popleft())

    def _tick(self) -> Generator[None, None, list[Event]]:
        """Run a tick, and return its results. Yields where the tick may pause."""
        if self._failures.is_out("fleet"):
            self._pass_over_all()
            return []
        try:
            self._fold()
            self._forget()
            wall_ns, monotonic_ns = self._clock.wall_ns(), self._clock.monotonic_ns()
            events: list[Event] = [FirstStep(*first) for first in self._fleet.first_steps()]
            telemetry: Telemetry | None = None
            for some in self._look.next_in_parts(wall_ns, monotonic_ns):
                telemetry = some
                yield
            assert telemetry is not None
            self._set_failed_aside()
            self._log_refused()
        except Exception as error:
            self._begin_again(error)
            return []
        self._take_pace(telemetry)
        events.extend(self._measured_speeds(telemetry))
        events.extend(self._measured_memory(telemetry))
        yield
        if not self._failures.is_out(SHARED):
            try:
                events.extend((yield from self._detect(telemetry)))
            except Exception as error:
                self._failures.report(SHARED, error, out=True)
        return events

    def _detect(self, telemetry: Telemetry) -> Generator[None, None, list[Finding]]:
        """Run every detector that is in service; return the results that the arbiter (detectors/arbiter.py)
        publishes. Yields where the tick may pause."""
        for _ in self._shared.take_in_parts(telemetry):
            yield
        context = self._shared.context(telemetry)
        yield
        results: dict[str, Sequence[Proposal]] = {}
        for name, detector in self._detectors.items():
            if not self._failures.is_out(name):
                found: list[Proposal] = []
                try:
                    for some in in_parts(detector, context):
                        found += some
                        yield
                except Exception as error:
                    self._failures.report(name, error, out=True)
                else:
                    results[name] = found
        return self._shared.conclude(context, results)

    def _fold(self) -> None:
        queue = self._queue
        self._fleet.set_clock(self._clock.wall_ns(), self._clock.monotonic_ns())
        for left in range(len(queue) - 1, -1, -1):
            layout, frame, received_ns = queue.popleft()
            self._taken += 1
            if frame.node in self._aside and self._passes_over(frame.node, received_ns):
                continue
            # When detection is late, several frames of an agent are queued. Folding only the newest catches up.
            # The values of frames with earlier samples are used: their processes' counters show what each step did.
            superseded = (
                left > 0 and not frame.earlier and queue[0][1].node == frame.node and _goes_on(frame, queue[0][1])
            )
            if not superseded:
                self._frame_age.add(frame.wall_ns)
            try:
                self._fleet.observe(layout, frame, received_ns, superseded)
            except FrameError as error:
                self._refused += 1
                _log.warning("frame refused: %s", error)
            except Exception as error:
                self._set_aside(frame.node, error)

    def _forget(self) -> None:
        ended = [self._forgotten.popleft() for _ in range(len(self._forgotten))]
        if ended and self._job_of is not None:
            # Slurm's agents name the step 'slurm-7.0' and the scheduler the job 'slurm-7'. Data that stayed would share
            # each node with the next job there.
            jobs = set(ended)
            ended += [gang for gang in self._fleet.gangs if gang not in jobs and self._job_of(gang) in jobs]
        for gang in ended:
            self._fleet.forget(gang)
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._forgot_ns > FORGET_SECONDS * 1e9:
            self._forgot_ns = now_ns
            self._fleet.forget_silent(now_ns)

    def _log_refused(self) -> None:
        """Log the first refused record of each node and reason; a metric counts all."""
        for node, gang, why in self._fleet.newly_refused():
            level = logging.INFO if why is Refusal.ENDED else logging.WARNING
            _log.log(level, "node=%s reason=%s gang=%s: %s", node, why.value, gang, REFUSED[why])

    def _pass_over_all(self) -> None:
        """Discard queued frames while the processing of frames is disabled."""
        for _ in range(len(self._queue)):
            self._queue.popleft()
            self._taken += 1
            self._passed_over += 1
        self._forgotten.clear()

    # --- bugs --------------------------------------------------------------------------------------------------------

    def _passes_over(self, node: str, received_ns: int) -> bool:
        """Return whether the node's frames are still ignored. If that time is over, accept the node's frames again."""
        until_ns, seconds = self._aside[node]
        if node not in self._fleet.aside:
            # Readmitted: the bug counts as gone after as much time as the node was set aside for.
            if received_ns > until_ns + seconds * 1e9:
                del self._aside[node]
            return False
        if received_ns < until_ns:
            self._passed_over += 1
            self._fleet.note_receipt(node, received_ns)
            return True
        self._fleet.readmit(node)
        self._failures.set_aside(len(self._fleet.aside), len(self._look.aside))
        _log.warning("node=%s: telemetry is used again, after %.0f s", node, seconds)
        return False

    def _set_aside(self, node: str, error: Exception) -> None:
        """Ignore the node's telemetry for some time, because one of its frames could not be processed."""
        if node in self._fleet.aside:
            return
        _, before = self._aside.get(node, (0, 0.0))
        seconds = min(max(2 * before, ASIDE_SECONDS), ASIDE_MOST_SECONDS)
        self._failures.report("fleet", error, f"node {node}: not used for {seconds:.0f} s")
        self._aside[node] = self._clock.monotonic_ns() + int(seconds * 1e9), seconds
        self._fleet.set_aside(node)
        self._failures.set_aside(len(self._fleet.aside), len(self._look.aside))

    def _set_failed_aside(self) -> None:
        """Set aside nodes and gangs whose queued data could not be processed."""
        for node, error in self._fleet.failed():
            self._set_aside(node, error)
        if self._look.failed:
            for gang, error in self._look.failed:
                self._failures.report("fleet", error, f"gang {gang}: not monitored in this attempt")
            self._look.failed.clear()
        self._failures.set_aside(len(self._fleet.aside), len(self._look.aside))

    def _begin_again(self, error: Exception) -> None:
        """Discard all telemetry after a bug. Stop processing frames if that happened too often."""
        now_ns = self._clock.monotonic_ns()
        often = len(self._restarts) == MOST_RESTARTS and now_ns - self._restarts[0] < RESTARTS_SECONDS * 1e9
        self._failures.report("fleet", error, "" if often else "started again", out=often)
        self._restarts.append(now_ns)
        self._begin()
        self._failures.set_aside(0, 0)

    def _measured_speeds(self, telemetry: Telemetry) -> list[SpeedMeasured]:
        """Return the measured speeds that are due, from which the scheduler learns."""
        if self._failures.is_out("speeds"):
            return []
        try:
            while self._measured_again:
                self._speed_reports.restart(self._gang_of(self._measured_again.popleft()))
            return self._speed_reports.take(telemetry)
        except Exception as error:
            self._failures.report("speeds", error, out=True)
            return []

    def _measured_memory(self, telemetry: Telemetry) -> list[MemoryMeasured]:
        """Return the measured device memory that is due, from which the scheduler learns."""
        if self._failures.is_out("memory"):
            return []
        try:
            return self._memory_reports.take(telemetry)
        except Exception as error:
            self._failures.report("memory", error, out=True)
            return []

    def _take_pace(self, telemetry: Telemetry) -> None:
        """Update step times for the page. A failure does not affect the detectors."""
        if not self._failures.is_out("pace"):
            try:
                self._paces.take(telemetry)
            except Exception as error:
                self._failures.report("pace", error, out=True)


def _goes_on(frame: Frame, following: Frame) -> bool:
    """Return whether two frames of a node are from the same agent and have the same layout."""
    return frame.agent_id == following.agent_id and frame.layout_id == following.layout_id and frame.seq < following.seq
