"""Confidence without a known cause: healthy ranks whose work changes look faulty for a while; real faults last."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import JobTelemetry, StepTable, Telemetry, no_counters
from scheduler_feedback.core.verdict import Abstention, Cleared, Verdict
from scheduler_feedback.detectors.ablation_switches import Switches
from scheduler_feedback.detectors.context import Proposal
from scheduler_feedback.detectors.stats.log_odds import ACTING_CONFIDENCE
from scheduler_feedback.detectors.steps.baseline import learn
from scheduler_feedback.detectors.steps.places import places
from scheduler_feedback.detectors.straggler.alarm_case import Case, Judged
from scheduler_feedback.detectors.straggler.gang_state import Spell, rest
from scheduler_feedback.detectors.straggler.persistence import KEPT_SPELLS, spell_period
from scheduler_feedback.detectors.straggler.popular_experts import routes_alike, same_expert_is_slow
from scheduler_feedback.detectors.straggler.rotating_slowness import NODE_WINDOWS
from scheduler_feedback.detectors.straggler.straggler import StragglerDetector
from tests.detectors.alone import alone
from tests.detectors.gang_windows import shape_of, table_of, windows_of

RANKS, STEPS, WARM_UP = 16, 320, 40
OF_NODE = (8, 9, 10, 11)


def own_times(*slow: tuple[int, int, int, float]) -> FloatArray:
    """Return compute seconds with 1 % noise. slow: (rank, first step, number of steps, factor)."""
    own = np.exp(np.random.default_rng(5).normal(0.0, 0.01, (STEPS, RANKS)))
    for rank, first, count, factor in slow:
        own[first : first + count, rank] *= factor
    return own


def results(
    own: FloatArray,
    experts: bool = False,
    tokens: FloatArray | None = None,
    upto: int = STEPS,
    laid_out: bool = False,
) -> list[Verdict | Abstention]:
    """Return all verdicts with their updates, and abstentions, for a recorded trace with four ranks a node."""
    found = everything(own, experts, tokens, upto, laid_out)
    return [one for one in found if isinstance(one, Verdict | Abstention)]


def everything(
    own: FloatArray,
    experts: bool = False,
    tokens: FloatArray | None = None,
    upto: int = STEPS,
    laid_out: bool = False,
    grouped: bool = False,
) -> list[Proposal]:
    """Return all results of the detector for such a trace. grouped: whether eight ranks each exchange tokens."""
    ranks = own.shape[1]
    shape = shape_of(ranks, [f"n{rank // 4}" for rank in range(ranks)])
    if experts:
        object.__setattr__(shape, "expert", np.arange(ranks) % 8)
    if grouped:
        object.__setattr__(shape, "data", np.arange(ranks))
    if laid_out:
        object.__setattr__(shape, "stage", np.zeros(ranks, np.int64))
    table = table_of(own[:upto], tokens=None if tokens is None else tokens[:upto])
    detector, found = alone(StragglerDetector(timed=False), False), list[Proposal]()
    for k in range(upto):
        step = rest(upto_row(table, k + 1), k)
        found += detector.tick(Telemetry(int(step.end_ns.max()), (JobTelemetry(shape, step),), no_counters(ranks)))
    return found


def verdicts(
    own: FloatArray, experts: bool = False, tokens: FloatArray | None = None, upto: int = STEPS
) -> list[Verdict]:
    return [one for one in results(own, experts, tokens, upto) if isinstance(one, Verdict)]


def upto_row(table: StepTable, count: int) -> StepTable:
    arrays = (getattr(table, name) for name in StepTable.__slots__)
    return StepTable(*(None if array is None else array[:count] for array in arrays))


def sure(found: list[Verdict]) -> set[int]:
    ranks = set[int]()
    for one in found:
        if one.confidence >= ACTING_CONFIDENCE:
            ranks |= set(one.ranks) or {one.rank}
    return ranks


def reasons(found: list[Verdict | Abstention]) -> str:
    return " ".join(item.against for one in found for item in one.evidence if item.measure == "windows_of_slowness")


HEALTHY = {
    "recompilations": own_times((3, 80, 4, 4.0), (7, 120, 3, 2.0), (3, 200, 4, 1.5)),
    "stalls of a node's data loader": own_times(
        *((rank, first, 8, 2.0) for rank in OF_NODE for first in (80, 96, 112, 200, 213))
    ),
    "asynchronous checkpoints": own_times(*((0, first, 8, 1.4) for first in range(60, STEPS, 60))),
}


def test_the_first_rank_saves_while_another_rank_of_its_node_is_at_fault() -> None:
    own = own_times((0, 100, 14, 1.4), (3, 98, STEPS, 1.5))
    assert sure(verdicts(own)) == {3}


def test_a_rank_that_is_slow_from_the_start_is_found_behind_a_long_start_up() -> None:
    own = own_times((5, 0, STEPS, 1.2))
    own[:7] += np.random.default_rng(1).uniform(1.0, 6.0, (7, RANKS))
    assert sure([one for one in results(own, laid_out=True) if isinstance(one, Verdict)]) == {5}


def test_long_checkpoints_in_the_background_of_the_first_rank_are_no_fault() -> None:
    saves = own_times(*((0, first, 18, 1.4) for first in range(60, STEPS, 80)))
    found = results(saves, laid_out=True)
    assert found and not [one for one in found if isinstance(one, Verdict)], "it is unknown"
    without_layout = verdicts(saves)
    assert without_layout and not sure(without_layout), "without a layout, it is a verdict with less confidence"
    lasting = results(own_times((0, 150, STEPS, 1.4)), laid_out=True)
    assert sure([one for one in lasting if isinstance(one, Verdict)]) == {0}, "it is accused if it stays slow"


def test_one_long_step_does_not_make_a_rank_that_drifts_a_fault() -> None:
    drifts = own_times((5, 150, 60, 1.045), (5, 165, 1, 7.0))
    assert not sure(verdicts(drifts))
    assert sure(verdicts(own_times((5, 150, 60, 1.15), (5, 165, 1, 2.0)))) == {5}


def test_the_first_rank_that_is_slow_again_and_again_may_save() -> None:
    irregular = (60, 84, 101, 126, 143, 165, 183, 207, 224, 250, 268, 291)
    assert not sure(verdicts(own_times(*((0, first, 12, 1.4) for first in irregular))))
    assert sure(verdicts(own_times(*((5, first, 12, 1.4) for first in irregular)))) == {5}


def test_a_rank_that_was_slow_before_must_be_slow_for_longer() -> None:
    """With the third time, its slow periods are regular or irregular."""
    twice = verdicts(own_times((5, 90, 16, 1.4), (5, 170, 15, 1.4)))
    assert [one.first_step for one in twice if one.confidence >= ACTING_CONFIDENCE] == [90]
    again = verdicts(own_times((5, 90, 13, 1.4), (5, 170, 13, 1.4)))
    assert [one.first_step for one in again if one.confidence >= ACTING_CONFIDENCE] == [90], "13, not the first dozen"
    longer = verdicts(own_times((5, 90, 16, 1.4), (5, 170, 40, 1.4)))
    assert [one.first_step for one in longer if one.confidence >= ACTING_CONFIDENCE] == [90, 170]


def test_an_expert_that_is_popular_in_all_groups_is_no_fault() -> None:
    popular = own_times((3, 100, STEPS, 1.3), (11, 100, STEPS, 1.28))  # ranks 3 and 11 compute the same expert
    assert not sure(verdicts(popular, experts=True))
    assert sure(verdicts(own_times((3, 100, STEPS, 1.3)), experts=True)) == {3}
    assert sure(verdicts(popular)) == {3, 11}, "in a job without experts"


def test_a_popular_expert_takes_its_tokens_from_the_others_of_its_group() -> None:
    """Ranks 0 to 7 exchange tokens. A fault of rank 3 leaves the work of the others as it was."""

    def first_sure(others: float, from_step: int = 100) -> int:
        own = own_times((3, from_step, STEPS, 1.4))
        own[from_step:, [0, 1, 2, 4, 5, 6, 7]] *= others
        found = everything(own, experts=True, grouped=True)
        certain = [one for one in found if isinstance(one, Verdict) and one.confidence >= ACTING_CONFIDENCE]
        assert {one.rank for one in certain} == {3}
        return certain[0].detected_step

    assert first_sure(1.0) <= 112, "a fault"
    assert first_sure(1.0 - 0.4 / 7) >= 220, "the others lose all that it gains"
    assert first_sure(1.0 - 0.2 / 7) >= 220, "half of it"
    assert first_sure(1.04) >= 220, "the job has other work"


@pytest.mark.parametrize("work", HEALTHY)
def test_work_of_a_healthy_rank_is_no_confident_verdict(work: str) -> None:
    found = results(HEALTHY[work])
    assert not sure([one for one in found if isinstance(one, Verdict)])
    assert "looks the same until it ends" in reasons(found), "the verdict or abstention says why it is not certain"


@pytest.mark.parametrize("factor", [1.2, 1.5, 3.0])
def test_a_lasting_fault_becomes_a_confident_verdict_within_a_dozen_steps(factor: float) -> None:
    own = own_times((5, 150, STEPS, factor))
    found = verdicts(own)
    assert sure(found) == {5}
    first = next(one for one in found if one.confidence >= ACTING_CONFIDENCE)
    assert 160 <= first.detected_step <= 164
    assert found[0].detected_step == 158, "it is reported before, with less confidence"
    assert "slow in 3 of the newest 12 windows" in reasons(results(own, upto=156)), "and unknown before that"
    assert found[0].confidence < ACTING_CONFIDENCE and found[0].verdict_id == first.verdict_id
    assert sure(verdicts(own_times((5, 150, STEPS, factor)), upto=first.detected_step + 1)) == {5}


@pytest.mark.parametrize(("windows", "confirmed"), [(6, False), (10, True), (16, True)])
def test_a_slowness_that_ends_within_nine_windows_was_no_confirmed_fault(windows: int, confirmed: bool) -> None:
    ended = [one for one in everything(own_times((5, 150, windows, 1.5))) if isinstance(one, Cleared)]
    assert [one.confirmed for one in ended] == [True] * confirmed


def test_a_fault_that_returns_irregularly_becomes_a_confident_verdict() -> None:
    assert sure(verdicts(own_times((5, 100, 9, 1.5), (5, 131, 14, 1.5), (5, 170, 20, 1.5)))) == {5}
    brief = [(5, first, 3, 1.5) for first in range(100, 200, 5)]
    assert sure(verdicts(own_times(*brief))) == {5}, "three of five steps, for a hundred steps"


def test_short_stalls_of_a_whole_node_stay_uncertain_however_often_they_return() -> None:
    stalls = [(rank, first, 3, 1.5) for rank in OF_NODE for first in range(100, 200, 5)]
    assert not sure(verdicts(own_times(*stalls)))


def test_two_stalls_of_a_node_without_a_pause_are_no_fault() -> None:
    stalls = [(rank, first, count, 2.0) for rank in OF_NODE for first, count in ((80, 7), (120, 6), (126, 6))]
    assert not verdicts(own_times(*stalls))
    lasting = own_times(*stalls, *((rank, 200, STEPS, 1.3) for rank in OF_NODE))
    assert sure(verdicts(lasting)) == set(OF_NODE)


def test_stalls_of_a_node_that_leave_one_rank_alarmed_between_them_are_no_fault() -> None:
    """Rank 9 is slightly slow between the stalls, so that its CUSUM does not fall to zero."""
    stalls = [(rank, first, count, 2.0) for rank in OF_NODE for first, count in ((80, 7), (112, 6), (118, 6))]
    assert not verdicts(own_times(*stalls, (9, 87, 25, 1.04)))


@pytest.mark.parametrize(
    ("longest", "ranks", "last", "is_sure"),
    [(5, OF_NODE, 24, True), (14, OF_NODE, 24, False), (14, OF_NODE, 30, True), (14, (11,), 24, True)],
)
def test_the_longest_stall_of_a_node_is_remembered_after_many_short_ones(
    longest: int, ranks: tuple[int, ...], last: int, is_sure: bool
) -> None:
    """In a day, a data loader has hundreds of stalls. The longest is several times as long as most.

    A stall of the node slows all of its ranks.
    """
    begins = np.cumsum([150, 53, 61, 56, 67, 52, 64, 57, 71]).tolist()
    assert len(begins) > KEPT_SPELLS
    own = np.exp(np.random.default_rng(5).normal(0.0, 0.01, (760, RANKS)))
    for first, count in ((80, longest), *((one, 5) for one in begins), (700, last)):
        own[first : first + count, ranks if first == 80 else OF_NODE] *= 2.0
    assert sure(verdicts(own, upto=len(own))) == ({*OF_NODE} if is_sure else set())


def test_a_rank_that_is_far_less_slow_is_not_accused_with_a_rank_of_its_node() -> None:
    assert sure(verdicts(own_times((9, 150, STEPS, 1.6), (10, 150, STEPS, 1.07)))) == {9}
    assert sure(verdicts(own_times((9, 150, STEPS, 1.6), (8, 100, STEPS, 1.07)))) == {9}, "nor if it was slow before"
    assert sure(verdicts(own_times((9, 150, STEPS, 1.6), (10, 150, STEPS, 1.4)))) == {9, 10}


def test_a_rank_that_is_seldom_slow_is_not_accused_with_a_rank_of_its_node() -> None:
    """Rank 10 is slow in three windows when the verdict on rank 9 becomes certain."""
    assert sure(verdicts(own_times((9, 150, STEPS, 1.6), (10, 158, 4, 1.6)))) == {9}


def test_three_sick_ranks_of_eight_do_not_hide_each_other() -> None:
    own = np.exp(np.random.default_rng(5).normal(0.0, 0.01, (STEPS, 8)))
    own[150:, 4:7] *= 1.5
    assert sure(verdicts(own)) == {4, 5, 6}
    own[150:, 3] *= 1.5
    assert not sure(verdicts(own)), "half of the job"


def test_a_rank_in_doubt_is_unknown_if_ranks_were_slow_before_and_recovered() -> None:
    first, again, other = (5, 80, 10, 1.5), (5, 140, 10, 1.5), (11, 200, 10, 1.5)
    assert verdicts(own_times(first)), "the first time it gets a verdict with a low confidence"
    assert max(one.detected_step for one in verdicts(own_times(first, again, other))) < 100


def test_periodic_work_of_a_rank_is_recognised_by_its_third_spell() -> None:
    long = own_times(*((0, first, 18, 1.4) for first in (60, 120, 180, 240)))
    found = results(long)
    assert not [one for one in found if isinstance(one, Verdict) and one.detected_step >= 180]
    assert "about every 60 steps" in reasons(found)


def test_a_rank_must_be_slow_for_longer_than_another_rank_that_recovered() -> None:
    after = verdicts(own_times((3, 60, 30, 1.4), (7, 150, 20, 1.4)))
    assert sure(after) == {3}, "nothing shows that the first one would end"
    assert sure(verdicts(own_times((3, 60, 30, 1.4), (7, 150, 60, 1.4)))) == {3, 7}


def test_a_popular_expert_is_not_accused_without_tokens() -> None:
    popular = own_times((3, 100, 105, 1.4))
    assert sure(verdicts(popular)) == {3}
    assert not sure(verdicts(popular, experts=True))
    assert sure(verdicts(own_times((3, 100, STEPS, 1.4)), experts=True)) == {3}, "it stays slow for 124 steps"
    tokens = np.random.default_rng(6).uniform(500.0, 1500.0, (STEPS, RANKS))
    faulty = own_times((3, 100, 70, 1.4)) * (0.2 + 0.8 * tokens / 1000.0)
    assert sure(verdicts(faulty, experts=True, tokens=tokens)) == {3}, "the tokens do not explain it"


def test_an_expert_that_is_slow_in_one_of_many_groups_is_not_popular() -> None:
    """Rank 9 is in one of 17 groups of eight experts, which route tokens by the same rule."""
    own = np.exp(np.random.default_rng(5).normal(0.0, 0.01, (200, 136)))
    own[100:, 9] *= 1.3
    found = verdicts(own, experts=True, upto=130)
    assert sure(found) == {9}
    assert not sure(verdicts(own[:, :128], experts=True, upto=130)), "16 groups are too few"
    own[100:, [rank for rank in range(1, 136, 8) if rank != 9]] *= 1.25
    assert not sure(verdicts(own, experts=True, upto=130)), "the expert is popular everywhere"


def test_many_groups_exclude_a_popular_expert_only_if_the_expert_is_not_slow_in_them() -> None:
    shape = shape_of(136, [f"n{rank // 4}" for rank in range(136)])
    object.__setattr__(shape, "expert", np.arange(136) % 8)
    where, own = places(shape), np.ones((25, 136))
    usual = learn(windows_of(own, where), None, where)
    own[:, 9] = 1.3

    def case() -> Case:
        judged = [Judged(one, np.zeros(136)) for one in windows_of(own, where)]
        return Case(9, tuple(range(136)), where, judged, usual, 1.0, frozenset({9}), 0.01, False, Switches())

    assert routes_alike(case(), shape) and not same_expert_is_slow(case(), shape)
    own[:, 1::8] = 1.3
    assert same_expert_is_slow(case(), shape) and not routes_alike(case(), shape)


def test_an_expert_is_not_popular_enough_to_double_the_time_of_its_rank() -> None:
    found = verdicts(own_times((3, 100, 60, 2.0)), experts=True)
    assert sure(found) == {3}
    first = next(one for one in found if one.confidence >= ACTING_CONFIDENCE)
    assert first.detected_step >= 100 + NODE_WINDOWS - 1, "it must last, too"


def test_popularity_that_has_moved_between_ranks_may_last_longer() -> None:
    lasting = (3, 100, 130, 1.4)
    assert sure(verdicts(own_times(lasting), experts=True)) == {3}
    assert not sure(verdicts(own_times((7, 50, 15, 1.4), lasting), experts=True))
    assert sure(verdicts(own_times((0, 50, 15, 1.4), lasting), experts=True)) == {3}, "the first rank saved"


def test_only_the_hardware_of_a_rank_slows_it_again_and_again_and_no_other_rank() -> None:
    again = [(3, 80, 20, 1.4), (3, 131, 14, 1.4), (3, 190, 25, 1.4)]
    assert sure(verdicts(own_times(*again), experts=True)) == {3}
    assert not sure(verdicts(own_times(*again[:2]), experts=True))
    assert not sure(verdicts(own_times((7, 40, 15, 1.4), *again), experts=True)), "popularity moves"


def spells(*begins: int, window_steps: int = 1) -> list[Spell]:
    return [Spell(number, number, begin, window_steps, 5) for number, begin in enumerate(begins)]


@pytest.mark.parametrize(
    ("begins", "period"),
    [
        ((60, 120), 0),  # two may be chance
        ((60, 120, 180), 60),
        ((60, 121, 180), 59),  # noise hides the first slow step now and then
        ((60, 120, 240), 60),  # one was missed
        ((60, 120, 200), 0),
        ((10, 17, 24), 0),  # too short for checkpoints
        ((60, 120, 90), 0),  # the job went back to a checkpoint
    ],
)
def test_period_of_spells(begins: tuple[int, ...], period: int) -> None:
    assert spell_period(spells(*begins)) == period


def test_period_of_spells_is_measured_by_whole_windows() -> None:
    assert spell_period(spells(60, 125, 180, window_steps=5)) == 55
    assert spell_period(spells(60, 95, 130, window_steps=5)) == 0, "windows are too long for this period"
