"""Jobs and verdicts for tests that call single functions of the policies, without a cycle."""

from __future__ import annotations

from typing import Any

from scheduler_feedback.core.job import Job, JobSpec, JobState, RankRecord, Slot
from scheduler_feedback.core.verdict import Cause, Kind, Verdict

SECOND = 1_000_000_000
NOW_NS = 10_000 * SECOND

_SPEC = frozenset(JobSpec.__struct_fields__) - {"name", "command"}


def job_of(name: str, state: JobState = JobState.PENDING, **fields: Any) -> Job:
    """Return a job of one rank, submitted at time 0. Each field is set in the specification or else in the job."""
    spec = {"ranks": 1} | {key: value for key, value in fields.items() if key in _SPEC}
    rest = {"submitted_ns": 0} | {key: value for key, value in fields.items() if key not in _SPEC}
    return Job(name, JobSpec(name, ("x",), **spec), state, **rest)


def running(name: str, since: float, **fields: Any) -> Job:
    """Make a gang whose first attempt has run for this many seconds."""
    usual = {"attempt": 1, "attempt_started_ns": NOW_NS - round(since * SECOND)}
    return job_of(name, JobState.RUNNING, **(usual | fields))


def held(job: Job, *slots: Slot) -> Job:
    """Return the job after these slots were assigned to it."""
    job.ranks = [RankRecord(rank, slot) for rank, slot in enumerate(slots)]
    return job


def verdict_of(**fields: Any) -> Verdict:
    """Return an active straggler verdict on rank 0 of gang j. Fields that are not given have plausible values."""
    usual: dict[str, Any] = {
        "verdict_id": "v",
        "kind": Kind.STRAGGLER,
        "gang": "j",
        "attempt": 1,
        "rank": 0,
        "node": "n0",
        "cause": Cause.CPU_CONTENTION,
        "confidence": 0.99,
        "slowdown": 2.0,
        "step_seconds_before": 0.1,
        "step_seconds_now": 0.2,
        "first_wall_ns": NOW_NS,
        "last_wall_ns": NOW_NS,
    }
    return Verdict(**(usual | fields))
