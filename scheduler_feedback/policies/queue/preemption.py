"""Preemption: who of all, running or waiting, should have the slots now; whole gangs stop for others, or go on.

At a look the running gangs that may be stopped and all that wait stand in one line, by the policy's order. From the
front each that still fits into what is left of the cluster is chosen, whoever does not fit is passed over. A gang that
runs and was not chosen is stopped; one that waits and was chosen starts where there is room, or when what is stopped
has gone. (The look of the simulators of Tiresias and Muri; where stopping costs nothing it is theirs exactly.)

A gang may be stopped if it declared that it is preemptible and can be restarted, and has run its least time.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge

from scheduler_feedback.core.cycle_context import Turn, nanoseconds
from scheduler_feedback.core.job import Job, JobState, Slot, StopReason
from scheduler_feedback.core.slot_plan import NOWHERE, TIERS, Tier
from scheduler_feedback.core.state import Estimates, Mode, Order, State
from scheduler_feedback.policies.index import runtime_history
from scheduler_feedback.policies.index.scheduling_index import Ledger
from scheduler_feedback.policies.queue import order
from scheduler_feedback.policies.queue.order import las
from scheduler_feedback.policies.queue.order.fair import appraise
from scheduler_feedback.policies.queue.placement import may_borrow, place

RENEW_NS = 1800 * 1_000_000_000
"""Between two appraisals of all that wait: what jobs alike have run changes slowly."""

DRIFT_NS = 60 * 1_000_000_000
"""Between two passes that nothing but time asks for, of an order that changes with time (``themis``)."""

CHANGE = 0.1
"""Of an appraisal, as a share of it: less is not worth another place in the line."""

PASSED_OVER = 16
"""Gangs for which no room can be made, after which a look ends."""


def due(state: State, now_ns: int) -> bool:
    """Whether it is time for a look."""
    policy = state.policy
    return policy.preempt and not state.frozen and now_ns >= state.planned_ns + nanoseconds(policy.replan_seconds)


def timeouts(state: State, ledger: Ledger) -> Iterator[int]:
    """Yield when a pass is due that came too early, when an order has drifted, and when pending jobs are appraised.

    The fair order preempts for gain, and more passes than events ask for stop more gangs than they gain. So time alone
    asks for none of it but where jobs are appraised; what a quota promises is evaluated at every timeout (``reclaim``).
    """
    policy = state.policy
    if state.frozen or not ledger.line.order or not ledger.held:
        return
    if _learns(state):
        yield state.renewed_ns + RENEW_NS
    if policy.preempt and policy.order is not Order.FAIR and state.replan_owed:
        yield state.planned_ns + nanoseconds(policy.replan_seconds)
    if policy.preempt and policy.order is Order.THEMIS:
        yield state.planned_ns + max(nanoseconds(policy.replan_seconds), DRIFT_NS)


def may_be_stopped(state: State, job: Job, now_ns: int) -> bool:
    """Whether the running gang may be stopped for another one now."""
    spec, since_ns = job.spec, job.attempt_started_ns
    if since_ns is None or job.stop_reason is not None or not (spec.preemptible and spec.restartable):
        return False
    least = state.policy.min_run_seconds if spec.min_run_seconds is None else spec.min_run_seconds
    return now_ns - since_ns >= nanoseconds(least)


def lost_gpu_seconds(job: Job, now_ns: int) -> float:
    """What stopping the gang throws away: GPUs x (time since its checkpoint + a save + the restart)."""
    spec = job.spec
    interval = spec.checkpoint_interval_seconds
    since = 0.0
    if interval and not spec.checkpoint_command and job.attempt_started_ns is not None:
        since = (now_ns - job.attempt_started_ns) / 1e9 % interval
    return len(job.ranks) * (since + spec.checkpoint_cost_seconds + spec.restart_cost_seconds)


def choose(turn: Turn, ledger: Ledger) -> list[Job]:
    """Take the look: stop who is to stop; those that wait and were chosen, in order."""
    state, now_ns = turn.state, turn.now_ns
    state.planned_ns, state.replan_owed = now_ns, False
    turn.looked = True
    running = [state.jobs[job_id] for job_id in ledger.held]
    movable = [job for job in running if may_be_stopped(state, job, now_ns)]
    if state.policy.order is Order.THEMIS:
        renew_all(turn, ledger)
    if state.policy.order is Order.LAS:
        for job in las.demote(state, running, now_ns):
            ledger.watch_fall(job)
    left = ledger.capacity.slots + ledger.capacity.spare_slots
    for job in running:
        if job.stop_reason is None:
            left -= _counted(ledger, job)
    left += sum(_counted(ledger, job) for job in movable)
    left -= sum(len(slots) for job_id, slots in ledger.claims.items() if job_id not in ledger.held)
    unlent = ledger.capacity.spare_slots  # of what is left, what only those may have that give it back
    ranked = sorted(order.key_of(state, job) for job in movable)
    chosen: list[Job] = []
    kept: set[str] = set()
    used: list[tuple[str, int]] = []
    for key in merge(ranked, ledger.line.order):
        if left <= 0:
            break
        job = state.jobs[key[-1]]
        waits = job.state is JobState.PENDING
        ranks = (job.spec.min_ranks or job.spec.ranks) if waits else _counted(ledger, job)
        kept_free = 0 if not unlent or may_borrow(job.spec) else unlent
        if waits and (job.not_before_ns > now_ns or ledger.shares.room(job.spec.queue, ranks) is not None):
            continue
        if ranks <= left - kept_free or (ranks <= left and not waits):
            left -= ranks  # of one that waits its least: no gang is stopped so that another has more than it needs
            if unlent and may_borrow(job.spec):
                unlent = max(unlent - ranks, 0)
            chosen.append(job)
            kept.add(job.job_id)
            if waits:  # counts against its queues' limits at once: who comes after it must fit beside it
                ledger.shares.use(job.spec.queue, ranks)
                used.append((job.spec.queue, ranks))
    for queue, ranks in used:
        ledger.shares.use(queue, -ranks)
    # One that lies wholly on nodes out of use frees nothing that could be used.
    passed_over = [state.jobs[key[-1]] for key in ranked if key[-1] not in kept]
    stopped = [job for job in passed_over if _counted(ledger, job)]
    starting = [job for job in chosen if job.state is JobState.PENDING]
    if state.policy.order is Order.LAS:
        for job in las.take_turns(state, chosen, stopped):
            ledger.file(job)
    if starting:
        for job in sorted(stopped, key=lambda job: (lost_gpu_seconds(job, now_ns), job.job_id)):
            stop_for(turn, ledger, job, starting[0])
    return starting


def _counted(ledger: Ledger, job: Job) -> int:
    """Slots of the running gang that are part of the capacity: those on nodes out of use or on probation are not."""
    plan = ledger.plan
    if not ledger.capacity.unusable and not any(plan.slots_in[Tier.PROBATION :: TIERS]):
        return len(job.ranks)
    numbers, pools = plan.topology.number, plan.pool
    found = (pools[numbers[rank.slot.node]] for rank in job.ranks if rank.slot.node in numbers)
    return sum(pool != NOWHERE and pool % TIERS != Tier.PROBATION for pool in found)


# --- the fair order: only where it pays ------------------------------------------------------------------------------


def renew(turn: Turn, ledger: Ledger) -> None:
    """Learn from those that have ended; appraise all that wait by it, and let the queues stand as they have used."""
    state = turn.state
    turn.looked = True
    runtime_history.take_in(state)
    state.renewed_ns = turn.now_ns
    ledger.shares.rank_queues(state, turn.now_ns)
    renew_all(turn, ledger)


def renew_all(turn: Turn, ledger: Ledger) -> None:
    """Appraise all that wait anew; those of whom little has changed keep their place, unless their queue's turn did."""
    state = turn.state
    for key in list(ledger.line.order):
        job = state.jobs[key[-1]]
        urgency, estimate = job.urgency, job.estimate_seconds
        appraise(state, job, turn.now_ns)
        little = estimate is not None and abs(job.urgency - urgency) <= CHANGE * abs(urgency)
        if little:
            job.urgency, job.estimate_seconds = urgency, estimate
        if not little or order.key_of(state, job) != key:
            ledger.file(job)


def renewal_due(state: State, now_ns: int) -> bool:
    """Whether it is time to learn; only what ends or waits makes it so."""
    return _learns(state) and now_ns >= state.renewed_ns + RENEW_NS


def _learns(state: State) -> bool:
    policy = state.policy
    learns = policy.order is Order.FAIR or policy.estimates is Estimates.HISTORY
    return learns and bool(state.lately or policy.queues)


def swap(turn: Turn, ledger: Ledger) -> None:
    """Stop gangs for ones that wait, where those are expected to end for much less; keep them the place.

    Those that wait are asked in order; each may have the slots of gangs that are expected to spend `preempt_gain` times
    as much for their end, restart included, the most wasteful first; of those that would do, the ones that lose least
    are stopped. One that has waited past the bound may have those of any that has not.
    """
    state, now_ns = turn.state, turn.now_ns
    state.planned_ns, state.replan_owed = now_ns, False
    turn.looked = True
    if not ledger.line.order:
        return
    movable = []
    jobs, doubtful = state.jobs, ledger.doubtful
    for job_id in ledger.held:
        job = jobs[job_id]
        if may_be_stopped(state, job, now_ns) and (not doubtful or _frees(ledger, job)):
            if now_ns >= job.appraise_ns:
                appraise(state, job, now_ns)
            movable.append((-job.urgency, job_id))
    movable.sort()
    free = ledger.plan.free(Tier.HEALTHY)
    passed, gain = 0, state.policy.preempt_gain
    for key in list(ledger.line.order):
        job = state.jobs[key[-1]]
        starved = key[1] == 0
        if not movable or passed >= PASSED_OVER:
            break
        if not starved and -movable[0][0] <= gain * job.urgency:
            passed += 1
            continue
        if job.not_before_ns > now_ns or job.spec.ranks <= free:
            continue  # it starts, or waits, anyway
        if ledger.shares.room(job.spec.queue, job.spec.ranks) is not None:
            continue
        victims, found = [], free
        for urgency, job_id in movable:
            if found >= job.spec.ranks or not (starved or -urgency > gain * job.urgency):
                break
            if order.has_starved(state, state.jobs[job_id]):
                continue
            victims.append(state.jobs[job_id])
            found += _frees(ledger, state.jobs[job_id])
        victims = _fewest(ledger, victims, job.spec.ranks - free, now_ns)
        slots = place_without(ledger, job, victims, state) if found >= job.spec.ranks else None
        if slots is None:
            passed += 1
            continue
        used = set(slots)
        victims = [victim for victim in victims if not used.isdisjoint(rank.slot for rank in victim.ranks)]
        gone = {victim.job_id for victim in victims}
        movable = [one for one in movable if one[1] not in gone]
        for victim in victims:
            stop_for(turn, ledger, victim, job)
        if state.policy.mode is Mode.ACT:
            job.claim = list(slots)
            ledger.file(job)
            free = ledger.plan.free(Tier.HEALTHY)


def _frees(ledger: Ledger, job: Job) -> int:
    """Slots that any other could use if the gang stopped: no spare's, and none of a node that is in doubt."""
    spares = ledger.plan.has_spares()
    if not ledger.doubtful and not spares:
        return len(job.ranks)
    nodes = ledger.state.nodes
    return sum(
        rank.slot.node not in ledger.doubtful and not (spares and nodes[rank.slot.node].spare) for rank in job.ranks
    )


def _fewest(ledger: Ledger, victims: list[Job], slots: int, now_ns: int) -> list[Job]:
    """Without those that are not needed for so many slots, the ones that would lose most first."""
    spare = sum(_frees(ledger, victim) for victim in victims) - slots
    for victim in sorted(victims, key=lambda job: (-lost_gpu_seconds(job, now_ns), job.job_id)):
        if (frees := _frees(ledger, victim)) <= spare:
            spare -= frees
            victims = [other for other in victims if other is not victim]
    return victims


def place_without(
    ledger: Ledger, job: Job, victims: list[Job], state: State, most: int | None = None
) -> tuple[Slot, ...] | None:
    """A place for the job once the victims have gone, with at most so many ranks; it is not taken."""
    plan = ledger.plan
    mark = plan.checkpoint()
    claimed = {slot for slots in ledger.claims.values() for slot in slots}
    plan.give(rank.slot for victim in victims for rank in victim.ranks if rank.slot not in claimed)
    allowed = ledger.most_ranks(job)
    if most is not None:
        allowed = min(most, job.spec.ranks if allowed is None else allowed)
    slots = place(plan, job, policy=state.policy, most=allowed)
    plan.rollback(mark)
    return slots


def stop_for(turn: Turn, ledger: Ledger, job: Job, first: Job) -> None:
    """Stop the running gang for others, of whom this is the first; in observe mode only say so, once."""
    if turn.state.policy.mode is Mode.OBSERVE:
        if job.proposed != f"preempt for {first.job_id}":
            job.proposed = f"preempt for {first.job_id}"
            turn.decide(job.job_id, "preempt", f"would be stopped for {first.job_id}", outcome="observed")
        return
    job.stop_reason = StopReason.PREEMPT
    job.failure = f"stopped for others, {first.job_id} first of them"
    job.preemptions += 1
    ledger.stops(job)
    turn.decide(job.job_id, "preempt", f"is stopped for others, {first.job_id} first of them")
