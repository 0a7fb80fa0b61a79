"""Moves of running gangs for the benefit of other jobs: conditions, and the expected wait without a move.

A gang may be moved if it is declared restartable. It is not moved while it is already moving, during its migration
cooldown, before its minimum run time, or while a verdict about it is active: then its verdict decides.
"""

from __future__ import annotations

from collections.abc import Iterable

from scheduler_feedback.core.durations import nanoseconds
from scheduler_feedback.core.job import Job, JobState
from scheduler_feedback.core.state import Estimates, Mode, State
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex, index_of
from scheduler_feedback.policies.queue.backfill import reserve
from scheduler_feedback.policies.remediation.move_cost import cooling_ns


def may_be_moved(state: State, job: Job, now_ns: int, shares: bool = False) -> bool:
    """Return whether the gang may be stopped now to continue on other slots.

    shares: whether it may have joined other jobs on its slots. A move of another job would stop its guests, too.
    """
    spec = job.spec
    if job.state is not JobState.RUNNING or job.stop_reason is not None or not spec.restartable:
        return False
    if spec.groups and spec.min_ranks is None and spec.max_ranks is None:
        return False
    if spec.joins_slots and not (shares and job.guest_of) and index_of(state).partners(job.job_id):
        return False
    if job.claim or job.attempt_started_ns is None or cooling_ns(state.policy, job, now_ns) > 0:
        return False
    least = state.policy.min_run_seconds if spec.min_run_seconds is None else spec.min_run_seconds
    if now_ns - job.attempt_started_ns < nanoseconds(least):
        return False
    return all(verdict.gang != job.job_id for verdict in state.verdicts.values())


def proposed(
    context: CycleContext, job: Job, what: str, kind: str, text: str, detail: Iterable[tuple[str, str]]
) -> bool:
    """Return whether the mode is observe. If it is, log once the action that mode act would take."""
    if context.state.policy.mode is not Mode.OBSERVE:
        return False
    if job.proposed != what:
        job.proposed = what
        context.decide(job.job_id, kind, text, tuple(detail), "observed")
    return True


def first_in_line(index: SchedulingIndex, now_ns: int) -> Job | None:
    """Return the first pending job whose queue is below its limit; None if there is none, or if this job is paused."""
    for key in index.line.order:
        job = index.state.jobs[key[-1]]
        if not at_limit(index, job):
            return job if job.not_before_ns <= now_ns else None
    return None


def at_limit(index: SchedulingIndex, job: Job) -> bool:
    """Return whether the limit of the job's queue prevents the job from starting."""
    ranks = job.spec.min_ranks or job.spec.ranks
    return index.shares.limited and index.shares.room(job.spec.queue, ranks) is not None


def waits_since_ns(job: Job) -> int:
    """Return the time, in ns, since which the job has been waiting for its next attempt."""
    return job.submitted_ns if job.attempt_ended_ns is None else job.attempt_ended_ns


def wait_seconds(state: State, index: SchedulingIndex, job: Job, now_ns: int) -> float:
    """Return how many seconds the pending gang must wait if no gang moves for it, at most ``resize_horizon_seconds``.

    If run times are estimated from the history, the result is at most the time that the gang has already waited.
    """
    most = state.policy.resize_horizon_seconds
    if state.policy.estimates is Estimates.HISTORY:
        most = min(most, (now_ns - waits_since_ns(job)) / 1e9)
    if state.reserved_for == job.job_id and state.reserved_from_ns is not None:
        from_ns = state.reserved_from_ns
    else:
        reservation = reserve(index.plan, index.ends, job, now_ns, state.policy)
        if reservation is None:
            return most
        from_ns = reservation.from_ns
    return min(max(from_ns - now_ns, 0) / 1e9, most)
