"""Tensor core cycles: means over many steps show how much a rank computes, if windows are shorter than a step."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scheduler_feedback.core.telemetry.telemetry import Grouping
from scheduler_feedback.detectors.counters.tensor_cycles import TensorCycles

RANKS, BUSY = 8, 3
STEP = 5.0
"""Seconds of a step, if not given; a window has one second."""


def after(before: int, since: int, work: float, clock: float = 1.0, step: float = STEP) -> TensorCycles:
    """Return the means after some windows with equal work, and others in which one rank differs.

    In each step, a rank works from its beginning, and then waits for the others. work: cycles of the rank BUSY in a
    step, relative to its peers. clock: its clock, relative to its peers.
    """
    state = np.array([[0.0], [0.0], [np.nan]], np.float32) + np.zeros((3, RANKS), np.float32)
    cycles = TensorCycles(state, Grouping([0] * RANKS))
    for second in range(before + since):
        works = np.full(RANKS, 0.4 * step)
        clocks = np.full(RANKS, 1500.0)
        if second >= before:
            clocks[BUSY] *= clock
            works[BUSY] *= work / clock
        begin = second % step
        active = np.clip(works - begin, 0.0, 1.0).astype(np.float32)
        cycles.take(active, clocks.astype(np.float32), 1.0)
    return cycles


@pytest.mark.parametrize("work", [1.0, 1.3, 2.0])
@pytest.mark.parametrize("clock", [1.0, 0.8])
def test_the_ratio_is_that_of_the_work_at_any_clock(work: float, clock: float) -> None:
    cycles = after(300, 700, work, clock)
    assert cycles.more_than_usual(BUSY, STEP) == pytest.approx(math.log(work), abs=0.02)
    assert cycles.more_than_peers(BUSY, STEP) == pytest.approx(math.log(work), abs=0.02)
    assert cycles.more_than_usual(0, STEP) == pytest.approx(0.0, abs=0.02)


@pytest.mark.parametrize("since", [600, 610, 620])
def test_the_part_of_a_long_step_at_the_end_changes_little(since: int) -> None:
    cycles = after(600, since, 1.5, step=30.0)
    assert cycles.more_than_usual(BUSY, 30.0) == pytest.approx(math.log(1.5), abs=0.08)
    assert cycles.more_than_peers(BUSY, 30.0) == pytest.approx(math.log(1.5), abs=0.08)


def test_a_rank_that_always_had_more_work_has_not_more_than_usual() -> None:
    cycles = after(0, 900, 1.5)
    assert cycles.more_than_usual(BUSY, STEP) == pytest.approx(0.0, abs=0.02)
    assert cycles.more_than_peers(BUSY, STEP) == pytest.approx(math.log(1.5), abs=0.02)


def test_it_is_unknown_while_it_is_learned_and_for_long_steps() -> None:
    assert math.isnan(after(100, 0, 1.0).more_than_usual(BUSY, STEP))
    assert math.isfinite(after(125, 0, 1.0).more_than_usual(BUSY, STEP))
    cycles = after(300, 300, 1.3)
    assert math.isfinite(cycles.more_than_peers(BUSY, 30.0))
    assert math.isnan(cycles.more_than_usual(BUSY, 30.1)) and math.isnan(cycles.more_than_peers(BUSY, 30.1))


def test_missing_values_change_nothing() -> None:
    state = np.array([[0.0], [0.0], [np.nan]], np.float32) + np.zeros((3, 4), np.float32)
    cycles = TensorCycles(state, Grouping([0, 0, 1, 1]))
    unknown = np.full(4, np.nan, np.float32)
    cycles.take(unknown, unknown, 60.0)
    assert math.isnan(cycles.more_than_usual(0, 1.0)) and math.isnan(cycles.more_than_peers(0, 1.0))
    for _ in range(3):
        cycles.take(np.array([0.2, 0.4, np.nan, 0.3], np.float32), unknown, 60.0)
    assert cycles.more_than_usual(0, 1.0) == pytest.approx(0.0, abs=1e-6), "without a clock, the activity counts"
    assert cycles.more_than_peers(1, 1.0) == pytest.approx(math.log(0.4 / 0.3), abs=1e-3)
    assert math.isnan(cycles.more_than_usual(2, 1.0)) and math.isnan(cycles.more_than_peers(2, 1.0))
