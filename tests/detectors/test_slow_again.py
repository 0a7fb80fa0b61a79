"""Short spells of one rank: when they are an intermittent fault, and when the job's own work."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest

from scheduler_feedback.detectors.straggler.slow_again import is_periodic, is_slow_again, runs
from tests.detectors.test_persistence import STEPS, own_times, sure, verdicts

if TYPE_CHECKING:
    from scheduler_feedback.detectors.straggler.alarm_case import Case
    from scheduler_feedback.detectors.straggler.gang_state import GangState

IRREGULAR = (90, 111, 143, 158, 186, 214, 229, 255, 290)


def spells(
    rank: int, begins: tuple[int, ...] = IRREGULAR, factor: float = 1.6
) -> tuple[tuple[int, int, int, float], ...]:
    return tuple((rank, first, 6, factor) for first in begins if first < STEPS)


def test_a_rank_with_short_irregular_spells_is_at_fault() -> None:
    assert sure(verdicts(own_times(*spells(6)))) == {6}


def test_periodic_spells_are_work_of_the_rank() -> None:
    assert not sure(verdicts(own_times(*spells(6, tuple(range(90, STEPS, 23))))))


def test_spells_of_the_first_rank_are_its_own_work() -> None:
    assert not sure(verdicts(own_times(*spells(0))))


def test_spells_of_several_ranks_are_the_jobs_own_work() -> None:
    others = ((13, 97, 6, 1.6), (2, 130, 6, 1.6), (9, 170, 6, 1.6), (11, 240, 6, 1.6))
    assert not sure(verdicts(own_times(*spells(6), *others)))


@pytest.mark.parametrize(
    ("other", "sigmas", "again"),
    [(2, 5.0, False), (2, 2.5, True), (0, 5.0, True)],
    ids=["as slow", "far less slow", "the first rank"],
)
def test_a_run_of_another_rank_is_work_of_the_job(other: int, sigmas: float, again: bool) -> None:
    history = np.zeros((50, 4))
    for begin in (3, 14, 31, 42):
        history[begin : begin + 4, 3] = 6.0
    history[20:24, other] = sigmas
    watched = SimpleNamespace(history=[SimpleNamespace(sigmas=row) for row in history])
    case = SimpleNamespace(rank=3)
    assert is_slow_again(cast("GangState", watched), cast("Case", case)) is again


def test_runs_continue_over_one_window_and_have_three_slow_windows() -> None:
    slow = np.array([0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 0, 1, 1, 1], np.bool_)
    assert runs(slow) == [(1, 3), (11, 3)]
    assert runs(np.zeros(4, np.bool_)) == []


@pytest.mark.parametrize(
    ("begins", "periodic"),
    [([0, 20, 41, 60], True), ([0, 20, 61], True), ([0, 20, 52], False), ([0, 4, 8, 12], False)],
)
def test_periods_may_miss_a_run(begins: list[int], periodic: bool) -> None:
    assert is_periodic(begins) is periodic
