"""Order: who is first. One rule a file; ``ORDERS`` lists them.

A rule gives each job a key, the least first. Before it come, in this order: gangs on the move with a place kept for
them (they gave up their slots for a promise), the priority that users gave, and whoever has waited past the policy's
starvation bound. A retry keeps the place of its submission. Probes are in no queue: they run where no one else may.
"""

from __future__ import annotations

from typing import Any, Protocol

from scheduler_feedback.core.job import Job, JobKind, JobState
from scheduler_feedback.core.state import Order, State
from scheduler_feedback.policies.order.fifo import FirstComeFirstServed


class Rule(Protocol):
    """name: its word in the policy. restless: keys of waiting jobs change with time, so they are looked at anew."""

    @property
    def name(self) -> Order: ...

    @property
    def restless(self) -> bool: ...

    def key(self, state: State, job: Job, now_ns: int) -> tuple[Any, ...]:
        """How the job stands, waiting or running; the least first. Ties go by submission, then by id."""


ORDERS: tuple[Rule, ...] = (FirstComeFirstServed(),)

_RULES = {rule.name: rule for rule in ORDERS}


def rule_of(state: State) -> Rule:
    """The rule that the policy names."""
    return _RULES[state.policy.order]


def key_of(state: State, job: Job) -> tuple[Any, ...]:
    """The job's whole key in the line; its last item is the id."""
    return (-job.spec.priority, *rule_of(state).key(state, job, state.now_ns), job.submitted_ns, job.job_id)


def queue(state: State) -> list[Job]:
    """The pending jobs, first the first; O(jobs log jobs), for people."""
    pending = [
        job for job in state.jobs.values() if job.state is JobState.PENDING and job.spec.kind is not JobKind.PROBE
    ]
    pending.sort(key=lambda job: (not job.claim, key_of(state, job)))
    return pending
