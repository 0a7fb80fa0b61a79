"""Typical MIG instances, learnt from the jobs that have arrived: what the choice of a start leaves room for."""

from __future__ import annotations

from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import State

MOST_SEEN = 1000.0
"""Number of instances after which all weights are halved, so that the demand follows the workload: our choice."""


def note_instances(state: State, job: Job) -> None:
    """Count the instances that a job asks for. It does nothing unless the policy places MIG instances."""
    name, seen = job.spec.mig_profile, state.mig_requests
    if not state.policy.mig or not name:
        return
    seen[name] = seen.get(name, 0.0) + job.spec.ranks
    if sum(seen.values()) > MOST_SEEN:
        state.mig_requests = {one: weight / 2 for one, weight in seen.items()}
