"""Watch: folds frames into the fleet and lets the detectors look at it, once a tick.

The thread that reads the frames does so between two turns (``between``): a second one beside it would fight with it for
the interpreter, of which each has hold for 5 ms at a time, while a frame takes five system calls. Where no frames are
read, a thread of the watch's own looks.

Frames wait in a bounded queue: where the thread can't keep up the oldest are dropped and counted, and the fleet sees a
hole in the sequence, which it counts as telemetry that is missing.

A detector that raises has a bug. Its inner state can't be trusted after that, so it is not asked again in this
process; the others go on, jobs go on, the traceback is in the log, and readiness says which detector is out until the
controller is started again (from the detector's last good snapshot).

A frame that makes folding raise is a bug, too, and costs its node: the node's telemetry is set aside, and tried again
after a minute, then after two, and so on up to ten. A bug in what is put together of all nodes costs what is known so
far: folding begins anew, and where that happens too often it is switched off until the controller is started again.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from agent.schema.clock import Clock
from agent.schema.errors import FrameError
from agent.schema.frame import AnyLayout, Frame
from scheduler_feedback.core.events import Event, FirstStep
from scheduler_feedback.core.fabric import Fabric
from scheduler_feedback.core.telemetry.fleet import Fleet, Sample
from scheduler_feedback.core.telemetry.pace import MOST_ROWS, Pace, Paces, Speed
from scheduler_feedback.core.telemetry.placements import REFUSED, Placements, Refusal
from scheduler_feedback.core.telemetry.telemetry import Telemetry
from scheduler_feedback.core.telemetry.telemetry_update import Look
from scheduler_feedback.detectors import Detector
from scheduler_feedback.part_failures import PartFailures

TICK_SECONDS = 0.5
"""Half of a frame's usual second: a finding is at most so much older than the frame that shows it."""

FORGET_SECONDS = 60.0
PATIENCE_SECONDS = 10.0
"""After so long without a look by the thread that reads frames the watch's own looks: reading may have ended."""

QUEUE_FRAMES = 65_536
"""Five seconds of 12,500 nodes at a frame a second."""

ASIDE_SECONDS, ASIDE_MOST_SECONDS = 60.0, 600.0
"""How long a node's telemetry is set aside after a bug that one of its frames showed; each time twice as long. The most
is below the quarter of an hour over which the alert counts failures: it stays active while the bug does."""

MOST_RESTARTS, RESTARTS_SECONDS = 3, 3600.0
"""So often in so long folding begins anew after a bug; after that it is switched off. What begins anew learns each
job's usual speed again, which takes minutes: four times an hour would be no detection, only its load."""

_log = logging.getLogger(__name__)


class Watch:
    """Owns the fleet and the detectors. ``offer`` and ``forget`` may be called from any thread, and never block.

    found: told the findings and first steps, on the watch's thread. fabric: which switch each node stands below.
    failures: where bugs are reported; None: kept by the watch itself. placements: which ranks each node may report;
    None: any, which is for tests.
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
    ) -> None:
        self._fabric = fabric
        self._placements = placements
        self._begin()
        self._detectors = {detector.name: detector for detector in detectors}
        self._found = found
        self._clock = clock
        self._tick_seconds = tick_seconds
        self._queue: deque[tuple[AnyLayout, Frame, int]] = deque(maxlen=queue_frames)
        self._forgotten: deque[str] = deque()
        # Held while fleet or detectors are touched: a snapshot is taken between two looks, never inside one.
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._good: dict[str, bytes] = {}
        self._failures = PartFailures(self._detectors) if failures is None else failures
        self._restarts: deque[int] = deque(maxlen=MOST_RESTARTS)
        self._offered = self._taken = self._refused = self._passed_over = 0
        self._measures: tuple[Sample, ...] = ()
        self._patience_seconds = 0.0
        self._due_ns = 0
        self._forgot_ns = self._looked_ns = clock.monotonic_ns()

    def _begin(self) -> None:
        """Know nothing of any frame. _aside: node -> until when its telemetry is set aside, and for how long."""
        self._fleet = Fleet(self._placements)
        self._look = Look(self._fleet, self._fabric)
        self._paces = Paces()
        self._aside: dict[str, tuple[int, float]] = {}

    # --- any thread --------------------------------------------------------------------------------------------------

    def offer(self, layout: AnyLayout, frame: Frame, received_ns: int) -> None:
        """Queue a frame. received_ns: monotonic time of its receipt."""
        self._offered += 1
        self._queue.append((layout, frame, received_ns))

    def forget(self, gang: str) -> None:
        """The gang's attempt has ended: what is kept of it is dropped before the next look."""
        self._forgotten.append(gang)

    def broken(self) -> str:
        """Why something is out of service, in words; empty where all is well."""
        return self._failures.out_of_service()

    def measures(self) -> list[Sample]:
        """Samples of the fleet and of the watch itself, as of the newest tick."""
        dropped = max(0, self._offered - self._taken - len(self._queue))
        return [
            *self._measures,
            ("gangwatch_watch_frames_dropped_total", (), float(dropped)),
            ("gangwatch_watch_frames_refused_total", (), float(self._refused)),
            ("gangwatch_watch_frames_set_aside_total", (), float(self._passed_over)),
            *self._failures.measures(),
        ]

    def pace_of(self, gang: str, sequence: int = -1, most: int = MOST_ROWS) -> Pace | None:
        """How fast the gang has gone lately, after the row of this sequence; None where no step of it is known.

        Waits for a look that is under way.
        """
        with self._lock:
            return self._paces.since(gang, sequence, most)

    def speeds(self) -> dict[str, Speed]:
        """How fast each gang runs now, by gang; none of one whose steps are not known. Waits for a look that is under
        way."""
        with self._lock:
            return self._paces.speeds()

    def snapshots(self) -> dict[str, bytes]:
        """Every detector's baselines by name; of one that is out of service the last good ones."""
        with self._lock:
            for name, detector in self._detectors.items():
                if not self._failures.is_out(name):
                    try:
                        self._good[name] = detector.snapshot()
                    except Exception as error:
                        self._failures.report(name, error, out=True)
            return dict(self._good)

    # --- before the start --------------------------------------------------------------------------------------------

    def restore(self, snapshots: Mapping[str, bytes]) -> None:
        """Give the detectors their baselines back. One that can't read its own begins anew, which is logged."""
        for name, detector in self._detectors.items():
            if name in snapshots:
                try:
                    detector.restore(snapshots[name])
                    self._good[name] = snapshots[name]
                except ValueError as error:
                    _log.error("detector %s: its snapshot can't be read, it begins anew: %s", name, error)

    def start(self) -> None:
        self._thread.start()

    def between(self) -> float:
        """Fold in what has arrived, and look where that is due; seconds until it is due again. For the thread that
        offers frames: what it folds while it still has them at hand takes a tenth less time, and no memory meanwhile.

        After a look that took longer than a tick there is a pause all the same, of half a tick at most. It must not
        grow with the look: the more frames wait, the longer it takes to look at them, and the more would wait for the
        next.
        """
        self._patience_seconds = PATIENCE_SECONDS
        now_ns = begun_ns = self._clock.monotonic_ns()
        if now_ns >= self._due_ns:
            self.look()
            now_ns = self._clock.monotonic_ns()
            tick_ns = int(self._tick_seconds * 1e9)
            self._due_ns = max(begun_ns + tick_ns, now_ns + min(now_ns - begun_ns, tick_ns // 2))
        elif self._queue and not self._failures.is_out("fleet"):
            with self._lock:
                try:
                    self._fold()
                except Exception as error:
                    self._begin_again(error)
        return (self._due_ns - now_ns) / 1e9

    def stop(self, timeout_seconds: float = 2.0) -> None:
        """End the thread after the look that is under way."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.wait(self._tick_seconds):
            # Where another thread looks too, only when that is late: it may be busy for a while with what it reads.
            if (self._clock.monotonic_ns() - self._looked_ns) / 1e9 >= self._patience_seconds:
                self.look()

    def look(self) -> None:
        """Fold in what has arrived, then one tick of every detector."""
        with self._lock:
            self._looked_ns = self._clock.monotonic_ns()
            events = self._tick()
        if events:
            self._found(events)

    def _tick(self) -> list[Event]:
        if self._failures.is_out("fleet"):
            self._pass_over_all()
            return []
        try:
            self._fold()
            self._forget()
            events: list[Event] = [FirstStep(*first) for first in self._fleet.first_steps()]
            telemetry = self._look.next(self._clock.wall_ns(), self._clock.monotonic_ns())
            self._set_failed_aside()
            self._log_refused()
        except Exception as error:
            self._begin_again(error)
            return []
        samples: list[Sample] = []
        self._take_pace(telemetry)
        for name, detector in self._detectors.items():
            if not self._failures.is_out(name):
                try:
                    events.extend(detector.tick(telemetry))
                    samples.extend(detector.measures())
                except Exception as error:
                    self._failures.report(name, error, out=True)
        try:
            samples.extend(self._fleet.measures())
        except Exception as error:
            self._failures.report("metrics", error)
        self._measures = tuple(samples)
        return events

    def _fold(self) -> None:
        queue = self._queue
        self._fleet.set_clock(self._clock.wall_ns(), self._clock.monotonic_ns())
        for left in range(len(queue) - 1, -1, -1):
            layout, frame, received_ns = queue.popleft()
            self._taken += 1
            if frame.node in self._aside and self._passes_over(frame.node, received_ns):
                continue
            # Where we are late several frames of an agent come together. To fold the newest alone makes up for it.
            superseded = left > 0 and _goes_on(frame, queue[0][1])
            try:
                self._fleet.observe(layout, frame, received_ns, superseded)
            except FrameError as error:
                self._refused += 1
                _log.warning("frame refused: %s", error)
            except Exception as error:
                self._set_aside(frame.node, error)

    def _forget(self) -> None:
        while self._forgotten:
            self._fleet.forget(self._forgotten.popleft())
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._forgot_ns > FORGET_SECONDS * 1e9:
            self._forgot_ns = now_ns
            self._fleet.forget_silent(now_ns)

    def _log_refused(self) -> None:
        """One line for the first record of each node and reason; the metric counts them all."""
        for node, gang, why in self._fleet.newly_refused():
            level = logging.INFO if why is Refusal.ENDED else logging.WARNING
            _log.log(level, "node=%s reason=%s gang=%s: %s", node, why.value, gang, REFUSED[why])

    def _pass_over_all(self) -> None:
        """Nothing is folded any more: keep what waits from growing."""
        for _ in range(len(self._queue)):
            self._queue.popleft()
            self._taken += 1
            self._passed_over += 1
        self._forgotten.clear()

    # --- bugs of ours ------------------------------------------------------------------------------------------------

    def _passes_over(self, node: str, received_ns: int) -> bool:
        """Whether the node's frames are passed over still; else it is readmitted."""
        until_ns, seconds = self._aside[node]
        if node not in self._fleet.aside:
            # It was readmitted: one that goes on for as long again as it was set aside has done with the bug.
            if received_ns > until_ns + seconds * 1e9:
                del self._aside[node]
            return False
        if received_ns < until_ns:
            self._passed_over += 1
            self._fleet.hear(node, received_ns)
            return True
        self._fleet.readmit(node)
        self._failures.set_aside(len(self._fleet.aside), len(self._look.aside))
        _log.warning("node=%s: its telemetry was set aside for %.0f s and is used again", node, seconds)
        return False

    def _set_aside(self, node: str, error: Exception) -> None:
        """One of the node's frames could not be folded: use none of it for a while."""
        if node in self._fleet.aside:
            return
        _, before = self._aside.get(node, (0, 0.0))
        seconds = min(max(2 * before, ASIDE_SECONDS), ASIDE_MOST_SECONDS)
        self._failures.report("fleet", error, f"node {node}: not used for {seconds:.0f} s")
        self._aside[node] = self._clock.monotonic_ns() + int(seconds * 1e9), seconds
        self._fleet.set_aside(node)
        self._failures.set_aside(len(self._fleet.aside), len(self._look.aside))

    def _set_failed_aside(self) -> None:
        """What was queued and folded later, or put together by gang."""
        for node, error in self._fleet.failed():
            self._set_aside(node, error)
        if self._look.failed:
            for gang, error in self._look.failed:
                self._failures.report("fleet", error, f"gang {gang}: not watched in this attempt")
            self._look.failed.clear()
        self._failures.set_aside(len(self._fleet.aside), len(self._look.aside))

    def _begin_again(self, error: Exception) -> None:
        """What is known of all nodes can't be trusted: forget it, or where that helps too seldom, use no telemetry."""
        now_ns = self._clock.monotonic_ns()
        often = len(self._restarts) == MOST_RESTARTS and now_ns - self._restarts[0] < RESTARTS_SECONDS * 1e9
        self._failures.report("fleet", error, "" if often else "begins anew", out=often)
        self._restarts.append(now_ns)
        self._measures = ()
        self._begin()
        self._failures.set_aside(0, 0)

    def _take_pace(self, telemetry: Telemetry) -> None:
        """For the page: what goes wrong with it keeps no detector from looking."""
        if not self._failures.is_out("pace"):
            try:
                self._paces.take(telemetry)
            except Exception as error:
                self._failures.report("pace", error, out=True)


def _goes_on(frame: Frame, following: Frame) -> bool:
    """Whether the second is the same agent's, of the same columns."""
    return (
        frame.node == following.node
        and frame.agent_id == following.agent_id
        and frame.layout_id == following.layout_id
        and frame.seq < following.seq
    )
