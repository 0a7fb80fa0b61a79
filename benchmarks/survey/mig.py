"""Row of MIGER: MIG instances that follow the requests, beside fixed ones.

MIGER's traces and figures were not found, so the input is ours: the tasks of the public OpenB trace that request a part
of one GPU, with their run times. A task needs the smallest profile with that part of the compute slices. Ten seeds of
draws and Poisson arrivals that request more than the cluster has. A placement study: the scheduler starts no MIG
instances (decision 129).
"""

from __future__ import annotations

import csv
import math
from functools import cache
from statistics import fmean

from benchmarks.policies import data_folder
from benchmarks.survey.row import Outcome, Row
from benchmarks.survey.shares import interval
from scheduler_feedback.policies.shares.mig_profiles import COMPUTE_SLICES, MigProfile, smallest
from scheduler_feedback.sim.studies.mig_study import (
    FixedInstances,
    FollowingInstances,
    Instances,
    Layout,
    demand_of,
    fitted,
    poisson,
    useful_slices,
)

SEEDS = range(10)
GPUS, TASKS = 32, 3000
LOAD = 1.5
"""Requested compute slices, relative to those of the cluster, so that tasks always wait."""

LONGEST_SECONDS = 86_400.0
"""Longest run time of a task; a few of the trace run for weeks."""

UNIFORM: tuple[Layout, ...] = (
    ("7g",), ("4g", "3g"), ("4g", "2g", "1g"), ("3g", "3g"), ("2g", "2g", "2g", "1g"), ("1g",) * 7
)  # fmt: skip
"""Fixed layouts, the same on all GPUs."""


def rows() -> list[Row]:
    """Return the rows of this module."""
    measure = f"working compute slices, relative to the best fixed layout, {len(SEEDS)} seeds of OpenB's shares"
    return [Row("MIGER", "MIG instances that follow the requests", measure, None, "survey", _measured, slow=True)]


@cache
def kinds(whole: bool = False) -> tuple[tuple[MigProfile, float], ...]:
    """Return (profile, run time in seconds) of the trace's tasks. whole: whether those of a whole GPU are included."""
    found = []
    with (data_folder() / "jobs" / "openb-pods.csv").open() as file:
        for row in csv.DictReader(file):
            milli, seconds = int(row["gpu_milli"] or 0), float(row["deletion_time"]) - float(row["creation_time"])
            if row["num_gpu"] != "1" or seconds <= 0 or (milli >= 1000 and not whole):
                continue
            profile = smallest(math.ceil(milli * COMPUTE_SLICES / 1000))
            assert profile is not None, "a whole GPU has a profile"
            found.append((profile, min(seconds, LONGEST_SECONDS)))
    return tuple(found)


@cache
def working(name: str, seed: int, whole: bool = False) -> float:
    """Return the share of compute slices with which tasks work."""
    mix = kinds(whole)
    tasks = poisson(mix, TASKS, GPUS, LOAD, seed)
    return useful_slices(tasks, instances_of(name, seed, whole), GPUS)


def instances_of(name: str, seed: int, whole: bool = False) -> Instances:
    """Return the instances of a rule by its name."""
    if name == "first start":
        return FollowingInstances(GPUS, None)
    if name == "best start":
        return FollowingInstances(GPUS, demand_of(kinds(whole), lambda seconds: seconds))
    if name == "fitted":
        return FixedInstances(fitted(kinds(whole), GPUS, seed))
    return FixedInstances([tuple(name.split("+"))] * GPUS)


def _measured() -> Outcome:
    fixed = ["fitted", *("+".join(layout) for layout in UNIFORM)]
    means = {name: fmean(working(name, seed) for seed in SEEDS) for name in (*fixed, "first start", "best start")}
    best = max(fixed, key=lambda name: means[name])
    shares = {
        name: tuple(working(name, seed) / working(best, seed) for seed in SEEDS)
        for name in ("first start", "best start")
    }
    text = "; ".join(f"{name} x {fmean(one):.3f} +-{interval(one):.3f}" for name, one in shares.items())
    every = ", ".join(f"{name} {mean:.3f}" for name, mean in means.items())
    reason = f"a placement study, see decision 129; the best fixed layout is {best}; {text}; working slices: {every}"
    return Outcome(None, round(fmean(shares["best start"]), 4), reason)
