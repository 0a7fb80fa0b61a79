"""Counters that show a cause (throttling, a busy host) make a rank an outlier among its peers, and little else does."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import FEATURE, FEATURES, Counters, JobTelemetry, Shape, Telemetry
from scheduler_feedback.detectors.counters.counter_statistics import CounterStatistics
from scheduler_feedback.detectors.counters.peer_outlier import kept_from_working, many, works_longer

NS = 1_000_000_000
RANKS = 32
SLOWER = 1.2
BEGINS = 60


def statistics_of(
    changes: dict[str, FloatArray], staged: bool = True, unknown: tuple[str, ...] = ()
) -> tuple[CounterStatistics, Shape]:
    """Return statistics after a healthy minute, then half a minute with counters at these multiples of their usual
    value."""
    random = np.random.default_rng(2)
    stage = np.arange(RANKS) // 16 if staged else None
    shape = Shape("job", 1, np.arange(RANKS), tuple(f"n{rank // 8}" for rank in range(RANKS)), stage=stage)
    statistics = CounterStatistics()
    for second in range(BEGINS + 30):
        made = np.full((len(FEATURES), 1, RANKS), 1.0, np.float32)
        for name in ("tensor_active", "power", "sm_active", "sm_clock"):
            made[FEATURE[name], 0] = 0.5 * random.normal(1.0, 0.005, RANKS)
            if second >= BEGINS and name in changes:
                made[FEATURE[name], 0] *= changes[name]
        for name in unknown:
            made[FEATURE[name]] = np.nan
        now = np.array([(second + 1) * NS])
        statistics.take(Telemetry(int(now[0]), (JobTelemetry(shape),), Counters(now, 1.0, made)))
    return statistics, shape


def at(ranks: list[int], value: float, others: float = 1.0) -> FloatArray:
    found = np.full(RANKS, others)
    found[ranks] = value
    return found


def test_a_rank_that_works_longer_than_its_peers_is_an_outlier() -> None:
    statistics, shape = statistics_of({"tensor_active": at([5], 1.0, others=1 / SLOWER)})
    assert [rank for rank in range(RANKS) if works_longer(statistics, shape, rank, SLOWER)] == [5]


@pytest.mark.parametrize("staged", [True, False])
def test_ranks_of_a_stage_that_works_longer_are_no_outliers(staged: bool) -> None:
    """The stage is known or not. It has many ranks, on several nodes."""
    statistics, shape = statistics_of({"tensor_active": at(list(range(16, 32)), 1.0, others=1 / SLOWER)}, staged)
    assert not any(works_longer(statistics, shape, rank, SLOWER) for rank in range(RANKS))


def test_many_ranks_on_several_nodes_are_no_outliers() -> None:
    statistics, shape = statistics_of({"tensor_active": at([1, 9, 17, 25, 30], 1.0, others=1 / SLOWER)})
    assert not any(works_longer(statistics, shape, rank, SLOWER) for rank in range(RANKS))


def test_many_ranks_on_one_node_may_be_outliers() -> None:
    here = list(range(8, 16))
    statistics, shape = statistics_of({"tensor_active": at(here, 1.0, others=1 / SLOWER)}, staged=False)
    assert [rank for rank in range(RANKS) if works_longer(statistics, shape, rank, SLOWER)] == here
    few = [1, 9, 17, 25]
    assert [many(np.array(ranks), shape) for ranks in (here, few, [*few, 30], [3])] == [False, False, True, False]


def test_a_rank_within_the_spread_of_its_role_is_no_outlier() -> None:
    """Experts have unequal load, and within an iteration some ranks have finished while others have not."""
    differs = np.exp(np.random.default_rng(8).permutation(np.linspace(-0.1, 0.1, RANKS)))
    statistics, shape = statistics_of({"tensor_active": differs}, staged=False)
    assert not any(works_longer(statistics, shape, rank, SLOWER) for rank in range(RANKS))
    differs[5] = 2.0
    statistics, shape = statistics_of({"tensor_active": differs}, staged=False)
    assert works_longer(statistics, shape, 5, SLOWER)


def test_a_slightly_longer_working_rank_does_not_explain_a_slow_job() -> None:
    statistics, shape = statistics_of({"tensor_active": at([5], 1.05)})
    assert not works_longer(statistics, shape, 5, SLOWER)


def test_without_work_counters_the_clock_is_used() -> None:
    statistics, shape = statistics_of({"sm_clock": at([5], 0.8)}, unknown=("tensor_active",))
    assert [rank for rank in range(RANKS) if works_longer(statistics, shape, rank, SLOWER)] == [5]
    statistics, shape = statistics_of({"sm_clock": at([5], 0.8)})
    assert not works_longer(statistics, shape, 5, SLOWER), "its work is measured, and takes no longer"


@pytest.mark.parametrize("unknown", [(), ("power",)])
def test_a_node_whose_ranks_run_nothing_while_others_poll_is_an_outlier(unknown: tuple[str, ...]) -> None:
    here = list(range(8, 16))
    less = {"power": at(here, 0.75, others=0.9), "sm_active": at(here, 0.80, others=0.87)}
    statistics, shape = statistics_of(less, unknown=unknown)
    assert [rank for rank in range(RANKS) if kept_from_working(statistics, shape, rank, SLOWER)] == here


def test_a_stage_whose_ranks_all_run_nothing_has_no_outlier() -> None:
    statistics, shape = statistics_of({"power": at(list(range(16)), 0.75, others=0.9)})
    assert not any(kept_from_working(statistics, shape, rank, SLOWER) for rank in range(RANKS))


def test_without_both_counters_there_is_no_outlier() -> None:
    less = {"power": at([5], 0.5)}
    statistics, shape = statistics_of(less, unknown=("power", "sm_active", "tensor_active", "sm_clock"))
    assert not kept_from_working(statistics, shape, 5, SLOWER)
    assert not works_longer(statistics, shape, 5, SLOWER)
