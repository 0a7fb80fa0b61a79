"""Fair order: queues with quota and weight; within a queue, the fewest expected GPU-seconds first.

A queue below its quota goes before a queue that borrows. Among borrowing queues, the least usage per weight goes first;
usage decays with a half-life. Within a queue, jobs are sorted by the expected GPU-seconds until they end
(``runtime_history.expense``), without estimates of users. Preemption passes update this value, which is stored with the
job. Between two passes the order depends on the state alone.
"""

from __future__ import annotations

from typing import Any

from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import Estimates, Order, State
from scheduler_feedback.policies.index import runtime_history
from scheduler_feedback.policies.index.runtime_estimate import limit_seconds, work_done
from scheduler_feedback.policies.queue.order.themis import rho


class Fair:
    """Rule that sorts by queue, then by the expected GPU-seconds until the job ends."""

    name = Order.FAIR

    def key(self, state: State, job: Job, now_ns: int) -> tuple[Any, ...]:  # noqa: ARG002 - kept with job and state
        return (state.queue_turns.get(job.spec.queue, 0), job.urgency)


def appraise(state: State, job: Job, now_ns: int) -> None:
    """Update the job's expected run time and its urgency, a sort key within its queue (the least goes first)."""
    policy = state.policy
    if policy.order not in (Order.FAIR, Order.THEMIS) and policy.estimates is not Estimates.HISTORY:
        return
    done = work_done(job, now_ns)
    if policy.estimates is Estimates.HISTORY:
        answers = runtime_history.answers_of(state)
        if not job.state.holds_slots:  # the estimate of a running job stays until the job exceeds it
            limit = job.spec.time_limit_seconds
            expected = answers.quantile(job.spec, done, policy.history_quantile)
            job.estimate_seconds = expected if limit is None else min(expected, max(limit, done + 1.0))
        spent = answers.expense(job.spec, done, _restart(job))
    else:
        known = job.spec.exact_seconds if policy.estimates is Estimates.EXACT else None
        left = (limit_seconds(policy, job) if known is None else known) - done
        spent = max(left, 1.0) + _restart(job)
    job.urgency = -rho(state, job, now_ns) if policy.order is Order.THEMIS else spent * job.spec.ranks
    job.appraise_ns = now_ns + round(done * 1e9) // 12  # an eighth of an octave, the resolution of the history


def _restart(job: Job) -> float:
    """Return the seconds that the job's restart will take; 0 for an active job and before the first attempt."""
    return job.spec.restart_cost_seconds if job.attempt and not job.state.holds_slots else 0.0
