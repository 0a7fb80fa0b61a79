"""Order of jobs: the least product of remaining run time and GPUs first (Tiresias, NSDI 2019, section 3)."""

from __future__ import annotations

from typing import Any

from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import Order, State
from scheduler_feedback.policies.index.runtime_estimate import left_at_full_speed_ns


class ShortestRemainingServiceFirst:
    """Rule that sorts by number of slots times expected remaining run time, the least first."""

    name = Order.SRSF

    def key(self, state: State, job: Job, now_ns: int) -> tuple[Any, ...]:
        return (left_at_full_speed_ns(state.policy, job, now_ns) * job.spec.ranks,)
