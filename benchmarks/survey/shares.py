"""Rows of FGD: GPUs of the OpenB cluster that remain unallocated when tasks ask for shares of GPUs.

The published figures are those of FGD's public simulator on the same tasks and nodes, ten seeds each
(hkust-adsl/kubernetes-scheduler-simulator 8f3d641, experiments/analysis/expected_results/analysis_allo_discrete.csv,
workload openb_pod_list_default, column 130: GPUs requested by then are 1.3 times those of the cluster). The order of
tasks is random there and here, with different generators, so seeds do not correspond.
"""

from __future__ import annotations

import math
from functools import cache, partial
from statistics import fmean, stdev

from benchmarks.policies import data_folder
from benchmarks.survey.row import Outcome, Row
from benchmarks.survey.scheduled_shares import RULES, unallocated_by_scheduler, unallocated_by_study
from scheduler_feedback.sim.studies.share_study import cluster_of, fill, tasks_of

SEEDS = range(42, 52)
"""Seeds of the order of tasks, as many as in the published runs."""

SCHEDULED_SEEDS = range(42, 45)
"""Seeds of the runs by the scheduler: a run takes about a minute."""

T_95 = 2.262
"""Two-sided 95 % quantile of Student's t distribution for ten values."""

SOURCE = "Weng et al., USENIX ATC'23; hkust-adsl/kubernetes-scheduler-simulator 8f3d641, analysis_allo_discrete.csv"
PUBLISHED = {"random": 12.53, "best-fit": 6.92, "fgd": 4.61}
"""Published unallocated GPUs by rule, in per cent of the cluster, mean of ten seeds."""

MEASURE = "unallocated GPUs of OpenB at 130 % requested, % of the cluster"
STUDY = "a placement study of all tasks, without a scheduler"


def rows() -> list[Row]:
    """Return the rows of this module."""
    return [
        Row("FGD", "any node and GPU at random (its baseline)", MEASURE, PUBLISHED["random"], SOURCE,
            partial(_compared, "random", "whole-gpus")),
        Row("FGD", "best fit by processors and GPUs (its baseline)", MEASURE, PUBLISHED["best-fit"], SOURCE,
            partial(_compared, "best-fit", "whole-gpus")),
        Row("FGD", "placement that minimises fragmentation", MEASURE, PUBLISHED["fgd"], SOURCE,
            partial(_compared, "fgd", "least-fragmentation")),
        Row("FGD", "the same by the scheduler, which learns the typical requests", MEASURE, PUBLISHED["fgd"], SOURCE,
            _scheduled, slow=True),
        Row("FGD", "the same without rounding scores to whole numbers", MEASURE, None, SOURCE,
            partial(_compared, "exact-fgd", "least-fragmentation")),
    ]  # fmt: skip


@cache
def unallocated(rule: str) -> tuple[float, ...]:
    """Return the unallocated GPUs in per cent of the cluster, by seed."""
    jobs = data_folder() / "jobs"
    tasks, nodes = tasks_of(jobs / "openb-pods.csv"), cluster_of(jobs / "openb-gpu-nodes.csv")
    return tuple(100 * (1 - fill(rule, nodes, tasks, seed).allocated) for seed in SEEDS)


def interval(values: tuple[float, ...]) -> float:
    """Return half of the 95 % confidence interval of the mean of ten values."""
    return float(T_95 * stdev(values) / math.sqrt(len(values)))


def _scheduled() -> Outcome:
    study = tuple(unallocated_by_study("fgd", seed) for seed in SCHEDULED_SEEDS)
    values = {rule: tuple(unallocated_by_scheduler(rule, seed) for seed in SCHEDULED_SEEDS) for rule in RULES}
    others = ", ".join(f"{rule} {fmean(found):.2f}" for rule, found in values.items() if rule != "fgd")
    reason = (
        f"without the tasks that need no GPU, seeds {SCHEDULED_SEEDS[0]} to {SCHEDULED_SEEDS[-1]}; reproduced is the "
        f"published rule on the same tasks, which it knows beforehand; the scheduler with {others}"
    )
    return Outcome(round(fmean(study), 2), round(fmean(values["fgd"]), 2), reason)


def _compared(theirs: str, mine: str) -> Outcome:
    values, own = unallocated(theirs), unallocated(mine)
    reason = f"{STUDY}; ours is {mine}; 95 % intervals +-{interval(values):.2f} and +-{interval(own):.2f}"
    return Outcome(round(fmean(values), 2), round(fmean(own), 2), reason)
