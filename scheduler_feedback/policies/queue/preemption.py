"""Preemption: choose which running and pending jobs get the slots, and stop running gangs that are not chosen.

A preemption pass merges the preemptible running gangs and all pending jobs into one list, in the policy's order. From
the front of the list it chooses each job that fits into the remaining slots and skips the others. A pending job that is
chosen starts if slots are free. If any cannot start yet, the running gangs that were not chosen are stopped, and it
starts once they have ended. (The simulators of Tiresias and Muri use the same pass.)

A gang may be stopped if it is declared preemptible and restartable, and has run its minimum run time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from heapq import merge

from scheduler_feedback.core.cluster import Tier
from scheduler_feedback.core.durations import nanoseconds, span
from scheduler_feedback.core.job import Job, JobState, Slot, StopReason
from scheduler_feedback.core.state import Estimates, Mode, Order, State
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.index import runtime_history
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex, index_of
from scheduler_feedback.policies.index.slot_plan import TIERS, Plan
from scheduler_feedback.policies.queue import order
from scheduler_feedback.policies.queue.order.round_robin import is_past_slice, slice_seconds
from scheduler_feedback.policies.queue.pass_room import Room, counted, rooms_of
from scheduler_feedback.policies.queue.placement import Shape, in_parts, may_borrow, place, usable_types
from scheduler_feedback.policies.shares.part_placement import place_now

RENEW_NS = 1800 * 1_000_000_000
"""Interval, in ns, at which the expected run times of all pending jobs are updated from similar jobs."""

CHANGE = 0.1
"""A pending job keeps its place in the queue unless its urgency (sort key) changes by more than this share: a tenth."""

PASSED_OVER = 16
"""``swap`` ends its pass after this number of pending jobs for which it cannot free enough slots by stopping gangs."""


def due(state: State, now_ns: int) -> bool:
    """Return whether it is time for the next preemption pass."""
    policy = state.policy
    return policy.preempt and not state.frozen and now_ns >= state.planned_ns + nanoseconds(policy.replan_seconds)


def timeouts(state: State, index: SchedulingIndex) -> Iterator[int]:
    """Yield when to run a preemption pass without an event, and when to update the estimates of pending jobs.

    In the fair order, time alone triggers a pass only after an update of the estimates. Quotas are evaluated at every
    timeout (``reclaim``).
    """
    policy = state.policy
    if state.frozen or not index.line.order or not index.held:
        return
    if _learns(state):
        yield state.renewed_ns + RENEW_NS
    if policy.preempt and policy.order is not Order.FAIR and state.replan_owed:
        yield state.planned_ns + nanoseconds(policy.replan_seconds)
    if policy.preempt and policy.order is Order.THEMIS and not math.isinf(policy.drift_seconds):
        yield state.planned_ns + nanoseconds(max(policy.replan_seconds, policy.drift_seconds))


def may_be_stopped(state: State, job: Job, now_ns: int) -> bool:
    """Return whether the running gang may be preempted now."""
    spec, since_ns = job.spec, job.attempt_started_ns
    if job.guest_of:  # it frees no slots
        return False
    if in_parts(state.policy, spec) and index_of(state).partners(job.job_id):
        return False  # the other jobs on its slot stay
    if since_ns is None or job.stop_reason is not None or not (spec.preemptible and spec.restartable):
        return False
    least = state.policy.min_run_seconds if spec.min_run_seconds is None else spec.min_run_seconds
    return now_ns - since_ns >= nanoseconds(least)


def lost_gpu_seconds(job: Job, now_ns: int) -> float:
    """Return the GPU-seconds lost by stopping the gang: ranks x (time since its checkpoint + save + restart)."""
    spec = job.spec
    interval = spec.checkpoint_interval_seconds
    since = 0.0
    if interval and not spec.checkpoint_command and job.attempt_started_ns is not None:
        since = (now_ns - job.attempt_started_ns) / 1e9 % interval
    return len(job.ranks) * (since + spec.checkpoint_cost_seconds + spec.restart_cost_seconds)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Result of a preemption pass."""

    now: list[tuple[Job, int]]
    """Pending jobs that fit into free slots, in order, each with the number of the GPU type whose slots it is given."""
    waiting: list[Job]
    """Pending jobs that fit once other gangs have ended."""
    kept: list[Slot]
    """Free slots that the waiting jobs need, too. Other jobs must leave them."""
    starves: bool
    """Whether a job that has waited past the starvation bound does not fit. No job behind it was chosen."""
    rooms: list[Room]
    """For each GPU type, the slots that no chosen job needs: elastic gangs may start with that many extra ranks."""


def choose(context: CycleContext, stops: bool = True) -> Chosen:
    """Run a preemption pass: choose pending jobs, and stop the gangs that were not chosen if any chosen job waits.

    stops: whether it may stop gangs.
    """
    index = context.index
    state, now_ns = context.state, context.now_ns
    state.planned_ns, state.replan_owed = now_ns, False
    context.evaluated = True
    running = [state.jobs[job_id] for job_id in index.held]
    movable = [job for job in running if may_be_stopped(state, job, now_ns)] if stops else []
    leaving = [job for job in running if job.stop_reason is not None]
    if stops and state.policy.order is Order.THEMIS:
        renew_all(context)
    if stops and state.policy.order is Order.LAS:
        index.demote(running)
    barred: set[str] = set()
    while True:  # ends, because each round bars one more job
        selection = _select(context, running, movable, barred)
        fitted = _fit(index, selection, [*leaving, *selection.stopped])
        if isinstance(fitted, Chosen):
            break
        barred.add(fitted)
    stopped = selection.stopped if fitted.waiting else []
    if state.policy.order is Order.LAS:
        index.take_turns(selection.chosen, stopped)
    for job in sorted(stopped, key=lambda job: (lost_gpu_seconds(job, now_ns), job.job_id)):
        stop_for(context, job, fitted.waiting[0])
    return fitted


@dataclass(frozen=True, slots=True)
class _Selection:
    """Result of one walk through all jobs by urgency."""

    chosen: list[Job]
    """The chosen jobs, running and pending."""
    starting: list[tuple[Job, int]]
    """Those of them that are pending, each with the number of its GPU type."""
    stopped: list[Job]
    """The running gangs that were not chosen and whose stop frees slots."""
    starves: bool
    """Whether a job that has waited past the starvation bound does not fit. No job behind it was chosen."""
    rooms: list[Room]
    """For each GPU type, the slots that are left."""


def _select(context: CycleContext, running: list[Job], movable: list[Job], barred: Collection[str]) -> _Selection:
    """Choose each job that fits into the number of slots that are left, by urgency.

    barred: ids of jobs to skip, and with each, all later jobs of its shape.
    """
    index, state, now_ns = context.index, context.state, context.now_ns
    rooms = rooms_of(index, running, movable)
    ranked = sorted(order.key_of(state, job) for job in movable)
    chosen: list[Job] = []
    starting: list[tuple[Job, int]] = []
    kept: set[str] = set()
    used: list[tuple[str, int]] = []
    skipped: set[Shape] = set()
    starves = False
    for key in merge(ranked, index.line.order):
        if not any(rooms):
            break
        job = state.jobs[key[-1]]
        if job.state is not JobState.PENDING:
            held = counted(index, job)
            if all(rooms[number].has(slots, spares) for number, slots, spares in held):
                for number, slots, spares in held:
                    rooms[number].keep(slots, spares)
                chosen.append(job)
                kept.add(job.job_id)
            continue
        if starves:
            continue
        if barred and job.job_id in barred:
            starves = order.has_starved(state, job)
            skipped.add(_shape(index, job))
        if skipped and _shape(index, job) in skipped:
            continue
        # No gang is stopped to give another more than its minimum.
        ranks, borrows = index.plan.topology.slots_needed(job.spec), may_borrow(job.spec)
        size = job.spec.min_ranks or job.spec.ranks  # in its queue, each MIG instance counts as a slot
        if job.not_before_ns > now_ns or index.shares.room(job.spec.queue, size) is not None:
            continue
        types = [one for one in usable_types(index.plan, job, state.policy) if ranks <= rooms[one].most(borrows)]
        if types:
            number = next((one for one in types if ranks <= rooms[one].idle(borrows)), types[0])
            rooms[number].take(ranks, borrows)
            chosen.append(job)
            starting.append((job, number))
            index.shares.use(job.spec.queue, size)  # counts at once against its queues' limits for the jobs after it
            used.append((job.spec.queue, size))
        else:
            starves = order.has_starved(state, job)
    for queue, size in used:
        index.shares.use(queue, -size)
    # Stopping a gang that runs on unavailable nodes only would free no usable slots.
    passed_over = [state.jobs[key[-1]] for key in ranked if key[-1] not in kept]
    stopped = [job for job in passed_over if any(slots for _, slots, _ in counted(index, job))]
    return _Selection(chosen, starting, stopped, starves, rooms)


def _fit(index: SchedulingIndex, selection: _Selection, leaving: list[Job]) -> Chosen | str:
    """Place the selected jobs, in order, on free slots or on those of leaving gangs. The plan stays as it is.

    ``_select`` only counts slots. Return the id of the first job that fits on no nodes, if any: the pass would leave
    slots idle for it, and could stop gangs needlessly.
    """
    plan, policy = index.plan, index.state.policy
    now: list[tuple[Job, int]] = []
    waiting: list[Job] = []
    kept: list[Slot] = []
    later: Plan | None = None  # once the leaving gangs have ended
    misfit = ""
    mark = plan.checkpoint()
    for job, number in selection.starting:
        least = job.spec.min_ranks
        slots = place_now(index, job, least) if policy.divides else place(plan, job, policy=policy, most=least)
        if slots is not None:
            now.append((job, number))
            if later is not None:
                later.hold(slots)
            continue
        if leaving and later is None:
            later = _plan_without(index, leaving)
        slots = None if later is None else place(later, job, policy=policy, most=least)
        if slots is None:
            misfit = job.job_id
            break
        waiting.append(job)
        free = [slot for slot in slots if plan.free_of((slot,))]
        plan.hold(free)
        kept += free
    plan.rollback(mark)
    return misfit or Chosen(now, waiting, kept, selection.starves, selection.rooms)


def _plan_without(index: SchedulingIndex, leaving: list[Job]) -> Plan:
    """Return a plan in which these gangs have ended. Slots that are reserved for other jobs are not free."""
    plan = index.plan
    mark = plan.checkpoint()
    _vacate(index, leaving)
    found = plan.copy(apart=True)
    plan.rollback(mark)
    return found


def _vacate(index: SchedulingIndex, gangs: list[Job]) -> None:
    """Make the slots of these gangs free in the plan, except those that are reserved, until the plan is rolled back."""
    for gang in gangs:
        index.vacate(gang)
    index.plan.hold({slot for slots in index.claims.values() for slot in slots})


def _shape(index: SchedulingIndex, job: Job) -> Shape:
    return index.line.places[job.job_id].kind.shape


# --- the fair order: only where it pays ------------------------------------------------------------------------------


def renew(context: CycleContext) -> None:
    """Update the run-time history, the order of the queues by usage, and the estimates of all pending jobs."""
    index = context.index
    state = context.state
    context.evaluated = True
    runtime_history.count_ended_jobs(state)
    state.renewed_ns = context.now_ns
    index.shares.rank_queues(state, context.now_ns)
    renew_all(context)


def renew_all(context: CycleContext) -> None:
    """Update the estimates of all pending jobs. A job whose estimate has changed little keeps its place."""
    index = context.index
    for key in list(index.line.order):
        index.appraise(context.state.jobs[key[-1]], key, CHANGE)


def renewal_due(state: State, now_ns: int) -> bool:
    """Return whether it is time to update the run-time history and the estimates of pending jobs."""
    return _learns(state) and now_ns >= state.renewed_ns + RENEW_NS


def _learns(state: State) -> bool:
    policy = state.policy
    learns = policy.order is Order.FAIR or policy.estimates is Estimates.HISTORY
    return learns and bool(state.recently_ended or policy.queues)


def swap(context: CycleContext) -> None:
    """Stop gangs for pending jobs that need far fewer GPU-seconds, and reserve the freed slots for these jobs.

    It evaluates pending jobs in scheduling order. A job may take slots of gangs whose expected remaining GPU-seconds,
    including a restart, are more than ``preempt_gain`` times its own. The gangs that lose least are stopped first. A
    job past the starvation bound may take the slots of any gang that was not past the bound at its start.
    """
    index = context.index
    state, now_ns = context.state, context.now_ns
    state.planned_ns, state.replan_owed = now_ns, False
    context.evaluated = True
    if not index.line.order:
        return
    movable = []
    jobs, doubtful = state.jobs, index.doubtful
    for job_id in index.held:
        job = jobs[job_id]
        if may_be_stopped(state, job, now_ns) and (not doubtful or _frees(index, job)):
            if now_ns >= job.appraise_ns:
                index.appraise(job)
            movable.append((-job.urgency, job_id))
    movable.sort()
    free = index.plan.free(Tier.HEALTHY)
    several, by_type = len(index.plan.topology.type_names) > 1, index.shares.types is not None
    passed, gain = 0, state.policy.preempt_gain
    for key in list(index.line.order):
        job = state.jobs[key[-1]]
        starved = key[1] == 0
        if not movable or passed >= PASSED_OVER:
            break
        if not starved and -movable[0][0] <= gain * job.urgency:
            passed += 1
            continue
        if several:
            free = _most_free(index, job)
        ranks = job.spec.ranks if not job.spec.mig_profile else index.plan.topology.slots_needed(job.spec)
        if job.not_before_ns > now_ns or ranks <= free:
            continue  # it starts without preemption, or may not start yet
        if index.shares.room(job.spec.queue, job.spec.ranks) is not None:
            continue
        victims, found = [], free
        for urgency, job_id in movable:
            if found >= ranks or not (starved or -urgency > gain * job.urgency):
                break
            if order.has_starved(state, state.jobs[job_id]) or (by_type and _owns(index, state.jobs[job_id], job)):
                continue
            victims.append(state.jobs[job_id])
            found += _frees(index, state.jobs[job_id])
        victims = _fewest(index, victims, ranks - free, now_ns)
        slots = place_without(index, job, victims, state) if found >= ranks else None
        if slots is None:
            passed += 1
            continue
        used = set(slots)
        victims = [victim for victim in victims if not used.isdisjoint(rank.slot for rank in victim.ranks)]
        gone = {victim.job_id for victim in victims}
        movable = [one for one in movable if one[1] not in gone]
        for victim in victims:
            stop_for(context, victim, job)
        if state.policy.mode is Mode.ACT:
            index.reserve(job, slots)
            free = index.plan.free(Tier.HEALTHY)


def _owns(index: SchedulingIndex, victim: Job, job: Job) -> bool:
    """Return whether the gang is within the quota of its GPU type of its queue, which is not that of the job."""
    types, owner = index.shares.types, index.shares.owner(victim.spec.queue)
    if types is None or owner is None or owner == index.shares.owner(job.spec.queue):
        return False
    return all(types.excess(owner, name) <= 0 for name in types.types_of(victim.job_id))


def _most_free(index: SchedulingIndex, job: Job) -> int:
    """Return the largest number of free healthy slots that have one GPU type, of those that the job uses now."""
    plan = index.plan
    types = usable_types(plan, job, index.state.policy)
    return max((plan.free_in[number * TIERS + Tier.HEALTHY][0] for number in types), default=0)


def _frees(index: SchedulingIndex, job: Job) -> int:
    """Count the gang's slots that any other job could use after a stop: those on healthy nodes that are no spares."""
    spares = index.plan.has_spares()
    slots: Collection[Slot] = [rank.slot for rank in job.ranks]
    if job.spec.mig_profile:
        slots = set(slots)
    if not index.doubtful and not spares:
        return len(slots)
    nodes = index.state.nodes
    return sum(slot.node not in index.doubtful and not (spares and nodes[slot.node].spare) for slot in slots)


def _fewest(index: SchedulingIndex, victims: list[Job], slots: int, now_ns: int) -> list[Job]:
    """Return the victims without those whose stop is not needed to free this many slots."""
    spare = sum(_frees(index, victim) for victim in victims) - slots
    for victim in sorted(victims, key=lambda job: (-lost_gpu_seconds(job, now_ns), job.job_id)):
        if (frees := _frees(index, victim)) <= spare:
            spare -= frees
            victims = [other for other in victims if other is not victim]
    return victims


def place_without(
    index: SchedulingIndex, job: Job, victims: list[Job], state: State, most: int | None = None
) -> tuple[Slot, ...] | None:
    """Return slots for the job as if the victims had ended; None if it does not fit. most: maximum number of ranks."""
    plan = index.plan
    mark = plan.checkpoint()
    _vacate(index, victims)
    allowed = index.most_ranks(job)
    if most is not None:
        allowed = min(most, job.spec.ranks if allowed is None else allowed)
    slots = place(plan, job, policy=state.policy, most=allowed)
    plan.rollback(mark)
    return slots


def stop_for(context: CycleContext, job: Job, first: Job) -> None:
    """Preempt the running gang `job` for other jobs, the first of which is `first`. Observe mode only logs it, once: it
    frees no slots, so that a pass finds the same gang for several jobs in turn."""
    if context.state.policy.mode is Mode.OBSERVE:
        if not job.proposed.startswith("preempt for "):
            job.proposed = f"preempt for {first.job_id}"
            context.decide(job.job_id, "preempt", f"would be preempted for {first.job_id}", outcome="observed")
        return
    job.preemptions += 1
    why = f"{first.job_id} goes first"
    if context.state.policy.order is Order.ROUND_ROBIN and is_past_slice(context.state, job, context.now_ns):
        why = f"its time slice of {span(slice_seconds(context.state, job))} has ended, and {why}"
    context.index.stop(job, StopReason.PREEMPT, f"preempted; {why}")
    context.decide(job.job_id, "preempt", f"is preempted; {why}")
