"""Ring of finished steps: queued steps that are processed together have the same effect as each step alone."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_feedback.core.telemetry.steps import step_ring
from scheduler_feedback.core.telemetry.steps.step_ring import FIRST_ROWS, RETAIN_NS, StepRing

SECOND = 1_000_000_000
Report = tuple[int, int, int, int, int | None, int, int | None, int | None]


def reports(seed: int, ranks: int) -> list[Report]:
    """Return the reports of a job whose ranks restart, repeat reports, report late and sometimes leave values out."""
    source = random.Random(seed)
    found: list[Report] = []
    at_ns, step = 0, source.choice((0, 1 << 40))
    length_ns = source.choice((50_000_000, 2 * SECOND, RETAIN_NS))
    for _ in range((3 if length_ns > SECOND else 20) * FIRST_ROWS):
        disorderly = source.random() < 0.1
        lags = [int(disorderly and source.random() < 0.25) for _ in range(ranks)]
        for column in source.sample(range(ranks), ranks):
            if disorderly and source.random() < 0.02:
                continue
            number = step - lags[column] * source.choice((1, 1, FIRST_ROWS)) if step else 0
            start_ns = at_ns + source.randrange(length_ns)
            one = (
                column, max(number, 0), start_ns, length_ns // 2, source.choice((None, 0, 7)), start_ns + length_ns,
                source.choice((None, 8192)), source.choice((None, 40)),
            )  # fmt: skip
            found += [one, one] if disorderly and source.random() < 0.02 else [one]
        step += 1
        if source.random() < 0.03:
            step -= source.randrange(5)
        at_ns += length_ns
    return found


def state(ring: StepRing, ranks: int) -> list[object]:
    steps = ring.completed(np.arange(ranks))
    arrays = [] if steps is None else [getattr(steps, name) for name in type(steps).__slots__]
    shown = [None if array is None else np.nan_to_num(array, nan=-1.0).tolist() for array in arrays]
    return [ring.late, ring.repeated, ring.sequence, ring.newest().tolist(), shown]


@pytest.mark.parametrize("seed", range(12))
def test_steps_processed_together_count_as_each_alone(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = 5 + 10 * (seed % 3)
    alone, together = StepRing(ranks), StepRing(ranks)
    for _ in range(ranks):
        alone.add_rank()
        together.add_rank()
    monkeypatch.setattr(step_ring, "FEW", 2)
    source = random.Random(-seed - 1)
    ran: list[bool] = []
    finish_together = StepRing._finish_together

    def recorded(of: StepRing, queued: list[tuple[int, ...]]) -> bool:
        ran.append(finish_together(of, queued))
        return ran[-1]

    monkeypatch.setattr(StepRing, "_finish_together", recorded)
    for report in reports(seed, ranks):
        alone.finish(*report)
        alone._settle()
        together.finish(*report)
        if source.random() < 0.02:
            assert state(together, ranks) == state(alone, ranks)
    assert state(together, ranks) == state(alone, ranks)
    assert any(ran), "no batch was processed together"


def test_new_rank_makes_queued_steps_incomplete() -> None:
    ring = StepRing(20)
    for _ in range(19):
        ring.add_rank()
    for column in range(19):
        ring.finish(column, 1, 0, SECOND, None, SECOND, None, None)
    ring.add_rank()
    assert ring.completed(np.arange(20)) is None and ring.sequence == 1
    ring.finish(19, 1, 0, SECOND, None, SECOND, None, None)
    steps = ring.completed(np.arange(20))
    assert steps is not None and steps.number.tolist() == [1]


def test_queue_is_bounded() -> None:
    ring = StepRing(1)
    ring.add_rank()
    for number in range(2 * step_ring.MOST_QUEUED):
        ring.finish(0, number, number * SECOND, SECOND, None, number * SECOND, None, None)
        assert len(ring._queued) < step_ring.MOST_QUEUED


def test_steps_of_one_batch_are_numbered_in_order_of_completion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_ring, "FEW", 2)
    ring = StepRing(2)
    ring.add_rank()
    ring.add_rank()
    for column, number in ((0, 1), (0, 2), (1, 2), (1, 1)):
        ring.finish(column, number, number * SECOND, SECOND, None, 3 * SECOND, None, None)
    steps = ring.completed(np.arange(2))
    assert steps is not None and steps.number.tolist() == [2, 1]


def test_batch_of_late_steps_does_not_replace_a_newer_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_ring, "FEW", 2)
    ring = StepRing(3)
    for _ in range(3):
        ring.add_rank()
    ring.finish(0, FIRST_ROWS, 0, SECOND, None, SECOND, None, None)
    assert ring.newest().tolist() == [FIRST_ROWS, -1, -1]
    received_ns = 2 * SECOND + RETAIN_NS
    for column in (1, 2):
        ring.finish(column, 0, SECOND, SECOND, None, received_ns, None, None)
    assert ring.late == 2 and ring.newest().tolist() == [FIRST_ROWS, -1, -1]


def test_steps_that_cannot_complete_stay_queued_and_count_once_they_can() -> None:
    ring = StepRing(3)
    for _ in range(3):
        ring.add_rank()
    for column in range(2):
        ring.finish(column, 1, 0, SECOND, None, SECOND, None, None)
        assert ring.sequence == 0 and len(ring._queued) == column + 1
    assert ring.completed(np.arange(3)) is None
    ring.finish(2, 1, 0, SECOND, None, SECOND, None, None)
    assert ring.sequence == 1 and not ring._queued


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.booleans()), max_size=120))
def test_reading_the_sequence_at_any_time_changes_nothing(reports: list[tuple[int, int, bool]]) -> None:
    """Steps of three ranks, some repeated or out of order; in one ring the sequence is read in between."""
    read, unread = StepRing(3), StepRing(3)
    for ring in (read, unread):
        for _ in range(3):
            ring.add_rank()
    for place, (column, number, reads) in enumerate(reports):
        for ring in (read, unread):
            ring.finish(column, number, number * SECOND, SECOND, None, (number + place) * SECOND, None, None)
        if reads:
            before = read.sequence
            read._settle()
            assert read.sequence == before
    assert read.sequence == unread.sequence
    one, other = read.completed(np.arange(3)), unread.completed(np.arange(3))
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert one.number.tolist() == other.number.tolist()
        assert one.end_ns.tolist() == other.end_ns.tolist()
