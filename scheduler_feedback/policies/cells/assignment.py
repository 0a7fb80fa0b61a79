"""Assignment of slots if queues have cells: guaranteed jobs first, then other jobs on the remaining slots.

1. Each queue's cells take jobs as a private cluster would (``guarantees``).
2. A guaranteed job starts on the slots to which its cells are bound. Jobs outside of their own cells leave these slots.
3. Other pending jobs that can be stopped start on any free slots, and leave when a cell there is needed.
"""

from __future__ import annotations

from scheduler_feedback.core.cluster import NodeState
from scheduler_feedback.core.job import Job, JobState, Slot
from scheduler_feedback.policies.cells.guarantees import fill, guarantee, members_of, unusable
from scheduler_feedback.policies.cells.slot_use import (
    SlotUse,
    bound_slots,
    in_own_cells,
    may_leave,
    slot_use_of,
)
from scheduler_feedback.policies.cells.virtual_cluster import SHARED, VirtualCluster
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.power.gpus import never_fits
from scheduler_feedback.policies.queue.placement import Shape, place, shape_of
from scheduler_feedback.policies.queue.preemption import stop_for
from scheduler_feedback.policies.queue.starting import release_reservation, start
from scheduler_feedback.policies.queue.waiting_reasons import paused
from scheduler_feedback.policies.remediation.gang_moves import at_limit, proposed


def assign_cells(context: CycleContext) -> None:
    """Start guaranteed jobs in the cells of their queues, and other jobs on slots that no owner needs."""
    index, state = context.index, context.state
    release_reservation(context)
    if state.frozen:
        index.mark_evaluated()
        return
    clusters = index.clusters
    members = members_of(context, clusters)
    before = dict(state.bound_cells)
    slot_use = slot_use_of(state, clusters, sorted({*index.held, *index.claims}))
    for name, cluster in clusters.items():
        fill(context, cluster, members[name], slot_use)
    started = False
    for name, cluster in clusters.items():
        for job in members[name].guaranteed:
            if job.job_id not in index.line:
                continue
            if unusable(index, cluster, job, {slot.node for slot in job.cell_slots}):
                # For a running gang, the cell has just been bound to slots that this job may not use.
                guarantee(context, job, ())
                started = True
                continue
            _start_guaranteed(context, cluster, slot_use, job)
            started |= job.state is not JobState.PENDING
    started |= _start_others(context)
    context.evaluated |= state.bound_cells != before
    index.mark_evaluated()
    # The next cycle evaluates again: the queues may have cells for jobs that have just started on other slots or have
    # lost their guarantee, and jobs that waited for the start of another one may start now.
    index.changed = started


def _start_guaranteed(context: CycleContext, cluster: VirtualCluster, slot_use: SlotUse, job: Job) -> None:
    """Start the guaranteed job on the slots of its cells, or make other jobs leave them first."""
    index, state = context.index, context.state
    if index.shares.limited and index.shares.room(job.spec.queue, len(job.cell_slots)) is not None:
        guarantee(context, job, ())  # another job of the queue has just started
        return
    cells = list(dict.fromkeys(slot.node for slot in job.cell_slots))
    unbound = [cell for cell in cells if cell not in state.bound_cells]
    topology = index.plan.topology
    barred = {*job.excluded_nodes}
    if refused := topology.refused.get(job.spec.constraint, 0):
        barred.update(name for name in topology.names if refused >> topology.number[name] & 1)
    while True:  # ends, because each round bars further nodes
        found = slot_use.bind(cluster, unbound, barred)
        if found is None:
            return
        slots = bound_slots({**state.bound_cells, **found}, job.cell_slots)
        assert slots is not None, "all cells are bound"
        if not never_fits(state, slots):
            break
        slot_use.unbind(cluster, found)
        if not found:  # the cells were bound there before
            return
        barred.update(first.node for first in found.values())
    nodes = {slot.node for slot in slots}
    if len(nodes) > 1 and any(state.nodes[name].state is NodeState.PROBATION for name in nodes):
        slot_use.unbind(cluster, found)  # a cell was bound there before; it waits until the probation ends
        return
    wanted = set(slots)
    leaving = [state.jobs[one] for one in sorted(index.held) if not wanted.isdisjoint(index.held[one])]
    stopped = [other for other in leaving if other.stop_reason is None]
    reserved = any(not wanted.isdisjoint(claim) for claim in index.claims.values())
    stays = any(not may_leave(other) or in_own_cells(state.bound_cells, other) for other in stopped)
    if reserved or stays or not _has_resources(context, job, leaving, slots):
        slot_use.unbind(cluster, found)
        return
    owner = f"queue {cluster.queue}" if cluster.queue != SHARED else "the queues without cells"
    if stopped:
        names = ", ".join(other.job_id for other in stopped)
        if proposed(context, job, f"cells {names}", "reclaim", f"{names} would leave the cells of {owner}", ()):
            slot_use.unbind(cluster, found)
            return
    state.bound_cells.update(found)
    if not leaving:
        start(context, job, slots, "started", f"guaranteed in the cells of {owner}")
        return
    for other in stopped:
        if not other.guest_of:  # a guest leaves with its host
            stop_for(context, other, job)
    index.reserve(job, slots)
    names = ", ".join(other.job_id for other in leaving)
    text = f"is guaranteed in the cells of {owner}: {names} must leave them"
    context.decide(job.job_id, "reclaim", text, (("lost_slot_seconds", f"{slot_use.loss(slots):.1f}"),))


def _has_resources(context: CycleContext, job: Job, leaving: list[Job], slots: tuple[Slot, ...]) -> bool:
    """Return whether the nodes of the slots have the CPU and memory that the job needs, once these jobs have left."""
    plan = context.index.plan
    if job.spec.constraint not in plan.topology.limits and not (plan.unreported and job.spec.requests):
        return True
    mark = plan.checkpoint()
    for other in leaving:
        context.index.vacate(other)
    nodes = {slot.node for slot in slots}
    others = [name for name in plan.topology.names if name not in nodes]
    found = place(plan, job, excluded=others, emptied={rank.slot.node for other in leaving for rank in other.ranks})
    plan.rollback(mark)
    return found is not None


def _start_others(context: CycleContext) -> bool:
    """Start pending jobs that can be stopped at any time, on free slots. Returns whether any job started."""
    index, state = context.index, context.state
    started = False
    failed: set[Shape] = set()
    for job_id in (*(key[-1] for key in index.line.order), *sorted(index.opportunists)):
        job = state.jobs[job_id]
        if not any(inside[0] for inside in index.plan.free_in):
            break
        if not may_leave(job) or at_limit(index, job) or paused(state, job, context.now_ns) is not None:
            continue
        if (shape := shape_of(job)) in failed:
            continue
        slots = place(index.plan, job, policy=state.policy, most=index.most_ranks(job))
        if slots is None:
            failed.add(shape)
            continue
        why = "not guaranteed: it leaves when the cells there are needed"
        start(context, job, slots, "started", why)
        started |= job.state is not JobState.PENDING  # in observe mode it is only proposed
    return started
