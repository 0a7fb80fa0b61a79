"""OpenB filled by the scheduler itself: GPUs that remain unallocated with each rule for parts of slots.

The tasks and their order are those of ``scheduler_feedback/sim/studies/share_study``, without the tasks that need no
GPU, because a job here holds a slot. So the study is run on the same tasks for comparison. Nodes report their free
processors and memory, as Kubernetes does. Each task is a submitted job; a job that does not start in its cycle is
cancelled; the study drops it. FGD knows no task beforehand: it learns the typical requests from arriving tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

from benchmarks.policies import data_folder
from scheduler_feedback import cycle
from scheduler_feedback.core.events import CancelRequested, Event, NodeSeen, Submitted
from scheduler_feedback.core.job import JobSpec, JobState
from scheduler_feedback.core.state import Backfilling, Policy, Sharing, State
from scheduler_feedback.policies.shares.gpu_room import GPU_MILLI, Request, Room
from scheduler_feedback.sim.studies.share_study import ARRIVED, arrivals, cluster_of, fill, tasks_of

RULES = {"whole GPUs": Sharing.NONE, "best-fit": Sharing.BEST_FIT, "fgd": Sharing.FGD}
"""Value of `policy.sharing` by name."""

MOST_JOBS = 100
"""Jobs that may share one slot: no task of the trace requests less than a hundredth of a GPU."""


def reduced(tasks: Sequence[Request], nodes: Mapping[str, Room]) -> tuple[list[Request], dict[str, Room]]:
    """Return the tasks and the nodes without processors and host memory."""
    kept = [replace(task, cpu_milli=0, memory_mib=0) for task in tasks]
    return kept, {name: replace(room, cpu_milli=0, memory_mib=0) for name, room in nodes.items()}


def resources(cpu_milli: int, memory_mib: int) -> tuple[tuple[str, int], ...]:
    """Return requested or free amounts of other resources than slots, without those that are 0."""
    return tuple((name, count) for name, count in (("cpu", cpu_milli), ("memory", memory_mib)) if count)


def scheduled(sharing: Sharing, nodes: Mapping[str, Room], tasks: Sequence[Request], seed: int) -> float:
    """Return the share (0 to 1) of all GPUs that the scheduler has allocated once 1.3 times of them were requested."""
    state = State(policy=Policy(sharing=sharing, backfill=Backfilling.NONE, learn_speeds=False))
    seen = [
        NodeSeen(
            name,
            len(room.gpus),
            gpu_type=room.gpu_type,
            jobs_per_slot=MOST_JOBS,
            free=resources(room.cpu_milli, room.memory_mib),
        )
        for name, room in nodes.items()
        if room.gpus
    ]
    cycle.run(state, seen, 1)
    capacity = sum(room.total_milli for room in nodes.values())
    allocated = 0
    refused: list[Event] = []
    for number, task in enumerate(arrivals(tasks, capacity, seed, ARRIVED)):
        shares = task.gpu_milli < GPU_MILLI
        spec = JobSpec(
            "task", ("task",), task.gpus, gpu_types=task.gpu_types,
            requests=resources(-(-task.cpu_milli // task.gpus), -(-task.memory_mib // task.gpus)),
            shareable=shares, slot_share=task.gpu_milli / GPU_MILLI if shares else 0.0,
        )  # fmt: skip
        job_id = f"j{number}"
        cycle.run(state, [*refused, Submitted(job_id, spec)], number + 2)
        started = state.jobs[job_id].state is JobState.STARTING
        refused = [] if started else [CancelRequested(job_id)]
        allocated += task.total_milli if started else 0
    return allocated / capacity


@cache
def unallocated_by_scheduler(name: str, seed: int, slots_only: bool = False) -> float:
    """Return the unallocated GPUs in per cent of the cluster by a rule of RULES."""
    tasks, nodes = _openb(slots_only)
    return 100 * (1 - scheduled(RULES[name], nodes, tasks, seed))


@cache
def unallocated_by_study(rule: str, seed: int, slots_only: bool = False) -> float:
    """Return the unallocated GPUs in per cent of the cluster by a rule of the study, on the same tasks."""
    tasks, nodes = _openb(slots_only)
    return 100 * (1 - fill(rule, nodes, tasks, seed).allocated)


@cache
def _openb(slots_only: bool) -> tuple[list[Request], dict[str, Room]]:
    jobs = data_folder() / "jobs"
    tasks, nodes = tasks_of(jobs / "openb-pods.csv"), cluster_of(jobs / "openb-gpu-nodes.csv")
    tasks = [task for task in tasks if task.gpus]
    return reduced(tasks, nodes) if slots_only else (tasks, nodes)
