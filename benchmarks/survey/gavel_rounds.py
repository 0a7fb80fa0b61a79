"""Gavel's least attained service in rounds of six minutes, with jobs that arrive over time: the claim of 3.5 times.

Published (Narayanan et al., OSDI'20, abstract): policies that know the speeds of GPU types have an average JCT up to
3.5 times better than those that do not, on jobs that arrive over time. Here both are simulated by its rules (section
5): shares of time from the program of max-min fairness, computed again whenever a job arrives or ends; in each round,
the jobs and types with the largest share / rounds received so far go first. The policy that does not know speeds has
the same program with equal speeds.

Jobs are drawn as in its traces of one GPU each (``gavel_data``), on a cluster of a third of its size, because a program
for each event of its full size takes hours. A change of type costs nothing, as in most of its simulations.
"""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import fmean

import numpy as np

from benchmarks.policies import RESTART_COST_SECONDS
from benchmarks.survey.gavel_allocations import Matrix, max_min_fairness
from benchmarks.survey.gavel_data import GPU_TYPES, JOB_TYPES, read_simulation
from benchmarks.survey.row import Outcome, Row
from benchmarks.survey.shares import interval
from scheduler_feedback.core.events import NodeSeen
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.core.state import FAIR_POLICY, Estimates
from scheduler_feedback.sim.job_trace import SIMULATED_COMMAND, Trace, TraceJob
from scheduler_feedback.sim.simulation import Simulation

ROUND_SECONDS = 360.0
GPUS_OF_A_TYPE = 12
JOBS, WARM_UP = 300, 100
"""Number of jobs, and of the first ones whose completion times do not count."""

LOADS = (1.2, 2.0)
"""Arrivals per hour. The longer the trace and the higher the load, the longer the queue: no load is steady here."""

SEEDS = range(10)
PUBLISHED = 3.5


def rows() -> list[Row]:
    """Return the rows of this module."""
    measure = f"average JCT without / with speeds, {LOADS[-1]} jobs an hour on 3x{GPUS_OF_A_TYPE} GPUs"
    return [
        Row("Gavel", "least attained service over heterogeneous throughputs, in rounds", measure, None,
            f"Narayanan et al., OSDI'20, abstract: up to {PUBLISHED} times, at an unstated load", _measured, slow=True),
    ]  # fmt: skip


def drawn(load: float, seed: int) -> tuple[Matrix, Matrix, Matrix]:
    """Return (arrivals in seconds, run time on a v100 in seconds, speeds relative to a v100: jobs x types)."""
    chance = random.Random(f"{seed}/rounds")
    throughputs = read_simulation()
    at, arrivals, seconds, speeds = 0.0, [], [], []
    for _ in range(JOBS):
        at += chance.expovariate(load / 3600)
        low, high = (3.0, 4.0) if chance.random() >= 0.8 else (1.5, 3.0)
        arrivals.append(at)
        seconds.append(60.0 * 10.0 ** chance.uniform(low, high))
        rates = throughputs[chance.choice(JOB_TYPES)[0], 1]
        speeds.append([rate / rates[GPU_TYPES.index("v100")] for rate in rates])
    return np.array(arrivals), np.array(seconds), np.array(speeds)


def average_hours(load: float, seed: int, knows: bool) -> float:
    """Return the average completion time in hours. knows: whether the shares of time depend on the speeds."""
    arrivals, left, speeds = drawn(load, seed)
    left = left.copy()
    capacity = np.full(len(GPU_TYPES), float(GPUS_OF_A_TYPE))
    received = np.zeros_like(speeds)
    waited = np.zeros(JOBS)
    ends = np.full(JOBS, np.nan)
    now, active, shares = 0.0, np.zeros(0, int), np.zeros((0, len(GPU_TYPES)))
    while np.isnan(ends).any():
        present = np.flatnonzero((arrivals <= now) & np.isnan(ends))
        if not len(present):
            now = float(arrivals[np.isnan(ends)].min())
            continue
        if len(present) != len(active) or (present != active).any():
            active = present
            known = speeds[active] if knows else np.ones((len(active), len(GPU_TYPES)))
            shares = max_min_fairness(known, np.ones(len(active)), capacity)
        priority = shares / np.maximum(received[active] / np.maximum(waited[active], 1.0)[:, None], 1e-9)
        free = capacity.copy()
        taken = np.zeros(len(active), bool)
        for index in np.argsort(-priority, axis=None, kind="stable"):
            job, gpu_type = divmod(int(index), len(GPU_TYPES))
            if taken[job] or free[gpu_type] < 1 or priority[job, gpu_type] <= 0:
                continue
            taken[job] = True
            free[gpu_type] -= 1
            number = active[job]
            received[number, gpu_type] += 1
            if left[number] <= ROUND_SECONDS * speeds[number, gpu_type]:
                ends[number] = now + left[number] / speeds[number, gpu_type]
            left[number] -= ROUND_SECONDS * speeds[number, gpu_type]
            if not free.any():
                break
        waited[active] += 1
        now += ROUND_SECONDS
    return float(np.mean((ends - arrivals)[WARM_UP:])) / 3600


def our_hours(load: float, seed: int, restart_cost_seconds: float = RESTART_COST_SECONDS) -> float:
    """Return the average completion time in hours under our default policy, which knows speeds and run times."""
    arrivals, seconds, speeds = drawn(load, seed)
    jobs = []
    for number in range(JOBS):
        spec = JobSpec(
            f"j{number:04}", SIMULATED_COMMAND, 1, restartable=True, preemptible=True,
            throughput=dict(zip(GPU_TYPES, speeds[number].tolist(), strict=True)),
        )  # fmt: skip
        jobs.append(TraceJob(spec.name, number, round(arrivals[number] * 1e9), float(seconds[number]), spec))
    nodes = tuple(
        NodeSeen(f"{name}-{n}", 4, gpu_type=name, machine=f"{name}-{n}")
        for name in GPU_TYPES
        for n in range(GPUS_OF_A_TYPE // 4)
    )
    policy = replace(FAIR_POLICY, estimates=Estimates.EXACT)
    engine = Simulation(Trace("Gavel", tuple(jobs)), nodes, policy, restart_cost_seconds=restart_cost_seconds).engine()
    engine.run()
    found = []
    for number, job in enumerate(jobs):
        course = engine.courses[job.job_id]
        assert course.ended_ns is not None, "all jobs end"
        if number >= WARM_UP:
            found.append((course.ended_ns - course.submitted_ns) / 3.6e12)
    return fmean(found)


def _measured() -> Outcome:
    texts = []
    gains: tuple[float, ...] = ()
    ours: tuple[float, ...] = ()
    for load in LOADS:
        without = [average_hours(load, seed, False) for seed in SEEDS]
        gains = tuple(a / average_hours(load, seed, True) for seed, a in zip(SEEDS, without, strict=True))
        ours = tuple(a / our_hours(load, seed) for seed, a in zip(SEEDS, without, strict=True))
        both = f"{fmean(gains):.2f} +-{interval(gains):.2f}, ours {fmean(ours):.2f} +-{interval(ours):.2f}"
        texts.append(f"{load:g} an hour: {both}")
    text = f"10 seeds, by load: {'; '.join(texts)}; ours knows run times and pays {RESTART_COST_SECONDS:g} s a restart"
    return Outcome(round(fmean(gains), 2), round(fmean(ours), 2), text)
