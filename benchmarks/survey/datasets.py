"""Row of data locality: how long gangs wait for their data, with and without a preference for nodes that have it.

Jobs are those of the Philly trace. It names no data, so each virtual cluster has DATASETS datasets of 20 to 400 GiB,
and each job uses one of them, the first ones far more often (Zipf, exponent 1). Nodes have a cache of CACHE_GIB and
load GIB_PER_SECOND from the common storage. All four are assumptions. The scheduler knows the sizes of the caches and
of the datasets, and not what a cache contains.
"""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import fmean

from msgspec import structs

from benchmarks.policies import RESTART_COST_SECONDS, data_folder
from benchmarks.survey.row import Outcome, Row
from benchmarks.survey.shares import interval
from scheduler_feedback.core.state import Backfilling, Estimates, Order, Policy
from scheduler_feedback.sim.job_trace import Trace
from scheduler_feedback.sim.simulated_nodes import grid
from scheduler_feedback.sim.simulation import Simulation, read_trace
from scheduler_feedback.sim.speeds.dataset_loads import DatasetLoads

SEEDS = range(10)
JOBS = 2000
NODES = 40
DATASETS = 8
GIB = (20.0, 400.0)
CACHE_GIB = 1000.0
GIB_PER_SECOND = 0.5

POLICY = Policy(order=Order.FIFO, backfill=Backfilling.EASY, estimates=Estimates.EXACT)


def rows() -> list[Row]:
    """Return the rows of this module."""
    measure = (
        f"mean wait for data, without regard to it = 1, 10 x {JOBS} Philly jobs, {NODES}x8, {CACHE_GIB:g} GiB a node"
    )
    source = "studies of training on Kubernetes"
    return [Row("Training on Kubernetes", "data locality: dataset caches", measure, None, source, _measured)]


def trace_of(seed: int) -> Trace:
    """Return a piece of the trace whose jobs have datasets."""
    chance = random.Random(f"datasets {seed}")
    trace = read_trace(data_folder() / "jobs" / "philly.csv", "philly")
    begin = chance.randrange(len(trace.jobs) - JOBS)
    sizes: dict[str, float] = {}
    jobs = []
    for job in trace.jobs[begin : begin + JOBS]:
        (number,) = chance.choices(range(DATASETS), [1 / (n + 1) for n in range(DATASETS)])
        name = f"{job.spec.queue}-{number}"
        gib = sizes.setdefault(name, GIB[0] * (GIB[1] / GIB[0]) ** chance.random())
        jobs.append(replace(job, spec=structs.replace(job.spec, dataset=name, dataset_gib=gib)))
    return replace(trace, jobs=tuple(jobs))


def waits(trace: Trace, cache_gib: float) -> tuple[float, float]:
    """Return (mean wait of a start for its data, average completion time) in seconds. cache_gib: of the policy."""
    policy = replace(POLICY, dataset_cache_gib=cache_gib)
    simulation = Simulation(
        trace,
        grid(NODES, 8),
        policy,
        restart_cost_seconds=RESTART_COST_SECONDS,
        datasets=DatasetLoads(CACHE_GIB, GIB_PER_SECOND),
    )
    engine = simulation.engine()
    report = engine.run()
    assert report.avg_jct_seconds is not None and engine.machines.datasets is not None
    starts = sum(course.starts for course in engine.courses.values())
    return engine.machines.datasets.loaded_seconds / starts, report.avg_jct_seconds


def _measured() -> Outcome:
    shares, jct, blind_seconds = [], [], []
    for seed in SEEDS:
        trace = trace_of(seed)
        blind, near = waits(trace, 0.0), waits(trace, CACHE_GIB)
        shares.append(near[0] / blind[0])
        jct.append(near[1] / blind[1])
        blind_seconds.append(blind[0])
    saved, longer = interval(tuple(shares)), interval(tuple(jct))
    reason = (
        f"10 seeds, +-{saved:.3f}; without regard to data {fmean(blind_seconds):.0f} s a start; average JCT "
        f"{fmean(jct):.4f} +-{longer:.4f} times; the trace names no data: datasets, cache and storage are assumed"
    )
    return Outcome(None, round(fmean(shares), 4), reason)
