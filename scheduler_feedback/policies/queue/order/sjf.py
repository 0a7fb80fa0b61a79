"""Order of jobs: the shortest expected run time first."""

from __future__ import annotations

from typing import Any

from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import Order, State
from scheduler_feedback.policies.index.runtime_estimate import expected_seconds, limit_seconds


class ShortestJobFirst:
    """Rule that sorts by the expected total run time, the shortest first."""

    name = Order.SJF

    def key(self, state: State, job: Job, now_ns: int) -> tuple[Any, ...]:  # noqa: ARG002 - the key does not depend on time
        expected = expected_seconds(state.policy, job)
        return (limit_seconds(state.policy, job) if expected is None else expected,)
