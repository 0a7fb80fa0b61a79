"""Baseline of a healthy gang, and ranks that are slow from the start."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scheduler_feedback.core.telemetry.series.consumption_trail import CPU, SAMPLES
from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.detectors.steps.baseline import (
    EARLY_WINDOWS,
    SPREAD_FLOOR,
    is_role_outlier,
    learn,
    learn_early,
    log_compute,
    per_step,
)
from scheduler_feedback.detectors.steps.places import Places
from scheduler_feedback.detectors.steps.windows import join
from tests.detectors.gang_windows import SHARED_WAIT, where_of, windows_of

RANKS = 16
ALONE = where_of(RANKS)


def calm(count: int = 25, **slower: float) -> FloatArray:
    """Return compute seconds [count, ranks], one second by default; r3=1.5 sets rank 3 to 1.5 seconds."""
    own = np.ones((count, RANKS))
    for name, factor in slower.items():
        own[:, int(name[1:])] = factor
    return own


def test_one_stall_in_warm_up_does_not_change_the_baseline_and_two_do() -> None:
    own = calm(11)
    own[4, 2] = 9.0
    once = learn(windows_of(own, ALONE), None, ALONE)
    assert once.compute[2] == pytest.approx(1.0)
    assert once.step_seconds == pytest.approx(1.0 + SHARED_WAIT)
    assert once.wait == pytest.approx(np.full(RANKS, SHARED_WAIT))
    assert once.own_spread[2] == pytest.approx(SPREAD_FLOOR)
    own[7, 2] = 9.0
    twice = learn(windows_of(own, ALONE), None, ALONE)
    assert twice.compute[2] == pytest.approx(1.8)
    assert twice.step_seconds == pytest.approx(2.0 + SHARED_WAIT - 0.2)
    assert twice.own_spread[2] > 0.5 > twice.own_spread[3]
    assert (twice.steps, twice.final, twice.role_known, twice.known) == (11, True, False, True)
    assert not twice.from_start.any(), "a rank that stalls at times is not slow from the start"


def test_a_rank_that_stalled_in_a_few_windows_of_the_warm_up_has_its_usual_spread() -> None:
    own = calm(25)
    own[[4, 9, 17], 2] = 1.6
    assert learn(windows_of(own, ALONE), None, ALONE).own_spread[2] == pytest.approx(0.05, abs=0.005)
    own[21, 2] = 1.6
    assert learn(windows_of(own, ALONE), None, ALONE).own_spread[2] > 0.15, "four of 25 windows are normal behaviour"
    noisy = calm(25)
    noisy[:, 2] = np.exp(np.random.default_rng(1).normal(0.0, 0.1, 25))
    assert learn(windows_of(noisy, ALONE), None, ALONE).own_spread[2] > 0.06


def test_the_start_up_of_the_job_is_not_part_of_the_baseline() -> None:
    """The first six steps compile and fill caches, and ranks differ there by far more than later."""
    own = calm(25)
    own[:6] += np.random.default_rng(3).uniform(1.0, 8.0, (6, RANKS))
    found = learn(windows_of(own, ALONE), None, ALONE)
    assert found.compute == pytest.approx(np.ones(RANKS))
    assert found.own_spread == pytest.approx(np.full(RANKS, SPREAD_FLOOR))
    assert found.steps == 19
    own[20] += 5.0
    assert learn(windows_of(own, ALONE), None, ALONE).steps == 19, "a long step later is normal behaviour"


def test_windows_are_weighted_by_their_steps() -> None:
    short, long = windows_of(np.array([[1.0, 3.0], [2.0, 2.0]]), where_of(2))
    long = replace(long, steps=3)
    assert join([short, long], "compute") == pytest.approx([1.75, 2.25])
    assert float(join([short, long], "step_seconds")) == pytest.approx((3.2 + 3 * 2.2) / 4)


def test_usage_per_step_follows_the_sample_times_of_counters() -> None:
    windows = windows_of(calm(6), ALONE, used=0.5)
    found = per_step(windows)
    assert found[:, CPU] == pytest.approx(np.full(RANKS, 0.5 * (1.0 + SHARED_WAIT)))
    assert found[:, SAMPLES] == pytest.approx(np.full(RANKS, 1.0 + SHARED_WAIT)), "samples are counted, not timed"
    assert np.isnan(per_step(windows_of(calm(6), ALONE))[:, CPU]).all()
    assert np.isnan(per_step([windows[0], windows[0]])).all(), "no time has passed"


def test_very_short_compute_times_count_as_the_least_one() -> None:
    assert log_compute(np.array([0.0, 0.01, 0.5]), 1.0) == pytest.approx(np.log([0.02, 0.02, 0.5]))


# --- from the start --------------------------------------------------------------------------------------------------


def slow_ranks(own: FloatArray, where: object = ALONE, role: FloatArray | None = None) -> tuple[list[int], FloatArray]:
    assert where is not None
    found = learn(windows_of(own, where), role, where)  # type: ignore[arg-type]
    return np.flatnonzero(found.from_start).tolist(), found.reference


@pytest.mark.parametrize(("factor", "slow"), [(1.12, False), (1.18, True), (3.0, True)])
def test_a_rank_far_above_its_peers_is_slow_from_the_start(factor: float, slow: bool) -> None:
    found, reference = slow_ranks(calm(r3=factor))
    assert found == ([3] if slow else [])
    assert reference[3] == pytest.approx(1.0 if slow else factor)
    assert np.delete(reference, 3) == pytest.approx(np.ones(RANKS - 1))


def test_no_rank_is_slow_from_the_start_if_its_peers_differ_as_much() -> None:
    own = np.tile(np.linspace(0.8, 1.25, RANKS), (25, 1))
    assert slow_ranks(own)[0] == []


def test_many_slow_nodes_mean_unequal_work() -> None:
    assert slow_ranks(calm(r3=1.5, r9=1.5))[0] == [], "two of sixteen"
    pairs = where_of(RANKS, [f"n{rank // 2}" for rank in range(RANKS)])
    assert slow_ranks(calm(r2=1.5, r3=1.5), pairs)[0] == [2, 3], "two ranks on one node count as one"
    _, reference = slow_ranks(calm(r3=1.5, r9=1.5))
    assert reference[[3, 9]] == pytest.approx([1.5, 1.5])


@pytest.mark.parametrize(("nodes", "slow"), [((2,), list(range(16, 24))), ((2, 5), [])])
def test_several_slow_nodes_of_eight_are_of_another_model(nodes: tuple[int, ...], slow: list[int]) -> None:
    own = np.ones((25, 64))
    for node in nodes:
        own[:, 8 * node : 8 * node + 8] = 1.3
    assert slow_ranks(own, where_of(64, [f"n{rank // 8}" for rank in range(64)]))[0] == slow


def test_ranks_are_compared_within_their_stage() -> None:
    stages = where_of(RANKS, stage=[rank // 8 for rank in range(RANKS)])
    larger = {f"r{rank}": 1.6 for rank in range(8)}
    assert slow_ranks(calm(**larger), stages)[0] == []
    found, reference = slow_ranks(calm(**(larger | {"r3": 2.4})), stages)
    assert found == [3] and reference[3] == pytest.approx(1.6)
    few = where_of(RANKS, stage=[rank // 2 for rank in range(RANKS)])
    assert slow_ranks(calm(r3=2.0), few)[0] == [], "one peer alone cannot decide"


def varied(seed: int = 3, sigma: float = 0.01, **slower: float) -> FloatArray:
    """Return compute seconds of ranks with constant differences of `sigma` and 1 % noise."""
    rng = np.random.default_rng(seed)
    own = calm(**slower)
    return np.asarray(own * np.exp(rng.normal(0.0, sigma, RANKS) + rng.normal(0.0, 0.01, own.shape)))


def outliers(own: FloatArray, where: Places) -> list[int]:
    found = learn(windows_of(own, where), None, where)
    return [rank for rank in range(RANKS) if found.from_start[rank] and is_role_outlier(found, where, rank)]


def test_one_outlier_among_equal_peers_is_slow_from_the_start() -> None:
    same_work = where_of(RANKS, stage=[0] * RANKS)
    assert outliers(varied(r3=1.12), same_work) == [3]
    assert outliers(varied(r3=1.05), same_work) == [], "GPUs differ by that much"
    assert outliers(varied(r3=1.12), ALONE) == [], "in a small job without a layout it may have more work"
    assert outliers(varied(sigma=0.003, r3=1.2, r9=1.08), same_work) == [3]
    assert outliers(varied(sigma=0.003, r3=1.2, r9=1.11), same_work) == [], "another rank is more than half as slow"
    assert outliers(varied(r0=1.12), same_work) == [], "the first rank often saves and logs for all"


def test_without_a_layout_one_outlier_of_many_ranks_is_slow_from_the_start() -> None:
    rng = np.random.default_rng(3)
    own = np.exp(rng.normal(0.0, 0.01, (25, 48)))
    own[:, 5] *= 1.2
    for ranks, slow in ((48, [5]), (24, [])):
        where = where_of(ranks)
        found = learn(windows_of(own[:, :ranks], where), None, where)
        assert [rank for rank in range(ranks) if is_role_outlier(found, where, rank)] == slow
    own[:, 40:] *= 1.15
    where = where_of(48)
    assert not learn(windows_of(own, where), None, where).from_start.any(), "a part of the job has more work"


@pytest.mark.parametrize(("ranks", "found"), [(48, [5]), (24, [])])
def test_more_ranks_show_their_spread_better(ranks: int, found: list[int]) -> None:
    """Rank 5 is slower by about 5.5 standard deviations of the others."""
    place = np.random.default_rng(4).normal(0.0, 0.02, ranks)
    others = np.delete(place, 5)
    place[5] = np.median(others) + 5.5 * others.std()
    where = where_of(ranks, stage=[0] * ranks)
    baseline = learn(windows_of(np.exp(np.tile(place, (25, 1))), where), None, where)
    assert [rank for rank in range(ranks) if is_role_outlier(baseline, where, rank)] == found


def test_an_outlier_among_the_gpus_of_its_node_is_slow_from_the_start() -> None:
    """Every second node has an older GPU model, which takes 25 % longer."""
    older = {f"r{rank}": 1.25 for rank in range(RANKS) if rank // 4 % 2}
    nodes = where_of(RANKS, [f"n{rank // 4}" for rank in range(RANKS)], stage=[0] * RANKS)
    assert outliers(varied(sigma=0.005, **(older | {"r5": 1.5})), nodes) == [5]
    assert outliers(varied(sigma=0.005, **(older | {"r2": 1.2})), nodes) == [2], "it is as slow as the older model"
    assert outliers(varied(sigma=0.005, **older), nodes) == []
    pairs = where_of(RANKS, [f"n{rank // 2}" for rank in range(RANKS)], stage=[0] * RANKS)
    assert outliers(varied(sigma=0.005, **(older | {"r5": 1.5})), pairs) == [], "too few GPUs on a node"
    found = learn(windows_of(varied(sigma=0.005, **(older | {"r5": 1.5})), nodes), None, nodes)
    assert found.reference[5] == pytest.approx(1.25, abs=0.03), "the GPUs of its node are its peers"


@pytest.mark.parametrize("seed", range(40))
def test_gpus_of_published_spread_have_no_outlier(seed: int) -> None:
    """8 % on average and 22 % at most (Sinha et al., SC'22)."""
    spread = np.clip(np.abs(np.random.default_rng(seed).normal(0.0, 0.1, RANKS)), 0.0, 0.22)
    for stages in ([0] * RANKS, [rank // 8 for rank in range(RANKS)], [rank // 4 for rank in range(RANKS)]):
        assert outliers(varied(seed) * (1.0 + spread), where_of(RANKS, stage=stages)) == []


def test_in_small_roles_the_spread_of_all_roles_decides() -> None:
    """Of the three peers of rank 5, one is 20 % slower: alone, they differ as much as rank 5 does from them."""
    fours = where_of(RANKS, stage=[rank // 4 for rank in range(RANKS)])
    own = varied(r5=1.5, r6=1.1, r7=1.2)
    assert slow_ranks(own, fours)[0] == [5]
    assert slow_ranks(varied(r0=1.5, r2=1.1, r3=1.2), fours)[0] == [0], "the first rank is no outlier of its role"
    uneven = {f"r{rank}": 1.0 + 0.12 * (rank % 4) for rank in range(RANKS)}
    assert slow_ranks(varied(**(uneven | {"r5": 1.5})), fours)[0] == [], "ranks of all roles differ as much"


def test_a_rank_is_compared_with_its_offset_in_an_earlier_attempt() -> None:
    role = np.where(np.arange(RANKS) == 3, np.log(1.5), 0.0)
    assert slow_ranks(calm(r3=1.5), role=role)[0] == [], "it had more work in the earlier attempt as well"
    found, reference = slow_ranks(calm(r3=1.5 * 1.3), role=role)
    assert found == [3] and reference[3] == pytest.approx(1.5)
    found, reference = slow_ranks(calm(r5=1.12, r3=1.5), role=role)
    assert found == [5], "with its own history a tenth is enough"
    assert reference[5] == pytest.approx(1.0)
    assert learn(windows_of(calm(), ALONE), role, ALONE).role_known


# --- early -----------------------------------------------------------------------------------------------------------


def test_a_few_windows_suffice_for_a_rank_that_is_far_slower_in_each() -> None:
    found = learn_early(windows_of(calm(EARLY_WINDOWS, r3=1.5), ALONE), None, ALONE)
    assert found is not None and not found.final
    assert np.flatnonzero(found.from_start).tolist() == [3]
    assert found.reference[3] == pytest.approx(1.0)
    assert learn_early(windows_of(calm(EARLY_WINDOWS - 1, r3=1.5), ALONE), None, ALONE) is None, "too few"
    assert learn_early(windows_of(calm(EARLY_WINDOWS, r3=1.25), ALONE), None, ALONE) is None, "not far slower"
    assert learn_early(windows_of(calm(EARLY_WINDOWS), ALONE), None, ALONE) is None
    now_and_then = calm(EARLY_WINDOWS, r3=1.8)
    now_and_then[1, 3] = 1.2
    assert learn_early(windows_of(now_and_then, ALONE), None, ALONE) is None, "not in each window"


def test_without_waits_there_is_no_early_baseline() -> None:
    windows = windows_of(calm(4, r3=1.5), ALONE)
    windows[2] = replace(windows[2], compute=np.full(RANKS, np.nan))
    assert learn_early(windows, None, ALONE) is None


def test_an_early_baseline_marks_only_ranks_that_are_clearly_slow() -> None:
    where = where_of(RANKS, ["a", "a", *(f"n{rank}" for rank in range(2, RANKS))])
    own = calm(4, r0=1.6, r1=1.22)
    found = learn_early(windows_of(own, where), None, where)
    assert found is not None
    assert np.flatnonzero(found.from_start).tolist() == [0]
    assert found.reference[:2] == pytest.approx([1.0, 1.22])
