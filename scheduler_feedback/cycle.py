"""The scheduling cycle: a pure function from state, events and time to actions and log entries.

Production, simulation and replay all call ``run``. It reads no clock and changes nothing outside of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from scheduler_feedback.core.actions import Action, Entry
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
    LatencyMeasured,
    MemoryMeasured,
    NodeCommanded,
    NodeSeen,
    PolicySet,
    PowerSeen,
    Progressed,
    RankFailed,
    SharedSpeed,
    SpeedMeasured,
    Submitted,
    Tick,
    VerdictJudged,
)
from scheduler_feedback.core.explanation import Explanation
from scheduler_feedback.core.job import JobState
from scheduler_feedback.core.state import Order, State
from scheduler_feedback.core.verdict import Abstention, Cleared, Verdict
from scheduler_feedback.policies.cells.assignment import assign_cells
from scheduler_feedback.policies.cells.virtual_cluster import uses_cells
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.gpu_types.faster_types import choose_types
from scheduler_feedback.policies.gpu_types.type_moves import move_to_faster_types
from scheduler_feedback.policies.gpu_types.type_quotas import divide
from scheduler_feedback.policies.index import timeouts
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex, index_of
from scheduler_feedback.policies.intake import external_jobs, observations, user_requests, verdict_events
from scheduler_feedback.policies.intake.expired_timeouts import expire_timeouts
from scheduler_feedback.policies.intake.job_admission import admit_check
from scheduler_feedback.policies.network import time_shifts
from scheduler_feedback.policies.nodes import draining, spares
from scheduler_feedback.policies.nodes.quarantine import mark_accused_nodes
from scheduler_feedback.policies.power import limits
from scheduler_feedback.policies.queue import defragmentation, preemption, reclaim, resizing
from scheduler_feedback.policies.queue.backfill_scheduling import backfill
from scheduler_feedback.policies.queue.level_patience import relax_levels
from scheduler_feedback.policies.queue.slow_node_placement import start_on_slow_nodes
from scheduler_feedback.policies.queue.starting import place_or_reserve, replan, restart_moved, start_probes
from scheduler_feedback.policies.queue.waiting_reasons import explain, why_waits
from scheduler_feedback.policies.remediation.migration import judge_running_gangs
from scheduler_feedback.policies.remediation.stopping import ask_for_stops
from scheduler_feedback.policies.sharing import guest_moves, guests, lending, memory_pressure, pair_speeds, separation
from scheduler_feedback.policies.sizes.reallocation import reallocate

__all__ = ["Explanation", "Outcome", "admit_check", "explain", "next_wake_ns", "run", "why_waits"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one cycle."""

    actions: list[Action]
    """Actions for the backend, in order."""
    entries: list[Entry]
    """Log entries that explain the decisions."""
    now_ns: int
    """Wall time of the cycle."""
    changed: bool
    """Whether the state changed. The time, and values derived from the state such as expected starts, do not count.
    The journal omits a cycle that changed nothing."""


def run(state: State, events: Sequence[Event], now_ns: int) -> Outcome:
    """Run one cycle: change the state in place, and return the decisions.

    The result depends only on state, events and now_ns (wall time). The state's scheduling index contains derived
    values (queue order, free slots, expected ends). The cost of a cycle therefore depends on its events, not on the
    size of the cluster.
    """
    context = begin(state, now_ns)  #                             1  advance the time; it never goes back
    apply_events(context, events, REQUESTS_AND_OBSERVATIONS)  #   2  requests of users, observations of the backend
    apply_events(context, events, VERDICT_EVENTS)  #              3  verdicts of the detectors,
    suspect_accused_nodes(context)  #                                and their effect on node states
    expire_timeouts(context)  #                                   4  quarantines, late starts, expired estimates,
    evaluate_what_is_due(context)  #                                 and decisions possible through time
    pair_speeds.refresh(context)  #                                  speeds of jobs that share slots
    spares.appoint(context)  #                                    5  nodes reserved for gangs that leave a bad node
    index = context.index
    index.settle()
    start_probes(context)
    if preemption.renewal_due(state, context.now_ns):
        preemption.renew(context)
    happened = any(not isinstance(event, Tick) for event in events)
    needs_pass = bool(index.grown or index.changed or index.fresh)
    if needs_pass:
        assign_slots(context, happened)  #                     6, 7  starts, backfill, preemption
    draining.drain(context)  #                                       gangs leave nodes that are being drained
    if needs_pass or context.due or context.entries or context.actions or happened:
        separation.separate_interfering(context)  #               8  jobs that share slots and slow each other
        memory_pressure.separate_full_slots(context)  #              or fill the device memory
        judge_running_gangs(context)  #                              mitigate slow and hanging gangs
    separation.leave_with_host(context)
    ask_for_stops(context)
    if needs_pass or context.due or context.entries or context.actions or happened:
        limits.set_limits(context)  #                                power limits of the running gangs
        time_shifts.choose_shifts(context)  #                        and when their steps begin
    if needs_pass and context.actions:
        choose_types(context)  #                                     for the jobs that are still pending
    return commit(context, happened)  #                           9  return the actions and their reasons


# --- 6, 7: slots -----------------------------------------------------------------------------------------------------


def assign_slots(context: CycleContext, happened: bool) -> None:
    """Decide which jobs, running or pending, get the slots. happened: whether an event other than a tick occurred."""
    state, index, policy = context.state, context.index, context.state.policy
    if policy.order is Order.THEMIS and not policy.preempt:
        preemption.renew_all(context)  # this order changes with time, even without preemption
        context.evaluated = True  # a replay must compute the same keys at the same time
    divide(context, happened)  # GPU types among the queues
    restart_moved(context)
    relax_levels(context)
    choose_types(context)
    if uses_cells(policy):
        assign_cells(context)
        return
    preempts = preemption.due(state, context.now_ns)
    context.evaluated |= policy.preempt
    state.replan_owed |= policy.preempt  # a pass that is not due yet is deferred (``preemption.timeouts``)
    if preempts and policy.order is not Order.FAIR:
        if replan(context):
            index.evaluate_all()
            backfill(context, place_or_reserve(context))
        guest_moves.move_guests(context)
        guests.start_guests(context)
        return
    reallocate(context, happened)  # choose the sizes of all elastic gangs together
    if policy.preempt and policy.order is Order.FAIR and not state.frozen:
        reclaim.reclaim(context)  # queues below their quota get back borrowed slots
    if preempts and (happened or not (context.due or index.stoppable_due)):  # for gain: not through time alone
        preemption.swap(context)
    reclaims = policy.preempt and policy.order is Order.FAIR
    if reclaims:
        reclaim.start_within_quota(context)
    reservation = place_or_reserve(context)  # start the head, or reserve slots for it
    if reclaims and reclaim.start_within_quota(context):  # it waited only for a job of a higher priority
        index.evaluate_all()
        reservation = place_or_reserve(context)
    if guests.make_room(context):  # opportunistic jobs leave slots that the head needs
        reservation = place_or_reserve(context)
    backfill(context, reservation)  # start jobs that do not delay it
    while start_on_slow_nodes(context, reservation):  # use idle healthy slots together with slow ones
        reservation = place_or_reserve(context)
        backfill(context, reservation)
    if resizing.make_room(context) or defragmentation.make_room(context):  # so that the first job fits
        place_or_reserve(context)
    resizing.grow(context)  # elastic gangs grow into slots that no pending job needs
    move_to_faster_types(context)
    guest_moves.move_guests(context)  # to slots that no pending job needs
    guests.start_guests(context)  # beside running jobs, where the rule of policy.sharing allows it


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
    SharedSpeed: separation.shared_speed,
    LatencyMeasured: lending.latency_measured,
    SpeedMeasured: observations.speed_measured,
    MemoryMeasured: memory_pressure.memory_measured,
    PowerSeen: limits.power_seen,
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
    index = index_of(state)  # built before the events change the state, so that it records the changes
    due = timeouts.expired(state, index, now_ns)
    state.now_ns = max(state.now_ns, now_ns)
    state.cycle += 1
    return CycleContext(state, state.now_ns, due=due)


def apply_events(context: CycleContext, events: Sequence[Event], handlers: _Handlers) -> None:
    for event in events:
        handler = handlers.get(type(event))
        if handler is not None:
            handler(context, event)


def evaluate_what_is_due(context: CycleContext) -> None:
    """Evaluate every decision again if a timeout of a policy has expired. The journal records such a cycle."""
    if context.due:
        context.index.evaluate_all()
        context.evaluated = True


def suspect_accused_nodes(context: CycleContext) -> None:
    """Apply verdicts to node states, unless actions are frozen. Changes that a freeze delays are made after the freeze
    ends."""
    if not context.state.frozen and context.state.verdicts:
        mark_accused_nodes(context)


# --- 9: result -------------------------------------------------------------------------------------------------------


def commit(context: CycleContext, happened: bool) -> Outcome:
    """Log why new pending jobs wait, drop the oldest ended jobs, and return the decisions."""
    state, index = context.state, context.index
    for job_id in dict.fromkeys(context.arrived):
        job = state.jobs[job_id]
        if job.state is JobState.PENDING:
            context.record(job_id, "waits", why_waits(state, job))
    index.settle()
    index.note_pending()
    index.update_expected_restarts(index.claimants)  # the gangs on their slots may have been asked to stop just now
    if state.policy.level_patience_seconds:  # jobs that starts of this cycle have let in may have waited long enough
        index.fresh.update(job_id for job_id in index.released if job_id in index.line)
    index.released = set()
    state.idle = not (index.grown or index.changed or index.fresh)
    forget_the_oldest(state, index)
    if index.plan_or_none is not None:
        index.plan_or_none.commit()
    changed = bool(context.actions or context.entries) or context.evaluated or happened
    return Outcome(context.actions, context.entries, context.now_ns, changed)


def forget_the_oldest(state: State, index: SchedulingIndex) -> None:
    """Limit the size of the state: drop the oldest ended jobs and decisions, which stay in the journal.

    Jobs are dropped only when there are ten per cent more than ``ended_jobs_kept``, so that this rarely costs time.
    """
    kept = state.policy.ended_jobs_kept
    if len(index.ended) <= kept * 1.1:
        return
    index.forget_ended(kept)
    del state.decisions[: max(len(state.decisions) - kept, 0)]


def next_wake_ns(state: State, after_ns: int = -1) -> int | None:
    """Return the next time at which a cycle without events may decide something; None: never.

    A cycle without events decides nothing before that time (``policies.index.timeouts``). after_ns: ignore times up to
    this one.
    """
    at_ns = timeouts.next_ns(state, index_of(state), after_ns)
    return None if at_ns is None else max(at_ns, state.now_ns)
