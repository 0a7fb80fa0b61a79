"""Finish-time fairness (Themis, NSDI 2020, section 3.1): the jobs that lose most by sharing the cluster go first.

rho = (time since submission + time left if it ran from now on) / run time alone; the largest first.
"""

from __future__ import annotations

from typing import Any

from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import Order, State
from scheduler_feedback.policies.index.runtime_estimate import done_seconds, left_ns


class FinishTimeFairness:
    """Order by rho, the largest first. For pending jobs, rho is as of the last pass and stored in the state."""

    name = Order.THEMIS

    def key(self, state: State, job: Job, now_ns: int) -> tuple[Any, ...]:
        return (-rho(state, job, now_ns) if job.state.holds_slots else job.urgency,)


def rho(state: State, job: Job, now_ns: int) -> float:
    """Return the job's total time if it runs from now on, relative to its run time alone."""
    left = left_ns(state.policy, job, now_ns) / 1e9
    alone = max(left + done_seconds(job), 1.0)
    return ((now_ns - job.submitted_ns) / 1e9 + left) / alone
