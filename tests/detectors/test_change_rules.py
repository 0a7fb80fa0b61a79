"""Rules that compare a job with its first steps: missing input, more work, and the number of long steps they need."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scheduler_feedback.core.telemetry.telemetry import JobTelemetry
from scheduler_feedback.core.verdict import Cause, Cleared, Kind, Verdict
from scheduler_feedback.detectors import make_detection
from scheduler_feedback.detectors.steps.expected_work import Work
from scheduler_feedback.detectors.workload.workload import WorkloadDetector
from tests.detectors.alone import alone
from tests.detectors.test_detectors import Job, course, verdicts

RANKS = 16


def _slower(job: Job, factor: float, busy: float, after: float = 60.0) -> None:
    """Multiply the compute time by `factor` from second `after` on. busy: seconds a step with busy tensor pipes;
    before 0.7."""
    job.work = lambda second: np.full(RANKS, 0.7 * (factor if second > after else 1.0))
    job.feature["tensor_active"] = lambda second: np.full(
        RANKS, busy / (0.7 * factor + 0.3) if second > after + 1 else 0.7
    )


@pytest.mark.parametrize(("busy", "cause"), [(0.7, Cause.DATA_LOADING), (0.98, Cause.WHOLE_JOB)])
def test_slow_input_does_not_increase_tensor_activity(busy: float, cause: Cause) -> None:
    job = Job(ranks=RANKS)
    _slower(job, 1.4, busy)
    (verdict,) = verdicts(course(make_detection(), [job], 120))
    assert (verdict.kind, verdict.cause, verdict.rank) == (Kind.WORKLOAD, cause, -1)
    assert verdict.step_seconds_before == pytest.approx(1.0, abs=0.03)


def test_a_job_with_more_work_is_reported_and_an_unchanged_job_is_not() -> None:
    for factor, reported in ((1.0, 0), (1.12, 1)):
        job = Job(ranks=RANKS)
        _slower(job, factor, 0.7 * factor)
        assert len(verdicts(course(alone(WorkloadDetector()), [job], 140))) == reported


@pytest.mark.parametrize(("nodes", "sure"), [(1, False), (2, True)])
def test_a_job_on_one_node_without_counters_may_have_a_slow_node(nodes: int, sure: bool) -> None:
    job = Job(ranks=8, nodes=nodes)
    job.work = lambda second: np.full(8, 0.7 * (1.4 if second > 60 else 1.0))
    job.feature["tensor_active"] = lambda _: np.full(8, np.nan)
    (verdict,) = verdicts(course(alone(WorkloadDetector()), [job], 140))
    assert verdict.cause is Cause.WHOLE_JOB
    assert (verdict.confidence >= 0.9) == sure


@pytest.mark.parametrize(("slower", "reported"), [(5, 0), (7, 0), (8, 1), (9, 0)])
def test_a_job_in_which_some_ranks_did_not_change_has_not_changed_as_a_whole(slower: int, reported: int) -> None:
    count = 12 if slower == 9 else 8
    job = Job(ranks=count, nodes=4)
    job.work = lambda second: np.where((np.arange(count) < slower) & (second > 60), 1.12, 0.7)
    found = verdicts(course(alone(WorkloadDetector()), [job], 140))
    assert [one.cause for one in found if one.kind is Kind.WORKLOAD] == [Cause.WHOLE_JOB] * reported


def test_a_verdict_lasts_while_detected_and_is_cleared_after_two_minutes() -> None:
    job = Job(ranks=RANKS)
    job.work = lambda second: np.full(RANKS, 0.7 * (1.4 if 60 < second < 360 else 1.0))
    found = course(alone(WorkloadDetector()), [job], 620)
    assert [type(one) for _, one in found] == [Verdict, Cleared]
    assert found[0][0] < 90
    assert 360 + 120 <= found[1][0] < 360 + 180
    assert isinstance(found[1][1], Cleared) and found[1][1].reason.startswith("not detected for ")


def test_four_long_steps_of_a_slow_job_are_enough() -> None:
    job = Job(ranks=RANKS, step_seconds=20.0)
    job.work = lambda second: np.full(RANKS, 14.0 * (1.3 if second > 800 else 1.0))
    found = [(at, one) for at, one in course(alone(WorkloadDetector()), [job], 960) if one in verdicts([(at, one)])]
    ((reported, verdict),) = found
    assert verdict.cause is Cause.WHOLE_JOB
    assert reported <= 800 + 6 * 24.3


@pytest.mark.parametrize(("crowded", "reported"), [(False, 1), (True, 0)])
def test_a_busier_host_is_not_reported_as_more_work_without_tensor_counters(crowded: bool, reported: int) -> None:
    """Seen on a real machine: other load on the only host made every rank slower by the same factor."""
    job = Job(ranks=4, nodes=1)
    job.work = lambda second: np.full(4, 0.7 * (1.4 if second > 60 else 1.0))
    job.feature["tensor_active"] = lambda _: np.full(4, np.nan)
    job.feature["cpu_waiting"] = lambda second: np.full(4, 0.3 if crowded and second > 60 else 0.05)
    found = verdicts(course(alone(WorkloadDetector()), [job], 140))
    assert [one.cause for one in found] == [Cause.WHOLE_JOB] * reported


def test_a_job_with_a_slow_network_has_not_more_work() -> None:
    job = Job(ranks=RANKS)
    job.network = lambda second: 0.5 if second > 60 else 0.3
    assert not verdicts(course(alone(WorkloadDetector()), [job], 120))


def test_a_job_slower_by_far_more_than_its_work_has_another_cause() -> None:
    job = Job(ranks=RANKS)
    job.work = lambda second: np.full(RANKS, 0.7 * (1.05 if second > 60 else 1.0))
    job.network = lambda second: 0.6 if second > 60 else 0.3
    assert not verdicts(course(alone(WorkloadDetector()), [job], 120))


def test_tokens_alone_suffice_to_find_more_work() -> None:
    tokens = np.array([[100.0, 200.0]])
    work = Work(0.1, 0.006, 0.0)
    np.testing.assert_allclose(work.factor(tokens, None), [[0.7, 1.3]])
    np.testing.assert_allclose(work.factor(tokens, np.full_like(tokens, np.nan)), [[0.7, 1.3]])


@pytest.mark.parametrize("pauses", [True, False])
def test_rotating_pauses_are_found_while_expert_load_drifts(pauses: bool) -> None:
    """The load of experts changes over minutes, which changes all ranks. No rank alone is slow."""
    job, turns = Job(ranks=RANKS), np.random.default_rng(4)
    drift = np.sin(np.arange(RANKS) * 2.1)

    def work(second: float) -> np.ndarray:
        own = 0.7 * (1.0 + 0.05 * drift * min(second / 100.0, 1.0))
        if pauses and second > 150:
            own[turns.integers(RANKS)] += 0.3
        return own

    job.work = work
    found = verdicts(course(alone(WorkloadDetector()), [job], 230))
    assert [one.rank for one in found if one.cause is Cause.PAUSES] == [-1] * pauses


@pytest.mark.parametrize("follows", [1.0, 0.5, 0.0])
def test_unequal_lengths_are_reported_if_compute_times_follow_them(follows: float) -> None:
    """From second 100 on, a pipeline gets sequences of unequal length.

    follows: share by which compute times follow the lengths. At 0.5 they vary as much by chance.
    """
    job, lengths = Job(ranks=RANKS), np.random.default_rng(5)
    job.shape = replace(job.shape, stage=np.arange(RANKS) // 4, data=np.arange(RANKS) % 4)
    given: list[np.ndarray] = []

    def work(second: float) -> np.ndarray:
        given.append(np.tile(lengths.normal(1.0, 0.04, 4), 4) if second > 100 else np.ones(RANKS))
        chance = lengths.normal(0.0, 0.05, RANKS) if second > 100 and follows == 0.5 else np.zeros(RANKS)
        return 0.7 * ((given[-1] if follows else np.ones(RANKS)) + chance)

    def with_lengths(second: float, random: np.random.Generator) -> JobTelemetry:
        before = len(given)
        sent = look(second, random)
        assert sent.steps is not None
        rows = 4096.0 * np.array(given[before : before + len(sent.steps)]).reshape(-1, RANKS)
        if len(given) > before + len(sent.steps):
            del given[before + len(sent.steps) :]
        return replace(sent, steps=replace(sent.steps, tokens=rows))

    look, job.look, job.work = job.look, with_lengths, work  # type: ignore[method-assign]
    job.network = lambda second: 0.42 if second > 100 else 0.3  # idle time of the pipeline
    found = verdicts(course(alone(WorkloadDetector()), [job], 160))
    assert [one.kind for one in found] == [Kind.SEQUENCE_IMBALANCE] * (follows == 1.0)
