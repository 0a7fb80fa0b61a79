"""Backfill scheduling: start jobs ahead of the head of the queue (``backfill`` has the conditions)."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_feedback.core.job import Job, Slot
from scheduler_feedback.core.state import Backfilling, Policy, State
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex
from scheduler_feedback.policies.index.slot_plan import Plan
from scheduler_feedback.policies.queue.backfill import Backfill, Reservation, candidates, only, reserve
from scheduler_feedback.policies.queue.conservative_backfill import DEPTH, Profile
from scheduler_feedback.policies.queue.pending_line import Key
from scheduler_feedback.policies.queue.placement import place
from scheduler_feedback.policies.queue.reserved_room import ReservedRoom, lasting
from scheduler_feedback.policies.queue.starting import start, unreserved
from scheduler_feedback.policies.remediation.gang_moves import at_limit
from scheduler_feedback.policies.shares.part_placement import on_one_node, part_for, place_now, slows_none, uses_part


def backfill(context: CycleContext, reservation: Reservation | None) -> None:
    """Start pending jobs behind the head, in queue order, if they do not delay the head."""
    index = context.index
    state, now_ns, policy = context.state, context.now_ns, context.state.policy
    all_of_them, fresh = index.grown, index.fresh
    index.grown, index.fresh = False, set()
    if state.frozen or not len(index.line):
        return
    if policy.backfill is Backfilling.CONSERVATIVE:
        backfill_conservatively(context, reservation)
        return
    greedy = policy.backfill is Backfilling.GREEDY or unreserved(state, _first_key(state, index))
    if reservation is None and not greedy:
        return
    free, divides = sum([inside[0] for inside in index.plan.free_in]), policy.divides
    if not free and not divides:
        return
    room = _backfill(context, reservation) if reservation is not None else None
    window_ns = room.window_ns if room is not None else None
    declined = index.plan.declined  # if a job that declines a GPU type does not fit, others of its kind may
    if all_of_them:
        kept = index.plan.free_of(reservation.slots) if reservation is not None else 0
        least = 1 if divides else 0  # a part of a slot needs no free slot
        asked = candidates(index.line, max(free, least), max(free - kept, least), window_ns)
    else:
        asked = only(index.line, fresh, max(free, 1) if divides else free)
    for key, kind, length_ns, chances in asked:
        job = state.jobs[key[-1]]
        if job.not_before_ns > now_ns or (reservation is not None and job.job_id == reservation.job_id):
            continue
        if kind.queue and at_limit(index, job):
            chances.short = chances.long = False
            continue
        found: tuple[tuple[Slot, ...], str] | None
        if divides and (uses_part(policy, job) or on_one_node(policy, job.spec)):
            short = room is None or length_ns <= room.window_ns
            found = _place_now(context, job, room, length_ns)
            if short:
                chances.short = found is not None or job.job_id in declined
            else:
                chances.long = found is not None or job.job_id in declined
        elif room is None:
            slots = place(index.plan, job, policy=policy, most=index.most_ranks(job))
            found = None if slots is None else (slots, "it fits into free slots")
            chances.short = found is not None or job.job_id in declined
        elif length_ns <= room.window_ns:
            found = room.place_short(policy, job, index.most_ranks(job), length_ns)
            chances.short = found is not None or job.job_id in declined
        else:
            found = room.place_unreserved(policy, job, index.most_ranks(job))
            chances.long = found is not None or job.job_id in declined
        if found is not None:
            start(context, job, found[0], "backfilled", found[1])


def _place_now(
    context: CycleContext, job: Job, room: Backfill | None, length_ns: int
) -> tuple[tuple[Slot, ...], str] | None:
    """Return (slots, reason) for a job that the rule of `Policy.sharing` places; None if it does not fit.

    room: free slots behind the head; None if nothing is reserved. A job that may still run when the head starts uses no
    slot that is reserved for the head.
    """
    index = context.index
    most = index.most_ranks(job)
    if room is None:
        slots = place_now(index, job, most)
        return None if slots is None else (slots, "it fits into free slots")
    mark = index.plan.checkpoint()
    if length_ns <= room.window_ns:
        slots = place_now(index, job, most, slow_none=True)
        if slots is not None and room.ends_in_time(context.state.policy, job, slots, length_ns):
            room.note(slots)
            return slots, f"it is expected to end before the start of {room.reservation.job_id}"
        index.plan.rollback(mark)
    slots = place_now(index, job, most, room.reservation.slots, slow_none=True)
    if slots is not None:
        room.note(slots)
        return slots, f"it uses no slot reserved for {room.reservation.job_id}"
    return None if uses_part(context.state.policy, job) else room.place_unreserved(context.state.policy, job, most)


def _backfill(context: CycleContext, reservation: Reservation) -> Backfill:
    """Return the free slots for jobs behind the head, and what nodes must keep for it beside its slots."""
    return Backfill(context.index.plan, reservation, context.now_ns, _room(context, reservation))


def _room(context: CycleContext, reservation: Reservation) -> ReservedRoom | None:
    """Return the CPU and memory that nodes must keep for a reservation; None if slots alone limit all nodes."""
    index, jobs = context.index, context.state.jobs
    topology = index.plan.topology
    if not topology.limits:
        return None
    running = lasting(index.ends, reservation.from_ns, jobs)
    return ReservedRoom(topology, jobs[reservation.job_id].spec, reservation.slots, running)


def _first_key(state: State, index: SchedulingIndex) -> Key:
    """Return the sort key of the first job whose queue is below its limit; if there is none, of the first job."""
    order = index.line.order
    if not index.shares.limited:
        return order[0]
    return next((key for key in order if not at_limit(index, state.jobs[key[-1]])), order[0])


def backfill_conservatively(context: CycleContext, reservation: Reservation | None) -> None:
    """Start each pending job that delays no job ahead of it, and plan a later start for the others."""
    index = context.index
    state, now_ns, policy = context.state, context.now_ns, context.state.policy
    profile = Profile(now_ns, sum([inside[0] for inside in index.plan.free_in]), index.ends)
    head = reservation.job_id if reservation is not None else ""
    planned: list[tuple[int, ReservedRoom]] = []
    given = 0
    for key in list(index.line.order):
        job, place_ = state.jobs[key[-1]], index.line.places[key[-1]]
        ranks, length_ns = place_.kind.ranks, place_.length_ns
        if at_limit(index, job):
            continue
        fits = job.job_id != head and job.not_before_ns <= now_ns and profile.free_for(length_ns) >= ranks
        if fits:
            rooms = [room for from_ns, room in planned if now_ns + length_ns > from_ns]
            if uses_part(policy, job):
                slots = place_now(index, job, index.most_ranks(job), slow_none=True)
            else:
                slots = place_beside(index.plan, rooms, job, policy, index.most_ranks(job))
            if slots is not None:
                profile.take(len(slots), now_ns, length_ns)
                start(context, job, slots, "backfilled", "it delays no job ahead of it")
                continue
        elif uses_part(policy, job) and job.job_id != head and job.not_before_ns <= now_ns:
            slots = part_for(index, job, shared_only=True)
            if slots is not None and slows_none(index, job, slots):
                start(context, job, slots, "backfilled", "it needs no further slot")
                continue
        if given >= DEPTH:
            if not profile.free_for(1):
                return
            continue
        later = reservation if job.job_id == head else _later(context, job)
        least_ns = now_ns + 1 if later is None else max(later.from_ns, now_ns + 1)
        if (declines := index.plan.declined.get(job.job_id)) is not None:
            least_ns = max(least_ns, declines[1])  # the free slots are not those that it waits for
        if fits:  # by their number, but it fits on no nodes before another job ends
            if (next_ns := profile.next_ns()) is None:
                continue
            least_ns = max(least_ns, next_ns)
        at_ns = profile.earliest(ranks, length_ns, max(least_ns, job.not_before_ns))
        if at_ns is not None:
            profile.take(ranks, at_ns, length_ns)
            given += 1
            if later is not None and (room := _room(context, later)) is not None:
                planned.append((at_ns, room))


def _later(context: CycleContext, job: Job) -> Reservation | None:
    """Return where and when the job could start if it were the head; None if slots alone limit all nodes.

    The slots are one possible placement. On their nodes, the jobs behind it leave the CPU and memory that it needs.
    """
    index = context.index
    if not index.plan.topology.limits:
        return None
    return reserve(index.plan, index.ends, job, context.now_ns, context.state.policy)


def place_beside(
    plan: Plan, rooms: Sequence[ReservedRoom], job: Job, policy: Policy, most: int | None
) -> tuple[Slot, ...] | None:
    """Take slots for a job that leaves what nodes must keep for jobs ahead of it; None if it does not fit.

    rooms: for each planned job that the job would overlap. most: maximum number of ranks.
    """
    mark = plan.checkpoint()
    beyond = [slot for room in rooms for slot in room.beyond(plan, job.spec)]
    slots = place(plan, job, policy=policy, most=most)
    if slots is None:
        plan.rollback(mark)
        return None
    plan.give(beyond)
    for room in rooms:
        room.take(job.spec, slots)
    return slots
