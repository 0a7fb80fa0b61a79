"""Shortest remaining service first (Tiresias, NSDI 2019, section 3): remaining time x GPUs."""

from __future__ import annotations

from typing import Any

from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import Order, State
from scheduler_feedback.policies.index.runtime_estimate import left_ns


class ShortestRemainingServiceFirst:
    """Order by slots times the expected remaining time."""

    name = Order.SRSF

    def key(self, state: State, job: Job, now_ns: int) -> tuple[Any, ...]:
        return (left_ns(state.policy, job, now_ns) * job.spec.ranks,)
