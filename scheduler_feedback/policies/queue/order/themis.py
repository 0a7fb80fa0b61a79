"""Finish-time fairness (Themis, NSDI 2020, section 3.1): the jobs that lose most by sharing the cluster go first.

rho = (time since submission + expected remaining run time) / total run time without waiting. The largest rho is first.
"""

from __future__ import annotations

from typing import Any

from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import Order, State
from scheduler_feedback.policies.index.runtime_estimate import done_seconds, left_at_full_speed_ns


class FinishTimeFairness:
    """Rule that sorts by rho, the largest first: time from submission to expected end / run time without waiting.

    For pending jobs, rho is computed at each preemption pass and stored.
    """

    name = Order.THEMIS

    def key(self, state: State, job: Job, now_ns: int) -> tuple[Any, ...]:
        return (-rho(state, job, now_ns) if job.state.holds_slots else job.urgency,)


def rho(state: State, job: Job, now_ns: int) -> float:
    """Return the job's time from submission to end if it runs from now on, divided by its run time without waiting."""
    left = left_at_full_speed_ns(state.policy, job, now_ns) / 1e9
    alone = max(left + done_seconds(job), 1.0)
    return ((now_ns - job.submitted_ns) / 1e9 + left) / alone
