"""Rows of Gavel: makespan of its static traces, and the gain by fairness that knows the speed of GPU types.

The published makespans are the means of three seeds in scheduler/notebooks/figures/evaluation/makespan.ipynb of
stanford-futuredata/gavel c4fa400: 36 GPUs of each of three types. Here the jobs are drawn from the same distribution
(``gavel_data.static_jobs``) with ten other seeds, because the notebook's own jobs are not stored. `reproduced` is the
optimum of the linear program; Gavel rounds it to turns of 360 s.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache, partial
from statistics import fmean

import numpy as np

from benchmarks.policies import RESTART_COST_SECONDS, data_folder
from benchmarks.survey.gavel_allocations import Matrix, equal_split, finish_time_fairness, least_makespan
from benchmarks.survey.gavel_allocations import max_min_fairness as fair_shares
from benchmarks.survey.gavel_data import GPU_TYPES, GavelJob, read_physical, read_simulation, static_jobs
from benchmarks.survey.row import Outcome, Row
from benchmarks.survey.shares import interval
from scheduler_feedback.core.events import NodeSeen
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.core.state import FAIR_POLICY, Backfilling, Estimates, Order, Policy
from scheduler_feedback.sim.job_trace import SIMULATED_COMMAND, Trace, TraceJob
from scheduler_feedback.sim.results import Report
from scheduler_feedback.sim.simulation import Simulation

SEEDS = range(10)
GPUS_OF_A_TYPE = 36
NODE_GPUS = 4
"""GPUs of one node in our simulation; Gavel's simulation has nodes of one GPU."""

SOURCE = "Narayanan et al., OSDI'20; stanford-futuredata/gavel c4fa400, notebooks/figures/evaluation/makespan.ipynb"
PUBLISHED_HOURS = {400: 161.291, 700: 244.231}
"""Published makespan of Gavel without space sharing, in hours, by number of jobs."""
FIFO_HOURS = {400: 350.5, 700: 619.5}
"""Published makespan of its FIFO, which ignores the speeds of GPU types (same source)."""

FAIRNESS_JOBS = 256
"""Number of jobs in the rows of fairness: more than the 108 GPUs."""

BY_DEFAULT = replace(FAIR_POLICY, estimates=Estimates.EXACT)
FIRST_FREE = replace(BY_DEFAULT, type_patience=0.0)
WITHOUT_MOVES = replace(FIRST_FREE, migration_margin=1e9)
BY_PLAN = Policy(order=Order.FIFO, backfill=Backfilling.EASY, estimates=Estimates.EXACT, starvation_seconds=math.inf)

PLANNED = (
    "drawn from the published distribution, 10 seeds; ours is FIFO and EASY with the GPU type and the priority of each "
    "job from the linear program"
)


def rows() -> list[Row]:
    """Return the rows of this module."""
    found = [
        Row("Gavel", "least makespan over heterogeneous throughputs (LP)", f"makespan of {jobs} jobs on 3x36 GPUs, h",
            hours, SOURCE, partial(_makespan, jobs))
        for jobs, hours in PUBLISHED_HOURS.items()
    ]  # fmt: skip
    found += [
        Row("Gavel", "FIFO (its baseline), against waiting for the type with the earliest end",
            f"makespan of {jobs} jobs on 3x36 GPUs, h", hours, SOURCE, partial(_without_plan, jobs), slow=True)
        for jobs, hours in FIFO_HOURS.items()
    ]  # fmt: skip
    physical = "Narayanan et al., OSDI'20 (no table; its 3.5x is of average JCT under load)"
    found += [
        Row("Gavel", "max-min fairness over heterogeneous throughputs (LP)",
            f"least normalised throughput of {FAIRNESS_JOBS} jobs, equal shares of time = 1", None, physical,
            _fairness),
        Row("Gavel", "finish-time fairness over heterogeneous throughputs (LP)",
            f"largest rho of {FAIRNESS_JOBS} jobs, an own n-th of the cluster = 1", None, physical, _finish_time),
    ]  # fmt: skip
    return found


def _arrays(jobs: list[GavelJob]) -> tuple[Matrix, Matrix, Matrix, Matrix]:
    """Return throughputs (jobs x types), GPUs of each job, GPUs of each type, and steps of each job."""
    speeds = np.array([job.speeds for job in jobs])
    gpus = np.array([float(job.gpus) for job in jobs])
    return speeds, gpus, np.full(len(GPU_TYPES), float(GPUS_OF_A_TYPE)), np.array([job.steps for job in jobs])


def _makespan(count: int) -> Outcome:
    best, mine = [], []
    for seed in SEEDS:
        jobs = static_jobs(read_simulation(), count, seed)
        seconds, times = least_makespan(*_arrays(jobs))
        best.append(seconds / 3600)
        mine.append(simulated_makespan(jobs, BY_PLAN, times) / 3600)
    reason = f"{PLANNED}; 95 % intervals +-{interval(tuple(best)):.1f} and +-{interval(tuple(mine)):.1f}"
    return Outcome(round(fmean(best), 1), round(fmean(mine), 1), reason)


def _without_plan(count: int) -> Outcome:
    """Return the makespan with our default policy alone. The reason has those of FIFO and without waits for types."""

    def hours(policy: Policy) -> tuple[float, ...]:
        return tuple(simulated_makespan(static_jobs(read_simulation(), count, n), policy) / 3600 for n in SEEDS)

    alone, fifo, first, neither = hours(BY_DEFAULT), hours(BY_PLAN), hours(FIRST_FREE), hours(WITHOUT_MOVES)
    reason = (
        f"10 seeds of the same distribution; ours is the default policy, 95 % interval +-{interval(alone):.1f}; our "
        f"FIFO and EASY {fmean(fifo):.1f} +-{interval(fifo):.1f}; the default without waits for a faster type "
        f"{fmean(first):.0f} +-{interval(first):.0f}, and without moves to one either {fmean(neither):.0f} "
        f"+-{interval(neither):.0f}"
    )
    return Outcome(None, round(fmean(alone), 1), reason)


def simulated_makespan(jobs: list[GavelJob], policy: Policy, times: Matrix | None = None) -> float:
    """Return the makespan in seconds under our scheduler; see ``simulated``."""
    return simulated(jobs, policy, times).makespan_seconds


def simulated(jobs: list[GavelJob], policy: Policy, times: Matrix | None = None, gpus: int = GPUS_OF_A_TYPE) -> Report:
    """Return the result of our scheduler, which knows the speeds and run times. gpus: number of GPUs of each type.

    times: seconds that each job should run on each type. If given, a job uses only the type on which it should do most
    of its work, and jobs that take longest there go first.
    """
    reference = GPU_TYPES.index("v100")
    chosen = {}
    if times is not None:
        chosen = {number: int(np.argmax(row * jobs[number].speeds)) for number, row in enumerate(times)}
    longest_first = sorted(chosen, key=lambda number: jobs[number].steps / jobs[number].speeds[chosen[number]])
    priority = {number: place for place, number in enumerate(longest_first)}
    traced = []
    for number, job in enumerate(jobs):
        speeds = {name: speed / job.speeds[reference] for name, speed in zip(GPU_TYPES, job.speeds, strict=True)}
        able = {name: speed for name, speed in speeds.items() if speed > 0}
        types = (GPU_TYPES[chosen[number]],) if number in chosen else tuple(able)
        spec = JobSpec(
            f"g{number}", SIMULATED_COMMAND, job.gpus, workload=job.job_type, throughput=able, gpu_types=types,
            restartable=True, preemptible=True, priority=priority.get(number, 0),
        )  # fmt: skip
        traced.append(TraceJob(f"g{number}", number + 1, 0, job.seconds, spec))
    nodes = tuple(
        NodeSeen(f"{name}-{number}", NODE_GPUS, machine=f"{name}-{number}", gpu_type=name)
        for name in GPU_TYPES
        for number in range(gpus // NODE_GPUS)
    )
    trace = Trace("gavel", tuple(traced))
    report = Simulation(trace, nodes, policy, restart_cost_seconds=RESTART_COST_SECONDS).run()
    assert not report.unfinished, "all jobs fit"
    return report


@cache
def _measured_jobs(seed: int) -> list[GavelJob]:
    """Return jobs with the throughputs that Gavel's authors measured on their physical cluster."""
    throughputs = read_physical(data_folder() / "interference" / "gavel-throughputs.json")
    return static_jobs(throughputs, FAIRNESS_JOBS, seed)


def _fairness() -> Outcome:
    """Return the gain of the least normalised throughput over equal shares of time on each type."""
    gains = []
    for seed in SEEDS:
        speeds, gpus, capacity, _ = _arrays(_measured_jobs(seed))
        split = equal_split(len(speeds), capacity)
        # Equal shares of time, reduced until all gangs fit into each type.
        split *= min(1.0, float((capacity / (gpus.sum() * split)).min()))
        equal = (speeds @ split) * gpus / (speeds @ equal_split(len(speeds), capacity))
        shares = fair_shares(speeds, gpus, capacity)
        normal = (speeds * shares).sum(axis=1) * gpus / (speeds @ equal_split(len(speeds), capacity))
        gains.append(float(normal.min() / equal.min()))
    reason = f"an allocation, not a schedule; 95 % interval +-{interval(tuple(gains)):.2f}"
    return Outcome(round(fmean(gains), 3), None, reason)


def _finish_time() -> Outcome:
    """Return the least possible largest rho at the time of submission."""
    ratios = []
    for seed in SEEDS:
        speeds, gpus, capacity, steps = _arrays(_measured_jobs(seed))
        ratios.append(finish_time_fairness(speeds, gpus, capacity, steps, np.zeros(len(speeds)))[0])
    reason = f"an allocation, not a schedule; 95 % interval +-{interval(tuple(ratios)):.3f}"
    return Outcome(round(fmean(ratios), 4), None, reason)
