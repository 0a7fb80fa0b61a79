"""THE cycle: what is known, what has happened, what time it is -> what to do, and why.

Production, simulation and replay all call ``run``; it looks at no clock and touches nothing outside the state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from scheduler_feedback.core.actions import Action, Entry
from scheduler_feedback.core.cycle_context import Turn
from scheduler_feedback.core.events import (
    ActionFailed,
    AttemptEnded,
    AttemptRunning,
    AttemptUnknown,
    CancelRequested,
    Event,
    FirstStep,
    FreezeSet,
    Hosted,
    HostWaits,
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
from scheduler_feedback.core.job import JobState
from scheduler_feedback.core.state import Order, State
from scheduler_feedback.core.verdict import Abstention, Cleared, Verdict
from scheduler_feedback.policies.index import timeouts
from scheduler_feedback.policies.index.scheduling_index import Ledger, ledger_of
from scheduler_feedback.policies.intake import external_jobs, observations, user_requests, verdict_events
from scheduler_feedback.policies.intake.expired_timeouts import expire_timeouts
from scheduler_feedback.policies.intake.job_admission import admit_check
from scheduler_feedback.policies.nodes import draining, spares
from scheduler_feedback.policies.nodes.quarantine import mark_accused_nodes
from scheduler_feedback.policies.queue import defragmentation, preemption, reclaim, resizing
from scheduler_feedback.policies.queue.backfill_scheduling import backfill
from scheduler_feedback.policies.queue.slow_node_placement import start_on_slow_nodes
from scheduler_feedback.policies.queue.starting import place_or_reserve, replan, restart_moved, start_probes
from scheduler_feedback.policies.queue.waiting_reasons import explain, why_waits
from scheduler_feedback.policies.remediation.migration import judge_running_gangs
from scheduler_feedback.policies.remediation.stopping import ask_for_stops

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
    take_in(turn, events, REQUESTS_AND_OBSERVATIONS)  # 2  what users want and what the backend saw
    take_in(turn, events, VERDICT_EVENTS)  # 3  what the detectors say,
    suspect_accused_nodes(turn)  #        and what it makes of nodes
    expire_timeouts(turn)  # 4  quarantines, probations, suspicions, late starts, expired estimates
    evaluate_what_is_due(turn)  #    and whatever else may be decided by now because time has passed
    ledger = ledger_of(state)  # 5  who waits, in order; what is free; what will be
    spares.appoint(turn, ledger)  #    what is kept for gangs that must leave a bad node
    ledger.settle()
    start_probes(turn, ledger)
    if preemption.renewal_due(state, turn.now_ns):
        preemption.renew(turn, ledger)
    happened = any(not isinstance(event, Tick) for event in events)
    stirred = bool(ledger.grown or ledger.changed or ledger.fresh)
    if stirred:
        if state.policy.order is Order.THEMIS and not state.policy.preempt:
            preemption.renew_all(turn, ledger)  # its order changes with time, also without preemption
        restart_moved(turn, ledger)
        look = preemption.due(state, turn.now_ns)
        turn.looked |= state.policy.preempt
        state.replan_owed |= state.policy.preempt  # one that comes too early is made up for (``timeouts``)
        if look and state.policy.order is not Order.FAIR:
            replan(turn, ledger)  # 6, 7  of all, running or waiting, who should have the slots
        else:
            if state.policy.preempt and state.policy.order is Order.FAIR and not state.frozen:
                reclaim.reclaim(turn, ledger)  # what a queue was promised it gets back from those that borrow
            if look and (happened or not (turn.due or ledger.stoppable_due)):  # for gain: not because time has passed
                preemption.swap(turn, ledger)
            reservation = place_or_reserve(turn, ledger)  # 6  the head starts, or a place is kept for it
            backfill(turn, ledger, reservation)  # 7  whoever does not delay it goes ahead
            while start_on_slow_nodes(
                turn, ledger, reservation
            ):  #    what still lies idle may be worth more with a slow node
                reservation = place_or_reserve(turn, ledger)
                backfill(turn, ledger, reservation)
            if resizing.make_room(turn, ledger) or defragmentation.make_room(turn, ledger):
                place_or_reserve(turn, ledger)  #    where slots are left that nobody could use, room may be made
            resizing.grow(turn, ledger)  #    what nobody waits for makes elastic gangs larger
    draining.drain(turn, ledger)  #    whoever may leave a node in maintenance, and was asked to, leaves it
    if stirred or turn.due or turn.entries or turn.actions or any(not isinstance(event, Tick) for event in events):
        judge_running_gangs(turn, ledger)  # 8  is a gang with a slow member better moved?
    ask_for_stops(turn, ledger)
    return commit(turn, ledger, events)  # 9  what is to be done, and why


# --- 1, 2, 3: taking in ----------------------------------------------------------------------------------------------

_Handlers = dict[type, Callable[[Turn, Any], None]]

REQUESTS_AND_OBSERVATIONS: _Handlers = {
    Submitted: user_requests.submitted,
    CancelRequested: user_requests.cancel_requested,
    NodeCommanded: user_requests.node_commanded,
    VerdictJudged: user_requests.verdict_judged,
    FreezeSet: user_requests.freeze_set,
    PolicySet: user_requests.policy_set,
    NodeSeen: observations.node_seen,
    AttemptRunning: observations.attempt_running,
    Hosted: external_jobs.found,
    HostWaits: external_jobs.waits,
    FirstStep: observations.first_step,
    Progressed: observations.progressed,
    RankFailed: observations.rank_failed,
    AttemptEnded: observations.attempt_ended,
    AttemptUnknown: observations.attempt_unknown,
    ActionFailed: observations.action_failed,
}
VERDICT_EVENTS: _Handlers = {
    Verdict: verdict_events.verdict_found,
    Cleared: verdict_events.verdict_cleared,
    Abstention: verdict_events.abstained,
}


def begin(state: State, now_ns: int) -> Turn:
    ledger = ledger_of(state)  # as the state is before anything happens, so that what happens is noticed
    due = timeouts.expired(state, ledger, now_ns)
    state.now_ns = max(state.now_ns, now_ns)
    state.cycle += 1
    return Turn(state, state.now_ns, due=due)


def take_in(turn: Turn, events: Sequence[Event], handlers: _Handlers) -> None:
    for event in events:
        handler = handlers.get(type(event))
        if handler is not None:
            handler(turn, event)


def evaluate_what_is_due(turn: Turn) -> None:
    """Have every decision evaluated again where a policy's timeout has expired. The journal keeps such a cycle."""
    if turn.due:
        ledger = ledger_of(turn.state)
        ledger.grown = ledger.changed = turn.looked = True


def suspect_accused_nodes(turn: Turn) -> None:
    """While actions are frozen, feedback changes no node; what it would have done is done after the thaw."""
    if not turn.state.frozen and turn.state.verdicts:
        mark_accused_nodes(turn)


# --- 9: handing over ------------------------------------------------------------------------------------------------


def commit(turn: Turn, ledger: Ledger, events: Sequence[Event]) -> Outcome:
    """Say why those who came and could not start wait; forget the oldest; hand over what was decided."""
    state = turn.state
    for job_id in dict.fromkeys(turn.arrived):
        job = state.jobs[job_id]
        if job.state is JobState.PENDING:
            turn.tell(job_id, "waits", why_waits(state, job))
    ledger.settle()
    ledger.note_who_waits()
    ledger.update_expected_restarts(ledger.claimants)  # the gangs on their slots may have been asked to stop just now
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


def next_wake_ns(state: State, after_ns: int = -1) -> int | None:
    """Return the next instant at which a cycle without events may decide something; None: there is none.

    No such cycle decides anything before it (``policies.timeouts``). after_ns: leave out the instants up to this one.
    """
    at_ns = timeouts.next_ns(state, ledger_of(state), after_ns)
    return None if at_ns is None else max(at_ns, state.now_ns)
