"""State of the straggler detector: CUSUMs, intervals, reports of an alarm, and snapshots."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from agent.schema.sample import expanded
from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import JobTelemetry, Shape, Telemetry, no_counters
from scheduler_feedback.core.verdict import Abstention, Cause, Cleared, Finding, Verdict
from scheduler_feedback.detectors.ablation_switches import Switches
from scheduler_feedback.detectors.stats.log_odds import ACTING_CONFIDENCE
from scheduler_feedback.detectors.steps.baseline import Baseline
from scheduler_feedback.detectors.steps.places import places
from scheduler_feedback.detectors.steps.windows import Window
from scheduler_feedback.detectors.straggler import straggler
from scheduler_feedback.detectors.straggler.alarm_case import Judged
from scheduler_feedback.detectors.straggler.alarm_checks import Judgement
from scheduler_feedback.detectors.straggler.cusum import (
    ALLOWANCE_SIGMAS,
    CLIP_SIGMAS,
    HIGHEST_SCORE,
    judge_window,
    mates_of,
    persistent,
)
from scheduler_feedback.detectors.straggler.gang_state import (
    HISTORY_WINDOWS,
    INTERVAL_WINDOWS,
    ActiveVerdict,
    GangState,
    dump,
    load,
)
from scheduler_feedback.detectors.straggler.straggler import ABSENT_NS, StragglerDetector, _slowdowns
from scheduler_feedback.detectors.straggler.verdict_building import (
    CAUSE_WINDOWS,
    CLEAR_WINDOWS,
    UNEASY_SCORE,
    UNSURE_CONFIDENCE,
    _last_slow,
    _onset,
    _place,
    cleared,
    is_settled,
    not_yet_sure,
    says_more,
    under_suspicion,
)
from tests.detectors.alone import alone
from tests.detectors.gang_windows import NS, START_NS, shape_of, table_of, windows_of
from tests.detectors.test_alarm_checks import RANKS, healthy, own_times

SHAPE = shape_of(RANKS)


def state_of(shape: Shape = SHAPE, baseline: Baseline | None = None) -> GangState:
    found = GangState(1, tuple(shape.ranks.tolist()), places(shape), START_NS, shape)
    found.forget_course()
    found.baseline = healthy() if baseline is None else baseline
    return found


def test_a_rank_is_under_suspicion_until_new_samples_cannot_change_its_verdict() -> None:
    state = state_of()
    state.counted = 10
    state.score[[1, 2, 3]] = UNEASY_SCORE
    state.since[[1, 2, 3]] = 5
    assert under_suspicion(state) == [1, 2, 3]
    state.active[1] = ActiveVerdict("v-1", START_NS, ACTING_CONFIDENCE, others={2})
    assert under_suspicion(state) == [1, 2, 3], "its cause is unknown"
    state.active[1].reported_cause = True
    assert under_suspicion(state) == [3]
    state.active[1].reported_confidence = ACTING_CONFIDENCE - 0.01
    assert under_suspicion(state) == [1, 2, 3]
    state.counted = 5 + HISTORY_WINDOWS
    assert under_suspicion(state) == [1, 2, 3]
    state.counted += 1
    assert under_suspicion(state) == []


def judge_all(state: GangState, own: FloatArray, switches: Switches | None = None) -> list[Window]:
    windows = windows_of(own, state.where)
    assert state.baseline is not None
    for window in windows:
        judge_window(state, state.baseline, window, Switches() if switches is None else switches)
    return windows


# --- CUSUMs ----------------------------------------------------------------------------------------------------------


def test_a_single_stall_adds_at_most_the_clip_and_raises_no_alarm() -> None:
    state = state_of()
    judge_all(state, own_times(1, r3=50.0))
    assert state.score[3] == pytest.approx(CLIP_SIGMAS - ALLOWANCE_SIGMAS)
    assert np.delete(state.score, 3).max() == 0.0
    judge_all(state, own_times(9, r3=50.0))
    assert state.score[3] == HIGHEST_SCORE


def test_an_episode_lasts_while_the_cusum_is_above_zero() -> None:
    state = state_of()
    judge_all(state, own_times(4))
    assert state.since.max() == -1 and state.episode(3) == 0
    judge_all(state, own_times(2, r3=1.5))
    assert (state.since[3], state.episode(3), state.counted) == (4, 2, 6)
    judge_all(state, own_times(40))
    assert state.since[3] == -1 and state.episode(3) == 0
    assert 2 < state.longest_episode < 20
    assert state.interval(3) == []


def test_a_rank_must_exceed_its_history_and_its_peers() -> None:
    """It always took a tenth longer; if all ranks take longer, none is slower."""
    larger = state_of(baseline=healthy(own=own_times(25, r3=1.1)))
    judge_all(larger, own_times(3, r3=1.1))
    assert larger.score.max() == 0.0, "as much slower than its peers as always"
    faster = state_of(baseline=healthy(own=own_times(25, r3=0.5)))
    judge_all(faster, own_times(3, r3=0.9))
    assert faster.score.max() == 0.0, "slower than it was, and faster than its peers"
    all_slower = state_of()
    judge_all(all_slower, own_times(3) * 1.5)
    assert all_slower.score.max() == 0.0
    one = state_of()
    judge_all(one, own_times(3, r3=1.5))
    assert np.flatnonzero(one.score).tolist() == [3]


def test_a_rank_that_does_not_report_has_no_residual() -> None:
    state = state_of()
    assert state.baseline is not None
    (window,) = windows_of(own_times(1, r3=1.5), state.where)
    judge_window(state, state.baseline, replace(window, present=np.arange(RANKS) != 3), Switches())
    assert state.score.max() == 0.0
    (unknown,) = windows_of(own_times(1, r3=1.5), state.where)
    judge_window(state, state.baseline, replace(unknown, compute=np.full(RANKS, np.nan)), Switches())
    assert state.score.max() == 0.0 and len(state.history) == 2


def test_evidence_starts_at_the_first_slow_window_of_a_bounded_interval() -> None:
    state = state_of()
    own = own_times(2)
    own[0, 3] = 1.038  # less than two deviations of two per cent: the sum rises above zero by chance
    judge_all(state, np.concatenate([own, own_times(3, r3=1.5)]))
    assert state.since[3] == 0
    assert [judged.window.first_step for judged in state.interval(3)] == [2, 3, 4]
    judge_all(state, own_times(3 * INTERVAL_WINDOWS, r3=1.5))
    assert len(state.interval(3)) == INTERVAL_WINDOWS
    assert state.interval(4) == []


@pytest.mark.parametrize(
    ("windows", "timed", "counts"), [(2, False, False), (3, False, True), (2, True, False), (3, True, True)]
)
def test_an_alarm_needs_three_slow_windows(windows: int, timed: bool, counts: bool) -> None:
    state = state_of()
    judge_all(state, own_times(windows, r3=1.5))
    assert persistent(state, 3, timed) is counts
    assert not persistent(state, 4, timed)


def test_an_alarm_needs_two_seconds_or_two_windows_with_stops() -> None:
    state = state_of()
    short = windows_of(own_times(8, r3=1.5) * 0.2, state.where, shared=0.02)
    state.since[3], state.counted = 0, len(short)
    state.history.extend(Judged(one, np.full(RANKS, 6.0)) for one in short)
    assert persistent(state, 3, True), "2.2 s from the first to the last"
    state.history.pop()
    state.counted -= 1
    assert not persistent(state, 3, True) and persistent(state, 3, False)
    stopped = state_of()
    windows = windows_of(own_times(3, r3=1.5), stopped.where, stopped_steps=(0, 2), stopped=3)
    sigmas = (6.0, 0.0, 6.0)
    stopped.since[3], stopped.counted = 0, 3
    for one, sigma in zip(windows, sigmas, strict=True):
        stopped.history.append(Judged(one, np.full(RANKS, sigma)))
    assert persistent(stopped, 3, True), "a process is not stopped twice by chance"


def test_mates_are_the_other_alarmed_ranks_of_the_node() -> None:
    state = state_of(shape_of(RANKS, [f"n{rank // 4}" for rank in range(RANKS)]))
    state.score[[1, 2, 5]] = 9.0
    assert [mates_of(state, rank) for rank in (1, 2, 3, 5, 9)] == [(2,), (1,), (1, 2), (), ()]


# --- reports ---------------------------------------------------------------------------------------------------------


def judgement(cause: Cause = Cause.UNKNOWN, confidence: float = 0.95) -> Judgement:
    return Judgement(3, 1.3, 1.6, cause, confidence, (), False)


@pytest.mark.parametrize(
    ("reported", "reported_cause", "now", "cause", "more"),
    [
        (0.7, False, 0.95, Cause.UNKNOWN, True),  # confident enough for an action now
        (0.7, False, 0.8, Cause.UNKNOWN, False),  # more confident, but not enough
        (0.92, False, 0.99, Cause.UNKNOWN, False),  # no input is missing
        (0.92, False, 0.95, Cause.GPU, True),  # and its cause is known
        (0.92, True, 0.95, Cause.GPU, False),
        (0.97, False, 0.91, Cause.GPU, True),  # still confident enough
        (0.97, False, 0.8, Cause.GPU, False),  # no longer
        (0.7, False, 0.6, Cause.GPU, False),
        (0.7, False, 0.75, Cause.GPU, True),
    ],
)
def test_a_verdict_is_repeated_when_it_becomes_actionable_or_has_a_cause(
    reported: float, reported_cause: bool, now: float, cause: Cause, more: bool
) -> None:
    assert says_more(ActiveVerdict("v", 0, reported, reported_cause), judgement(cause, now), True) is more


def test_a_fault_of_a_part_is_reported_besides_another_cause_of_its_node() -> None:
    of_node = ActiveVerdict("v", 0, 0.95, True, "n0", Cause.CPU_CONTENTION)
    assert says_more(of_node, judgement(Cause.THERMAL, 0.6), own=False)
    assert not says_more(replace(of_node, cause=Cause.THERMAL), judgement(Cause.THERMAL, 0.6), own=False)
    assert not says_more(of_node, judgement(Cause.STORAGE, 0.6), own=False)
    assert not says_more(of_node, judgement(Cause.THERMAL, 0.6), own=True)


@pytest.mark.parametrize(
    ("confidence", "cause", "own", "windows", "enough"),
    [
        (0.95, True, True, 7, True),
        (0.95, True, True, CAUSE_WINDOWS, True),
        (0.95, False, True, CAUSE_WINDOWS + 1, True),
        (0.95, False, True, CAUSE_WINDOWS, False),  # evaluated for its cause once in ten windows
        (0.95, True, False, CAUSE_WINDOWS, False),
        (0.8, True, True, 7, False),  # it may still become confident
        (ACTING_CONFIDENCE, True, True, 7, True),
    ],
)
def test_a_certain_verdict_with_a_cause_is_not_evaluated_again(
    confidence: float, cause: bool, own: bool, windows: int, enough: bool
) -> None:
    assert is_settled(ActiveVerdict("v", 0, confidence, cause), windows, own) is enough


def test_a_rank_that_may_be_healthy_has_a_low_confidence_and_the_reason_is_shown() -> None:
    unsure = not_yet_sure(judgement(confidence=0.99), "it may recompile", 4, ())
    assert unsure.confidence == UNSURE_CONFIDENCE < ACTING_CONFIDENCE
    assert [(one.against, one.value) for one in unsure.evidence] == [("it may recompile", 4.0)]
    assert not_yet_sure(judgement(confidence=0.5), "it may recompile", 4, ()).confidence == 0.5
    refused = not_yet_sure(judgement(confidence=0.99), "it may recompile", 4, (3, 5), own_work=True)
    assert (refused.refusal, refused.about) == ("it may recompile", (3, 5)), "the job's own work, without counters"
    with_counters = replace(judgement(confidence=0.99), counters=True)
    assert not_yet_sure(with_counters, "it may recompile", 4, ()).refusal, "known counters show no cause"
    assert not not_yet_sure(replace(with_counters, hinted=True), "it may stall", 4, (), own_work=True).refusal


@pytest.mark.parametrize(
    ("cause", "mates", "level", "device", "suspects"),
    [
        (Cause.THERMAL, (), "gpu", "GPU-3", ("nic:NIC-3", "node:n03")),
        (Cause.NIC, (), "nic", "NIC-3", ("gpu:GPU-3", "node:n03")),
        (Cause.NIC, (2,), "nic", "NIC-3", ("gpu:GPU-3", "node:n03")),
        (Cause.STORAGE, (), "node", "", ("gpu:GPU-3", "nic:NIC-3")),
        (Cause.SUSPENDED, (), "node", "", ("gpu:GPU-3", "nic:NIC-3")),
        (Cause.UNKNOWN, (), "gpu", "GPU-3", ("nic:NIC-3", "node:n03")),
        (Cause.UNKNOWN, (2, 5), "node", "", ("gpu:GPU-3", "nic:NIC-3")),
    ],
)
def test_the_accused_device_follows_from_the_cause_and_the_slow_ranks(
    cause: Cause, mates: tuple[int, ...], level: str, device: str, suspects: tuple[str, ...]
) -> None:
    names = tuple(range(RANKS))
    shape = replace(SHAPE, gpus=tuple(f"GPU-{n}" for n in names), nics=tuple(f"NIC-{n}" for n in names))
    assert _place(shape, 3, cause, mates) == {
        "level": level, "device": device, "suspects": suspects, "ranks": (3, *mates) if mates else (),
    }  # fmt: skip
    bare = _place(SHAPE, 3, cause, mates)
    assert (bare["level"], bare["device"], bare["suspects"]) == ("node", "", ())


def interval_of(sigmas: list[float]) -> list[Judged]:
    windows = windows_of(own_times(len(sigmas)), places(SHAPE))
    return [Judged(one, np.full(RANKS, sigma)) for one, sigma in zip(windows, sigmas, strict=True)]


@pytest.mark.parametrize(
    ("sigmas", "onset"),
    [
        ([5.0, 5.0, 5.0], 0), ([2.0, 0.0, 0.0, 5.0, 5.0, 5.0], 3), ([90.0, 0.0, 0.0, 0.0, 5.0, 5.0, 5.0], 4),
        ([0.0, 4.0, 1.0, 5.0, 5.0, 4.0], 1),
    ],
)  # fmt: skip
def test_the_onset_is_where_the_excess_up_to_the_end_is_largest(sigmas: list[float], onset: int) -> None:
    """An earlier stall, however long, counts at most as much as one window may."""
    assert _onset(interval_of(sigmas), 3).first_step == onset


def test_the_last_slow_step_is_the_newest() -> None:
    state = state_of()
    state.history.extend(interval_of([3.0, 2.0, 0.0, 2.5, 1.9, 0.0]))
    assert _last_slow(state, 3) == 3
    assert _last_slow(state_of(), 3) == -1


def test_a_verdict_is_active_until_ten_windows_at_normal_speed() -> None:
    state = state_of()
    state.active[3] = ActiveVerdict("v", 0, 0.95)
    windows = judge_all(state, own_times(CLEAR_WINDOWS, r3=1.5))
    state.history.extend(interval_of([0.0] * (CLEAR_WINDOWS - 1)))
    assert not cleared("g", state, windows[-1]), "one of ten was slow"
    state.history.append(interval_of([1.9])[0])
    (found,) = cleared("g", state, windows[-1])
    assert isinstance(found, Cleared) and found.verdict_id == "v"
    assert found.last_step == CLEAR_WINDOWS - 1
    assert not state.active
    assert (state.score[3], state.since[3]) == (0.0, -1)
    state.active[4] = ActiveVerdict("w", 0, 0.95)
    state.history.extend(interval_of([1.0] * CLEAR_WINDOWS))
    assert not cleared("g", state, windows[-1]), "never slow, but its mean is above the limit"


def test_a_node_verdict_is_active_until_all_of_its_ranks_are_normal() -> None:
    state = state_of()
    state.active[3] = ActiveVerdict("v", 0, 0.95, others={2})
    calm = interval_of([0.0] * CLEAR_WINDOWS)
    slow = np.where(np.arange(RANKS) == 2, 5.0, 0.0)
    state.history.extend([Judged(calm[0].window, slow), *calm[1:]])
    assert not cleared("g", state, calm[-1].window), "rank 2 was slow"
    state.history.append(calm[0])
    (found,) = cleared("g", state, calm[-1].window)
    assert isinstance(found, Cleared) and found.reason.startswith("its ranks ran at normal speed")


# --- restarts --------------------------------------------------------------------------------------------------------


def gang_with_verdicts() -> GangState:
    state = state_of(shape_of(RANKS, [f"n{rank // 4}" for rank in range(RANKS)]))
    judge_all(state, own_times(5, r3=1.5, r2=1.4))
    state.active = {3: ActiveVerdict("v", 77, 0.93, True, "n0", "gpu", {2}), 9: ActiveVerdict("w", 78, 0.6)}
    state.abstained, state.best_step_seconds = {-1, 5}, 1.1
    return state


def test_all_state_of_a_verdict_is_restored() -> None:
    before = gang_with_verdicts()
    roles = {"g": ((0, 1), np.array([0.5, -0.5]))}
    found, found_roles = load(dump({"g": before}, roles))
    after = found["g"]
    assert after.active == before.active and after.abstained == before.abstained
    assert after.score.tolist() == before.score.tolist() and after.score[3] > 8.0
    assert ((after.since >= 0) == (before.score > 0)).all()
    assert (after.best_step_seconds, after.longest_episode) == (1.1, before.longest_episode)
    assert after.accused == {2, 3, 9}
    assert after.baseline is not None and before.baseline is not None
    for name in ("compute", "wait", "own_spread", "parts", "parts_compute", "from_start", "reference"):
        assert np.array_equal(getattr(after.baseline, name), getattr(before.baseline, name), equal_nan=True), name
    assert found_roles["g"][0] == (0, 1) and found_roles["g"][1].tolist() == [0.5, -0.5]
    assert after.active_on(2) == before.active[3], "the node's verdict as well"
    assert after.active_on(9) == before.active[9] and after.active_on(8) is None


def tampered(**changes: Any) -> bytes:
    whole = msgspec.msgpack.decode(dump({"g": gang_with_verdicts()}, {}))
    whole["gangs"]["g"] |= changes
    return msgspec.msgpack.encode(whole)


def test_a_snapshot_keeps_the_keys_of_earlier_releases() -> None:
    gang = msgspec.msgpack.decode(tampered())["gangs"]["g"]
    assert gang.keys() >= {"standing", "told", "told_causes", "told_nodes"}


@pytest.mark.parametrize(
    "changes",
    [
        {"standing": {99: ("v", 1, 0.5)}, "told_nodes": {}},
        {"standing": {-1: ("v", 1, 0.5)}, "told_nodes": {}},
        {"told_nodes": {4: ("n0", "gpu", ())}},
        {"told_nodes": {3: ("n0", "gpu", (99,))}},
        {"nodes": ["n0"]},
        {"roles": [0] * 3},
        {"arrays": {}},
    ],
)
def test_a_snapshot_that_contradicts_itself_is_refused(changes: dict[str, Any]) -> None:
    load(tampered())
    with pytest.raises(ValueError, match="straggler snapshot"):
        load(tampered(**changes))


# --- the detector ----------------------------------------------------------------------------------------------------


class FedDetector:
    """A detector that receives a gang's steps one by one."""

    def __init__(self, timed: bool = False) -> None:
        self.detector, self.step = alone(StragglerDetector(timed=timed), timed), 0

    def steps(self, own: FloatArray, ranks: int = RANKS, attempt: int = 1, **more: Any) -> list[Finding]:
        shape = replace(shape_of(ranks), attempt=attempt)
        table = table_of(own[:, :ranks], first=self.step, **more)
        table = replace(table, end_ns=table.end_ns + self.step * 2 * NS)
        self.step += len(own)
        now = int(table.end_ns.max())
        return self.detector.tick(Telemetry(now, (JobTelemetry(shape, table),), no_counters(ranks)))

    @property
    def state(self) -> GangState:
        return self.detector._watched["g"]


def test_only_the_first_steps_of_timed_streams_are_skipped() -> None:
    fed = FedDetector(timed=True)
    own = own_times(6)
    own[:3] = 30.0
    fed.steps(own[:2])
    fed.steps(own[2:])
    assert fed.state.to_skip == 0
    kept = sum(window.steps for window in fed.state.warm_up)
    assert kept + len(fed.state.pending or ()) == 3
    assert max(window.step_seconds for window in fed.state.warm_up) < 2.0


def test_a_rank_that_becomes_slow_during_the_warm_up_is_not_learned_as_healthy() -> None:
    fed = FedDetector(timed=True)
    fed.steps(own_times(20))
    assert fed.state.baseline is not None and not fed.state.baseline.final
    found = fed.steps(own_times(40, r3=1.6))
    assert fed.state.baseline.final
    assert fed.state.baseline.compute[3] == pytest.approx(1.0)
    assert {one.rank for one in found if isinstance(one, Verdict)} == {3}


def test_a_baseline_has_known_waits_in_all_windows_or_in_none() -> None:
    fed = FedDetector()
    blind = own_times(10)
    table = table_of(blind)
    unknown = replace(table, wait_seconds=np.full_like(table.wait_seconds, np.nan))
    fed.detector.tick(Telemetry(1, (JobTelemetry(SHAPE, unknown),), no_counters(RANKS)))
    fed.step = 10
    fed.steps(own_times(24))
    assert fed.state.baseline is None or not fed.state.baseline.final, "24 windows with waits are one too few"
    fed.steps(own_times(1))
    assert fed.state.baseline is not None and fed.state.baseline.known


def test_nodes_that_resume_one_by_one_keep_the_restored_state() -> None:
    fed = FedDetector()
    fed.steps(own_times(30))
    before = fed.state
    assert not fed.steps(own_times(3), ranks=5)
    assert fed.state is before
    fed.steps(own_times(3))
    assert fed.state is before and before.baseline is not None
    fed.steps(own_times(3), attempt=2)
    assert fed.state is not before and fed.detector._roles["g"][0] == before.ranks
    newest = fed.state
    fed.steps(own_times(3), attempt=1)
    assert fed.state is newest, "an ended attempt is not evaluated again"


def test_a_gang_without_telemetry_is_dropped_after_ten_minutes() -> None:
    fed = FedDetector()
    fed.steps(own_times(30))
    seen_ns = fed.state.seen_ns
    for later, known in ((1, True), (ABSENT_NS, True), (ABSENT_NS + 1, False)):
        fed.detector.tick(Telemetry(seen_ns + later, (), no_counters(0)))
        assert ("g" in fed.detector._watched) is known


def test_an_alarm_with_too_little_confidence_is_an_abstention(monkeypatch: pytest.MonkeyPatch) -> None:
    own = np.concatenate([own_times(30), own_times(30, r3=1.5)])
    assert {one.rank for one in FedDetector().steps(own) if isinstance(one, Verdict)} == {3}
    monkeypatch.setattr(straggler, "LEAST_CONFIDENCE", 0.99999)
    found = FedDetector().steps(own)
    assert not [one for one in found if isinstance(one, Verdict)]
    (doubt,) = [one for one in found if isinstance(one, Abstention)]
    assert doubt.rank == 3 and doubt.reason.startswith("the evidence is too weak: confidence ")


def test_the_slowdown_by_each_rank_is_a_metric() -> None:
    state = state_of()
    judge_all(state, own_times(4, r3=1.5))
    column = _slowdowns("g", state)
    assert column is not None
    samples = {dict(labels)["rank"]: value for _, labels, value in expanded([column])}
    assert samples["3"] == pytest.approx(1.7 / 1.2)
    assert {value for rank, value in samples.items() if rank != "3"} == {1.0}
    assert _slowdowns("g", state_of()) is None
