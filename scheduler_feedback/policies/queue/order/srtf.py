"""Shortest remaining time first."""

from __future__ import annotations

from typing import Any

from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import Order, State
from scheduler_feedback.policies.index.runtime_estimate import left_ns


class ShortestRemainingTimeFirst:
    """Order by the expected remaining time."""

    name = Order.SRTF

    def key(self, state: State, job: Job, now_ns: int) -> tuple[Any, ...]:
        return (left_ns(state.policy, job, now_ns),)
