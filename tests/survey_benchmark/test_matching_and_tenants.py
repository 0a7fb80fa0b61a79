"""Rows of AlloX and HiveD: the matching is the optimum of small cases, and waits are compared by tenant."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from benchmarks.survey.allox import least_average_seconds
from benchmarks.survey.virtual_clusters import excess, sizes
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.sim.job_trace import TraceJob


def by_search(run_seconds: np.ndarray, gpus: int) -> float:
    """Return the least average over all assignments of jobs to GPUs; on each GPU the shortest job goes first."""
    jobs, types = run_seconds.shape
    best = math.inf
    for chosen in itertools.product(range(types * gpus), repeat=jobs):
        total = 0.0
        for gpu in set(chosen):
            ended = 0.0
            for seconds in sorted(run_seconds[job, gpu // gpus] for job in range(jobs) if chosen[job] == gpu):
                ended += seconds
                total += ended
        best = min(best, total / jobs)
    return best


@pytest.mark.parametrize(("seed", "gpus"), [(1, 1), (2, 1), (3, 2), (4, 2)])
def test_the_matching_has_the_least_average_of_all_schedules(seed: int, gpus: int) -> None:
    run_seconds = np.random.default_rng(seed).uniform(1.0, 9.0, (5, 2))
    run_seconds[0, 1] = math.inf
    assert least_average_seconds(run_seconds, gpus) == pytest.approx(by_search(run_seconds, gpus))


def test_a_job_is_never_matched_to_a_type_on_which_it_does_not_run() -> None:
    run_seconds = np.array([[2.0, math.inf], [4.0, math.inf]])
    assert least_average_seconds(run_seconds, 1) == pytest.approx((2.0 + 6.0) / 2)


def job(name: str, tenant: str, ranks: int, seconds: float) -> TraceJob:
    return TraceJob(name, 1, 0, seconds, JobSpec(name, ("train",), ranks, queue=tenant))


def test_a_virtual_cluster_holds_its_largest_job_and_its_part_of_the_work() -> None:
    jobs = [job("a1", "a", 1, 900.0), job("b1", "b", 17, 1.0), job("c1", "c", 1, 100.0)]
    assert sizes(jobs, 10) == {"a": 9, "b": 3, "c": 1}


def test_the_excess_is_by_tenant_and_by_job() -> None:
    found = excess({"a": 120.0, "b": 0.0, "c": 60.0}, {"a": 0.0, "b": 60.0, "c": 0.0}, {"a": "x", "b": "x", "c": "y"})
    assert (found.tenant, found.job, found.mean) == (1.0, 2.0, pytest.approx(2 / 3))
