"""THE cycle: what is known, what has happened, what time it is -> what to do, and why.

Production, simulation and replay all call ``run``; it looks at no clock and touches nothing outside the state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scheduler_feedback.core.actions import Action, Entry, StartGang, StopGang
from scheduler_feedback.core.events import (
    ActionFailed,
    AttemptEnded,
    AttemptRunning,
    AttemptUnknown,
    CancelRequested,
    Event,
    FirstStep,
    FreezeSet,
    NodeCommanded,
    NodeSeen,
    PolicySet,
    Progressed,
    RankFailed,
    Submitted,
    Tick,
    VerdictJudged,
)
from scheduler_feedback.core.explanation import Explanation
from scheduler_feedback.core.job import Job, JobKind, JobState, RankRecord, Slot, StopReason
from scheduler_feedback.core.state import Backfilling, Order, State
from scheduler_feedback.core.turn import Turn, nanoseconds, span
from scheduler_feedback.core.verdict import Abstention, Cleared, Verdict
from scheduler_feedback.policies import (
    defragmentation,
    findings,
    observations,
    order,
    preemption,
    resizing,
    spares,
    wishes,
)
from scheduler_feedback.policies.admission import admit_check
from scheduler_feedback.policies.backfill import Backfill, Reservation, candidates, only, reserve
from scheduler_feedback.policies.conservative import DEPTH, Profile
from scheduler_feedback.policies.ledger import Ledger, ledger_of
from scheduler_feedback.policies.migration import judge_running_gangs
from scheduler_feedback.policies.placement import attempt_speed, place, place_probe, still_usable, where
from scheduler_feedback.policies.quarantine import let_time_pass, mark_accused_nodes
from scheduler_feedback.policies.waiting import explain, paused, why_waits

__all__ = ["Explanation", "Outcome", "admit_check", "explain", "next_wake_ns", "run", "why_waits"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run of the cycle decided.

    actions: for the backend, in order. entries: the story. now_ns: the cycle's time. changed: False where nothing but
    the clock (and what follows from the state alone, such as expected starts) moved: such a cycle needs no journal.
    """

    actions: list[Action]
    entries: list[Entry]
    now_ns: int
    changed: bool


def run(state: State, events: Sequence[Event], now_ns: int) -> Outcome:
    """One cycle. Changes the state in place; deterministic in (state, events, now_ns); `now_ns` is wall time.

    What follows from the state (who waits in which order, what is free, who ends when) is kept in its ledger, so that a
    cycle costs what has happened in it, not what there is.
    """
    turn = begin(state, now_ns)  # 1  time never falls
    take_in(turn, events, WISHES_AND_OBSERVATIONS)  # 2  what users want and what the backend saw
    take_in(turn, events, FINDINGS)  # 3  what the detectors say,
    suspect_accused_nodes(turn)  #        and what it makes of nodes
    let_clocks_run_out(turn)  # 4  quarantines, probations, suspicions, late starts, expired estimates
    ledger = ledger_of(state)  # 5  who waits, in order; what is free; what will be
    spares.appoint(turn, ledger)  #    what is kept for gangs that must leave a bad node
    ledger.settle()
    start_probes(turn, ledger)
    if preemption.renewal_due(state, turn.now_ns):
        preemption.renew(turn, ledger)
    if ledger.grown or ledger.changed or ledger.fresh:
        restart_moved(turn, ledger)
        look = preemption.due(state, turn.now_ns)
        if look and state.policy.order is not Order.FAIR:
            choose_anew(turn, ledger)  # 6, 7  of all, running or waiting, who should have the slots
        else:
            if look:
                preemption.swap(turn, ledger)
            reservation = place_or_reserve(turn, ledger)  # 6  the head starts, or a place is kept for it,
            if resizing.make_room(turn, ledger) or defragmentation.make_room(turn, ledger):  #   or made where it pays
                reservation = place_or_reserve(turn, ledger)
            backfill(turn, ledger, reservation)  # 7  whoever does not delay it goes ahead
            resizing.grow(turn, ledger)  #    what nobody waits for makes elastic gangs larger
    judge_running_gangs(turn, ledger)  # 8  is a gang with a slow member better moved?
    ask_for_stops(turn, ledger)
    return commit(turn, ledger, events)  # 9  what is to be done, and why


# --- 1, 2, 3: taking in ----------------------------------------------------------------------------------------------

_Handlers = dict[type, Callable[[Turn, Any], None]]

WISHES_AND_OBSERVATIONS: _Handlers = {
    Submitted: wishes.submitted,
    CancelRequested: wishes.cancel_requested,
    NodeCommanded: wishes.node_commanded,
    VerdictJudged: wishes.verdict_judged,
    FreezeSet: wishes.freeze_set,
    PolicySet: wishes.policy_set,
    NodeSeen: observations.node_seen,
    AttemptRunning: observations.attempt_running,
    FirstStep: observations.first_step,
    Progressed: observations.progressed,
    RankFailed: observations.rank_failed,
    AttemptEnded: observations.attempt_ended,
    AttemptUnknown: observations.attempt_unknown,
    ActionFailed: observations.action_failed,
}
FINDINGS: _Handlers = {
    Verdict: findings.verdict_found,
    Cleared: findings.verdict_cleared,
    Abstention: findings.abstained,
}


def begin(state: State, now_ns: int) -> Turn:
    state.now_ns = max(state.now_ns, now_ns)
    state.cycle += 1
    ledger_of(state)  # as the state is before anything happens, so that what happens is noticed
    return Turn(state, state.now_ns)


def take_in(turn: Turn, events: Sequence[Event], handlers: _Handlers) -> None:
    for event in events:
        handler = handlers.get(type(event))
        if handler is not None:
            handler(turn, event)


def suspect_accused_nodes(turn: Turn) -> None:
    """While actions are frozen, feedback changes no node; what it would have done is done after the thaw."""
    if not turn.state.frozen and turn.state.verdicts:
        mark_accused_nodes(turn)


# --- 4: clocks -------------------------------------------------------------------------------------------------------


def let_clocks_run_out(turn: Turn) -> None:
    state = turn.state
    ledger = ledger_of(state)
    ledger.overtake(turn.now_ns)
    for job_id in sorted(ledger.hopeless):
        stranded = state.jobs[job_id]
        why = ledger.dependencies.hopeless(stranded) or "what it waits for can't happen any more"
        wishes.end(turn, stranded, JobState.CANCELLED, why)
    if state.frozen:
        return
    if ledger.doubtful:
        let_time_pass(turn)
    policy = state.policy
    for job_id in ledger.due(turn.now_ns):
        job = state.jobs.get(job_id)
        if job is None or job.attempt_started_ns is None or job.stop_reason is not None:
            continue
        age_ns = turn.now_ns - job.attempt_started_ns
        if _is_late_start(job, age_ns, policy.start_timeout_seconds):
            job.stop_reason = StopReason.START_FAILED
            job.failure = f"not all of its ranks had started within {span(policy.start_timeout_seconds)}"
            turn.tell(job.job_id, "start-failed", job.failure)
            ledger.stops(job)
        elif _is_late_probe(job, age_ns, policy.probe_timeout_seconds):
            job.stop_reason = StopReason.CANCEL
            job.failure = f"the probe had not ended within {span(policy.probe_timeout_seconds)}"
            turn.tell(job.job_id, "probe-failed", job.failure)
            ledger.stops(job)


def _is_late_start(job: Job, age_ns: int, timeout_seconds: float) -> bool:
    return job.state is JobState.STARTING and timeout_seconds > 0 and age_ns >= nanoseconds(timeout_seconds)


def _is_late_probe(job: Job, age_ns: int, timeout_seconds: float) -> bool:
    """Users' jobs may overrun; a probe that does has shown what it was to show."""
    return job.spec.kind is JobKind.PROBE and job.state is JobState.RUNNING and age_ns >= nanoseconds(timeout_seconds)


# --- 5, 6, 7: starting -----------------------------------------------------------------------------------------------


def start_probes(turn: Turn, ledger: Ledger) -> None:
    for job_id in sorted(ledger.probes):
        job = turn.state.jobs[job_id]
        if paused(turn.state, job, turn.now_ns) is None and (slots := place_probe(ledger.plan, job)) is not None:
            start(turn, ledger, job, slots, "started", f"measures {job.spec.pinned_node}")


def place_or_reserve(turn: Turn, ledger: Ledger) -> Reservation | None:
    """Start from the front of the queue as long as it goes; then keep a place for the first that must wait.

    Those that the nodes in use could not hold even if they were empty are not in the line: no instant can be told for
    them, and to keep slots for them would only leave the slots idle. Those whose queue is at its limit are passed over.
    """
    state, now_ns = turn.state, turn.now_ns
    if not ledger.changed:
        return _kept(state)
    ledger.changed = False
    line, position = ledger.line.order, 0
    while position < len(line):
        job = state.jobs[line[position][-1]]
        if _at_limit(ledger, job):
            position += 1
            continue
        free = (
            None
            if paused(state, job, now_ns)
            else place(ledger.plan, job, policy=state.policy, most=ledger.most_ranks(job))
        )
        if free is not None:
            start(turn, ledger, job, free, "started", "first in the queue")
            continue
        if state.policy.backfill in (Backfilling.NONE, Backfilling.GREEDY) or unreserved(state, line[position]):
            break
        reservation = reserve(ledger.plan, ledger.ends, job, now_ns, state.policy)
        if reservation is None:  # by what is expected to end: others' claims stand in its way
            position += 1
            continue
        return _keep(turn, ledger, reservation)
    return _keep(turn, ledger, None)


def choose_anew(turn: Turn, ledger: Ledger) -> None:
    """Stop those that others should go before; start those others, as far as there is room already."""
    ledger.grown = ledger.changed = False
    ledger.fresh = set()
    _keep(turn, ledger, None)
    for job in preemption.choose(turn, ledger):
        slots = place(ledger.plan, job, policy=turn.state.policy, most=ledger.most_ranks(job))
        if slots is not None:
            start(turn, ledger, job, slots, "started", "its turn has come")
    ledger.grown = ledger.changed = False


def restart_moved(turn: Turn, ledger: Ledger) -> None:
    """Gangs on the move start where a place was kept for them, once nobody holds it any more."""
    state, now_ns = turn.state, turn.now_ns
    for job_id in sorted(ledger.claimants, key=lambda job_id: order.key_of(state, state.jobs[job_id])):
        job = state.jobs[job_id]
        if not still_usable(ledger.plan, state.nodes, job.claim):
            job.claim = []
            ledger.file(job)
            turn.tell(job.job_id, "claim-lost", "the place that was kept for its restart can no longer be used")
            continue
        job.expected_start_ns = max(now_ns, job.not_before_ns)
        if paused(state, job, now_ns) is None and ledger.is_clear(job.claim):
            start(turn, ledger, job, tuple(job.claim), "started", "restarts after its move")


def unreserved(state: State, key: tuple[Any, ...]) -> bool:
    """Whether nothing is kept for the first in the line: with the fair order, where gangs stop for one another.

    What is kept idle for one is taken from all the others; it is kept only once the one has waited past the bound.
    """
    return state.policy.order is Order.FAIR and state.policy.preempt and key[1:2] != (0,)


def _at_limit(ledger: Ledger, job: Job) -> bool:
    ranks = job.spec.min_ranks or job.spec.ranks
    return ledger.shares.limited and ledger.shares.room(job.spec.queue, ranks) is not None


def _kept(state: State) -> Reservation | None:
    if state.reserved_for is None or state.reserved_from_ns is None:
        return None
    return Reservation(state.reserved_for, state.reserved_from_ns, tuple(state.reserved_slots))


def _keep(turn: Turn, ledger: Ledger, reservation: Reservation | None) -> Reservation | None:
    """Hold on to the reservation; another one than before may let others start."""
    state = turn.state
    before = _kept(state)
    if reservation == before and reservation is not None and not state.frozen:
        state.jobs[reservation.job_id].expected_start_ns = reservation.from_ns
        return reservation
    ledger.grown = True
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


def backfill(turn: Turn, ledger: Ledger, reservation: Reservation | None) -> None:
    """Start those behind the head that cannot delay it, in their order."""
    state, now_ns, policy = turn.state, turn.now_ns, turn.state.policy
    all_of_them, fresh = ledger.grown, ledger.fresh
    ledger.grown, ledger.fresh = False, set()
    if state.frozen or not len(ledger.line):
        return
    if policy.backfill is Backfilling.CONSERVATIVE:
        backfill_conservatively(turn, ledger, reservation)
        return
    greedy = policy.backfill is Backfilling.GREEDY or unreserved(state, ledger.line.order[0])
    if reservation is None and not greedy:
        return
    free = sum([inside[0] for inside in ledger.plan.free_in])
    if not free:
        return
    room = Backfill(ledger.plan, reservation, now_ns) if reservation is not None else None
    window_ns = room.window_ns if room is not None else None
    if all_of_them:
        kept = ledger.plan.free_of(reservation.slots) if reservation is not None else 0
        asked = candidates(ledger.line, free, free - kept, window_ns)
    else:
        asked = only(ledger.line, fresh, free)
    for key, kind, length_ns, chances in asked:
        job = state.jobs[key[-1]]
        if job.not_before_ns > now_ns or (reservation is not None and job.job_id == reservation.job_id):
            continue
        if kind.queue and _at_limit(ledger, job):
            chances.short = chances.long = False
            continue
        found: tuple[tuple[Slot, ...], str] | None
        if room is None:
            slots = place(ledger.plan, job, policy=policy, most=ledger.most_ranks(job))
            found = None if slots is None else (slots, "it fits")
            chances.short = found is not None
        elif length_ns <= room.window_ns:
            found = room.place_short(policy, job, ledger.most_ranks(job))
            chances.short = found is not None
        else:
            found = room.place_beside(policy, job, ledger.most_ranks(job))
            chances.long = found is not None
        if found is not None:
            start(turn, ledger, job, found[0], "backfilled", found[1])


def backfill_conservatively(turn: Turn, ledger: Ledger, reservation: Reservation | None) -> None:
    """Start whoever delays none of those before it; give the next a place in time."""
    state, now_ns, policy = turn.state, turn.now_ns, turn.state.policy
    profile = Profile(now_ns, sum([inside[0] for inside in ledger.plan.free_in]), ledger.ends)
    head = reservation.job_id if reservation is not None else ""
    given = 0
    for key in list(ledger.line.order):
        job, place_ = state.jobs[key[-1]], ledger.line.places[key[-1]]
        ranks, length_ns = place_.kind.ranks, place_.length_ns
        if _at_limit(ledger, job):
            continue
        if job.job_id != head and job.not_before_ns <= now_ns and profile.free_for(length_ns) >= ranks:
            slots = place(ledger.plan, job, policy=policy, most=ledger.most_ranks(job))
            if slots is not None:
                profile.take(len(slots), now_ns, length_ns)
                start(turn, ledger, job, slots, "backfilled", "it delays none of those before it")
                continue
        if given >= DEPTH:
            if not profile.free_for(1):
                return
            continue
        least_ns = reservation.from_ns if reservation is not None and job.job_id == head else now_ns + 1
        at_ns = profile.earliest(ranks, length_ns, max(least_ns, job.not_before_ns))
        if at_ns is not None:
            profile.take(ranks, at_ns, length_ns)
            given += 1


def start(turn: Turn, ledger: Ledger, job: Job, slots: tuple[Slot, ...], kind: str, why: str) -> None:
    """The gang's next attempt starts, at these slots, by rank."""
    job.attempt += 1
    job.state = JobState.STARTING
    job.ranks = [RankRecord(rank, slot) for rank, slot in enumerate(slots)]
    job.attempt_started_ns = turn.now_ns
    job.started_ns = turn.now_ns if job.started_ns is None else job.started_ns
    job.first_step_ns = None
    job.claim, job.failure, job.not_before_ns = [], "", 0
    job.expected_start_ns, job.appraise_ns = None, 0
    job.proposed, job.action_id = "", turn.action_id()
    gpu_type = turn.state.nodes[slots[0].node].gpu_type
    job.speed = attempt_speed(turn.state.policy, job.spec, gpu_type, len(slots))
    ledger.file(job)
    spec = job.spec if len(slots) == job.spec.ranks else replace(job.spec, ranks=len(slots))
    turn.actions.append(StartGang(job.action_id, job.job_id, job.attempt, spec, slots, why))
    waited = span((turn.now_ns - job.submitted_ns) / 1e9)
    turn.decide(job.job_id, kind, f"attempt {job.attempt} starts on {where(slots)}, {waited} after submission: {why}")


# --- 9: acting -------------------------------------------------------------------------------------------------------


def ask_for_stops(turn: Turn, ledger: Ledger) -> None:
    """Ask the backend to stop what is to stop; again where it refused, or where nothing has come of it for too long."""
    for job_id in sorted(ledger.stopping):
        job = turn.state.jobs[job_id]
        if job.stop_reason is None or not job.state.holds_slots or turn.now_ns < job.not_before_ns:
            continue
        if turn.state.frozen and job.stop_reason is not StopReason.CANCEL:
            continue
        spec, why = job.spec, job.stop_reason
        repeated = job.state is JobState.STOPPING
        job.state = JobState.STOPPING
        job.stopping_ns = turn.now_ns if job.stopping_ns is None else job.stopping_ns
        job.not_before_ns = turn.after(spec.grace_seconds + turn.state.policy.start_timeout_seconds)
        job.action_id = turn.action_id()
        ledger.stops(job)
        reason = job.failure or why.value
        turn.actions.append(
            StopGang(job.action_id, job.job_id, job.attempt, spec.checkpoint_signal, spec.grace_seconds, why, reason)
        )
        again = " again" if repeated else ""
        turn.tell(
            job.job_id,
            "stopping",
            f"attempt {job.attempt} is asked{again} to stop ({reason}): {spec.checkpoint_signal}, "
            f"{span(spec.grace_seconds)} to save",
        )


def commit(turn: Turn, ledger: Ledger, events: Sequence[Event]) -> Outcome:
    """Say why those who came and could not start wait; forget the oldest; hand over what was decided."""
    state = turn.state
    for job_id in dict.fromkeys(turn.arrived):
        job = state.jobs[job_id]
        if job.state is JobState.PENDING:
            turn.tell(job_id, "waits", why_waits(state, job))
    ledger.settle()
    state.idle = not (ledger.grown or ledger.changed or ledger.fresh)
    forget_the_oldest(state, ledger)
    if ledger.plan_or_none is not None:
        ledger.plan_or_none.commit()
    changed = bool(turn.actions or turn.entries) or turn.looked or any(not isinstance(event, Tick) for event in events)
    return Outcome(turn.actions, turn.entries, turn.now_ns, changed)


def forget_the_oldest(state: State, ledger: Ledger) -> None:
    """Keep the state's size bounded; the journal remembers the rest.

    A tenth of slack, so that many ended jobs are forgotten at once.
    """
    kept = state.policy.ended_jobs_kept
    if len(ledger.ended) <= kept * 1.1:
        return
    for job_id in ledger.forget(kept):
        del state.jobs[job_id]
    del state.decisions[: max(len(state.decisions) - kept, 0)]


def next_wake_ns(state: State) -> int | None:
    """The next instant at which a cycle that is told nothing may decide something; None: there is none."""
    ledger = ledger_of(state)
    instants = [ledger.clocks[0][0]] if ledger.clocks and not state.frozen else []
    if ledger.ends and len(ledger.line):
        instants.append(ledger.ends[0].at_ns)
    return max(min(instants), state.now_ns) if instants else None
