"""Room on the slots of running jobs: which of them other jobs may join, and on which slots a pending job fits."""

from __future__ import annotations

from scheduler_feedback.core.cluster import Node, NodeState
from scheduler_feedback.core.job import Job, JobKind, JobState, Slot
from scheduler_feedback.core.state import Sharing
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex
from scheduler_feedback.policies.queue.placement import may_borrow
from scheduler_feedback.policies.speeds.learnt_memory import has_outgrown, planned_mib


def may_join(job: Job) -> bool:
    """Return whether the job may join running jobs: it is shareable, and can be stopped at any time."""
    return job.spec.shareable and not job.alone and may_borrow(job.spec)


def may_host(index: SchedulingIndex, job: Job) -> bool:
    """Return whether other jobs may join the running job. The jobs on its slots are compared one by one later."""
    if not job.spec.shareable or job.alone or job.guest_of or job.stop_reason is not None:
        return False
    if job.spec.kind is not JobKind.TRAINING:
        return False
    if index.state.policy.sharing is not Sharing.MURI and index.partners(job.job_id):
        return False  # speeds are measured of pairs
    node = index.state.nodes.get(job.ranks[0].slot.node) if job.ranks else None
    return node is not None and node.jobs_per_slot > 1


def fitting(index: SchedulingIndex, job: Job, host: Job) -> tuple[Slot, ...] | None:
    """Return slots of the host, one per rank, on which the job fits beside all jobs there; None if there are too few.

    It requires healthy nodes that the job may use, and room in every known dimension: number of jobs, memory, share.
    """
    state, spec = index.state, job.spec
    barred = index.plan.topology.refused.get(spec.constraint, 0)
    found: list[Slot] = []
    for rank in host.ranks:
        node = state.nodes.get(rank.slot.node)
        if node is None or node.name in job.excluded_nodes or (spec.pinned_node or node.name) != node.name:
            continue
        if barred and barred >> index.plan.topology.number[node.name] & 1:
            continue
        here = [state.jobs[one] for one in index.sharers.get(rank.slot, ())]
        if node.present and node.state is NodeState.HEALTHY and has_room(node, job, here):
            found.append(rank.slot)
            if len(found) == spec.ranks:
                break
    if len(found) < spec.ranks or (spec.required_level is not None and len({slot.node for slot in found}) > 1):
        return None
    return None if spec.groups else tuple(found)


def has_room(node: Node, job: Job, here: list[Job]) -> bool:
    """Return whether one slot of the node can hold the job beside the jobs `here`, in every known dimension."""
    together = [*here, job]
    if len(together) > node.jobs_per_slot or any(one.state is JobState.STOPPING for one in here):
        return False
    if node.slot_memory_mib:
        needed = [planned_mib(one) for one in together]
        if not all(needed) or any(has_outgrown(one) for one in here) or sum(needed) > node.slot_memory_mib:
            return False
    return sum(one.spec.slot_share for one in together) <= 1.0 + 1e-9
