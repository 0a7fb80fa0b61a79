"""Causes within a job (periodic work, pauses in turn), a NIC that pauses its switch, and healthy jobs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scheduler_feedback.core.telemetry.telemetry import FEATURE, JobTelemetry, StepTable, Telemetry, no_counters
from scheduler_feedback.core.verdict import Cause, Kind, Verdict
from scheduler_feedback.detectors import make_detection
from scheduler_feedback.detectors.counters.cause_signatures import Priors, weigh
from scheduler_feedback.detectors.straggler.gang_state import rest
from scheduler_feedback.detectors.workload.workload import WorkloadDetector
from tests.detectors.alone import alone
from tests.detectors.gang_windows import shape_of, table_of
from tests.detectors.test_detectors import Job, course, verdicts

RANKS = 16


def test_saves_after_every_third_step_are_reported() -> None:
    job = Job(ranks=RANKS)
    job.work = lambda second: np.full(RANKS, 0.9 if second > 60 and job.number % 3 == 2 else 0.7)
    (verdict,) = verdicts(course(alone(WorkloadDetector()), [job], 120))
    assert (verdict.kind, verdict.cause, verdict.rank) == (Kind.WORKLOAD, Cause.CHECKPOINT, -1)
    assert {one.measure: one.value for one in verdict.evidence}["rhythm"] == 3.0
    assert verdict.slowdown == pytest.approx(1.07, abs=0.03)


@pytest.mark.parametrize("neighbours", ["other nodes on its machine", "another job on its hosts"])
def test_periodic_long_steps_on_shared_cpus_are_not_reported(neighbours: str) -> None:
    """Seen in the demonstration: processes that shared a CPU made every third step of a healthy job long."""
    sharing = {"host": ("h0",) * RANKS} if neighbours == "another job on its hosts" else None
    job = Job(ranks=RANKS, sharing=sharing)
    job.work = lambda second: np.full(RANKS, 0.9 if second > 60 and job.number % 3 == 2 else 0.7)
    jobs = [job]
    if sharing is not None:
        jobs.append(Job("other", ranks=RANKS, sharing=sharing))
    else:
        look = job.look
        job.look = lambda second, random: replace(look(second, random), shared_machine=np.ones(RANKS, np.bool_))  # type: ignore[method-assign]
    assert not [one for one in verdicts(course(alone(WorkloadDetector()), jobs, 120)) if one.gang == job.shape.job]


@pytest.mark.parametrize(("rank_9", "reported"), [(1.12, True), (1.3, False)])
def test_a_stage_has_more_work_only_if_its_ranks_are_alike(rank_9: float, reported: bool) -> None:
    """Stage 2 of 4 takes 12 % longer. If one of its ranks takes 30 % longer, that rank may be slow instead."""
    shape = shape_of(RANKS, stage=[rank // 4 for rank in range(RANKS)])
    own = np.exp(np.random.default_rng(4).normal(0.0, 0.01, (40, RANKS)))
    own[:, 8:12] *= 1.12
    own[:, 9] *= rank_9 / 1.12
    table, detector, found = table_of(own), alone(WorkloadDetector(timed=False), False), []
    for k in range(len(own)):
        step = rest(StepTable(table.number[: k + 1], table.end_ns[: k + 1], table.seconds[: k + 1],
                              table.wait_seconds[: k + 1]), k)  # fmt: skip
        found += detector.tick(Telemetry(int(step.end_ns.max()), (JobTelemetry(shape, step),), no_counters(RANKS)))
    assert [one.cause for one in found if isinstance(one, Verdict)] == [Cause.STAGE_PARTITION] * reported


@pytest.mark.parametrize("throttled", [False, True])
@pytest.mark.parametrize("counter", ["power_throttle", "thermal_throttle"])
def test_a_stage_whose_gpus_throttle_has_not_more_work(counter: str, throttled: bool) -> None:
    """A rack under a power cap may hold one stage. All of its GPUs become slower by the same factor."""
    job = Job(ranks=RANKS, nodes=8)
    job.shape = replace(job.shape, stage=np.arange(RANKS) // 4)
    slow = np.arange(RANKS) // 4 == 2
    job.work = lambda second: np.where(slow & (second > 60), 0.84, 0.7)
    job.feature["tensor_active"] = lambda second: np.where(slow & (second > 60) & ~np.array(throttled), 0.74, 0.62)
    job.feature[counter] = lambda second: np.where(slow & (second > 60) & np.array(throttled), 0.9, 0.0)
    found = verdicts(course(alone(WorkloadDetector()), [job], 140))
    assert [one.cause for one in found] == ([] if throttled else [Cause.STAGE_PARTITION])


def test_rotating_pauses_are_a_cause_within_the_job() -> None:
    random = np.random.default_rng(3)
    job = Job(ranks=RANKS)
    job.work = lambda second: np.where((random.integers(RANKS) == np.arange(RANKS)) & (second > 60), 0.95, 0.7)
    (verdict,) = verdicts(course(make_detection(), [job], 140))
    assert (verdict.kind, verdict.cause, verdict.rank) == (Kind.WORKLOAD, Cause.PAUSES, -1)


def test_pauses_of_one_node_or_rank_are_not_reported_as_rotating() -> None:
    for chosen in (np.arange(4), np.array([5])):
        random = np.random.default_rng(3)
        job = Job(ranks=RANKS)
        job.work = lambda second, random=random, chosen=chosen: np.where(  # type: ignore[misc]
            (random.choice(chosen) == np.arange(RANKS)) & (second > 60), 0.95, 0.7
        )
        reported = verdicts(course(alone(WorkloadDetector()), [job], 140))
        assert Cause.PAUSES not in {one.cause for one in reported}


@pytest.mark.parametrize("spread", [0.02, 0.11])
@pytest.mark.parametrize("seed", range(4))
def test_unequal_lengths_and_noise_are_neither_a_period_nor_pauses(seed: int, spread: float) -> None:
    random = np.random.default_rng(seed)
    job = Job(ranks=64, step_seconds=0.5)
    job.work = lambda second: 0.35 * random.lognormal(0.0, spread, 64)
    reported = {one.cause for one in verdicts(course(alone(WorkloadDetector()), [job], 400, seed=seed))}
    assert not reported & {Cause.CHECKPOINT, Cause.PAUSES}


def test_the_nic_that_pauses_its_switch_is_the_culprit_of_a_storm() -> None:
    job = Job(ranks=RANKS)
    job.network = lambda second: 0.6 if second > 60 else 0.3
    job.feature["nic_pause_sent"] = lambda second: np.where((np.arange(RANKS) == 6) & (second > 60), 8e3, 0.0)
    job.feature["nic_pause_received"] = lambda second: np.where((np.arange(RANKS) != 6) & (second > 60), 2e3, 0.0)
    detectors = make_detection()
    (verdict,) = verdicts(course(detectors, [job], 120))
    assert (verdict.kind, verdict.cause, verdict.device, verdict.rank) == (Kind.HEALTH, Cause.NIC, "j/mlx5_6", 6)
    counters = detectors.shared.counters
    assert weigh(counters, np.array([6]), Priors()).name(0) is Cause.NIC
    assert counters.score[FEATURE["nic_pause_sent"]].argmax() == 6
