"""Order: who is first. Gangs on the move come before all, then first come, first served."""

from __future__ import annotations

from scheduler_feedback.core.job import Job, JobKind, JobState
from scheduler_feedback.core.state import State


def queue(state: State) -> list[Job]:
    """The pending jobs, first the first.

    A gang that was stopped in order to be moved comes first: it gave up its slots for a promise. A retry keeps the
    place of its submission. Probes are in no queue: they run where no one else may.
    """
    pending = [
        job for job in state.jobs.values() if job.state is JobState.PENDING and job.spec.kind is not JobKind.PROBE
    ]
    pending.sort(key=lambda job: (not job.claim, job.submitted_ns, job.job_id))
    return pending


def probes(state: State) -> list[Job]:
    """The pending probes, by id."""
    waiting = [job for job in state.jobs.values() if job.state is JobState.PENDING and job.spec.kind is JobKind.PROBE]
    return sorted(waiting, key=lambda job: job.job_id)
