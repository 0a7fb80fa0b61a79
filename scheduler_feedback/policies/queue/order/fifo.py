"""First come, first served."""

from __future__ import annotations

from typing import Any

from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import Order, State


class FirstComeFirstServed:
    """Order by submission."""

    name = Order.FIFO

    def key(self, state: State, job: Job, now_ns: int) -> tuple[Any, ...]:  # noqa: ARG002 - ties are broken by submission
        return ()
