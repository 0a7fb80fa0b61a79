"""Row of MIGER: the scheduler with MIG instances for each job (`policy.mig`), beside fixed instances.

MIGER's traces and figures were not found, so the input is ours: the tasks of the public OpenB trace that request a part
of one GPU, with their run times. A task asks for the smallest profile with that part of the compute slices. Ten seeds
of draws and Poisson arrivals that request more than the cluster has.

Both sides are simulated with the scheduling cycle of production and the same rules for the queue. Fixed instances are
slots whose GPU type is the profile, as Kubernetes and Slurm present them; a task may use each type that is large enough
and is as fast there. With `policy.mig`, a task's run time includes the time to create its instance.
"""

from __future__ import annotations

import csv
import math
import random
from collections import Counter
from collections.abc import Sequence
from functools import cache
from statistics import fmean

from benchmarks.policies import data_folder
from benchmarks.survey.row import Outcome, Row
from benchmarks.survey.shares import interval
from scheduler_feedback.core.events import NodeSeen
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.core.mig import MODELS, MigProfile
from scheduler_feedback.core.state import Backfilling, Estimates, Order, Policy
from scheduler_feedback.policies.mig.starts import best_start
from scheduler_feedback.sim.job_trace import SIMULATED_COMMAND, Trace, TraceJob
from scheduler_feedback.sim.simulated_nodes import grid
from scheduler_feedback.sim.simulation import Simulation

SEEDS = range(10)
GPUS, TASKS = 32, 3000
COMPUTE_SLICES = 7
LOAD = 1.5
"""Requested compute slices, relative to those of the cluster, so that tasks always wait."""

LONGEST_SECONDS = 86_400.0
"""Longest run time of a task; a few of the trace run for weeks."""

CREATE_SECONDS = 10.0
"""Time to create the instance of a task: an assumption."""

PROFILES = {one.name: one for one in MODELS["A100-80GB"]}

LAYOUTS: tuple[tuple[str, ...], ...] = (
    ("7g.80gb",), ("4g.40gb", "3g.40gb"), ("4g.40gb", "2g.20gb", "1g.10gb"), ("3g.40gb", "3g.40gb"),
    ("2g.20gb", "2g.20gb", "2g.20gb", "1g.10gb"), ("1g.10gb",) * 7,
)  # fmt: skip
"""Fixed layouts, the same on all GPUs."""

POLICY = Policy(order=Order.FIFO, backfill=Backfilling.GREEDY, estimates=Estimates.EXACT)
"""Rules of the queue on both sides: first come first served; a task that does not fit lets later ones pass."""


def rows() -> list[Row]:
    """Return the rows of this module."""
    measure = f"working compute slices, relative to the best fixed layout, {len(SEEDS)} seeds of OpenB's shares"
    return [Row("MIGER", "MIG instances that follow the requests", measure, None, "survey", _measured, slow=True)]


@cache
def kinds() -> tuple[tuple[str, float], ...]:
    """Return (profile, run time in seconds) of the trace's tasks."""
    found = []
    with (data_folder() / "jobs" / "openb-pods.csv").open() as file:
        for row in csv.DictReader(file):
            milli, seconds = int(row["gpu_milli"] or 0), float(row["deletion_time"]) - float(row["creation_time"])
            if row["num_gpu"] == "1" and seconds > 0 and milli < 1000:
                found.append((smallest(milli), min(seconds, LONGEST_SECONDS)))
    return tuple(found)


def smallest(milli: int) -> str:
    """Return the smallest profile with these thousandths of a GPU's compute slices."""
    compute = math.ceil(milli * COMPUTE_SLICES / 1000)
    able = [one for one in PROFILES.values() if one.compute >= compute]
    return min(able, key=lambda one: (one.compute, one.memory)).name


@cache
def tasks(seed: int) -> tuple[tuple[float, str, float], ...]:
    """Return (arrival, profile, run time) of tasks with Poisson arrivals, in seconds."""
    chance = random.Random(f"mig {seed}")
    drawn = [chance.choice(kinds()) for _ in range(TASKS)]
    work = sum(PROFILES[name].compute * seconds for name, seconds in drawn)
    gap = work / TASKS / (GPUS * COMPUTE_SLICES * LOAD)
    at, found = 0.0, []
    for name, seconds in drawn:
        at += chance.expovariate(1 / gap)
        found.append((at, name, seconds))
    return tuple(found)


def as_large(profile: MigProfile) -> tuple[str, ...]:
    """Return the profiles in which a task with this profile can run."""
    able = (one for one in PROFILES.values() if one.compute >= profile.compute and one.memory >= profile.memory)
    return tuple(one.name for one in able)


@cache
def working(name: str, seed: int) -> float:
    """Return the share of compute slices with which tasks work, from the first to the last arrival.

    name: 'policy.mig', 'fitted', or the profiles of a fixed layout, joined by '+'. A task works with the slices of its
    own profile, also in a larger instance.
    """
    follows, found = name == "policy.mig", tasks(seed)
    jobs = []
    for number, (at, profile, seconds) in enumerate(found):
        spec = (
            JobSpec(f"t{number}", SIMULATED_COMMAND, 1, mig_profile=profile)
            if follows
            else JobSpec(f"t{number}", SIMULATED_COMMAND, 1, gpu_types=as_large(PROFILES[profile]))
        )
        extra = CREATE_SECONDS if follows else 0.0
        jobs.append(TraceJob(f"t{number}", number + 1, round(at * 1e9), seconds + extra, spec))
    policy, nodes = POLICY, fixed_nodes(name, seed)
    if follows:
        policy = Policy(order=POLICY.order, backfill=POLICY.backfill, estimates=POLICY.estimates, mig=True)
        nodes = grid(GPUS // 8, 8, mig_profiles=MODELS["A100-80GB"])
    engine = Simulation(Trace("mig", tuple(jobs)), nodes, policy).engine()
    engine.run()
    end, done = found[-1][0], 0.0
    for number, (_, profile, seconds) in enumerate(found):
        start_ns = engine.courses[f"t{number}"].first_start_ns
        if start_ns is None:
            continue
        start = (start_ns - engine.first_ns) / 1e9 + found[0][0] + (CREATE_SECONDS if follows else 0.0)
        done += PROFILES[profile].compute * max(min(start + seconds, end) - min(start, end), 0.0)
    return done / ((end - found[0][0]) * GPUS * COMPUTE_SLICES)


def fixed_nodes(name: str, seed: int) -> tuple[NodeSeen, ...]:
    """Return one node for each profile of a fixed layout, whose slots are the instances of all GPUs.

    The type preferred among free ones is the smallest: types are named by size.
    """
    if name == "policy.mig":
        return ()
    layouts = fitted(seed) if name == "fitted" else [tuple(name.split("+"))] * GPUS
    counts = Counter(one for layout in layouts for one in layout)
    return tuple(NodeSeen(f"n-{one}", count, gpu_type=one) for one, count in sorted(counts.items()))


def fitted(seed: int) -> list[tuple[str, ...]]:
    """Return fixed layouts for these kinds of tasks, known beforehand: those of a cluster that such tasks fill.

    Tasks are drawn in proportion to their run time, because that is the mix that runs at any time.
    """
    chance = random.Random(f"layout {seed}")
    demand: dict[str, float] = {}
    for name, seconds in kinds():
        demand[name] = demand.get(name, 0.0) + seconds
    demand = dict(sorted(demand.items()))
    layouts: list[list[str]] = [[] for _ in range(GPUS)]
    busy, failures = [0] * GPUS, 0
    names, weights = list(demand), list(demand.values())
    while failures < 50 * len(names):
        name = chance.choices(names, weights)[0]
        options = [
            (*found, -busy[gpu].bit_count(), gpu)
            for gpu in range(GPUS)
            if (found := best_start(tuple(PROFILES.values()), busy[gpu], name, demand)) is not None
        ]
        if not options:
            failures += 1
            continue
        _, start, _, gpu = min(options, key=lambda one: (one[0], one[2], one[3], one[1]))
        busy[gpu] |= PROFILES[name].mask(start)
        layouts[gpu].append(name)
    return [tuple(layout) for layout in layouts]


def means(names: Sequence[str]) -> dict[str, float]:
    """Return the mean of all seeds for each of these."""
    return {name: fmean(working(name, seed) for seed in SEEDS) for name in names}


def _measured() -> Outcome:
    fixed = ["fitted", *("+".join(layout) for layout in LAYOUTS)]
    found = means([*fixed, "policy.mig"])
    best = max(fixed, key=lambda name: found[name])
    ratios = tuple(working("policy.mig", seed) / working(best, seed) for seed in SEEDS)
    every = ", ".join(f"{name} {mean:.3f}" for name, mean in found.items())
    reason = (
        f"the best fixed layout is {best}; policy.mig x {fmean(ratios):.3f} +-{interval(ratios):.3f} of it; {every}"
    )
    return Outcome(None, round(fmean(ratios), 4), reason)
