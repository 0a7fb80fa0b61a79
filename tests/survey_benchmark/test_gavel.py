"""Gavel's allocations against solutions by hand, by search, and by the conditions that every optimum fulfils."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.survey.gavel import BY_PLAN, GPUS_OF_A_TYPE, simulated_makespan
from benchmarks.survey.gavel_allocations import (
    TOLERANCE,
    Matrix,
    equal_split,
    finish_time_fairness,
    least_makespan,
    max_min_fairness,
)
from benchmarks.survey.gavel_data import GPU_TYPES, GavelJob, read_physical, read_simulation, static_jobs
from tests import needs

SPEEDS = np.array([[2.0, 1.0, 0.5], [3.0, 2.0, 1.0]])
"""Two jobs on v100, p100, k80: the example of Gavel's own tests (scheduler/tests/policies_tests.py)."""
ONE = np.ones(2)


def possible(shares: Matrix, gpus: Matrix, capacity: Matrix) -> bool:
    rows = bool((shares.sum(axis=1) <= 1 + 1e-9).all())
    return rows and bool((shares >= -1e-9).all() and (gpus @ shares <= capacity + 1e-9).all())


def test_the_faster_type_goes_to_the_job_that_gains_more_by_it() -> None:
    # Section 4 of the paper: job 0 is four times as fast on type 0, job 1 only twice.
    speeds, capacity = np.array([[40.0, 10.0], [20.0, 10.0]]), np.ones(2)
    shares = max_min_fairness(speeds, ONE, capacity)
    assert possible(shares, ONE, capacity)
    normal = (speeds * shares).sum(axis=1) / (speeds @ equal_split(2, capacity))
    # By hand: job 0 has a share a of type 0 and 1 - a of type 1, job 1 the rest: 0.4 + 1.2 a = (20 - 10 a) / 15.
    assert normal == pytest.approx([0.4 + 1.2 * 14 / 28, (20 - 10 * 14 / 28) / 15])


@pytest.mark.parametrize("gpus", [np.array([1.0, 1.0]), np.array([2.0, 1.0])])
def test_no_allocation_of_a_grid_is_fairer(gpus: Matrix) -> None:
    capacity = np.array([1.0, 2.0, 1.0])
    shares = max_min_fairness(SPEEDS, gpus, capacity)
    scale = gpus / (SPEEDS @ equal_split(2, capacity))
    best = float(((SPEEDS * shares).sum(axis=1) * scale).min())
    assert possible(shares, gpus, capacity)
    steps = [row for row in itertools.product(np.linspace(0, 1, 7), repeat=3) if sum(row) <= 1 + 1e-9]
    grid = [np.array(pair) for pair in itertools.product(steps, steps)]
    found = [float(((SPEEDS * one).sum(axis=1) * scale).min()) for one in grid if possible(one, gpus, capacity)]
    assert 0.75 * best < max(found) <= best + 1e-9


def test_the_makespan_on_one_type_is_the_longest_job_or_all_work() -> None:
    speeds, gpus, capacity = np.full((3, 1), 2.0), np.array([1.0, 2.0, 1.0]), np.array([2.0])
    # In GPU-seconds: 50, 2 x 100, 50 on two GPUs; and no job is faster than alone.
    seconds, times = least_makespan(speeds, gpus, capacity, np.array([100.0, 200.0, 100.0]))
    assert seconds == pytest.approx(150.0) and times[:, 0] == pytest.approx([50.0, 100.0, 50.0])
    assert least_makespan(speeds, gpus, capacity, np.array([800.0, 2.0, 2.0]))[0] == pytest.approx(400.0)


def test_the_makespan_uses_each_job_where_it_is_relatively_fast() -> None:
    speeds = np.array([[10.0, 1.0], [10.0, 9.0]])
    seconds, times = least_makespan(speeds, ONE, np.ones(2), np.array([100.0, 90.0]))
    assert seconds == pytest.approx(10.0) and times == pytest.approx(np.array([[10.0, 0.0], [0.0, 10.0]]), abs=1e-6)


def test_a_job_that_runs_nowhere_has_no_makespan() -> None:
    with pytest.raises(ValueError, match="no schedule"):
        least_makespan(np.array([[0.0], [1.0]]), ONE, np.ones(1), ONE)


def test_the_least_rho_is_possible_and_no_smaller_one_is() -> None:
    capacity, steps, elapsed = np.array([1.0, 2.0, 3.0]), np.array([300.0, 500.0]), np.array([0.0, 50.0])
    rho, shares = finish_time_fairness(SPEEDS, ONE, capacity, steps, elapsed)
    own = capacity / 2 / max(1.0, capacity.sum() / 2)
    alone = elapsed + steps / (SPEEDS @ own)
    reached = (elapsed + steps / (SPEEDS * shares).sum(axis=1)) / alone
    assert possible(shares, ONE, capacity) and reached.max() <= rho * (1 + 1e-6)
    # By hand: types 1 and 2 are free for job 1, so job 0 alone on type 0 is faster than needed. rho is where the
    # shares of type 0 run out: a0 and a1 = 1 - a0 of it, the rest of the time on type 1.
    speed = [steps[job] / (rho * alone[job] - elapsed[job]) for job in (0, 1)]
    assert speed[0] - 1.0 + (speed[1] - 2.0) == pytest.approx(1.0, rel=20 * TOLERANCE)


def test_alone_on_a_cluster_rho_is_one() -> None:
    rho, _ = finish_time_fairness(SPEEDS[:1], np.ones(1), np.array([1.0, 0.0, 0.0]), np.array([60.0]), np.zeros(1))
    assert rho == pytest.approx(1.0, rel=2 * TOLERANCE)


def test_the_jobs_have_the_published_distribution() -> None:
    throughputs = read_simulation()
    assert len(throughputs) == 83
    jobs = static_jobs(throughputs, 20_000, 1)
    shares = {gpus: sum(job.gpus == gpus for job in jobs) / len(jobs) for gpus in (1, 2, 4, 8)}
    assert shares == pytest.approx({1: 0.7, 2: 0.1, 4: 0.15, 8: 0.05}, abs=0.01)
    minutes = [job.seconds / 60 for job in jobs]
    assert min(minutes) >= 10**1.5 and max(minutes) <= 10**4
    assert sum(one > 1000 for one in minutes) / len(jobs) == pytest.approx(0.2, abs=0.01)
    assert sum(math.log10(one) < 2.25 for one in minutes) / len(jobs) == pytest.approx(0.4, abs=0.01)
    assert not any(job.job_type == "A3C" for job in jobs if job.gpus > 1)
    assert static_jobs(throughputs, 5, 2) != static_jobs(throughputs, 5, 3)


def test_measured_throughputs_are_read(tmp_path: Path) -> None:
    key = "('ResNet-18 (batch size 16)', 2)"
    file = tmp_path / "throughputs.json"
    document = {"k80": {}, "p100": {key: {"null": 3.5}}, "v100": {key: {"null": 7.0, "('A3C', 1)": [1.0, 2.0]}}}
    file.write_text(json.dumps(document))
    assert read_physical(file) == {("ResNet-18 (batch size 16)", 2): (0.0, 3.5, 7.0)}
    file.write_text(json.dumps({**document, "v100": {"ResNet": {"null": 1.0}}}))
    with pytest.raises(ValueError, match="'ResNet' is not"):
        read_physical(file)


def test_the_public_file_has_all_job_types() -> None:
    found = read_physical(needs.data("interference", "gavel-throughputs.json"))
    assert found.keys() == read_simulation().keys()
    assert found["A3C", 1] == pytest.approx((3.54, 5.74, 7.48), abs=0.01)


def test_the_scheduler_that_follows_the_plan_is_between_the_optimum_and_one_type() -> None:
    jobs = static_jobs(read_simulation(), 120, 5)
    jobs = [GavelJob(job.job_type, job.gpus, 4 * job.seconds, job.speeds) for job in jobs]
    speeds = np.array([job.speeds for job in jobs])
    gpus, steps = np.array([float(job.gpus) for job in jobs]), np.array([job.steps for job in jobs])
    least, times = least_makespan(speeds, gpus, np.full(3, float(GPUS_OF_A_TYPE)), steps)
    planned = simulated_makespan(jobs, BY_PLAN, times)
    slowest = np.zeros_like(times)
    slowest[:, GPU_TYPES.index("k80")] = 1e9
    usable = [number for number, job in enumerate(jobs) if job.speeds[0] > 0]
    slow = simulated_makespan([jobs[number] for number in usable], BY_PLAN, slowest[usable])
    assert least <= planned < 2 * least < slow
