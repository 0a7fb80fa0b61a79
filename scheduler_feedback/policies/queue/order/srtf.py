"""Order of jobs: the shortest expected remaining run time first."""

from __future__ import annotations

from typing import Any

from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import Order, State
from scheduler_feedback.policies.index.runtime_estimate import left_at_full_speed_ns


class ShortestRemainingTimeFirst:
    """Rule that sorts by the expected remaining run time, the shortest first."""

    name = Order.SRTF

    def key(self, state: State, job: Job, now_ns: int) -> tuple[Any, ...]:
        return (left_at_full_speed_ns(state.policy, job, now_ns),)
