"""Guarantees: which jobs of a queue run in its cells. It is the schedule of a private cluster with these cells.

The queue's jobs are evaluated in the policy's order, with its backfill rule. A job that runs in cells of other queues
counts as a pending job here. Once it fits, it is guaranteed: it keeps its place in the cells, and if another queue
takes its slots, it continues there at once.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from scheduler_feedback.core.job import Job, JobKind, JobState, Slot
from scheduler_feedback.core.state import Backfilling, Order, State
from scheduler_feedback.policies.cells.cell_text import fits_empty
from scheduler_feedback.policies.cells.slot_use import SlotUse
from scheduler_feedback.policies.cells.virtual_cluster import VirtualCluster, owner_of
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.index.runtime_estimate import Release, job_releases, left_ns
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex
from scheduler_feedback.policies.queue import order
from scheduler_feedback.policies.queue.backfill import Backfill, reserve
from scheduler_feedback.policies.queue.placement import Shape, may_borrow, place, shape_of
from scheduler_feedback.policies.queue.waiting_reasons import paused
from scheduler_feedback.policies.remediation.gang_moves import at_limit


@dataclass(slots=True)
class Members:
    """Jobs of one virtual cluster."""

    guaranteed: list[Job] = field(default_factory=list)
    """Jobs with slots in the cells."""
    pending: list[tuple[tuple[object, ...], Job]] = field(default_factory=list)
    """Jobs without, in the policy's order, each with its sort key."""


def members_of(context: CycleContext, clusters: dict[str, VirtualCluster]) -> dict[str, Members]:
    """Return the jobs of each virtual cluster. A guarantee that can no longer be kept is withdrawn."""
    index, state = context.index, context.state
    found = {name: Members() for name in clusters}
    owners: dict[str, str] = {}

    def owner(job: Job) -> str:
        queue = job.spec.queue
        if queue not in owners:
            owners[queue] = owner_of(index.shares, queue)
        return owners[queue]

    for key in index.line.order:
        job = state.jobs[key[-1]]
        name, job.expected_start_ns = owner(job), None
        if job.cell_slots and not (clusters[name].valid(job.cell_slots) and _may_start(context, clusters[name], job)):
            guarantee(context, job, ())
        if job.cell_slots:
            found[name].guaranteed.append(job)
        elif paused(state, job, context.now_ns) is None and not at_limit(index, job):
            found[name].pending.append((key, job))
    for job in state.jobs.values():
        if job.cell_slots and job.state is JobState.PENDING and job.job_id not in index.line and not job.claim:
            guarantee(context, job, ())  # it cannot start: its queue's limit, an array's limit or a dependency
    for job_id in sorted({*index.held, *index.claimants}):
        job = state.jobs[job_id]
        name = owner(job)
        if job.cell_slots and not clusters[name].valid(job.cell_slots):
            guarantee(context, job, ())
        if job.cell_slots:
            found[name].guaranteed.append(job)
        elif job_id in index.held and _may_be_guaranteed(job):
            insort(found[name].pending, (_key_of(state, job), job), key=lambda one: one[0])
    return found


def _key_of(state: State, job: Job) -> tuple[object, ...]:
    """Return the sort key of a running job among the pending ones.

    By remaining time, it would pass one after the other while nothing happens. So it stays where it was at its start.
    """
    falls = state.policy.order in (Order.SRTF, Order.SRSF)
    return order.key_of(state, job, job.attempt_started_ns if falls else None)


def _may_be_guaranteed(job: Job) -> bool:
    """Return whether a job that holds slots outside of its cells may get cells. An opportunistic job has none."""
    return job.spec.kind is JobKind.TRAINING and not (job.stop_reason or job.guest_of or job.spec.opportunistic)


def _may_start(context: CycleContext, cluster: VirtualCluster, job: Job) -> bool:
    """Return whether the pending guaranteed job can start in the cells that are bound already, within its limit."""
    shares = context.index.shares
    if shares.limited and shares.room(job.spec.queue, len(job.cell_slots)) is not None:
        return False
    if paused(context.state, job, context.now_ns) is not None:
        return False
    return not unusable(context.index, cluster, job, {slot.node for slot in job.cell_slots})


def unusable(index: SchedulingIndex, cluster: VirtualCluster, job: Job | None, cells: Iterable[str]) -> list[str]:
    """Return those of the cells that are bound to slots which the job must not use. None: which no job may use.

    A node may have become a spare after a cell was bound there. Jobs that cannot be stopped do not start on it.
    """
    topology, bound, nodes = index.plan.topology, index.state.bound_cells, index.state.nodes
    borrows = job is None or may_borrow(job.spec)
    refused = 0 if job is None else topology.refused.get(job.spec.constraint, 0)
    excluded = () if job is None else job.excluded_nodes

    def usable(cell: str, first: Slot) -> bool:
        number = topology.number.get(first.node)
        if number is None or first.slot + cluster.size(cell) > topology.sizes[number]:
            return False
        if nodes[first.node].spare and not borrows:
            return False
        return index.plan.usable(first.node) and not refused >> number & 1 and first.node not in excluded

    return [cell for cell in cells if (first := bound.get(cell)) is not None and not usable(cell, first)]


def guarantee(context: CycleContext, job: Job, slots: Sequence[Slot]) -> None:
    """Assign slots in the cells of its queue to the job; none withdraws its guarantee."""
    job.cell_slots = list(slots)
    context.evaluated = True  # the journal records the cycle


def fill(context: CycleContext, cluster: VirtualCluster, members: Members, slot_use: SlotUse) -> None:
    """Guarantee the jobs that a private cluster would start now."""
    index, state, policy = context.index, context.state, context.state.policy
    if not members.pending or not cluster.empty.topology.names:
        return
    topology = cluster.empty.topology
    if sum(len(job.cell_slots) for job in members.guaranteed) >= sum(topology.sizes):
        return
    plan = cluster.empty.copy()
    for job in members.guaranteed:
        plan.hold(job.cell_slots)
    down = unusable(index, cluster, None, topology.names)
    spares = any(state.nodes[first.node].spare for first in state.bound_cells.values() if first.node in state.nodes)
    room: Backfill | None = None
    behind = False
    failed: dict[tuple[Shape, bool], bool] = {}
    for _, job in members.pending:
        if not any(inside[0] for inside in plan.free_in):
            break
        own = job.excluded_nodes or job.spec.constraint in index.plan.topology.refused or spares
        bad = unusable(index, cluster, job, topology.names) if own else down
        asks = structs.replace(job, excluded_nodes=(*job.excluded_nodes, *bad)) if bad else job
        most = index.most_ranks(job)
        if job.state is not JobState.PENDING:  # an elastic gang keeps its size
            most = len(job.ranks)
            asks = structs.replace(asks, spec=structs.replace(asks.spec, min_ranks=most))
        length_ns = _length_ns(context, job)
        short = room is None or length_ns <= room.window_ns
        kind = shape_of(asks), short
        if behind and kind in failed:
            continue
        slots: tuple[Slot, ...] | None
        if room is None:
            slots = place(plan, asks, policy=policy, most=most)
        else:
            found = (
                room.place_short(policy, asks, most, length_ns) if short else room.place_unreserved(policy, asks, most)
            )
            slots = None if found is None else found[0]
        if slots is not None:
            slots_now = _in_place(state.bound_cells, cluster, members, slot_use, job, slots)
            if slots_now is not None:
                plan.give(slot for slot in slots if slot not in slots_now)
                for one in (plan,) if room is None else (plan, room.unreserved):
                    one.hold(slots_now)
            guarantee(context, job, slots_now or slots)
            members.guaranteed.append(job)
            continue
        failed[kind] = True
        if behind or not fits_empty(cluster, asks):  # one that never fits blocks no other
            continue
        if policy.backfill is Backfilling.NONE:
            break
        if policy.backfill is Backfilling.GREEDY:
            behind = True
            continue
        ends = sorted(_release(context, other) for other in members.guaranteed)
        if (reservation := reserve(plan, ends, asks, context.now_ns, policy)) is not None:
            room, behind = Backfill(plan, reservation, context.now_ns), True
            if job.state is JobState.PENDING:
                job.expected_start_ns = reservation.from_ns


def _length_ns(context: CycleContext, job: Job) -> int:
    if job.job_id in context.index.line:
        return context.index.line.places[job.job_id].length_ns
    return left_ns(context.state.policy, job, context.now_ns)


def _release(context: CycleContext, job: Job) -> Release:
    """Return when the guaranteed job is expected to free its slots within the cells."""
    found = job_releases(context.state, job, context.now_ns)
    at_ns = max(
        (one.at_ns for one in found), default=context.now_ns + left_ns(context.state.policy, job, context.now_ns)
    )
    return Release(at_ns, job.job_id, tuple(job.cell_slots))


def _in_place(
    bound: dict[str, Slot],
    cluster: VirtualCluster,
    members: Members,
    slot_use: SlotUse,
    job: Job,
    slots: tuple[Slot, ...],
) -> tuple[Slot, ...] | None:
    """Bind cells to the slots that the running job holds, so that it need not move. None if that is not possible.

    slots: its slots in the cells. The result uses the same cells, and other slots of them.
    """
    if job.state is JobState.PENDING or not job.ranks:
        return None
    cells = list(dict.fromkeys(slot.node for slot in slots))
    taken = {slot for other in members.guaranteed for slot in other.cell_slots}
    held = tuple(rank.slot for rank in job.ranks)
    blocks: dict[str, Slot] = {cell: bound[cell] for cell in cells if cell in bound}
    free = [cell for cell in cells if cell not in blocks]
    if free and (blocks or any(cell in cluster.groups for cell in free)):
        return None
    for node in dict.fromkeys(slot.node for slot in held) if free else ():
        mine = [slot.slot for slot in held if slot.node == node]
        cell = next((one for one in free if _count(slots, one) == len(mine) and one not in blocks), None)
        if cell is None or (first := _block_at(slot_use, node, mine, cluster.size(cell))) is None:
            return None
        blocks[cell] = Slot(node, first)
    slots_now = _within(blocks, cluster, held)
    if slots_now is None or not taken.isdisjoint(slots_now) or {slot.node for slot in slots_now} != set(cells):
        return None
    for cell, first_slot in blocks.items():
        if cell not in bound:
            bound[cell] = first_slot
            slot_use.keep(first_slot, cluster.size(cell))
    return slots_now


def _count(slots: Collection[Slot], cell: str) -> int:
    return sum(slot.node == cell for slot in slots)


def _block_at(slot_use: SlotUse, node: str, slots: list[int], size: int) -> int | None:
    """Return the first slot of the block of this size that contains the slots, if a cell can be bound there.

    Spare nodes are no cells: jobs of the queue that cannot be stopped could not use the rest of the cell.
    """
    if slot_use.state.nodes[node].spare:
        return None
    first = min(slots) - min(slots) % size
    total = slot_use.state.nodes[node].slots
    mask = (1 << size) - 1 << first
    if max(slots) >= first + size or first + size > total:
        return None
    if mask & (slot_use.bound.get(node, 0) | slot_use.blocked.get(node, 0)):
        return None
    return first


def _within(blocks: dict[str, Slot], cluster: VirtualCluster, held: tuple[Slot, ...]) -> tuple[Slot, ...] | None:
    """Return the slots of cells that are bound to these slots of the cluster; None if one is outside of the cells."""
    found: list[Slot] = []
    for slot in held:
        for cell, first in blocks.items():
            if first.node == slot.node and first.slot <= slot.slot < first.slot + cluster.size(cell):
                found.append(Slot(cell, slot.slot - first.slot))
                break
        else:
            return None
    return tuple(found)
