"""Order of jobs: first come, first served."""

from __future__ import annotations

from typing import Any

from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import Order, State


class FirstComeFirstServed:
    """Rule that sorts by submission time."""

    name = Order.FIFO

    def key(self, state: State, job: Job, now_ns: int) -> tuple[Any, ...]:  # noqa: ARG002 - ties are broken by submission
        return ()
