"""Many ranks that are slow at one time: faults of their own, or work that they share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import Shape
from scheduler_feedback.core.verdict import Verdict
from scheduler_feedback.detectors.straggler.lasting_set import lasting_set, shares_work
from tests.detectors.gang_windows import shape_of
from tests.detectors.test_persistence import STEPS, own_times, results, sure, verdicts

if TYPE_CHECKING:
    from scheduler_feedback.detectors.straggler.gang_state import GangState

APART = (1, 6, 10)
"""Three ranks on three of the four nodes: more than chance explains in a job of 16 ranks."""


def slow(
    *ranks: int, first: int = 100, count: int = STEPS, factor: float = 1.4
) -> tuple[tuple[int, int, int, float], ...]:
    return tuple((rank, first, count, factor) for rank in ranks)


def accused(own: FloatArray, experts: bool = False, upto: int = STEPS) -> list[Verdict]:
    """Return the verdicts on a trace of ranks whose layout is known."""
    return [one for one in results(own, experts, upto=upto, laid_out=True) if isinstance(one, Verdict)]


def test_ranks_on_several_nodes_that_stay_slow_are_at_fault() -> None:
    assert sure(accused(own_times(*slow(*APART)))) == set(APART)


def test_without_a_layout_they_are_unknown() -> None:
    assert not sure(verdicts(own_times(*slow(*APART))))


def test_they_are_not_accused_before_two_dozen_windows() -> None:
    assert not sure(accused(own_times(*slow(*APART)), upto=121))


def test_half_of_the_job_is_not_at_fault() -> None:
    assert not sure(accused(own_times(*slow(0, 2, 4, 6, 8, 10, 12, 14))))


def test_ranks_of_one_expert_are_not_at_fault() -> None:
    own = own_times(*slow(1, 9), *slow(5))
    assert not sure(accused(own, experts=True, upto=160))


def grid() -> Shape:
    """Return 16 ranks: four replicas of two stages with two tensor shards."""
    shape = shape_of(16, [f"n{rank // 4}" for rank in range(16)])
    for name, values in (
        ("data", np.arange(16) // 4),
        ("stage", np.arange(16) // 2 % 2),
        ("tensor", np.arange(16) % 2),
    ):
        object.__setattr__(shape, name, values)
    return shape


@pytest.mark.parametrize(
    ("ranks", "shared"),
    [
        ((4, 5, 6, 7), True),
        ((4, 5, 6), True),
        ((0, 4, 8, 12, 2, 6, 10, 14), True),
        ((1, 6, 10), False),
        ((4, 5, 6, 9), False),
        ((), False),
    ],
)
def test_ranks_share_work_if_nearly_all_of_their_replica_or_shard_are_slow(
    ranks: tuple[int, ...], shared: bool
) -> None:
    assert shares_work(grid(), ranks) is shared


@pytest.mark.parametrize(("alarmed", "set_of"), [(7, 7), (8, 0), (2, 0)], ids=["less than half", "half", "few anyway"])
def test_a_set_is_smaller_than_half_of_the_job(alarmed: int, set_of: int) -> None:
    unrelated = (0, 1, 2, 5, 7, 8, 10, 15)[:alarmed]
    where = SimpleNamespace(layout_known=True)
    watched = SimpleNamespace(ranks=range(16), where=where, interval=lambda rank: [None] * 24)
    assert len(lasting_set(cast("GangState", watched), grid(), unrelated)) == set_of
