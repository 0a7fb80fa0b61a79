"""Fair: queues with quota and weight; inside of a queue, the least expected service first.

Among queues: one that holds less than its quota goes before one that borrows; among those that borrow, the one that has
used least for its weight, use fading by half in a half-life. Inside of a queue it goes by what is expected to be spent
in GPU-seconds for the job to end (``history.expense``); nobody's word for it is needed. The appraisal is kept with the
job and renewed when it is looked at what to preempt, so that the order between two looks is the state's own.
"""

from __future__ import annotations

from typing import Any

from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import Estimates, Order, State
from scheduler_feedback.policies.index import runtime_history
from scheduler_feedback.policies.index.runtime_estimate import done_seconds, limit_seconds
from scheduler_feedback.policies.queue.order.themis import rho


class Fair:
    """By queue, then by what is expected to be spent."""

    name = Order.FAIR

    def key(self, state: State, job: Job, now_ns: int) -> tuple[Any, ...]:  # noqa: ARG002 - kept with job and state
        return (state.queue_turns.get(job.spec.queue, 0), job.urgency)


def appraise(state: State, job: Job, now_ns: int) -> None:
    """Look at the job anew: how long it is expected to take, and how it stands."""
    policy = state.policy
    if policy.order not in (Order.FAIR, Order.THEMIS) and policy.estimates is not Estimates.HISTORY:
        return
    done = work_done(job, now_ns)
    if policy.estimates is Estimates.HISTORY:
        answers = runtime_history.answers_of(state)
        if not job.state.holds_slots:  # what was expected of a running one stands until it has outlived it
            limit = job.spec.time_limit_seconds
            expected = answers.quantile(job.spec, done, policy.history_quantile)
            job.estimate_seconds = expected if limit is None else min(expected, max(limit, done + 1.0))
        spent = answers.expense(job.spec, done, _restart(job))
    else:
        known = job.spec.exact_seconds if policy.estimates is Estimates.EXACT else None
        left = (limit_seconds(policy, job) if known is None else known) - done
        spent = max(left, 1.0) + _restart(job)
    job.urgency = -rho(state, job, now_ns) if policy.order is Order.THEMIS else spent * job.spec.ranks
    job.appraise_ns = now_ns + round(done * 1e9) // 12  # an eighth of an octave, in which the history is asked


def work_done(job: Job, now_ns: int) -> float:
    """Work that the job has behind it, in seconds; of a running attempt too."""
    if not job.state.holds_slots or job.attempt_started_ns is None:
        return done_seconds(job)
    if job.progress_ns is not None:
        return (job.done_seconds or 0.0) + max(now_ns - job.progress_ns, 0) / 1e9 * job.speed
    restart = job.spec.restart_cost_seconds if job.attempt > 1 else 0.0
    return done_seconds(job) + max((now_ns - job.attempt_started_ns) / 1e9 - restart, 0.0) * job.speed


def _restart(job: Job) -> float:
    """What the job must spend before it works on; a running one has spent it."""
    return job.spec.restart_cost_seconds if job.attempt and not job.state.holds_slots else 0.0
