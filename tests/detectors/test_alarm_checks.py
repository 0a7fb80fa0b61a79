"""Each check that can reject an alarm: its result, and the text of its refusal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.verdict import Cause
from scheduler_feedback.detectors.ablation_switches import Switches
from scheduler_feedback.detectors.stats.log_odds import ROLE_OUTLIER
from scheduler_feedback.detectors.steps.baseline import Baseline, learn
from scheduler_feedback.detectors.steps.places import Places
from scheduler_feedback.detectors.steps.windows import Window
from scheduler_feedback.detectors.straggler.alarm_case import Case, Judged, slow_windows, stopped_again
from scheduler_feedback.detectors.straggler.alarm_checks import Judgement, judge
from tests.detectors.gang_windows import SHARED_WAIT, where_of, windows_of

RANKS, SLOW = 16, 3
ALONE = where_of(RANKS)


def own_times(count: int = 8, **slower: float) -> FloatArray:
    own = np.ones((count, RANKS))
    for name, factor in slower.items():
        own[:, int(name[1:])] = factor
    return own


def healthy(where: Places = ALONE, own: FloatArray | None = None, **more: Any) -> Baseline:
    return replace(learn(windows_of(own_times(25) if own is None else own, where), None, where), **more)


def judged(windows: Sequence[Window], baseline: Baseline) -> list[Judged]:
    return [Judged(one, (one.compute - baseline.compute) / 0.02) for one in windows]


def case_of(windows: Sequence[Window], baseline: Baseline | None = None, where: Places = ALONE, **more: Any) -> Case:
    baseline = healthy(where) if baseline is None else baseline
    given: dict[str, Any] = {
        "rank": SLOW, "ranks": tuple(range(100, 100 + RANKS)), "where": where, "interval": judged(windows, baseline),
        "baseline": baseline, "best_step_seconds": baseline.step_seconds, "alarmed": frozenset({SLOW}),
        "others_spread": 0.01, "shared_machine": False, "switches": Switches(),
    }  # fmt: skip
    return Case(**(given | more))


def checked(own: FloatArray, more_of_windows: dict[str, Any] | None = None, **more: Any) -> Judgement:
    where = more.get("where", ALONE)
    return judge(case_of(windows_of(own, where, **(more_of_windows or {})), **more))


def fact(judgement: Judgement, measure: str) -> tuple[float, float]:
    [found] = [(item.value, item.reference) for item in judgement.evidence if item.measure == measure]
    return found


def test_a_rank_that_delays_all_others_passes_with_checkable_evidence() -> None:
    found = checked(own_times(r3=1.4))
    assert found.refusal == ""
    assert found.slowdown == pytest.approx((1.4 + SHARED_WAIT) / (1.0 + SHARED_WAIT))
    assert found.step_seconds == pytest.approx(1.4 + SHARED_WAIT)
    assert (found.cause, found.counters) == (Cause.UNKNOWN, False)
    assert fact(found, "compute_seconds_a_step") == pytest.approx((1.4, 1.0))
    assert fact(found, "wait_seconds_a_step") == pytest.approx((SHARED_WAIT, SHARED_WAIT + 0.4))
    assert fact(found, "step_seconds") == pytest.approx((1.4 + SHARED_WAIT, 1.0 + SHARED_WAIT))
    assert fact(found, "seconds_a_step_explained") == pytest.approx((0.4, 0.0))
    assert fact(found, "slow_windows") == (8.0, 8.0)
    assert found.confidence > 0.9


def test_an_alarm_in_a_job_that_is_not_slowed_is_refused() -> None:
    found = checked(own_times(r3=1.04))
    assert found.refusal.startswith("the gang is not slowed") and found.harmless
    faster = checked(own_times(r3=1.04), best_step_seconds=1.0)
    assert not faster.refusal.startswith("the gang is not slowed"), "the job was faster in the past"


def test_an_alarm_is_refused_if_most_ranks_are_outliers() -> None:
    others = {f"r{rank}": 1.4 for rank in range(9)}
    found = checked(own_times(**others), alarmed=frozenset(range(9)))
    assert found.refusal == "9 of 16 ranks are outliers: suspect the workload or the machine"
    assert not found.harmless


def test_an_alarm_is_refused_if_steps_would_be_as_long_without_the_rank() -> None:
    all_slower = {f"r{rank}": 1.4 for rank in range(RANKS)}
    found = checked(own_times(**(all_slower | {"r3": 1.45})))
    assert found.refusal.startswith("without this rank the steps would be only 3.") and found.harmless


def test_equally_slow_ranks_are_refused_together_and_one_of_two_is_judged_alone() -> None:
    three = checked(own_times(r3=1.4, r7=1.4, r9=1.4), alarmed=frozenset({3, 7, 9}))
    assert three.refusal == "ranks 103, 107, 109 are equally slow: no single rank explains the step time"
    assert not three.harmless
    two = checked(own_times(r3=1.4, r7=1.4), alarmed=frozenset({3, 7}))
    assert two.refusal == "", "two of sixteen may have separate reasons"
    assert two.slowdown == pytest.approx(1.6 / 1.2)


def test_ranks_of_one_node_are_judged_by_the_step_time_without_the_node() -> None:
    pairs = where_of(RANKS, [f"n{rank // 2:02d}" for rank in range(RANKS)])
    found = checked(own_times(r2=1.4, r3=1.4), where=pairs, alarmed=frozenset({2, 3}))
    assert (found.refusal, found.slowdown) == ("", pytest.approx(1.6 / 1.2))
    assert "without the node's ranks" in next(one.against for one in found.evidence if one.measure == "step_seconds")


@pytest.mark.parametrize(("factor", "final", "passes"), [(1.1, False, False), (1.1, True, True), (1.3, False, True)])
def test_only_large_slowdowns_are_reported_during_warm_up(factor: float, final: bool, passes: bool) -> None:
    found = checked(own_times(r3=factor), baseline=healthy(final=final))
    assert (found.refusal == "") is passes
    assert passes or (found.refusal, found.harmless) == ("the slowdown is too small to report during warm-up", True)


@pytest.mark.parametrize(
    ("tokens", "for_work", "passes"), [(1.4, False, False), (1.05, False, True), (1.4, True, True)]
)
def test_more_tokens_refuse_an_alarm_unless_times_are_normalised_by_work(
    tokens: float, for_work: bool, passes: bool
) -> None:
    given = np.where(np.arange(RANKS) == SLOW, 1000.0 * tokens, 1000.0)
    found = checked(own_times(r3=1.4), {"tokens": np.tile(given, (8, 1))}, for_work=for_work)
    assert (found.refusal == "") is passes
    assert passes or found.refusal == "the rank processes 1.4 times the tokens of its peers: it has more work"


def test_an_alarm_is_refused_if_peers_do_not_wait() -> None:
    apart = {"together": False}
    own = own_times(r3=4.0)  # the mean over ranks of the step's time rises by a seventh
    found = checked(own, apart)
    assert found.refusal == "its peers do not wait for it: it does not delay the gang"
    assert checked(own, apart, switches=replace(Switches(), wait_inversion=False)).refusal != found.refusal


def test_a_usual_difference_of_waits_does_not_count_as_waiting() -> None:
    """The rank was slower in the baseline too. Its peers wait for that difference, and not for the additional time."""
    larger = healthy(own=own_times(25, r3=1.1))
    windows = windows_of(own_times(r3=1.1), ALONE)
    slow = np.arange(RANKS) == SLOW
    longer = [
        replace(one, step_seconds=1.5, compute=np.where(slow, 1.25, one.compute), gain=np.where(slow, 0.25, 0.0))
        for one in windows
    ]
    assert not larger.from_start.any()
    assert judge(case_of(longer, larger)).refusal == "its peers do not wait for it: it does not delay the gang"


def test_drift_of_the_whole_gang_is_not_excess_of_a_rank() -> None:
    threefold = {f"r{rank}": 3.0 for rank in range(RANKS)}
    found = checked(own_times(**(threefold | {"r3": 4.2})))
    assert found.refusal == ""
    assert fact(found, "compute_seconds_a_step") == pytest.approx((4.2, 3.0))


# --- slow from the start ---------------------------------------------------------------------------------------------


def from_start(factor: float, where: Places = ALONE, role_known: bool = False) -> Baseline:
    return healthy(
        where, own_times(25, r3=factor), from_start=np.arange(RANKS) == SLOW, reference=np.ones(RANKS),
        role_known=role_known,
    )  # fmt: skip


@pytest.mark.parametrize(("factor", "role_known", "layout", "passes"), [
    (1.5, False, False, False), (1.7, False, False, True), (1.5, True, False, True), (1.5, False, True, True),
    (1.2, False, True, True),
])  # fmt: skip
def test_a_rank_slow_from_the_start_may_have_more_work(
    factor: float, role_known: bool, layout: bool, passes: bool
) -> None:
    where = where_of(RANKS, stage=[0] * RANKS) if layout else ALONE
    found = checked(own_times(r3=factor), where=where, baseline=from_start(factor, where, role_known))
    assert (found.refusal == "") is passes
    assert passes or found.refusal.startswith(f"it has computed {factor:.3g} times as long as its peers from the start")
    assert found.harmless is False


def test_an_outlier_of_its_role_is_accused_despite_other_waits_of_its_job() -> None:
    """The waits of a pipeline are long for all ranks, and the slowest rank of another stage costs time as well."""
    where = where_of(RANKS, stage=[rank // 8 for rank in range(RANKS)])
    before, now = own_times(25, r3=1.2, r9=1.09), own_times(r3=1.2, r9=1.09)
    alone = healthy(where, before, from_start=np.arange(RANKS) == SLOW, reference=np.ones(RANKS))
    found = checked(now, {"shared": 1.0}, where=where, baseline=alone)
    assert found.refusal == ""
    assert [one.log_likelihood_ratio for one in found.evidence if one.measure == "healthy_state_known"] == [
        ROLE_OUTLIER
    ]
    before[:, 9] = now[:, 9] = 1.13
    among = healthy(where, before, from_start=np.arange(RANKS) == SLOW, reference=np.ones(RANKS))
    assert "as long as its peers" in checked(now, {"shared": 1.0}, where=where, baseline=among).refusal


def test_only_ranks_that_are_slow_from_the_start_show_that_a_node_is_of_another_model() -> None:
    where = where_of(RANKS, [f"n{rank // 4}" for rank in range(RANKS)], stage=[0] * RANKS)
    own, alarmed = own_times(r3=1.5, r0=1.3), frozenset({SLOW, 0})
    assert checked(own, where=where, baseline=from_start(1.5, where), alarmed=alarmed).refusal == ""
    both = replace(from_start(1.5, where), from_start=np.isin(np.arange(RANKS), [0, SLOW]))
    assert "of another model" in checked(own, where=where, baseline=both, alarmed=alarmed).refusal


def test_a_rank_slow_from_the_start_must_wait_less_than_its_peers() -> None:
    collective = {"shared": 4.0}
    found = checked(own_times(r3=2.0), collective, baseline=from_start(2.0))
    assert found.refusal == "it waits 0.8 times as long as its peers: it does not delay them"
    assert checked(own_times(r3=2.0), {"shared": 1.0}, baseline=from_start(2.0)).refusal == ""


# --- own period, other ranks, chance ---------------------------------------------------------------------------------


def slow_at(*steps: int, count: int = 21) -> FloatArray:
    own = own_times(count)
    own[list(steps), SLOW] = 3.0
    return own


def test_slow_steps_at_an_exact_period_are_work_of_the_rank() -> None:
    found = checked(slow_at(0, 5, 10, 20))
    assert found.refusal == "it is slow exactly every 5 steps: periodic work of this rank, such as checkpoints"
    assert checked(slow_at(0, 5, 11, 16)).refusal == "", "not exactly"
    assert checked(slow_at(0, 4, 8, 12, 16)).refusal == "", "too frequent for periodic work"
    assert checked(slow_at(0, 5, count=7)).refusal == "", "two slow steps may be chance"


def test_an_alarm_is_refused_if_another_rank_explains_it_nearly_as_well() -> None:
    own = own_times(12, r3=1.5)
    own[::3] = own_times(4, r9=1.5)  # every third step another rank is the slow one
    found = checked(own)
    assert found.refusal == "another rank explains the slow steps nearly as well"
    own[::3] = own_times(4, r9=1.2)
    assert checked(own).refusal == ""


def test_a_rank_whose_alarm_is_explained_by_its_groups_explains_no_slow_steps() -> None:
    own = own_times(12, r3=1.5)
    own[::3] = own_times(4, r9=1.9)
    assert checked(own).refusal == "another rank explains the slow steps nearly as well"
    assert checked(own, explained=frozenset({9})).refusal == ""


def test_a_rank_that_always_was_slower_does_not_explain_slow_steps() -> None:
    """Rank 9 is on an older GPU. The steps became slower when rank 3 did."""
    older = healthy(own=own_times(25, r9=1.25))
    own = own_times(12, r3=1.5, r9=1.25)
    own[::3] = own_times(4, r3=1.24, r9=1.26)
    assert fact(checked(own, baseline=older), "seconds_a_step_explained")[1] < 0.01
    assert checked(own, baseline=older).refusal == ""
    own[::3] = own_times(4, r9=1.9)
    assert checked(own, baseline=older).refusal == "another rank explains the slow steps nearly as well"


def test_one_stall_of_another_rank_does_not_explain_a_slowness_that_lasts() -> None:
    own = own_times(12, r3=1.5)
    own[5, 9] = 9.0
    assert checked(own).refusal == ""
    assert checked(own[:7]).refusal == "another rank explains the slow steps nearly as well", "too few windows"
    own[8, 9] = 9.0
    assert checked(own).refusal == "another rank explains the slow steps nearly as well", "two stalls"


def test_on_a_shared_machine_other_load_is_not_excluded_without_counters() -> None:
    found = checked(own_times(r3=1.4), shared_machine=True)
    assert "shares a machine with other nodes and its process counters are missing" in found.refusal
    assert checked(own_times(r3=1.4), shared_machine=False).refusal == ""


# --- which windows count ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sigmas", "slow"), [
    ([40, 40, 2.5, 2.5], [0, 1]), ([40, 2.5, 2.5, 0], [0, 1, 2]), ([1.9, 2.0, 2.1], [1, 2]), ([7.0], [0]), ([1.0], []),
])  # fmt: skip
def test_a_slow_window_exceeds_two_deviations_and_a_quarter_of_the_second_largest(
    sigmas: list[float], slow: list[int]
) -> None:
    windows = windows_of(own_times(len(sigmas)), ALONE)
    interval = [Judged(one, np.full(RANKS, sigma)) for one, sigma in zip(windows, sigmas, strict=True)]
    assert [one.first_step for one in slow_windows(interval, SLOW)] == slow


@pytest.mark.parametrize(
    ("steps", "again"), [((), False), ((4,), False), ((4, 5), False), ((4, 6), True), ((3, 4, 5), True)]
)
def test_two_stops_are_in_windows_that_are_not_adjacent(steps: tuple[int, ...], again: bool) -> None:
    windows = windows_of(own_times(), ALONE, stopped_steps=steps, stopped=SLOW)
    interval = [Judged(one, np.zeros(RANKS)) for one in windows]
    assert stopped_again(interval, SLOW) is again
    assert not stopped_again(interval, SLOW + 1)


def test_a_rank_stopped_repeatedly_is_accused_even_if_others_are_slow() -> None:
    own = own_times(12, r3=1.5)
    own[::3] = own_times(4, r9=1.5)
    windows = windows_of(own, ALONE, stopped_steps=(1, 4, 7, 10), stopped=SLOW, used=0.0)
    baseline = healthy(own=own_times(25), parts=np.zeros((RANKS, 3)))
    found = judge(case_of(windows, baseline))
    assert (found.refusal, found.cause, found.counters) == ("", Cause.SUSPENDED, True)
    assert fact(found, "off_processor_seconds_a_step")[0] > 0.2
