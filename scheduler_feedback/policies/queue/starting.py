"""Start pending gangs in queue order, and reserve slots for the first gang that must wait."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from msgspec import structs

from scheduler_feedback.core.actions import StartGang
from scheduler_feedback.core.cluster import Tier
from scheduler_feedback.core.durations import span
from scheduler_feedback.core.job import Job, Slot, resized
from scheduler_feedback.core.state import Backfilling, Mode, Order, State
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.data import dataset_cache
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex
from scheduler_feedback.policies.index.slot_plan import NOWHERE, TIERS
from scheduler_feedback.policies.mig import words as mig_words
from scheduler_feedback.policies.mig.instances import laid_out
from scheduler_feedback.policies.network.network_class import chosen_class, in_words, with_class
from scheduler_feedback.policies.power.admission import delayed, need_watts, refusal
from scheduler_feedback.policies.power.gpus import never_fits
from scheduler_feedback.policies.queue import order, preemption
from scheduler_feedback.policies.queue.backfill import Reservation, reserve
from scheduler_feedback.policies.queue.pass_room import Room
from scheduler_feedback.policies.queue.placement import (
    Shape,
    attempt_speed,
    may_borrow,
    place,
    place_probe,
    still_usable,
    where,
)
from scheduler_feedback.policies.queue.waiting_reasons import paused
from scheduler_feedback.policies.remediation.gang_moves import at_limit
from scheduler_feedback.policies.shares import part_placement
from scheduler_feedback.policies.shares.part_placement import part_for, place_now, uses_part
from scheduler_feedback.policies.sharing.pair_speeds import refresh


def start_probes(context: CycleContext) -> None:
    index = context.index
    for job_id in sorted(index.probes):
        job = context.state.jobs[job_id]
        if paused(context.state, job, context.now_ns) is None and (slots := place_probe(index.plan, job)) is not None:
            if refusal(context.state, index, slots):
                index.plan.give(slots)
            else:
                start(context, job, slots, "started", f"tests {job.spec.pinned_node}")


def place_or_reserve(context: CycleContext) -> Reservation | None:
    """Start jobs from the front of the queue while they fit, then reserve slots for the first job that does not.

    The queue does not contain jobs that the available nodes could not hold even if they were empty: their start cannot
    be predicted, and a reservation would only leave slots idle. Jobs at their queue's limit are skipped.
    """
    index = context.index
    state, now_ns = context.state, context.now_ns
    if not index.changed:
        return _kept(state)
    index.changed = False
    line, position, divides = index.line.order, 0, state.policy.divides
    while position < len(line):
        job = state.jobs[line[position][-1]]
        if at_limit(index, job):
            position += 1
            continue
        free: tuple[Slot, ...] | None = None
        if paused(state, job, now_ns) is None:
            most = index.most_ranks(job)
            free = place_now(index, job, most) if divides else place(index.plan, job, policy=state.policy, most=most)
        if free is not None:
            start(context, job, free, "started", "first in the queue")
            continue
        if state.policy.backfill in (Backfilling.NONE, Backfilling.GREEDY) or unreserved(state, line[position]):
            break
        if divides:
            refresh(context)  # jobs that have just started beside others make them end later
        reservation = reserve(index.plan, index.ends, job, now_ns, state.policy)
        if reservation is None:  # slots reserved for the restarts of other gangs block it
            position += 1
            continue
        return _keep(context, reservation)
    return _keep(context, None)


def replan(context: CycleContext) -> bool:
    """Run a preemption pass: stop gangs for jobs that go ahead of them, and start these jobs if slots are free.

    Return whether jobs must be evaluated once more: chosen jobs wait for gangs that observe mode does not stop, or a
    job that does not fit starves, so that slots are reserved for it, and other jobs are backfilled.
    """
    index = context.index
    index.mark_evaluated()
    index.released = set()
    _keep(context, None)
    found = preemption.choose(context)
    blocked, saved = _start_chosen(context, found)
    starves = found.starves and not blocked
    if not (blocked or starves) and index.capacity.spares:
        # The started gangs may be on fewer or more spare slots than the pass counted, which other jobs can use.
        found = preemption.choose(context, stops=False)
        blocked, more = _start_chosen(context, found)
        saved |= more
    if context.state.policy.divides:
        _start_beside(context, found)
    _start_on_probation(context, found.waiting)
    index.mark_evaluated()  # discard the changes of order that the pass itself has made
    # The next cycle evaluates the jobs that starts of this pass have let in, and all if slots are left.
    index.fresh = {job_id for job_id in index.released if job_id in index.line}
    index.changed, index.grown = saved or bool(index.fresh), saved
    return starves or (blocked and context.state.policy.mode is Mode.OBSERVE)


def _start_chosen(context: CycleContext, found: preemption.Chosen) -> tuple[bool, bool]:
    """Start the jobs that a preemption pass has chosen and that fit into free slots.

    Return whether any must wait, and whether any needs fewer slots than the pass has counted.
    """
    index, policy, rooms = context.index, context.state.policy, found.rooms
    blocked, saved = bool(found.waiting), False
    index.plan.hold(found.kept)
    for job, number in found.now:
        least, most = job.spec.min_ranks or job.spec.ranks, index.most_ranks(job)
        if job.spec.min_ranks:
            most = min(least + rooms[number].most(may_borrow(job.spec)), job.spec.ranks if most is None else most)
        slots = place_now(index, job, most) if policy.divides else place(index.plan, job, policy=policy, most=most)
        if slots is None:
            blocked = True
        else:
            rooms[number].take(max(len(slots) - least, 0), may_borrow(job.spec))
            saved |= any(slot in index.sharers or index.plan.on_probation(slot.node) for slot in slots)
            start(context, job, slots, "started", "chosen by the preemption pass")
    index.plan.give(found.kept)
    return blocked, saved


def _start_beside(context: CycleContext, found: preemption.Chosen) -> None:
    """Start pending jobs on parts of slots that running jobs leave, and on idle slots that the pass has left.

    The preemption pass counts whole slots only, so it skips a job that needs parts and fewer idle slots than it counts.
    """
    state, index = context.state, context.index
    failed: set[Shape] = set()
    index.plan.hold(found.kept)
    for key in list(index.line.order):
        job = state.jobs[key[-1]]
        shape = index.line.places[key[-1]].kind.shape
        if not uses_part(state.policy, job) or shape in failed:
            continue
        if paused(state, job, context.now_ns) is not None or at_limit(index, job):
            continue
        slots = None if found.starves else _part_within(index, job, found.rooms)
        if slots is None:
            slots = part_for(index, job, shared_only=True)
        if slots is None:
            failed.add(shape)
        elif all(slot in index.sharers for slot in slots):
            start(context, job, slots, "started", "it needs no further slot")
        else:
            start(context, job, slots, "started", "the preemption pass has left idle slots that it needs")
    index.plan.give(found.kept)


def _part_within(index: SchedulingIndex, job: Job, rooms: list[Room]) -> tuple[Slot, ...] | None:
    """Take parts of slots for the job, with no more idle slots than the pass has left, and count these; None if it does
    not fit."""
    mark = index.plan.checkpoint()
    slots = part_for(index, job)
    if slots is None:
        return None
    idle = sum(slot not in index.sharers for slot in dict.fromkeys(slots))
    topology, borrows = index.plan.topology, may_borrow(job.spec)
    room = rooms[topology.types[topology.number[slots[0].node]]]
    if idle > room.idle(borrows):
        index.plan.rollback(mark)
        return None
    room.take(idle, borrows)
    return slots


def _start_on_probation(context: CycleContext, waiting: Collection[Job]) -> None:
    """Start pending jobs on free nodes on probation. The preemption pass leaves out their slots.

    waiting: jobs for which the pass has stopped gangs; they start on other nodes.
    """
    state, index = context.state, context.index
    plan = index.plan
    if not any(inside[0] for inside in plan.free_in[Tier.PROBATION :: TIERS]):
        return
    others = [
        slot
        for name, number in plan.topology.number.items()
        if plan.pool[number] != NOWHERE and not plan.on_probation(name)
        for slot in plan.topology.slots[number]
        if plan.free_slots(number) >> slot.slot & 1
    ]
    plan.hold(others)
    skipped = {job.job_id for job in waiting}
    failed: set[Shape] = set()
    for key in list(index.line.order):
        job = state.jobs[key[-1]]
        if not any(inside[0] for inside in plan.free_in[Tier.PROBATION :: TIERS]):
            break
        shape = index.line.places[key[-1]].kind.shape
        if shape in failed or job.job_id in skipped:
            continue
        if paused(state, job, context.now_ns) is not None or at_limit(index, job):
            continue
        most = index.most_ranks(job)
        divides = state.policy.divides
        slots = place_now(index, job, most) if divides else place(plan, job, policy=state.policy, most=most)
        if slots is None:
            failed.add(shape)
        else:
            start(context, job, slots, "started", "a node on probation has room for it")
    plan.give(others)


def restart_moved(context: CycleContext) -> None:
    """Start pending gangs with reserved slots once these slots are free, for example gangs that move."""
    index = context.index
    state, now_ns = context.state, context.now_ns
    needed_watts = 0.0
    for job_id in sorted(index.claimants, key=lambda job_id: order.key_of(state, state.jobs[job_id])):
        job = state.jobs[job_id]
        if not still_usable(index.plan, state.nodes, job.claim):
            index.reserve(job, ())
            context.record(job.job_id, "claim-lost", "its reserved slots can no longer be used")
            continue
        job.expected_start_ns = max(now_ns, job.not_before_ns)
        if paused(state, job, now_ns) is None and index.is_clear(job.claim):
            if refusal(state, index, job.claim, needed_watts):
                if never_fits(state, job.claim):
                    index.reserve(job, ())
                    context.record(job.job_id, "claim-lost", "its reserved slots exceed the power budget")
                else:
                    needed_watts += need_watts(state, index, job.claim)
                continue
            how = "starts" if job.attempt == 0 else "restarts"
            start(context, job, tuple(job.claim), "started", f"{how} on its reserved slots")


def unreserved(state: State, key: tuple[Any, ...]) -> bool:
    """Return whether the job with this sort key gets no reservation if it is the head.

    In the fair order with preemption, the head gets a reservation only after it has waited past the starvation bound,
    because reserved slots are idle.
    """
    return state.policy.order is Order.FAIR and state.policy.preempt and key[1:2] != (0,)


def release_reservation(context: CycleContext) -> None:
    """Remove the head's reservation, because the head starts on other slots than free ones."""
    _keep(context, None)


def _kept(state: State) -> Reservation | None:
    if state.reserved_for is None or state.reserved_from_ns is None:
        return None
    return Reservation(state.reserved_for, state.reserved_from_ns, tuple(state.reserved_slots))


def _keep(context: CycleContext, reservation: Reservation | None) -> Reservation | None:
    """Store the head's reservation; None removes it. After a change, all pending jobs are evaluated again."""
    index = context.index
    state = context.state
    before = _kept(state)
    if reservation == before and reservation is not None and not state.frozen:
        state.jobs[reservation.job_id].expected_start_ns = reservation.from_ns
        return reservation
    index.grown = True
    if before is not None and (job := state.jobs.get(before.job_id)) is not None:
        job.expected_start_ns = None
    if reservation is None:
        state.reserved_for = state.reserved_from_ns = None
        state.reserved_slots, state.reserved_nodes = [], {}
        return None
    state.jobs[reservation.job_id].expected_start_ns = None if state.frozen else reservation.from_ns
    state.reserved_for, state.reserved_from_ns = reservation.job_id, reservation.from_ns
    state.reserved_slots = list(reservation.slots)
    state.reserved_nodes = {}
    for slot in state.reserved_slots:
        state.reserved_nodes[slot.node] = state.reserved_nodes.get(slot.node, 0) + 1
    return reservation


def start(
    context: CycleContext,
    job: Job,
    slots: tuple[Slot, ...],
    kind: str,
    why: str,
    guest_of: tuple[str, ...] = (),
    part: float = 0.0,
) -> None:
    """Start the gang's next attempt, rank n on slots[n], and log why.

    kind: kind of the log entry. guest_of: ids of the jobs with which it shares the slots. part: largest part of the
    computing power of each slot that it may use; 0: not limited.
    """
    if delayed(context, job, tuple(dict.fromkeys(slots))):
        return
    starts: tuple[int, ...] = ()
    if job.spec.mig_profile:
        found = laid_out(context.index, job, slots)
        assert found is not None, f"{job.job_id}: the instances that were placed do not fit on {where(slots)}"
        slots, starts = found
    gpu_type = context.state.nodes[slots[0].node].gpu_type
    if job.awaited_until_ns and gpu_type:
        why += f"; it waited for a faster GPU type and starts on {gpu_type}"
    speed = attempt_speed(context.state.policy, job, gpu_type, len(slots), context.index.plan.learnt)
    job.network_class = chosen_class(context.state, context.index.plan, job, slots)
    why += in_words(context.state, context.index.plan, job, slots)
    why += dataset_cache.in_words(context.state, job.spec, slots)
    if job.spec.mig_profile:
        why += mig_words.starts_in_words(context.index, job, slots)
    elif context.state.policy.sharing.divides:
        why += part_placement.in_words(context.state, context.index, job, slots)
        for other in part_placement.partners_on(context.index, job, slots):
            context.record(other, "shares", f"shares {where(slots)} with {job.job_id}")
    context.index.start(job, slots, context.action_id(), speed, guest_of, part, starts)
    spec = with_class(resized(job.spec, len(slots)), job.network_class)
    if part:
        spec = structs.replace(spec, slot_share=part)
    context.actions.append(StartGang(job.action_id, job.job_id, job.attempt, spec, slots, why, starts))
    waited = span((context.now_ns - job.submitted_ns) / 1e9)
    context.decide(
        job.job_id, kind, f"attempt {job.attempt} starts on {where(slots)}, {waited} after submission: {why}"
    )
