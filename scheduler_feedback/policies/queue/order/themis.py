"""Finish-time fairness (Themis, NSDI 2020, section 3.1): who is treated worst against having the cluster to itself.

rho = (time since submission + time left if it ran from now on) / run time alone; the largest first.
"""

from __future__ import annotations

from typing import Any

from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import Order, State
from scheduler_feedback.policies.index.runtime_estimate import done_seconds, left_ns


class FinishTimeFairness:
    """By rho, the largest first; of one that waits, as of the last look, so that the order is the state's own."""

    name = Order.THEMIS

    def key(self, state: State, job: Job, now_ns: int) -> tuple[Any, ...]:
        return (-rho(state, job, now_ns) if job.state.holds_slots else job.urgency,)


def rho(state: State, job: Job, now_ns: int) -> float:
    """How many times as long the job takes as it would have alone, if it runs from now on."""
    left = left_ns(state.policy, job, now_ns) / 1e9
    alone = max(left + done_seconds(job), 1.0)
    return ((now_ns - job.submitted_ns) / 1e9 + left) / alone
