"""Rules for the order of jobs, one per module. ``ORDERS`` lists them.

A rule gives each job, pending or running, a sort key, least first. The user's priority goes before that key. Next come
jobs past the policy's starvation bound, the earliest submitted first, up to the share that is reserved for them. A
retried job counts as submitted at its first submission. Gangs with reserved slots and probes are not in the queue.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

from scheduler_feedback.core.job import Job, JobKind, JobState
from scheduler_feedback.core.state import Order, State
from scheduler_feedback.policies.queue.order.fair import Fair
from scheduler_feedback.policies.queue.order.fifo import FirstComeFirstServed
from scheduler_feedback.policies.queue.order.las import LeastAttainedService
from scheduler_feedback.policies.queue.order.round_robin import RoundRobin, is_past_slice
from scheduler_feedback.policies.queue.order.sjf import ShortestJobFirst
from scheduler_feedback.policies.queue.order.srsf import ShortestRemainingServiceFirst
from scheduler_feedback.policies.queue.order.srtf import ShortestRemainingTimeFirst
from scheduler_feedback.policies.queue.order.themis import FinishTimeFairness


class Rule(Protocol):
    """Rule that sorts jobs. name: the value of ``policy.order`` that selects it."""

    @property
    def name(self) -> Order: ...

    def key(self, state: State, job: Job, now_ns: int) -> tuple[Any, ...]:
        """Return the job's sort key; the job with the least key is first. Equal keys are sorted by submission."""


ORDERS: tuple[Rule, ...] = (
    FirstComeFirstServed(),
    ShortestJobFirst(),
    ShortestRemainingTimeFirst(),
    ShortestRemainingServiceFirst(),
    LeastAttainedService(),
    FinishTimeFairness(),
    RoundRobin(),
    Fair(),
)

_RULES = {rule.name: rule for rule in ORDERS}


def key_of(state: State, job: Job, at_ns: int | None = None) -> tuple[Any, ...]:
    """Return the job's complete sort key: priority, starvation, the rule's key, submission time, and job id.

    at_ns: time for which the rule's key is computed, if not now.
    """
    order = state.policy.order
    if order is Order.FIFO:  # starvation changes nothing: submission decides anyway
        return (-job.spec.priority, job.submitted_ns, job.job_id)
    now_ns = state.now_ns if at_ns is None else at_ns
    if has_starved(state, job) and not (order is Order.ROUND_ROBIN and is_past_slice(state, job, now_ns)):
        return (-job.spec.priority, 0, job.submitted_ns, job.job_id)
    return (-job.spec.priority, 1, *_RULES[order].key(state, job, now_ns), job.submitted_ns, job.job_id)


def starves_ns(state: State, job: Job) -> int | None:
    """Return when the job's total wait would pass the starvation bound, in ns; None if there is no bound.

    In the order `round-robin`, its wait since its last attempt counts.
    """
    bound = state.policy.starvation_seconds
    if math.isinf(bound) or state.policy.order is Order.FIFO:
        return None
    waits_since_ns = job.submitted_ns + job.run_ns
    if state.policy.order is Order.ROUND_ROBIN and job.attempt_ended_ns is not None:  # its last turn ended then
        waits_since_ns = job.attempt_ended_ns
    return waits_since_ns + round(bound * 1e9)


def has_starved(state: State, job: Job) -> bool:
    """Return whether the job goes ahead of others because it has waited too long.

    For an active job, its wait before the present attempt counts.
    """
    if state.policy.starvation_share < 1:
        return job.overdue
    at_ns = starves_ns(state, job)
    since_ns = state.now_ns if job.state is JobState.PENDING else job.attempt_started_ns or state.now_ns
    return at_ns is not None and at_ns <= since_ns


def queue(state: State) -> list[Job]:
    """Return the pending jobs in scheduling order, for display. Takes O(n log n) time for n jobs."""
    pending = [
        job for job in state.jobs.values() if job.state is JobState.PENDING and job.spec.kind is not JobKind.PROBE
    ]
    pending.sort(key=lambda job: (not job.claim, key_of(state, job)))
    return pending
