"""Moves: which running gangs may be stopped to go on elsewhere or otherwise, and how such a move is set going.

A gang may be moved if it declared that it can be restarted. Nothing is moved for others' sake that is being moved
already, that was moved a moment ago, that has not run its least time, or that a standing verdict is about: what becomes
of that one its verdict decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scheduler_feedback.core.cycle_context import Turn, nanoseconds
from scheduler_feedback.core.job import Job, JobState, Slot, StopReason
from scheduler_feedback.core.state import Estimates, Mode, State
from scheduler_feedback.policies.index.scheduling_index import Ledger
from scheduler_feedback.policies.queue.backfill import reserve
from scheduler_feedback.policies.remediation.move_cost import cooling_ns


def may_be_moved(state: State, job: Job, now_ns: int) -> bool:
    """Whether the gang may be stopped now to go on with other slots."""
    spec = job.spec
    if job.state is not JobState.RUNNING or job.stop_reason is not None or not spec.restartable or spec.groups:
        return False
    if job.claim or job.attempt_started_ns is None or cooling_ns(state.policy, job, now_ns) > 0:
        return False
    least = state.policy.min_run_seconds if spec.min_run_seconds is None else spec.min_run_seconds
    if now_ns - job.attempt_started_ns < nanoseconds(least):
        return False
    return all(verdict.gang != job.job_id for verdict in state.verdicts.values())


def set_going(turn: Turn, ledger: Ledger, job: Job, target: Sequence[Slot], why: StopReason, reason: str) -> None:
    """The gang is to stop, and a place is kept for its restart."""
    job.stop_reason, job.failure = why, reason
    job.last_migration_ns = turn.now_ns
    job.claim = list(target)
    ledger.file(job)


def keep_place(ledger: Ledger, job: Job, slots: Sequence[Slot]) -> None:
    """The waiting gang starts here once those that are to go have gone."""
    job.claim = list(slots)
    ledger.file(job)


def proposed(turn: Turn, job: Job, what: str, kind: str, text: str, detail: Iterable[tuple[str, str]]) -> bool:
    """In observe mode: tell what would be done, once; whether it was observe mode."""
    if turn.state.policy.mode is not Mode.OBSERVE:
        return False
    if job.proposed != what:
        job.proposed = what
        turn.decide(job.job_id, kind, text, tuple(detail), "observed")
    return True


def first_in_line(ledger: Ledger, now_ns: int) -> Job | None:
    """The first job that waits for room and not for its queue's limit; None where there is none, or it is paused."""
    for key in ledger.line.order:
        job = ledger.state.jobs[key[-1]]
        if not at_limit(ledger, job):
            return job if job.not_before_ns <= now_ns else None
    return None


def at_limit(ledger: Ledger, job: Job) -> bool:
    """Return whether the job waits for a limit of its queue; it keeps no other job waiting then."""
    ranks = job.spec.min_ranks or job.spec.ranks
    return ledger.shares.limited and ledger.shares.room(job.spec.queue, ranks) is not None


def waits_since_ns(job: Job) -> int:
    """Return since when the waiting job waits for its next attempt."""
    return job.submitted_ns if job.attempt_ended_ns is None else job.attempt_ended_ns


def wait_seconds(state: State, ledger: Ledger, job: Job, now_ns: int) -> float:
    """How long the waiting gang is expected to wait if nobody moves, up to the horizon that is planned for.

    Where run times are only guessed, what it has waited already is expected to last as long again, and no longer: who
    waits until as much is lost as a move costs never loses more than twice what the best decision would.
    """
    most = state.policy.resize_horizon_seconds
    if state.policy.estimates is Estimates.HISTORY:
        most = min(most, (now_ns - waits_since_ns(job)) / 1e9)
    if state.reserved_for == job.job_id and state.reserved_from_ns is not None:
        from_ns = state.reserved_from_ns
    else:
        reservation = reserve(ledger.plan, ledger.ends, job, now_ns, state.policy)
        if reservation is None:
            return most
        from_ns = reservation.from_ns
    return min(max(from_ns - now_ns, 0) / 1e9, most)
