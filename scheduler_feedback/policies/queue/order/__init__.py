"""Order of jobs, one rule per module; ``ORDERS`` lists them.

A rule gives each job, pending or running, a sort key, least first. The user's priority goes before that key. Next come
jobs past the policy's starvation bound, the earliest submitted first, up to the share that is reserved for them. A
retry keeps the place of its submission. Moving gangs with reserved slots are not in the queue, nor are probes.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

from scheduler_feedback.core.job import Job, JobKind, JobState
from scheduler_feedback.core.state import Order, State
from scheduler_feedback.policies.queue.order.fair import Fair
from scheduler_feedback.policies.queue.order.fifo import FirstComeFirstServed
from scheduler_feedback.policies.queue.order.las import LeastAttainedService
from scheduler_feedback.policies.queue.order.sjf import ShortestJobFirst
from scheduler_feedback.policies.queue.order.srsf import ShortestRemainingServiceFirst
from scheduler_feedback.policies.queue.order.srtf import ShortestRemainingTimeFirst
from scheduler_feedback.policies.queue.order.themis import FinishTimeFairness


class Rule(Protocol):
    """Rule of an order. name: its value of ``policy.order``."""

    @property
    def name(self) -> Order: ...

    def key(self, state: State, job: Job, now_ns: int) -> tuple[Any, ...]:
        """Return the job's sort key, least first. Ties are broken by submission, then by id."""


ORDERS: tuple[Rule, ...] = (
    FirstComeFirstServed(),
    ShortestJobFirst(),
    ShortestRemainingTimeFirst(),
    ShortestRemainingServiceFirst(),
    LeastAttainedService(),
    FinishTimeFairness(),
    Fair(),
)

_RULES = {rule.name: rule for rule in ORDERS}


def key_of(state: State, job: Job) -> tuple[Any, ...]:
    """Return the job's whole sort key in the queue; its last item is the id."""
    order = state.policy.order
    if order is Order.FIFO:  # starvation changes nothing: submission decides anyway
        return (-job.spec.priority, job.submitted_ns, job.job_id)
    now_ns = state.now_ns
    if has_starved(state, job):
        return (-job.spec.priority, 0, job.submitted_ns, job.job_id)
    return (-job.spec.priority, 1, *_RULES[order].key(state, job, now_ns), job.submitted_ns, job.job_id)


def starves_ns(state: State, job: Job) -> int | None:
    """Return when the job's total wait passes the starvation bound if it keeps waiting; None if there is no bound."""
    bound = state.policy.starvation_seconds
    if math.isinf(bound) or state.policy.order is Order.FIFO:
        return None
    return job.submitted_ns + job.run_ns + round(bound * 1e9)


def has_starved(state: State, job: Job) -> bool:
    """Return whether the job goes ahead of others because of its long wait; for a running job, when it started."""
    if state.policy.starvation_share < 1:
        return job.overdue
    at_ns = starves_ns(state, job)
    since_ns = state.now_ns if job.state is JobState.PENDING else job.attempt_started_ns or state.now_ns
    return at_ns is not None and at_ns <= since_ns


def queue(state: State) -> list[Job]:
    """Return the pending jobs in order, for display; O(jobs log jobs)."""
    pending = [
        job for job in state.jobs.values() if job.state is JobState.PENDING and job.spec.kind is not JobKind.PROBE
    ]
    pending.sort(key=lambda job: (not job.claim, key_of(state, job)))
    return pending
