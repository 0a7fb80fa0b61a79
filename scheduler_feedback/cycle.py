"""THE cycle: what is known, what has happened, what time it is -> what to do, and why.

Production, simulation and replay all call ``run``; it looks at no clock and touches nothing outside the state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    RankFailed,
    Submitted,
    Tick,
    VerdictJudged,
)
from scheduler_feedback.core.explanation import Explanation
from scheduler_feedback.core.job import Job, JobKind, JobState, RankRecord, Slot, StopReason
from scheduler_feedback.core.plan import Plan
from scheduler_feedback.core.state import State
from scheduler_feedback.core.turn import Turn, nanoseconds, span
from scheduler_feedback.core.verdict import Abstention, Cleared, Verdict
from scheduler_feedback.policies import findings, observations, order, wishes
from scheduler_feedback.policies.admission import admit_check
from scheduler_feedback.policies.backfill import Backfill, Reservation, reserve
from scheduler_feedback.policies.estimate import releases
from scheduler_feedback.policies.migration import judge_running_gangs
from scheduler_feedback.policies.placement import Capacity, place, place_probe, still_usable, where
from scheduler_feedback.policies.quarantine import let_time_pass, mark_accused_nodes
from scheduler_feedback.policies.waiting import behind_waits, explain, free_slots, head_waits, paused, unholdable

__all__ = ["Explanation", "Outcome", "admit_check", "explain", "run"]


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
    """One cycle. Changes the state in place; deterministic in (state, events, now_ns); `now_ns` is wall time."""
    turn = begin(state, now_ns)  # 1  time never falls
    take_in(turn, events, WISHES_AND_OBSERVATIONS)  # 2  what users want and what the backend saw
    take_in(turn, events, FINDINGS)  # 3  what the detectors say,
    suspect_accused_nodes(turn)  #        and what it makes of nodes
    let_clocks_run_out(turn)  # 4  quarantines, probations, suspicions, late starts
    waiting = order.queue(state)  # 5  who is first
    plan = slots_to_decide_on(turn, waiting)
    start_probes(turn, plan)
    capacity = Capacity(state.nodes)
    reservation, behind = place_or_reserve(
        turn, plan, capacity, waiting
    )  # 6  the head starts, or a place is kept for it
    backfill(turn, plan, capacity, reservation, behind)  # 7  whoever does not delay it goes ahead
    judge_running_gangs(turn, plan)  # 8  is a gang with a slow member better moved?
    ask_for_stops(turn)
    return commit(turn, events)  # 9  what is to be done, and why


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
    return Turn(state, state.now_ns)


def take_in(turn: Turn, events: Sequence[Event], handlers: _Handlers) -> None:
    for event in events:
        handler = handlers.get(type(event))
        if handler is not None:
            handler(turn, event)


def suspect_accused_nodes(turn: Turn) -> None:
    """While actions are frozen, feedback changes no node; what it would have done is done after the thaw."""
    if not turn.state.frozen:
        mark_accused_nodes(turn)


# --- 4: clocks -------------------------------------------------------------------------------------------------------


def let_clocks_run_out(turn: Turn) -> None:
    if turn.state.frozen:
        return
    let_time_pass(turn)
    policy = turn.state.policy
    for job in turn.state.jobs.values():
        if job.attempt_started_ns is None or job.stop_reason is not None:
            continue
        age_ns = turn.now_ns - job.attempt_started_ns
        if job.state is JobState.STARTING and age_ns >= nanoseconds(policy.start_timeout_seconds):
            job.stop_reason = StopReason.START_FAILED
            job.failure = f"not all of its ranks had started within {span(policy.start_timeout_seconds)}"
            turn.tell(job.job_id, "start-failed", job.failure)
        elif _is_late_probe(job, age_ns, policy.probe_timeout_seconds):
            job.stop_reason = StopReason.CANCEL
            job.failure = f"the probe had not ended within {span(policy.probe_timeout_seconds)}"
            turn.tell(job.job_id, "probe-failed", job.failure)


def _is_late_probe(job: Job, age_ns: int, timeout_seconds: float) -> bool:
    """Users' jobs may overrun; a probe that does has shown what it was to show."""
    return job.spec.kind is JobKind.PROBE and job.state is JobState.RUNNING and age_ns >= nanoseconds(timeout_seconds)


# --- 5, 6, 7: starting -----------------------------------------------------------------------------------------------


def slots_to_decide_on(turn: Turn, waiting: Sequence[Job]) -> Plan:
    """The free slots; an empty plan where nobody can want any, which spares an idle cycle the walk over the cluster."""
    if waiting or turn.state.verdicts or order.probes(turn.state):
        return free_slots(turn.state)
    return Plan(())


def start_probes(turn: Turn, plan: Plan) -> None:
    for job in order.probes(turn.state):
        why_not = paused(turn.state, job, turn.now_ns)
        slots = place_probe(plan, job) if why_not is None else None
        if slots is not None:
            start(turn, job, slots, "started", f"measures {job.spec.pinned_node}")
        else:
            job.waiting_because = why_not or f"waits until all slots of {job.spec.pinned_node} are free"


def place_or_reserve(
    turn: Turn, plan: Plan, capacity: Capacity, waiting: Sequence[Job]
) -> tuple[Reservation | None, Sequence[Job]]:
    """Start from the front of the queue as long as it goes; then keep a place for the first that must wait.

    A job that the nodes in use could not hold even if they were empty is passed over: no instant can be told for it,
    and to keep slots for it would only leave them idle. Returns the reservation and the jobs behind it.
    """
    state, now_ns = turn.state, turn.now_ns
    for position, job in enumerate(waiting):
        why_not = paused(state, job, now_ns)
        if job.claim and not still_usable(plan, state.nodes, job.claim):
            plan.give(job.claim)
            job.claim = []
            turn.tell(job.job_id, "claim-lost", "the place that was kept for its restart can no longer be used")
        if job.claim:
            _wait(job, why_not, max(now_ns, job.not_before_ns))
            if why_not is None:
                start(turn, job, tuple(job.claim), "started", "restarts after its move")
            continue
        if not capacity.could_hold(job):
            _wait(job, unholdable(capacity, job), None)
            continue
        slots = place(plan, job) if why_not is None else None
        if slots is not None:
            start(turn, job, slots, "started", "first in the queue")
            continue
        reservation = reserve(plan, releases(state, now_ns), job, now_ns)
        if reservation is None:
            _wait(job, unholdable(capacity, job), None)
            continue
        _wait(job, why_not or head_waits(plan, job, reservation, now_ns), None if state.frozen else reservation.from_ns)
        _keep(state, reservation)
        return reservation, waiting[position + 1 :]
    _keep(state, None)
    return None, ()


def _wait(job: Job, because: str | None, expected_start_ns: int | None) -> None:
    job.waiting_because, job.expected_start_ns = because or "", expected_start_ns


def _keep(state: State, reservation: Reservation | None) -> None:
    state.reserved_for = reservation.job_id if reservation is not None else None
    state.reserved_from_ns = reservation.from_ns if reservation is not None else None
    state.reserved_slots = list(reservation.slots) if reservation is not None else []
    state.reserved_nodes = {}
    for slot in state.reserved_slots:
        state.reserved_nodes[slot.node] = state.reserved_nodes.get(slot.node, 0) + 1


def backfill(
    turn: Turn, plan: Plan, capacity: Capacity, reservation: Reservation | None, behind: Sequence[Job]
) -> None:
    """Start those behind the head that cannot delay it, in their order."""
    if reservation is None:
        return
    room = Backfill(plan, reservation)
    for job in behind:
        why_not = paused(turn.state, job, turn.now_ns)
        if why_not is None and not capacity.could_hold(job):
            why_not = unholdable(capacity, job)
        found = room.place(turn.state.policy, job, turn.now_ns) if why_not is None else None
        if found is not None:
            slots, why = found
            start(turn, job, slots, "backfilled", why)
        else:
            _wait(job, why_not or behind_waits(plan, job, reservation.job_id), None)


def start(turn: Turn, job: Job, slots: tuple[Slot, ...], kind: str, why: str) -> None:
    """The gang's next attempt starts, at these slots, by rank."""
    job.attempt += 1
    job.state = JobState.STARTING
    job.ranks = [RankRecord(rank, slot) for rank, slot in enumerate(slots)]
    job.attempt_started_ns = turn.now_ns
    job.started_ns = turn.now_ns if job.started_ns is None else job.started_ns
    job.first_step_ns = None
    job.claim, job.failure, job.not_before_ns = [], "", 0
    job.waiting_because, job.expected_start_ns = "", None
    job.action_id = turn.action_id()
    turn.actions.append(StartGang(job.action_id, job.job_id, job.attempt, job.spec, slots, why))
    waited = span((turn.now_ns - job.submitted_ns) / 1e9)
    turn.decide(job.job_id, kind, f"attempt {job.attempt} starts on {where(slots)}, {waited} after submission: {why}")


# --- 9: acting -------------------------------------------------------------------------------------------------------


def ask_for_stops(turn: Turn) -> None:
    """Ask the backend to stop what is to stop; again where it refused, or where nothing has come of it for too long."""
    for job in turn.state.jobs.values():
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


def commit(turn: Turn, events: Sequence[Event]) -> Outcome:
    """Say why those who came and could not start wait; forget the oldest; hand over what was decided."""
    state = turn.state
    for job_id in dict.fromkeys(turn.arrived):
        job = state.jobs[job_id]
        if job.state is JobState.PENDING:
            turn.tell(job_id, "waits", job.waiting_because)
    forget_the_oldest(state)
    changed = bool(turn.actions or turn.entries) or any(not isinstance(event, Tick) for event in events)
    return Outcome(turn.actions, turn.entries, turn.now_ns, changed)


def forget_the_oldest(state: State) -> None:
    """Keep the state's size bounded; the journal remembers the rest.

    A tenth of slack, so that the walk over all jobs is made once for many ended jobs and not for each.
    """
    kept = state.policy.ended_jobs_kept
    if len(state.jobs) <= kept * 1.1:
        return
    ended = sorted(
        (job for job in state.jobs.values() if job.state.ended), key=lambda job: (job.ended_ns or 0, job.job_id)
    )
    for job in ended[: max(len(ended) - kept, 0)]:
        del state.jobs[job.job_id]
    del state.decisions[: max(len(state.decisions) - kept, 0)]
