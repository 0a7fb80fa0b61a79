"""Workload detector: the history of an attempt, and each of the detector's rules on a constructed history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import FEATURE, FEATURES, JobTelemetry, Shape, StepTable
from scheduler_feedback.core.verdict import Cause, Kind
from scheduler_feedback.detectors.stats import log_odds
from scheduler_feedback.detectors.steps.baseline import WARM_UP_STEPS
from scheduler_feedback.detectors.steps.places import Places, places
from scheduler_feedback.detectors.workload import change_rules, workload_rules
from scheduler_feedback.detectors.workload.attempt_history import (
    Busy,
    Course,
    Usual,
    busy_seconds,
    take_in,
)
from scheduler_feedback.detectors.workload.slow_stage import Pressure, alone, slow_node
from scheduler_feedback.detectors.workload.workload_claim import Claim
from scheduler_feedback.detectors.workload.workload_rules import _in_a_row
from tests.detectors.gang_windows import NS, SHARED_WAIT, START_NS, shape_of, where_of

RANKS = 16
SHAPE = shape_of(RANKS, [f"n{rank // 4}" for rank in range(RANKS)])
STAGES = [rank // 4 for rank in range(RANKS)]


class Run:
    """History that is fed with steps: compute seconds [steps, ranks]. All ranks wait for the slowest one."""

    def __init__(self, shape: Shape = SHAPE, skip: int = 0) -> None:
        self.course, self.at_ns, self.number = Course(shape, places(shape), START_NS, skip), START_NS, 0

    def steps(self, own: FloatArray, missing: Sequence[int] = (), step_by: int = 1, **more: Any) -> bool:
        seconds = np.repeat(own.max(axis=1, keepdims=True), own.shape[1], axis=1) + SHARED_WAIT
        waits = seconds - own
        seconds, waits = seconds.copy(), waits.copy()
        seconds[:, list(missing)] = np.nan
        ends = self.at_ns + np.rint(np.cumsum(np.nanmax(seconds, axis=1)) * NS).astype(np.int64)
        numbers = self.number + step_by * np.arange(len(own))
        self.at_ns, self.number = int(ends[-1]), int(numbers[-1]) + step_by
        table = StepTable(numbers, np.repeat(ends[:, None], own.shape[1], axis=1), seconds, waits, **more)
        return take_in(self.course, table)

    @property
    def usual(self) -> Usual:
        assert self.course.usual is not None
        return self.course.usual

    def claims(self, shared_machine: bool = False, crowded: bool = False) -> list[Claim]:
        shared = np.full(RANKS, shared_machine)
        job = JobTelemetry(self.course.shape, shared_machine=shared)
        return list(workload_rules.claims(self.course, job, crowded))


def own(count: int, level: float = 1.0, **slower: float) -> FloatArray:
    """Return compute seconds [count, ranks], by default `level`; r3=1.5 sets rank 3 to 1.5 seconds."""
    found = np.full((count, RANKS), level)
    for name, factor in slower.items():
        found[:, int(name[1:])] = factor
    return found


# --- history ---------------------------------------------------------------------------------------------------------


def test_the_first_steps_and_steps_with_few_reports_are_skipped() -> None:
    run = Run(skip=3)
    assert not run.steps(own(3, 30.0))
    assert run.steps(own(2)) and (run.course.taken, run.course.to_skip) == (2, 0)
    assert not run.steps(own(2), missing=range(4)), "a quarter of the ranks is missing"
    assert run.course.taken == 2
    assert run.steps(own(1, 2.0), missing=[5])
    assert run.course.compute[-1][[4, 5]].tolist() == pytest.approx([2.0, 1.0]), "a missing rank keeps its last value"
    assert run.course.seconds[-1] == pytest.approx(2.0 + SHARED_WAIT)
    first = Run()
    first.steps(own(1, 2.0), missing=[5])
    assert first.course.compute[-1][5] == pytest.approx(2.0), (
        "before its first report a rank has the value of its peers"
    )


def test_the_usual_state_is_learned_once_from_the_first_steps() -> None:
    run = Run()
    run.steps(own(WARM_UP_STEPS - 1, r3=1.5))
    assert run.course.usual is None
    run.steps(own(1, r3=1.5))
    assert run.usual.seconds == pytest.approx(1.5 + SHARED_WAIT)
    assert run.usual.compute[[2, 3]].tolist() == pytest.approx([1.0, 1.5])
    assert (run.usual.top, run.usual.unlike) == (pytest.approx(0.0), pytest.approx(0.0)), (
        "each relative to its own usual time"
    )
    learned = run.usual
    run.steps(own(60, 2.0))
    assert run.usual is learned


def test_steps_are_long_from_the_first_of_two_long_ones_until_two_are_not() -> None:
    run = Run()
    run.steps(own(WARM_UP_STEPS))
    begins_ns = run.at_ns
    run.steps(own(1, 1.5))
    assert run.course.since_ns == 0, "one long step is a spike"
    run.steps(own(1))
    assert run.course.since_ns == 0
    run.steps(own(1, 1.5))
    again_ns = run.at_ns - round(1.7 * NS)
    run.steps(own(3, 1.5))
    assert run.course.since_ns == again_ns > begins_ns
    run.steps(own(1))
    assert run.course.since_ns == again_ns, "one normal step does not end it"
    run.steps(own(1))
    assert run.course.since_ns == 0


@pytest.mark.parametrize(("all_ranks", "reported"), [(True, True), (False, False)])
def test_only_long_steps_of_the_whole_job_count_for_a_period(all_ranks: bool, reported: bool) -> None:
    run = Run()
    run.steps(own(WARM_UP_STEPS))
    for _ in range(8):
        run.steps(own(1, 3.0) if all_ranks else own(1, r3=3.0))
        run.steps(own(9))
    assert (run.course.long_steps.period is not None) is reported
    assert len(run.course.long_steps.runs) == (8 if reported else 0)


def test_tensor_activity_is_taken_from_windows_that_began_since() -> None:
    course = Run().course
    for second, share in enumerate((0.9, 0.9, 0.3, 0.5), 1):
        course.busy.append(Busy(START_NS + second * 10 * NS, 10.0, np.array([share])))
    seconds, error = busy_seconds(course, START_NS + 20 * NS, 2.0)
    assert seconds.tolist() == pytest.approx([0.8]), "0.3 and 0.5 of two seconds"
    assert error.tolist() == pytest.approx([0.1 / np.sqrt(2) / 0.4])
    assert busy_seconds(course, START_NS + 21 * NS, 2.0)[0].tolist() == pytest.approx([1.0]), "begun before it"
    assert np.isnan(busy_seconds(course, START_NS + 31 * NS, 2.0)).all()
    assert np.isinf(busy_seconds(course, START_NS, 25.0)[1]).all(), "one step longer than a window is too few"
    assert busy_seconds(course, START_NS, 20.0)[1].tolist() == pytest.approx([0.25 / np.sqrt(2) / 0.65])


# --- rules -----------------------------------------------------------------------------------------------------------


def staged(stages: Sequence[int] = STAGES) -> Shape:
    return replace(SHAPE, stage=np.array(stages))


@pytest.mark.parametrize(
    ("of_stage", "reported"),
    [
        ([1.2, 1.2, 1.2, 1.2], True),
        ([1.08, 1.08, 1.08, 1.08], False),  # by less than a tenth
        ([1.3, 1.3, 1.3, 1.0], False),  # one of its ranks is like the others
        ([1.0, 1.0, 1.0, 1.5], False),  # one rank, not a stage
    ],
)
def test_a_stage_is_larger_if_its_median_rank_and_each_of_its_ranks_takes_longer(
    of_stage: list[float], reported: bool
) -> None:
    times = own(WARM_UP_STEPS + 5)
    times[:, 4:8] = of_stage
    run = Run(staged())
    run.steps(times)
    found = [one for one in run.claims() if one.kind is Kind.STAGE_IMBALANCE]
    assert [(one.key, one.ranks, one.rank) for one in found] == [("stage-1", (4, 5, 6, 7), -1)] * reported
    unknown = Run()
    unknown.steps(times)
    assert not [one for one in unknown.claims() if one.kind is Kind.STAGE_IMBALANCE], (
        "without a layout there are no stages"
    )


def periodic_steps(every: int, count: int, level: float = 1.3, miss: Sequence[int] = ()) -> FloatArray:
    times = own(count)
    for number in range(0, count, every):
        times[number] = 1.0 if number in miss else level
    return times


@pytest.mark.parametrize(
    ("times", "reported"),
    [
        (periodic_steps(3, 30), True),
        (periodic_steps(3, 30, level=1.05), False),  # by less than a tenth
        (periodic_steps(3, 30, miss=[24]), False),
        (own(30), False),
    ],
)
def test_every_third_step_is_long_for_all_alike(times: FloatArray, reported: bool) -> None:
    run = Run()
    run.steps(times)
    found = [one for one in run.claims() if one.key == "beat"]
    assert [(one.cause, one.rank) for one in found] == [(Cause.CHECKPOINT, -1)] * reported
    assert not reported or found[0].evidence[0].value == 3.0


def test_periodic_long_steps_among_other_long_steps_are_not_a_period() -> None:
    times = periodic_steps(3, 30)
    times[[10, 17, 22]] = 1.3
    run = Run()
    run.steps(times)
    assert not [one for one in run.claims() if one.key == "beat"]
    gaps = Run()
    for third in np.split(periodic_steps(3, 30), 10):
        gaps.steps(third)
        gaps.number += 4  # steps without reports
    assert not [one for one in gaps.claims() if one.key == "beat"]


@pytest.mark.parametrize(
    ("numbers", "count"), [([], 0), ([4], 1), ([1, 2, 3], 3), ([1, 3, 4], 2), ([5, 6, 2, 3], 2), ([3, 3], 1)]
)
def test_the_number_of_consecutive_step_numbers_is_counted(numbers: list[int], count: int) -> None:
    assert _in_a_row(numbers) == count


def lengths(rotating: bool, count: int = 40, seed: int = 3) -> tuple[FloatArray, FloatArray]:
    """Return (compute seconds, tokens), each [steps, ranks], which are proportional.

    rotating: tokens vary by chance; otherwise rank 3 always has more.
    """
    random = np.random.default_rng(seed)
    tokens = 1000.0 * random.normal(1.0, 0.12, (count, RANKS))
    if not rotating:
        tokens[:, 3] = 1000.0 * random.normal(1.6, 0.12, count)
    return 1e-3 * tokens, tokens


@pytest.mark.parametrize(("rotating", "reported"), [(True, True), (False, False)])
def test_ranks_with_more_tokens_in_turn_are_slow_in_turn(rotating: bool, reported: bool) -> None:
    times, tokens = lengths(rotating)
    run = Run()
    run.steps(times, tokens=tokens)
    found = [one for one in run.claims() if one.key == "sequence"]
    assert [(one.cause, one.rank) for one in found] == [(Cause.SEQUENCE_LENGTH, -1)] * reported
    silent = Run()
    silent.steps(times)
    assert not [one for one in silent.claims() if one.key == "sequence"], "there is no evidence for sequence lengths"


def test_a_constant_offset_is_reported_if_it_slows_the_job() -> None:
    times = own(120, r3=1.09) * np.random.default_rng(2).normal(1.0, 0.003, (120, RANKS))
    run = Run()
    run.steps(times)
    (found,) = [one for one in run.claims() if one.cause is Cause.STANDING_OFFSET]
    assert (found.key, found.rank) == ("offset", 3)
    assert not [one for one in run.claims(shared_machine=True) if one.cause is Cause.STANDING_OFFSET]
    late = times.copy()
    late[:40, 3] = 1.0
    begun = Run()
    begun.steps(late)
    assert not [one for one in begun.claims() if one.cause is Cause.STANDING_OFFSET], (
        "it began during the attempt, so it is not a constant offset"
    )


# --- changes since the job was new -----------------------------------------------------------------------------------


def paused(ranks: Sequence[int], count: int = 12, by: float = 0.4, shape: Shape = SHAPE) -> list[Claim]:
    """Return the rule's claims after one rank in each step paused for `by` seconds, in the order of `ranks`."""
    run = Run(shape)
    noise = np.random.default_rng(4).normal(1.0, 0.004, (WARM_UP_STEPS + 12, RANKS))
    run.steps(own(WARM_UP_STEPS) * noise[:WARM_UP_STEPS])
    times = own(12) * noise[WARM_UP_STEPS:]
    times[np.arange(count), np.resize(np.array(ranks), count)] += by
    run.steps(times)
    return list(change_rules._pauses(run.course, run.usual, 12))


@pytest.mark.parametrize(
    ("ranks", "reported"),
    [
        ([0, 5, 10, 15], True),
        ([0, 5, 10], False),  # three ranks are too few
        ([0, 1, 2, 3], False),  # of one node
        ([0, 1, 2, 4, 3, 1, 2, 0, 3, 1], False),  # nearly all of one node
        ([0, 5, 0, 10, 0, 15, 0, 9], True),  # half of the steps are not more than half
        (list(range(RANKS)), True),
    ],
)
def test_rotating_pauses_need_four_ranks_on_several_nodes(ranks: list[int], reported: bool) -> None:
    assert [(one.cause, one.rank) for one in paused(ranks)] == [(Cause.PAUSES, -1)] * reported


def test_pauses_in_turn_may_be_popular_experts_if_tokens_are_not_reported() -> None:
    (pauses,) = paused([0, 5, 10, 15])
    (routed,) = paused([0, 5, 10, 15], shape=replace(SHAPE, expert=np.arange(RANKS) % 4))
    assert log_odds.confidence(pauses.evidence) >= 0.9 > log_odds.confidence(routed.evidence) >= 0.5


def test_pauses_are_reported_if_most_steps_have_one_and_the_job_is_slower() -> None:
    assert not paused([0, 5, 10, 15], count=8), "a third of the steps has no pause"
    assert not paused([0, 5, 10, 15], by=0.05)
    assert paused([0, 5, 10, 15], count=10)
    assert not paused([0, 5, 10], count=10), "the slowest rank of a step without a pause has not paused"


# --- slow nodes ------------------------------------------------------------------------------------------------------

NODES: Places = places(staged())
"""Four stages, each on a separate node."""


def window(**waits: float) -> FloatArray:
    """Return the share of time that tasks on each node wait for disks; n1=0.3 sets it for n1."""
    values = np.full((len(FEATURES), RANKS), 0.01, np.float32)
    for name, value in waits.items():
        values[FEATURE["io_waiting"], NODES.index == NODES.names.index(name)] = value
    return values.astype(np.float64)


def window_pressure(usual: dict[str, float], now: dict[str, float]) -> Pressure:
    found = Pressure()
    for second in range(40):
        found.take(START_NS + second * NS, window(**usual).astype(np.float32), NODES, True)
    for second in range(100, 106):
        found.take(START_NS + second * NS, window(**now).astype(np.float32), NODES, False)
    return found


def node_claim(shift: dict[int, float], usual: dict[str, float], now: dict[str, float]) -> Claim | None:
    by_rank = np.zeros(RANKS)
    for rank, value in shift.items():
        by_rank[rank] = value
    first = np.asarray(NODES.role == 0)
    ranks = tuple(range(RANKS))
    return slow_node(NODES, ranks, first, by_rank, 0.01, window_pressure(usual, now), START_NS + 100 * NS, 1.2)


SECOND_NODE = dict.fromkeys(range(4, 8), 0.4)


@pytest.mark.parametrize(
    ("shift", "usual", "now", "found"),
    [
        (SECOND_NODE, {}, {"n1": 0.3}, True),
        (SECOND_NODE, {}, {"n1": 0.035}, False),  # hardly more than usual
        (SECOND_NODE, {"n1": 0.2}, {"n1": 0.45}, False),  # less than three times their usual wait
        (SECOND_NODE, {"n1": 0.1}, {"n1": 0.45}, True),
        (SECOND_NODE, {}, {"n1": 0.3, "n2": 0.2}, False),  # the tasks of others wait as well
        (SECOND_NODE, {}, {"n2": 0.3}, False),  # another node waits
        (SECOND_NODE | {9: 0.2, 10: 0.2, 8: 0.2, 11: 0.2}, {}, {"n1": 0.3}, False),  # others became slow as well
        (SECOND_NODE | {5: 0.0}, {}, {"n1": 0.3}, False),  # one of its ranks is unchanged
    ],
)
def test_a_node_is_slow_if_only_its_ranks_are_slow_and_only_its_tasks_wait(
    shift: dict[int, float], usual: dict[str, float], now: dict[str, float], found: bool
) -> None:
    claim = node_claim(shift, usual, now)
    assert (claim is not None) is found
    if claim is not None:
        assert (claim.node, claim.ranks, claim.cause) == ("n1", (4, 5, 6, 7), Cause.STORAGE)
        assert claim.kind is Kind.STRAGGLER and claim.key == "node-n1"


def test_the_only_node_that_reads_input_is_reported_with_lower_confidence() -> None:
    claim = node_claim(dict.fromkeys(range(4), 0.4), {}, {"n0": 0.3})
    assert claim is not None and "reads_alone" in [one.measure for one in claim.evidence]
    other = node_claim(SECOND_NODE, {}, {"n1": 0.3})
    assert other is not None and "reads_alone" not in [one.measure for one in other.evidence]


def test_the_usual_wait_of_tasks_is_not_learned_from_slow_steps() -> None:
    pressure = window_pressure({}, {"n1": 0.5})
    assert pressure.usual is not None and pressure.usual[0].tolist() == pytest.approx([0.01] * 4)
    more = pressure.more(START_NS + 100 * NS)
    assert more is not None and more[0].tolist() == pytest.approx([0.0, 0.49, 0.0, 0.0])
    assert pressure.more(START_NS + 200 * NS) is None
    node = np.arange(4) == 1
    assert pressure.open(START_NS + 100 * NS, node) and not pressure.open(START_NS + 100 * NS, ~node)
    assert pressure.open(START_NS + 200 * NS, ~node), "no window contains pressure yet"
    assert not Pressure().open(START_NS, node), "no counter measures it"
    before = len(pressure.newest)
    pressure.take(START_NS, np.full((len(FEATURES), RANKS), np.nan, np.float32), NODES, True)
    assert len(pressure.newest) == before


def test_stages_are_alone_if_each_has_one_node_and_there_are_several() -> None:
    assert alone(NODES)
    assert not alone(places(SHAPE)), "one role"
    assert not alone(where_of(RANKS, ["n"] * RANKS, STAGES)), "one node"
    assert not alone(where_of(RANKS, [f"n{rank // 4}" for rank in range(RANKS)], [rank // 8 for rank in range(RANKS)]))
    assert not alone(where_of(4, ["a"] * 4))
    assert alone(where_of(8, ["a"] * 4 + ["b"] * 4, [rank // 2 for rank in range(8)])), "several stages on one node"
