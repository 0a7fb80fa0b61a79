"""Conversion between Slurm's names and the cycle's, for nodes, jobs and gangs. No I/O.

A slot is a GPU. An external gang has as many "ranks" as it holds GPUs, in the order of its nodes. The job decides how
many tasks use them. Agents report these tasks, and a verdict names a task by srun's number.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import lru_cache

from msgspec import structs

from scheduler_feedback.backends.slurm.parsing.opt_in import OptIn
from scheduler_feedback.backends.slurm.parsing.slurm_objects import OUT, SlurmJob, SlurmNode
from scheduler_feedback.core.events import Event, FirstStep, Hosted, HostWaits, MemoryMeasured, NodeSeen, SpeedMeasured
from scheduler_feedback.core.job import HostedWait, JobKind, JobSpec, Slot
from scheduler_feedback.core.plain_text import plain
from scheduler_feedback.core.verdict import Abstention, Cleared, Verdict

OURS = "gangwatch: "
"""Prefix of every reason and comment that we write; it identifies them, also after a restart."""

MOST_NAME = 200
"""Maximum length of a job's name, in characters; the rest is cut. The controller's own jobs have the same limit."""

MOST_NUMBERS = 4096
"""Number of names whose numbers are kept, because the feed asks once a second for each node. Names have at most 256
characters, so hostile names take 2 MB at most."""

_GANG = re.compile(r"slurm-(\d+)(?:\.\w+)?\Z")


def job_id_of(number: int) -> str:
    """Return the cycle's name of the job with this Slurm number: 'slurm-7' for 7."""
    return f"slurm-{number}"


@lru_cache(MOST_NUMBERS)
def number_of(job_id: str) -> int | None:
    """Return Slurm's number of a job, or of an agent's gang ('slurm-JOB.STEP'); None for any other name."""
    found = _GANG.match(job_id)
    return None if found is None else int(found[1])


def is_ours(text: str) -> bool:
    """Return whether gangwatch wrote this reason or comment of a node."""
    return text.startswith(OURS.strip())


def usable(node: SlurmNode) -> bool:
    """Return whether the node could run a job. A drain by gangwatch is ignored, so that the cycle keeps the node."""
    if node.states & OUT:
        return False
    return not node.drained or is_ours(node.reason)


def node_seen(node: SlurmNode) -> NodeSeen:
    return NodeSeen(node.name, node.gpus, present=usable(node), gpu_type=node.gpu_type, queues=node.partitions)


def host_waits(jobs: Iterable[SlurmJob], moving: Collection[str]) -> HostWaits:
    """Return the jobs that wait only for nodes: for each partition and number of GPUs, the shortest time limit.

    moving: numbers of the jobs that gangwatch is requeueing; they do not count.
    """
    shortest: dict[tuple[str, int], float | None] = {}
    for job in jobs:
        if not job.gpus_wanted or not job.waits_for_room or str(job.number) in moving:
            continue
        for partition in job.partition.split(","):
            key, limit = (partition, job.gpus_wanted), job.time_limit_seconds
            known = shortest.setdefault(key, limit)
            shortest[key] = known if limit is None else limit if known is None else min(known, limit)
    return HostWaits(tuple(sorted(HostedWait(*key, limit) for key, limit in shortest.items())))


def external_job(job: SlurmJob, opted: OptIn, nodes: dict[str, SlurmNode]) -> Hosted | None:
    """Return the event that reports a running job to the cycle; None if it holds no GPUs of known nodes."""
    placement: list[Slot] = []
    for name, indices in zip(job.nodes, job.gpus, strict=True):
        node = nodes.get(name)
        placement += [Slot(name, index) for index in indices if node is not None and index < node.gpus]
    if not placement:
        return None
    # Slurm accepts any bytes in a name, terminal escape sequences too; tables, pages and logs show it.
    name = plain(job.name)[:MOST_NAME]
    spec = JobSpec(
        name=name,
        command=(f"slurm job {job.number}",),
        ranks=len(placement),
        user=plain(job.user),
        queue=job.partition or "default",
        kind=JobKind.EXTERNAL,
        time_limit_seconds=job.time_limit_seconds,
        restartable=opted.restartable and job.batch and job.requeue,
        checkpoint_signal=f"SIG{opted.signal or 'TERM'}",
        grace_seconds=opted.grace_seconds if opted.signal else 0.0,
        restart_cost_seconds=opted.restart_seconds,
        checkpoint_interval_seconds=opted.every_seconds,
        workload=name,
    )
    return Hosted(job_id_of(job.number), job.restarts, spec, tuple(placement), int(job.started_seconds * 1e9))


def why_not(job: SlurmJob, opted: OptIn) -> str:
    """Return why the job must not be signalled or requeued; '' if it may."""
    if opted.complaint:
        return opted.complaint
    if not opted.restartable:
        return "it has not opted in"
    if not job.batch:
        return "it is not a batch job, so Slurm cannot start it again"
    return "" if job.requeue else "it was submitted with --no-requeue"


def renamed(events: Iterable[Event]) -> list[Event]:
    """Return the detectors' events with the agents' gangs replaced by the cycle's jobs: 'slurm-7.0' by 'slurm-7'."""
    return [_renamed(event) for event in events]


def gang_of(event: Event) -> str:
    """Return the gang of a detector result; '' for any other event."""
    if isinstance(event, Verdict | Cleared | Abstention):
        return event.gang
    return event.job_id if isinstance(event, FirstStep | SpeedMeasured | MemoryMeasured) else ""


def _renamed(event: Event) -> Event:
    number = number_of(gang_of(event))
    if number is None:
        return event
    if isinstance(event, FirstStep | SpeedMeasured | MemoryMeasured):
        return structs.replace(event, job_id=job_id_of(number))
    if isinstance(event, Verdict):
        other = number_of(event.aggressor)
        aggressor = event.aggressor if other is None else job_id_of(other)
        return replace(event, gang=job_id_of(number), aggressor=aggressor)
    assert isinstance(event, Cleared | Abstention)
    return replace(event, gang=job_id_of(number))
