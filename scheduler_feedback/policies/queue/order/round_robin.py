"""Round robin: gangs run in turn, each for a time slice, and the job that has waited longest goes first.

Gandiva (Xiao et al., OSDI'18, section 3.1) suspends and resumes gangs in this way, so that a new job shows early
whether it works. Here, a gang saves, ends and restarts (``docs/adr/0143``). A slice begins with the attempt. A gang
within its slice is not stopped for another one of the same priority, and one past its slice goes behind all pending
jobs. A job that needs more slots than end their slices together waits for ``Policy.starvation_seconds`` at most: then
it goes before gangs within their slice. A gang whose restarts are long has longer slices, or it would only restart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from scheduler_feedback.core.durations import nanoseconds, span
from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import Order, State

RESTARTS_OF_A_SLICE = 4.0
"""A slice is at least a restart and this many times its cost, so that at most a fifth of a gang's time is restarts."""

_WITHIN, _WAITS, _PAST = range(3)


class RoundRobin:
    """Rule that sorts gangs within their time slice first, then pending jobs by their wait, then the other gangs."""

    name = Order.ROUND_ROBIN

    def key(self, state: State, job: Job, now_ns: int) -> tuple[Any, ...]:
        if not job.state.holds_slots:
            return (_WAITS, job.submitted_ns if job.attempt_ended_ns is None else job.attempt_ended_ns)
        return (_PAST if is_past_slice(state, job, now_ns) else _WITHIN, job.attempt_started_ns or 0)


def waits_for_turn(state: State, running: Iterable[Job]) -> str:
    """Return when the next time slice of these gangs ends, as the end of a sentence; '' if none does.

    A gang that may not be stopped has no time slice.
    """
    stoppable = (job for job in running if job.spec.preemptible and job.spec.restartable)
    ends = [ends_ns for job in stoppable if (ends_ns := slice_ends_ns(state, job)) is not None]
    if not ends:
        return ""
    return f"; the next time slice of a running gang ends in {span(max(min(ends) - state.now_ns, 0) / 1e9)}"


def is_past_slice(state: State, job: Job, now_ns: int) -> bool:
    """Return whether the gang runs and its time slice has ended at this time."""
    ends_ns = slice_ends_ns(state, job)
    return ends_ns is not None and ends_ns <= now_ns


def slice_ends_ns(state: State, job: Job) -> int | None:
    """Return when the time slice of the running gang ends, in ns; None before its start."""
    if job.attempt_started_ns is None or not job.state.holds_slots:
        return None
    return job.attempt_started_ns + nanoseconds(slice_seconds(state, job))


def slice_seconds(state: State, job: Job) -> float:
    """Return the length of a time slice of this gang in seconds, from the start of an attempt."""
    return max(state.policy.slice_seconds, (1.0 + RESTARTS_OF_A_SLICE) * job.spec.restart_cost_seconds)
