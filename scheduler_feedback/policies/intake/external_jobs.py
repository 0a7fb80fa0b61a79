"""External jobs: jobs of another scheduler (Slurm, Kubernetes). The cycle monitors them and may request a move.

Such a job appears as running; its own scheduler queues it. The end of an attempt ends the job for the cycle. A later
attempt reactivates the job with its history. Of the other scheduler's pending jobs only the size is known, which is
enough to decide whether to use a slow node or quarantine it.
"""

from __future__ import annotations

from scheduler_feedback.core.cluster import Node, Tier
from scheduler_feedback.core.events import Hosted, HostWaits
from scheduler_feedback.core.job import HostedWait, Job, JobKind, JobSpec, JobState
from scheduler_feedback.core.state import State
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.index.runtime_estimate import remaining_ns
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex
from scheduler_feedback.policies.queue.backfill import reserve
from scheduler_feedback.policies.queue.placement import NEVER, slow_slots_pay, where


def found(context: CycleContext, event: Hosted) -> None:
    """Record a running attempt of an external job. Ignore repeated reports, and reports of older attempts."""
    job = context.state.jobs.get(event.job_id)
    if job is not None and (event.attempt < job.attempt or (event.attempt == job.attempt and job.state.holds_slots)):
        return
    began_ns = min(event.began_wall_ns or context.now_ns, context.now_ns)
    if job is None:
        job = Job(event.job_id, event.spec, JobState.RUNNING, began_ns)
    context.index.run_external(job, event.spec, event.attempt, event.placement, began_ns)
    context.record(job.job_id, "running", f"attempt {job.attempt} runs on {where(event.placement)}")


def waits(context: CycleContext, event: HostWaits) -> None:
    """Replace the list of jobs that are pending with another scheduler."""
    context.state.host_waits = event.waiting


def want(state: State, index: SchedulingIndex, node: Node) -> bool:
    """Return whether a pending gang of another scheduler would finish earlier by using the slow node.

    A gang for which enough healthy slots are free does not count, because it does not need the slow node.
    """
    free = index.plan.free(Tier.HEALTHY) if state.host_waits else 0
    return any(
        one.ranks > free
        and (not node.queues or one.queue in node.queues)
        and slow_slots_pay(min(node.slots, one.ranks), one.ranks, node.slowdown, _patience(state, index, one))
        for one in state.host_waits
    )


def will_be_taken(state: State, index: SchedulingIndex, job: Job) -> bool:
    """Return whether the external job's scheduler is about to use the free slots for one of its pending gangs."""
    free = index.plan.free(Tier.HEALTHY)
    return job.spec.kind is JobKind.EXTERNAL and any(one.ranks <= free for one in state.host_waits)


def _patience(state: State, index: SchedulingIndex, waiting: HostedWait) -> float:
    """Return how long the pending gang would wait for healthy slots as the head, divided by its time limit."""
    spec = JobSpec("", (), waiting.ranks, kind=JobKind.EXTERNAL, time_limit_seconds=waiting.seconds)
    job = Job("", spec, JobState.PENDING, state.now_ns)
    found = reserve(index.plan, index.ends, job, state.now_ns, state.policy)
    return NEVER if found is None else (found.from_ns - state.now_ns) / max(remaining_ns(state.policy, job), 1)
