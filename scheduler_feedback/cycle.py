"""The scheduling cycle: a pure function from state, events and time to actions and log entries.

Production, simulation and replay all call ``run``. It reads no clock and changes nothing outside of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from scheduler_feedback.core.actions import Action, Entry
from scheduler_feedback.core.cycle_context import CycleContext
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
    """Result of one cycle."""

    actions: list[Action]
    """Actions for the backend, in order."""
    entries: list[Entry]
    """Log entries that explain the decisions."""
    now_ns: int
    """Time of the cycle."""
    changed: bool
    """False if only the time, and values derived from the state such as expected starts, have changed. The journal
    omits such a cycle."""


def run(state: State, events: Sequence[Event], now_ns: int) -> Outcome:
    """Run one cycle: change the state in place, and return the decisions.

    Deterministic in (state, events, now_ns). now_ns is wall time. Values derived from the state (queue order, free
    slots, expected ends) are in its scheduling index. So the cost of a cycle depends on its events, not on the size of
    the cluster.
    """
    turn = begin(state, now_ns)  # 1  advance the time; it never goes back
    apply_events(turn, events, REQUESTS_AND_OBSERVATIONS)  # 2  requests of users, observations of the backend
    apply_events(turn, events, VERDICT_EVENTS)  # 3  verdicts of the detectors,
    suspect_accused_nodes(turn)  #        and their effect on node states
    expire_timeouts(turn)  # 4  quarantines, probations, suspicions, late starts, expired estimates
    evaluate_what_is_due(turn)  #    and decisions that have become possible through time
    ledger = ledger_of(state)  # 5  queue order, free slots, expected ends
    spares.appoint(turn, ledger)  #    nodes reserved for gangs that must leave a bad node
    ledger.settle()
    start_probes(turn, ledger)
    if preemption.renewal_due(state, turn.now_ns):
        preemption.renew(turn, ledger)
    happened = any(not isinstance(event, Tick) for event in events)
    needs_pass = bool(ledger.grown or ledger.changed or ledger.fresh)
    if needs_pass:
        if state.policy.order is Order.THEMIS and not state.policy.preempt:
            preemption.renew_all(turn, ledger)  # this order changes with time, even without preemption
        restart_moved(turn, ledger)
        preempts = preemption.due(state, turn.now_ns)
        turn.looked |= state.policy.preempt
        state.replan_owed |= state.policy.preempt  # a pass that is not due yet is deferred (``preemption.timeouts``)
        if preempts and state.policy.order is not Order.FAIR:
            replan(turn, ledger)  # 6, 7  decide which jobs, running or pending, get the slots
        else:
            if state.policy.preempt and state.policy.order is Order.FAIR and not state.frozen:
                reclaim.reclaim(turn, ledger)  # queues below their quota get back borrowed slots
            if preempts and (happened or not (turn.due or ledger.stoppable_due)):  # for gain: not through time alone
                preemption.swap(turn, ledger)
            reservation = place_or_reserve(turn, ledger)  # 6  start the head, or reserve slots for it
            backfill(turn, ledger, reservation)  # 7  start jobs that do not delay it
            while start_on_slow_nodes(turn, ledger, reservation):  #    use idle healthy slots together with slow ones
                reservation = place_or_reserve(turn, ledger)
                backfill(turn, ledger, reservation)
            if resizing.make_room(turn, ledger) or defragmentation.make_room(turn, ledger):
                place_or_reserve(turn, ledger)  #    gangs shrink or move so that the first job fits
            resizing.grow(turn, ledger)  #    elastic gangs grow into slots that no pending job needs
    draining.drain(turn, ledger)  #    gangs leave nodes that are being drained
    if needs_pass or turn.due or turn.entries or turn.actions or any(not isinstance(event, Tick) for event in events):
        judge_running_gangs(turn, ledger)  # 8  mitigate slow and hanging gangs
    ask_for_stops(turn, ledger)
    return commit(turn, ledger, events)  # 9  return the actions and their reasons


# --- 1, 2, 3: events -------------------------------------------------------------------------------------------------

_Handlers = dict[type, Callable[[CycleContext, Any], None]]

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


def begin(state: State, now_ns: int) -> CycleContext:
    ledger = ledger_of(state)  # built before the events change the state, so that it records the changes
    due = timeouts.expired(state, ledger, now_ns)
    state.now_ns = max(state.now_ns, now_ns)
    state.cycle += 1
    return CycleContext(state, state.now_ns, due=due)


def apply_events(turn: CycleContext, events: Sequence[Event], handlers: _Handlers) -> None:
    for event in events:
        handler = handlers.get(type(event))
        if handler is not None:
            handler(turn, event)


def evaluate_what_is_due(turn: CycleContext) -> None:
    """Evaluate every decision again if a policy's timeout has expired. The journal records such a cycle."""
    if turn.due:
        ledger = ledger_of(turn.state)
        ledger.grown = ledger.changed = turn.looked = True


def suspect_accused_nodes(turn: CycleContext) -> None:
    """Apply verdicts to node states, unless actions are frozen. Delayed changes follow after the thaw."""
    if not turn.state.frozen and turn.state.verdicts:
        mark_accused_nodes(turn)


# --- 9: result -------------------------------------------------------------------------------------------------------


def commit(turn: CycleContext, ledger: Ledger, events: Sequence[Event]) -> Outcome:
    """Log why new pending jobs wait, drop the oldest ended jobs, and return the decisions."""
    state = turn.state
    for job_id in dict.fromkeys(turn.arrived):
        job = state.jobs[job_id]
        if job.state is JobState.PENDING:
            turn.record(job_id, "waits", why_waits(state, job))
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
    """Bound the size of the state: drop the oldest ended jobs and decisions, which stay in the journal.

    Allows a tenth more jobs than ``ended_jobs_kept``, so that many are dropped at once.
    """
    kept = state.policy.ended_jobs_kept
    if len(ledger.ended) <= kept * 1.1:
        return
    for job_id in ledger.forget(kept):
        del state.jobs[job_id]
    del state.decisions[: max(len(state.decisions) - kept, 0)]


def next_wake_ns(state: State, after_ns: int = -1) -> int | None:
    """Return the next instant at which a cycle without events may decide something; None: never.

    No such cycle decides anything earlier (``policies.index.timeouts``). after_ns: ignore instants up to this one.
    """
    at_ns = timeouts.next_ns(state, ledger_of(state), after_ns)
    return None if at_ns is None else max(at_ns, state.now_ns)
