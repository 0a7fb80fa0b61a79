"""Causes of slow ranks by device counters alone, and the fault history of the device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from scheduler_feedback.core.telemetry.telemetry import FEATURE, FEATURES, Counters, JobTelemetry, Shape, Telemetry
from scheduler_feedback.core.verdict import Cause, Evidence
from scheduler_feedback.detectors.counters.counter_statistics import CounterStatistics
from scheduler_feedback.detectors.detection import SharedState
from scheduler_feedback.detectors.stats import log_odds
from scheduler_feedback.detectors.straggler.alarm_checks import Judgement
from scheduler_feedback.detectors.straggler.straggler_causes import MISSING, Causes
from tests.detectors.test_alarm_checks import healthy

NS = 1_000_000_000
RANKS, SLOW = 16, 3
BASELINE = healthy()


def shape_of(name: str, hosts: tuple[str, ...] = (), gpus: bool = True) -> Shape:
    sharing = {"host": hosts} if hosts else {}
    return Shape(name, 1, np.arange(RANKS), tuple(f"n{rank:02d}" for rank in range(RANKS)),
                 tuple(f"GPU-{rank}" for rank in range(RANKS)) if gpus else (), sharing=sharing)  # fmt: skip


def after(
    shapes: list[Shape], unread: tuple[int, ...] = (), **changes: float
) -> tuple[Causes, CounterStatistics, list[JobTelemetry]]:
    """Return the causes of jobs: after a minute of usual counters, these counters deviate on one rank of the first job.

    unread: ranks whose GPU cannot be read.
    """
    random, shared = np.random.default_rng(1), SharedState(timed=False)
    causes, statistics = Causes(), shared.counters
    jobs = [JobTelemetry(shape) for shape in shapes]
    for second in range(90):
        values = random.normal(1.0, 0.005, (len(FEATURES), 1, RANKS * len(shapes))).astype(np.float32)
        for row, feature in enumerate(FEATURES):
            if feature.unit == "1/s" or feature.name.endswith(("waiting", "wait", "throttle")):
                values[row] = 0.0
            if feature.of != "host":
                values[row, 0, list(unread)] = np.nan
        for name, value in changes.items():
            if second >= 60:
                values[FEATURE[name], 0, SLOW] = value
        now = np.array([second * NS])
        causes.begin(shared.begin(Telemetry(int(now[0]), tuple(jobs), Counters(now, 1.0, values))))
    return causes, statistics, jobs


def judgement(cause: Cause = Cause.UNKNOWN, refusal: str = "", rank: int = SLOW) -> Judgement:
    missing = Evidence(MISSING, 0.0, 1.0, "", "its process counters, which are missing", -1.5)
    sure = Evidence("compute_seconds_a_step", 1.4, 1.0, "seconds", "its own mean", 3.0)
    return Judgement(rank, 1.3, 1.6, cause, log_odds.confidence((sure, missing)), (sure, missing), False, refusal)


def test_device_counters_give_the_cause_if_nothing_else_does() -> None:
    causes, _, [job] = after([shape_of("j")], sm_clock=0.7, thermal_throttle=0.5)
    found = causes.judged_by(judgement(), job, BASELINE)
    assert (found.cause, found.counters, found.refusal) == (Cause.THERMAL, True, "")
    measures = [item.measure for item in found.evidence]
    assert MISSING not in measures and "thermal_throttle" in measures and "log_odds_of_cause" in measures
    assert found.confidence > 0.6
    for one in (judgement(Cause.SUSPENDED), judgement(refusal="no"), judgement(Cause.COMPUTE)):
        assert causes.judged_by(one, job, BASELINE) is one, "a cause by process counters is kept"


@pytest.mark.parametrize(("counter", "value", "hinted"), [("cpu_waiting", 0.09, True), ("sm_clock", 1.1, False)])
def test_a_counter_may_deviate_too_little_to_show_the_cause(counter: str, value: float, hinted: bool) -> None:
    causes, _, [job] = after([shape_of("j")], **{counter: value})
    found = causes.judged_by(judgement(), job, BASELINE)
    assert (found.cause, found.hinted) == (Cause.UNKNOWN, hinted)


@pytest.mark.parametrize(("seconds", "hinted"), [(30.0, False), (59.0, False), (61.0, True)])
def test_counters_that_learned_during_the_alarm_are_no_evidence(seconds: float, hinted: bool) -> None:
    causes, statistics, [job] = after([shape_of("j")])
    assert statistics.learned_seconds(job.shape) == 60.0, "the warm-up of 30 windows ended a minute ago"
    found = causes.judged_by(judgement(), job, BASELINE, seconds=seconds)
    assert (found.cause, found.hinted) == (Cause.UNKNOWN, hinted)


def test_a_rank_with_as_much_more_tensor_work_has_more_work() -> None:
    causes, _, [job] = after([shape_of("j")], tensor_active=1.4)
    one = replace(judgement(), step_seconds=0.9)
    found = causes.judged_by(one, job, BASELINE, 1.4)
    assert "it has more work" in found.refusal
    assert not causes.judged_by(one, job, BASELINE, 2.5).refusal, "it explains too little of its time"
    assert not causes.judged_by(judgement(), job, BASELINE, 1.4).refusal, "a window is shorter than a step"
    slower, _, [job] = after([shape_of("j")], tensor_active=1.4, sm_clock=1 / 1.4)
    assert slower.judged_by(one, job, BASELINE, 1.4).cause is Cause.GPU, "a lower clock needs longer for the same work"


def test_without_a_deviating_counter_the_cause_is_unknown() -> None:
    causes, _, [job] = after([shape_of("j")])
    found = causes.judged_by(judgement(), job, BASELINE)
    assert (found.cause, found.counters) == (Cause.UNKNOWN, True), "the counters are present and show no deviation"
    blind, _, [job] = after([shape_of("j")], unread=tuple(range(RANKS)), cpu_waiting=np.nan, io_waiting=np.nan)
    one = judgement()
    assert blind.judged_by(one, JobTelemetry(shape_of("another")), BASELINE) is one


@pytest.mark.parametrize(("changes", "refused"), [
    ({"cpu_waiting": 0.6, "runqueue_wait": 0.6}, True), ({"io_waiting": 0.6}, True), ({}, True),
    ({"sm_clock": 0.6, "thermal_throttle": 0.6}, False), ({"memory_errors": 90.0}, False),
])  # fmt: skip
def test_contention_on_a_host_of_two_jobs_accuses_no_rank(changes: dict[str, float], refused: bool) -> None:
    hosts = tuple(f"h{rank // 4}" for rank in range(RANKS))
    other_hosts = ("", *("h0",) * 3, *(f"x{rank}" for rank in range(4, RANKS)))
    causes, _, jobs = after([shape_of("j", hosts), shape_of("k", other_hosts)], **changes)
    found = causes.judged_by(judgement(), jobs[0], BASELINE)
    assert bool(found.refusal) is refused
    alone, _, [job] = after([shape_of("j", hosts)], **changes)
    assert not alone.judged_by(judgement(), job, BASELINE).refusal
    elsewhere = causes.judged_by(judgement(rank=9), jobs[0], BASELINE)
    assert not elsewhere.refusal, "its host runs no other job"


def test_a_rank_computes_on_a_device_if_its_gpu_has_readings() -> None:
    causes, _, [job] = after([shape_of("j")], unread=(0, 1, 2, 4))
    assert [causes.on_device(job, rank) for rank in range(5)] == [False, False, False, True, False]
    assert not causes.on_device(JobTelemetry(shape_of("another")), SLOW)


@pytest.mark.parametrize("gpus", [True, False])
def test_fault_history_raises_confidence_for_causes_of_parts(gpus: bool) -> None:
    causes, _, _ = after([shape_of("j")])
    shape = shape_of("j", gpus=gpus)
    one = judgement(Cause.THERMAL)
    assert causes.with_past(one, shape) is one, "there is no fault history"
    for _ in range(2):
        causes._context.fault_history.remember("GPU-3", "n03", Cause.THERMAL, 1)
    surer = causes.with_past(one, shape)
    past = [item.against for item in surer.evidence if item.measure == "past_verdicts"]
    assert len(past) == (2 if gpus else 1) and surer.confidence > one.confidence
    for cause in (Cause.UNKNOWN, Cause.SUSPENDED, Cause.CPU_CONTENTION):
        other: Any = judgement(cause)
        assert causes.with_past(other, shape) is other
    elsewhere = judgement(Cause.THERMAL, rank=5)
    assert causes.with_past(elsewhere, shape) is elsewhere
