"""One attempt of a gang: stored steps, times between steps, open steps, and counters between samples."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler_feedback.core.telemetry.series.consumption_trail import (
    BLOCK_IO,
    CONSUMED,
    CPU,
    TRAIL,
    TRAIL_SPACING_NS,
    Trails,
)
from scheduler_feedback.core.telemetry.steps.gang_attempts import Gang, IntArray
from scheduler_feedback.core.telemetry.steps.open_table import OpenTable
from scheduler_feedback.core.telemetry.steps.step_ring import FIRST_ROWS

SECOND = 1_000_000_000


def gang_of(ranks: int) -> tuple[Gang, list[int]]:
    gang = Gang("g", 1)
    return gang, [gang.column(rank, f"n{rank}") for rank in range(ranks)]


def finish(gang: Gang, column: int, number: int, at: float, seconds: float, wait: float = 0.0) -> None:
    """Record a step that begins at second `at` of every clock."""
    start_ns, lasts_ns = round(at * SECOND), round(seconds * SECOND)
    gang.finish(column, number, start_ns, lasts_ns, round(wait * SECOND), start_ns + lasts_ns)


# --- steps -----------------------------------------------------------------------------------------------------------


def test_time_between_steps_is_known_after_the_ring_grows() -> None:
    gang, (column,) = gang_of(1)
    for number in range(4 * FIRST_ROWS):
        finish(gang, column, number, 0.15 * number, 0.1)
    steps = gang.completed()
    assert steps is not None and len(steps.number) == 4 * FIRST_ROWS
    assert steps.seconds[0, 0] == pytest.approx(0.1), "before the first step nothing is known"
    assert steps.seconds[1:, 0] == pytest.approx(0.15)


def test_reused_row_is_not_taken_for_the_previous_step() -> None:
    gang, (column,) = gang_of(1)
    for number in range(FIRST_ROWS):
        finish(gang, column, number, 30.0 * number, 0.1)
    skipped = FIRST_ROWS + 2  # the previous step's row contains step 1, which finished long ago
    finish(gang, column, skipped, 30.0 * skipped, 0.2)
    steps = gang.completed()
    assert steps is not None and steps.number[-1] == skipped
    assert steps.seconds[-1, 0] == pytest.approx(0.2)


def test_partial_steps_survive_the_growth_of_the_ring() -> None:
    gang, columns = gang_of(5)  # one more than the initial number of columns
    count, first = 3 * FIRST_ROWS, 80  # with a first step of 100, a step in a wrong row would return to its own row
    for column in columns:
        for number in range(count):
            finish(gang, column, first + number, 0.1 * number, 0.1, wait=0.01 * column)
    steps = gang.completed()
    assert steps is not None
    assert steps.number.tolist() == list(range(first, first + count))
    assert steps.wait_seconds == pytest.approx(np.tile(0.01 * np.arange(5), (count, 1)))
    assert steps.end_ns[:, 4].tolist() == [round(0.1 * n * SECOND) + SECOND // 10 for n in range(count)]
    assert gang.newest_steps().tolist() == [first + count - 1] * 5
    assert gang.late == gang.repeated == 0


def test_late_step_is_counted_and_ignored_until_the_row_is_stale() -> None:
    gang, (first, second) = gang_of(2)
    for number in range(2 * FIRST_ROWS):
        # Rows are older than the retained history, so the ring stays small.
        finish(gang, first, number, 20.0 * number, 0.1)
    late = FIRST_ROWS - 1  # its row contains a higher step by now
    gang.finish(second, late, 0, SECOND, 0, round(20.0 * 2 * FIRST_ROWS * SECOND))
    assert gang.late == 1
    gang.finish(second, late, 0, SECOND, 0, round(20.0 * 20 * FIRST_ROWS * SECOND))
    assert gang.late == 1, "a row unchanged for a minute is reused"


def test_completed_returns_newer_steps_in_order_of_completion() -> None:
    gang, (first, second) = gang_of(2)
    for number in range(6):
        finish(gang, first, number, number, 0.5)
    for number in (3, 1, 5):
        finish(gang, second, number, number, 0.5)
    steps = gang.completed()
    assert steps is not None
    assert (steps.number.tolist(), steps.sequence.tolist()) == ([3, 1, 5], [1, 2, 3])
    after = gang.completed(1)
    assert after is not None and after.number.tolist() == [1, 5]
    assert gang.completed(3) is None
    assert gang.newest_sequence == 3


def test_the_mean_covers_the_newest_steps() -> None:
    gang, columns = gang_of(2)
    assert gang.step_seconds() is None
    at = 0.0
    for number in range(40):
        lasts = 1.0 if number < 24 else 2.0
        for column in columns:
            finish(gang, column, number, at, lasts)
        at += lasts
        if number == 20:
            assert gang.step_seconds() == pytest.approx(1.0)
    assert gang.step_seconds() == pytest.approx(2.0)
    assert gang.step_seconds(20) == pytest.approx((4 * 1.0 + 16 * 2.0) / 20)


# --- open steps and collectives --------------------------------------------------------------------------------------


def test_open_steps_and_collectives_are_separate_and_the_newest_counts() -> None:
    gang, columns = gang_of(2)
    gang.opened(columns[0], "step", 7, 100, 500)
    gang.opened(columns[1], "collective", 9, 200, 500)
    gang.opened(columns[0], "step", 8, 300, 600)
    later = gang.column(4, "n4")
    gang.opened(later, "collective", 11, 350, 700)
    assert gang.open_steps().tolist() == [[8, 300, 600], [-1, -1, -1], [-1, -1, -1]]
    assert gang.open_collectives().tolist() == [[-1, -1, -1], [9, 200, 500], [11, 350, 700]]


def test_reports_count_in_their_order() -> None:
    gang, columns = gang_of(2)
    early = [0, columns[0], 7, 100, 1, columns[0], 70, 110]
    late = [0, columns[0], 8, 200]
    for cells, seen_ns in ((early, 500), (late, 600), (early, 700), (late, 800)):
        gang.opened_all(cells, seen_ns)
    assert gang.open_steps().tolist()[0] == [8, 200, 800]
    assert gang.open_collectives().tolist()[0] == [70, 110, 700]
    gang.opened_all(early, 900)
    assert gang.open_steps().tolist()[0] == [7, 100, 900]


def test_an_attempt_does_not_get_the_open_steps_of_the_one_before() -> None:
    """It gets the slots of that attempt, whose open steps are then no longer available."""
    trails, opened = Trails(), OpenTable()
    first = Gang("g", 1, trails, opened)
    first.opened_all([0, first.column(0, "n0"), 7, 100], 200)
    first.leave()
    second = Gang("g", 2, trails, opened)
    column = second.column(0, "n0")
    assert second.open_steps().tolist() == [[-1, -1, -1]]
    second.opened_all([0, column, 8, 300], 400)
    assert first.open_steps().tolist() == [[-1, -1, -1]] and second.open_steps().tolist() == [[8, 300, 400]]


def test_a_rank_is_at_its_last_reported_position_and_a_reader_detects_a_change() -> None:
    gang, _ = gang_of(2)
    before = gang.changes
    gang.column(1, "n1")
    assert gang.changes == before
    gang.column(1, "elsewhere")
    assert gang.changes == before + 1
    assert gang.nodes == ("n0", "elsewhere")
    assert gang.node_of(1) == "elsewhere"


# --- consumption -----------------------------------------------------------------------------------------------------


def at(*seconds: float) -> IntArray:
    return np.array([round(one * SECOND) for one in seconds], np.int64)


def consume(gang: Gang, column: int, second: float, cpu: float, io: float = np.nan) -> None:
    advance = np.zeros((1, len(CONSUMED)))
    advance[0, CPU], advance[0, BLOCK_IO] = cpu, io
    gang.consume(np.array([column]), advance, round(second * SECOND))


def test_counters_are_interpolated_between_samples_and_constant_outside() -> None:
    gang, (column,) = gang_of(1)
    for second in range(1, 6):
        consume(gang, column, second, 10.0 * second)  # 10, 30, 60, 100, 150
    asked = {1.0: 10.0, 2.5: 45.0, 3.0: 60.0, 4.75: 137.5}
    for second, value in asked.items():
        found = gang.consumed(at(second))
        assert found.values[0, CPU] == pytest.approx(value)
        assert found.at_ns.tolist() == at(second).tolist()
        assert np.isnan(found.values[0, BLOCK_IO])
    for second, stands_for, value in ((0.2, 1.0, 10.0), (9.0, 5.0, 150.0)):
        found = gang.consumed(at(second))
        assert (found.at_ns.tolist(), found.values[0, CPU]) == (at(stands_for).tolist(), pytest.approx(value))


def test_frequent_samples_do_not_remove_the_history_of_slow_ones() -> None:
    gang, (column,) = gang_of(1)
    step = TRAIL_SPACING_NS / SECOND / 5
    for number in range(1, 5 * TRAIL):
        consume(gang, column, number * step, 1.0 + number)
    kept = gang._trails.sampled_ns[gang._slots[column]]
    assert kept.max() - kept.min() >= (TRAIL - 2) * TRAIL_SPACING_NS, "eight seconds, at any sampling rate"
    newest = gang.consumed(at(1e6))
    assert newest.at_ns[0] == round((5 * TRAIL - 1) * step * SECOND)
    assert newest.values[0, CPU] == pytest.approx(sum(1.0 + number for number in range(1, 5 * TRAIL)))


def test_the_consumption_of_a_rank_without_counters_is_unknown() -> None:
    gang, columns = gang_of(2)
    consume(gang, columns[0], 1.0, 5.0)
    found = gang.consumed(at(1.0, 1.0))
    assert found.values[0, CPU] == 5.0
    assert np.isnan(found.values[1]).all()
    gang.forget_consumed(np.array(columns))
    assert np.isnan(gang.consumed(at(1.0, 1.0)).values).all()
    consume(gang, columns[0], 3.0, 7.0)
    assert gang.consumed(at(1.0, 1.0)).values[0, CPU] == 7.0, "the counter restarted from zero"
