"""A tick of detection in slices: its results are those of a whole tick, whatever happens between two slices."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from agent.schema.clock import ManualClock
from agent.schema.sample import Sample, expanded
from scheduler_feedback.controller import detection_thread
from scheduler_feedback.controller.detection_thread import DetectionThread
from scheduler_feedback.core.events import Event
from scheduler_feedback.core.verdict import Abstention
from scheduler_feedback.detectors.context import DetectionContext
from tests.feed.test_feed import frame_of, layout_of

SECOND, WALL = 1_000_000_000, 1_700_000_000 * 1_000_000_000
GANGS = ("j-1", "j-2", "j-3")


class GangByGang:
    """Reports one abstention a gang in each tick. Each gang takes some time of the clock."""

    name = "gangs"

    def __init__(self, clock: ManualClock, seconds: float, fails_at: str = "") -> None:
        self._clock, self._seconds, self._fails_at = clock, seconds, fails_at
        self.contexts: list[DetectionContext] = []
        self.judged: list[str] = []

    def tick(self, context: DetectionContext) -> Sequence[Abstention]:
        return [one for some in self.tick_in_parts(context) for one in some]

    def tick_in_parts(self, context: DetectionContext) -> Iterator[Sequence[Abstention]]:
        self.contexts.append(context)
        for gang in GANGS:
            self._clock.advance(self._seconds)
            if gang == self._fails_at:
                raise KeyError(gang)
            self.judged.append(gang)
            yield [Abstention(gang, 1, 0, context.telemetry.now_ns, "")]

    def measures(self) -> Iterator[Sample]:
        return iter(())

    def snapshot(self) -> bytes:
        return b"%d" % len(self.judged)

    def restore(self, data: bytes) -> None:
        pass


def watched(seconds: float, fails_at: str = "") -> tuple[DetectionThread, GangByGang, ManualClock, list[Event]]:
    clock, found = ManualClock(100 * SECOND, WALL), list[Event]()
    detector = GangByGang(clock, seconds, fails_at)
    return DetectionThread((detector,), found.extend, clock, tick_seconds=2.0), detector, clock, found


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Functions that run in the next pauses between two slices, in turn."""
    functions: list[Callable[[], None]] = []
    monkeypatch.setattr(time, "sleep", lambda _: functions.pop(0)() if functions else None)
    return functions


def test_a_short_tick_is_one_slice() -> None:
    watch, detector, _, found = watched(0.01)
    assert watch.run_slice() and detector.judged == list(GANGS)
    assert [one.gang for one in found if isinstance(one, Abstention)] == list(GANGS)


def test_frames_that_arrive_between_slices_are_used_by_the_next_tick(rests: list[Callable[[], None]]) -> None:
    watch, detector, clock, found = watched(0.2)
    layout, seen = layout_of("n0"), list[tuple[int, int]]()

    def offer_another() -> None:
        seen.append((len(detector.judged), len(found)))
        watch.offer(layout, frame_of(layout, 2), clock.monotonic_ns())

    watch.offer(layout, frame_of(layout, 1), clock.monotonic_ns())
    rests.append(offer_another)
    assert watch.between() == 1.4
    assert seen == [(1, 0)], "the lock was free after the first gang"
    assert detector.judged == list(GANGS) and len(found) == 3
    assert watch._fleet.nodes["n0"].seq == 1
    watch.between()
    assert watch._fleet.nodes["n0"].seq == 2 and len(detector.contexts) == 1


def test_readers_get_the_lock_between_slices(rests: list[Callable[[], None]]) -> None:
    watch, detector, *_ = watched(0.2)
    read: list[int] = []
    rests.append(lambda: read.append(len(detector.judged)) if watch.blocked_of("j-1") == [] else None)
    watch.run_tick()
    assert read == [1]


def test_metrics_wait_for_the_end_of_a_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would delay each slice, and be of half a tick."""
    monkeypatch.setattr(detection_thread, "MEASURES_WAIT_SECONDS", 0.05)
    watch, detector, *_ = watched(0.2)
    monkeypatch.setattr(detector, "measures", lambda: iter([("gangwatch_x", (), float(len(detector.judged)))]))
    assert not watch.run_slice()
    assert "gangwatch_x" not in {name for name, _, _ in expanded(watch.measures())}
    watch.snapshots()
    assert ("gangwatch_x", (), 3.0) in expanded(watch.measures())
    assert not watch.run_slice()
    assert ("gangwatch_x", (), 3.0) in expanded(watch.measures()), "those of the last call"


def test_a_snapshot_ends_the_tick(rests: list[Callable[[], None]]) -> None:
    """Results that were reported only after a restart would be lost, because the detectors would know them already."""
    watch, detector, _, found = watched(0.2)
    snapshots: list[dict[str, bytes]] = []
    rests.append(lambda: snapshots.append(watch.snapshots()))
    watch.run_tick()
    assert snapshots[0]["gangs"] == b"3" and len(found) == 3 and len(detector.contexts) == 1
    watch.run_tick()
    assert len(detector.contexts) == 2 and len(found) == 6


def test_a_snapshot_reports_the_results_of_a_tick_that_is_never_continued() -> None:
    watch, _, _, found = watched(0.2)
    assert not watch.run_slice() and not found
    watch.snapshots()
    assert len(found) == 3


def test_a_detector_that_fails_in_a_later_slice_is_disabled() -> None:
    watch, detector, _, found = watched(0.2, "j-2")
    watch.run_tick()
    assert watch.broken().startswith("gangs failed") and not found and detector.judged == ["j-1"]
    watch.run_tick()
    assert len(detector.contexts) == 1


def test_the_own_thread_does_not_tick_during_the_pause_after_a_long_tick(rests: list[Callable[[], None]]) -> None:
    watch, detector, clock, _ = watched(4.0)
    clock.advance(1.0)
    assert watch.is_overdue(), "nothing else runs detection"
    assert watch.between() == pytest.approx(24.0)
    clock.advance(24.0 + detection_thread.PATIENCE_SECONDS - 0.1)
    assert not watch.is_overdue()
    clock.advance(0.2)
    assert watch.is_overdue() and detector.judged == list(GANGS)
