"""A tick of detection in slices: its results are those of a whole tick, whatever happens between two slices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agent.schema.clock import ManualClock
from scheduler_feedback.controller.detection_thread import FOLDED_AT_ONCE, DetectionThread
from scheduler_feedback.core.events import Event
from scheduler_feedback.core.telemetry.fleet import Sample
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


def test_a_short_tick_is_one_slice() -> None:
    watch, detector, _, found = watched(0.01)
    assert watch.between() == 1.97 and detector.judged == list(GANGS)
    assert [one.gang for one in found if isinstance(one, Abstention)] == list(GANGS)


def test_frames_are_read_between_slices_and_used_by_the_next_tick() -> None:
    watch, detector, clock, found = watched(0.2)
    layout = layout_of("n0")
    watch.offer(layout, frame_of(layout, 1), clock.monotonic_ns())
    assert watch.between() == 0.0 and detector.judged == ["j-1"] and not found
    watch.offer(layout, frame_of(layout, 2), clock.monotonic_ns())
    assert [watch.between() for _ in range(2)] == [0.0, 0.0] and watch._fleet.nodes["n0"].seq == 1
    assert watch.between() > 0.0 and detector.judged == list(GANGS) and len(found) == 3
    assert watch._fleet.nodes["n0"].seq == 1
    watch.between()
    assert watch._fleet.nodes["n0"].seq == 2 and len(detector.contexts) == 1


def test_time_between_slices_does_not_count_as_time_of_the_tick() -> None:
    """A tick is followed by a pause of twice its time, but not of twice the time in which frames were read."""
    watch, _, clock, _ = watched(1.0)
    for _ in GANGS:
        assert watch.between() == 0.0
        clock.advance(10.0)
    assert watch.between() == 6.0 and watch.ticks_ns == 3 * SECOND


def test_a_snapshot_ends_the_tick() -> None:
    """Results that were reported only after a restart would be lost, because the detectors would know them already."""
    watch, detector, _, found = watched(0.2)
    watch.between()
    assert watch.snapshots()["gangs"] == b"3" and len(found) == 3
    watch.run_tick()
    assert len(detector.contexts) == 2 and len(found) == 6


def test_a_whole_tick_ends_the_one_in_progress() -> None:
    watch, detector, _, found = watched(0.2)
    watch.between()
    watch.run_tick()
    assert detector.judged == [*GANGS, *GANGS] and len(found) == 6


def test_a_detector_that_fails_in_a_later_slice_is_disabled() -> None:
    watch, detector, _, found = watched(0.2, "j-2")
    assert [watch.between() for _ in range(2)] == [0.0, 1.6]
    assert watch.broken().startswith("gangs failed") and not found and detector.judged == ["j-1"]
    watch.run_tick()
    assert len(detector.contexts) == 1


def test_many_queued_frames_are_processed_in_parts() -> None:
    watch, _, clock, _ = watched(0.0)
    watch.between()
    layout = layout_of("n0")
    for seq in range(1, FOLDED_AT_ONCE + 2):
        watch.offer(layout, frame_of(layout, seq), clock.monotonic_ns())
    assert watch.between() == 0.0 and watch._fleet.nodes["n0"].seq == FOLDED_AT_ONCE
    assert watch.between() > 0.0 and watch._fleet.nodes["n0"].seq == FOLDED_AT_ONCE + 1
