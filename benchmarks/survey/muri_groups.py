"""Rows of Muri: groups of up to four jobs that use different resources of their GPUs at the same time.

A study by the published rules (Zhao et al., SIGCOMM'22, sections 4 and 5, and the behaviour of the simulator in
Rivendile/Muri 4e69a78), on the public traces. They have the seconds that one iteration spends on each of three
resources. At every arrival and end, all jobs are planned again:

1. Jobs are sorted by remaining GPU time (Muri-S), or by attained GPU time (Muri-L).
2. In this order, a job that fits takes GPUs, together with the next jobs of the same size, up to four in all.
3. While the chosen jobs need more GPUs than there are, jobs of equal size are paired by a matching that uses the
   resources best, and then pairs with pairs.
4. A group that is slower than its jobs one after the other is dissolved, and groups that no longer fit wait.

A group makes one iteration of each job in the time of its best order, multiplied by the published overhead. The rules
of the engine's preset `muri` apply otherwise.
"""

from __future__ import annotations

import csv
import math
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import permutations
from pathlib import Path

import numpy as np
from msgspec import structs
from scipy.optimize import LinearConstraint, milp

from benchmarks.policies import RESTART_COST_SECONDS, TRACES, data_folder
from benchmarks.policies import read as read_trace
from benchmarks.survey.replays import MURI
from benchmarks.survey.row import Outcome, Row
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.core.state import FAIR_POLICY, Sharing
from scheduler_feedback.sim.presets import MURI_SLOWER, OTHER_START_SECONDS, START_SECONDS
from scheduler_feedback.sim.simulated_nodes import grid
from scheduler_feedback.sim.simulation import Simulation

PUBLISHED_KS = {
    ("Muri-L", "muri-1"): 1072.010,
    ("Muri-L", "muri-3"): 88.687,
    ("Muri-S", "muri-1"): 867.706,
    ("Muri-S", "muri-3"): 85.503,
}
"""Published average JCT in thousands of seconds (Rivendile/Muri, simulator/draw_fig9-10.py)."""

MOST = 4
"""Largest group."""

OVERHEAD = {1: 1.0, 2: 1.33 / 1.015, 3: 1.5 / 1.015, 4: 1.37 / 1.015}
"""Published overhead of a group by its size, relative to a job alone (`itertime_overhead_list`)."""

Stages = tuple[float, float, float]
"""Seconds of one iteration on the three recorded resources."""


def rows() -> list[Row]:
    """Return the rows of this module."""
    return [
        Row("Muri", f"phase interleaving ({system})", f"average JCT on {trace}, ks", published, MURI,
            partial(_measured, system, trace), slow=True)
        for (system, trace), published in PUBLISHED_KS.items()
    ]  # fmt: skip


def _measured(system: str, trace: str) -> Outcome:
    file = data_folder() / "jobs" / TRACES[trace][0]
    reproduced = average_jct(read(file), 8, system == "Muri-S") / 1e3
    alone, shared = (ours(trace, sharing) for sharing in (Sharing.NONE, Sharing.MURI))
    reason = (
        f"ours is the default policy with the rule `muri`, 300 s for each restart, learnt run times; without sharing "
        f"{alone:.1f}; one trace, nothing random"
    )
    return Outcome(round(reproduced, 3), round(shared, 3), reason)


@cache
def ours(trace: str, sharing: Sharing) -> float:
    """Return the average JCT in thousands of seconds of the default policy with this rule for shared slots."""
    stages = {job.submitted: job.stages for job in read(data_folder() / "jobs" / TRACES[trace][0])}
    found = read_trace(trace)
    jobs = tuple(
        replace(job, spec=structs.replace(job.spec, shareable=True, stages=stages[job.submitted_ns / 1e9]))
        for job in found.jobs
    )
    simulation = Simulation(
        replace(found, jobs=jobs),
        grid(8, 8, jobs_per_slot=MOST),
        replace(FAIR_POLICY, sharing=sharing),
        restart_cost_seconds=RESTART_COST_SECONDS,
        co_speed=grouped_speed,
    )
    jct = simulation.run().avg_jct_seconds
    assert jct is not None, "all jobs end"
    return jct / 1e3


def grouped_speed(job: JobSpec, others: tuple[JobSpec, ...], _gpu_type: str) -> float:
    """Return the true speed of a job in its group, with the published overhead."""
    group = [(one.stages[0], one.stages[1], one.stages[2]) for one in (job, *others)]
    return min(sum(job.stages) / interleaved_seconds(tuple(sorted(group))), 1.0)


@dataclass(slots=True, eq=False)
class GroupedJob:
    """A job of the trace, and its progress."""

    gpus: int
    """Number of GPUs."""
    submitted: float
    """Time of submission, in seconds."""
    duration: float
    """Run time that the trace names, in seconds. Muri-S sorts a job by it until its first start."""
    iterations: float
    """Iterations that are left."""
    alone: float
    """Seconds of one iteration alone."""
    stages: Stages
    """Seconds of one iteration on each resource."""
    start_seconds: float
    """Seconds that its group loses at each plan."""
    attained: float = 0.0
    """Seconds for which it has held GPUs."""
    key: float = 0.0
    """Sort key of the present plan."""
    began: bool = False
    """Whether it has ever run."""
    pace: float = 0.0
    """Seconds of one iteration in its present group; 0 while it waits."""
    lost: float = 0.0
    """Seconds that its group loses before the next plan."""


@dataclass(slots=True)
class Group:
    """Jobs that share GPUs."""

    jobs: list[GroupedJob] = field(default_factory=list)

    @property
    def kind(self) -> tuple[Stages, ...]:
        """Return the stages of all jobs, sorted: groups of one kind are alike."""
        return tuple(sorted(job.stages for job in self.jobs))

    def seconds(self) -> float:
        """Return the time in which each job makes one iteration."""
        return self.jobs[0].alone if len(self.jobs) == 1 else interleaved_seconds(self.kind)


@cache
def interleaved_seconds(stages: tuple[Stages, ...]) -> float:
    """Return the time of one iteration of each of these two to four jobs, with overhead, in their best order."""
    best = min(_round_seconds(order) for order in permutations(stages))
    if len(stages) == 2:
        one, other = stages
        best = min(best, max(one[0], other[1] + other[2]) + max(other[0], one[1] + one[2]))
    return best * OVERHEAD[len(stages)]


def _round_seconds(order: Sequence[Stages]) -> float:
    """Return the length of four phases in the steady state. In each, every job is in another part of its iteration.

    The first stage takes two phases, so it begins when the phase before begins; the others take one.
    """
    ends = [0.0]
    for phase in range(8):
        candidates = [0.0]
        for shift, stage, back in ((1, 2, 0), (2, 1, 0), (3, 0, 1)):
            who = (phase + shift) % 4
            if who < len(order) and phase >= back:
                candidates.append(ends[phase - back] + order[who][stage])
        ends.append(max(candidates))
        if phase >= 4 and math.isclose(ends[-1] - ends[-5], ends[-2] - ends[-6], rel_tol=1e-3):
            return ends[-1] - ends[-5]
    return ends[8] - ends[4]


@cache
def use_of(stages: tuple[Stages, ...]) -> float:
    """Return the share of four resources' time that a group uses."""
    return sum(sum(one) for one in stages) / (4 * interleaved_seconds(stages))


def read(path: Path) -> list[GroupedJob]:
    """Return the jobs of a public trace of Muri."""
    found = []
    with path.open() as file:
        for row in csv.DictReader(file):
            gpus, model = int(row["num_gpu"]), row["model_name"]
            stages = tuple(float(row[f"resource_time_{number}"]) / 1e3 for number in range(3))
            found.append(
                GroupedJob(
                    gpus,
                    float(row["submit_time"]) / 1e3,
                    float(row["duration"]) / 1e3,
                    float(row["iterations"]),
                    float(row["iteration_time"]) / 1e3 * MURI_SLOWER,
                    (stages[0], stages[1], stages[2]),
                    START_SECONDS.get(model, {}).get(gpus, OTHER_START_SECONDS),
                )
            )
    return sorted(found, key=lambda job: job.submitted)


def average_jct(jobs: list[GroupedJob], nodes: int, knows_durations: bool) -> float:
    """Simulate the jobs on nodes of 8 GPUs, and return their average completion time in seconds."""
    waiting, active = list(reversed(jobs)), list[GroupedJob]()
    total, now = 0.0, 0.0
    while waiting or active:
        ends = [(now + job.iterations * job.pace, job) for job in active if job.pace]
        first_end = min((at for at, _ in ends), default=math.inf)
        arrival = waiting[-1].submitted if waiting else math.inf
        at = min(first_end, arrival)
        for job in active:
            if job.pace:
                job.iterations -= max(at - now - job.lost, 0.0) / job.pace
                job.attained += at - now
        now = at
        for end, job in ends:
            if end <= now + 1e-4:
                active.remove(job)
                total += now - job.submitted
        while waiting and waiting[-1].submitted <= now + 1e-4:
            active.append(waiting.pop())
        _plan(active, nodes, knows_durations)
    return total / len(jobs)


def _plan(active: list[GroupedJob], nodes: int, knows_durations: bool) -> None:
    for job in active:
        left = job.iterations * job.alone if job.began else job.duration
        job.key = (left if knows_durations else job.attained) * job.gpus
    active.sort(key=lambda job: job.key)
    chosen = _chosen(active, nodes)
    groups = _matched(chosen, nodes * 8)
    final: list[Group] = []
    for group in groups:
        slower = len(group.jobs) > 1 and group.seconds() > sum(job.alone for job in group.jobs)
        final += [Group([job]) for job in group.jobs] if slower else [group]
    final.sort(key=lambda group: min(job.key for job in group.jobs))
    free = [8] * nodes
    for job in active:
        job.pace = 0.0
    for group in final:
        if not fits(free, group.jobs[0].gpus):
            continue
        pace, lost = group.seconds(), sum(job.start_seconds for job in group.jobs)
        for job in group.jobs:
            job.pace, job.lost, job.began = pace, lost, True
    active.sort(key=lambda job: -job.gpus)


def fits(free: list[int], gpus: int) -> bool:
    """Take GPUs on the first node that has enough, or on several empty nodes. Return whether there are any."""
    if gpus <= 8:
        number = next((number for number, left in enumerate(free) if left >= gpus), None)
        if number is None:
            return False
        free[number] -= gpus
        return True
    empty = [number for number, left in enumerate(free) if left == 8][: gpus // 8]
    if len(empty) < gpus // 8:
        return False
    for number in empty:
        free[number] = 0
    return True


def _chosen(active: Sequence[GroupedJob], nodes: int) -> dict[int, list[GroupedJob]]:
    """Return the jobs to run, by size: each job that fits brings the next ones of its size, up to MOST in all."""
    by_size: dict[int, list[GroupedJob]] = {}
    for job in active:
        by_size.setdefault(job.gpus, []).append(job)
    taken = dict.fromkeys(by_size, 0)
    brought: set[int] = set()
    free = [8] * nodes
    for job in active:
        if id(job) in brought or not fits(free, job.gpus):
            continue
        same = by_size[job.gpus]
        until = min(taken[job.gpus] + MOST, len(same))
        brought |= {id(one) for one in same[taken[job.gpus] : until]}
        taken[job.gpus] = until
    return {size: same[: taken[size]] for size, same in by_size.items()}


def _matched(chosen: dict[int, list[GroupedJob]], gpus: int) -> list[Group]:
    """Pair groups of equal size until they need no more GPUs than there are."""
    groups = {size: [Group([job]) for job in jobs] for size, jobs in chosen.items()}
    needed = sum(size * len(found) for size, found in groups.items())
    for _ in range(MOST):
        for size, found in groups.items():
            merged: list[Group] = []
            for one, other in pairs_of(found):
                if other is None:
                    merged.append(one)
                elif needed > gpus:
                    merged.append(Group([*one.jobs, *other.jobs]))
                    needed -= size
                else:
                    merged += [one, other]
            groups[size] = merged
        if needed <= gpus:
            break
    return [group for found in groups.values() for group in found]


def pairs_of(groups: Sequence[Group]) -> list[tuple[Group, Group | None]]:
    """Return disjoint pairs of groups with at most MOST jobs that use the resources best, in the order of the groups.

    A pair is at the place of its later group, as in the published runs: pairs are merged only until all fit.
    """
    of_kind: dict[tuple[Stages, ...], list[Group]] = {}
    for group in groups:
        of_kind.setdefault(group.kind, []).append(group)
    left = Counter({kind: len(found) for kind, found in of_kind.items()})
    kinds = list(of_kind)
    matched = _best_pairs(tuple(kinds), tuple(left[kind] for kind in kinds))
    stacks = {kind: list(reversed(found)) for kind, found in of_kind.items()}
    position = {id(group): number for number, group in enumerate(groups)}
    pairs: list[tuple[Group, Group | None]] = [(stacks[kinds[i]].pop(), stacks[kinds[j]].pop()) for i, j in matched]
    pairs += [(group, None) for rest in stacks.values() for group in rest]
    return sorted(pairs, key=lambda pair: max(position[id(one)] for one in pair if one is not None))


@cache
def _best_pairs(kinds: tuple[tuple[Stages, ...], ...], counts: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the pairs of kinds with the largest sum of ``use_of``, each as often as it occurs.

    Groups of one kind are alike, so the maximum weight matching is an integer program with a variable per pair of
    kinds. Zhao et al. find it with Blossom.
    """
    options = [
        (i, j, use_of(tuple(sorted((*one, *other)))))
        for i, one in enumerate(kinds)
        for j, other in enumerate(kinds[i:], i)
        if len(one) + len(other) <= MOST and (i != j or counts[i] > 1)
    ]
    if not options:
        return []
    use = np.zeros((len(kinds), len(options)))
    for column, (i, j, _) in enumerate(options):
        use[i, column] += 1
        use[j, column] += 1
    with standard_output_to_error():
        found = milp(
            -np.array([weight for *_, weight in options]),
            constraints=LinearConstraint(use, ub=np.array(counts)),
            integrality=np.ones(len(options)),
        )
    assert found.success, found.message
    return [(i, j) for (i, j, _), many in zip(options, found.x, strict=True) for _ in range(round(many))]


@contextmanager
def standard_output_to_error() -> Iterator[None]:
    """Redirect standard output to standard error: the solver (HiGHS) prints, and `--json` prints a document."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
