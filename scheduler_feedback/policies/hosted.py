"""Hosted jobs: another scheduler runs them; the cycle knows where, watches, and asks that scheduler for another place.

Such a job comes as running and never waits here: who hosts it queues it. An attempt that has ended is the end of the
job as far as the cycle goes, and another attempt of it brings it back, with what is known of its earlier ones.
"""

from __future__ import annotations

from scheduler_feedback.core.events import Hosted
from scheduler_feedback.core.job import Job, JobState, RankRecord
from scheduler_feedback.core.turn import Turn
from scheduler_feedback.policies.ledger import ledger_of
from scheduler_feedback.policies.placement import where


def found(turn: Turn, event: Hosted) -> None:
    """The attempt runs. Told twice it is taken in once; an older attempt than the newest is passed over."""
    state, ledger = turn.state, ledger_of(turn.state)
    job = state.jobs.get(event.job_id)
    if job is not None and (event.attempt < job.attempt or (event.attempt == job.attempt and job.state.holds_slots)):
        return
    began_ns = min(event.began_wall_ns or turn.now_ns, turn.now_ns)
    new = job is None
    if job is None:
        job = state.jobs[event.job_id] = Job(event.job_id, event.spec, JobState.RUNNING, began_ns)
    else:
        ledger.ended = [one for one in ledger.ended if one[1] != event.job_id]
    job.spec, job.state, job.attempt = event.spec, JobState.RUNNING, event.attempt
    job.ranks = [RankRecord(rank, slot) for rank, slot in enumerate(event.placement)]
    job.attempt_started_ns = began_ns
    job.started_ns = began_ns if job.started_ns is None else job.started_ns
    job.ended_ns, job.end_reason, job.failure = None, "", ""
    job.first_step_ns, job.stop_reason, job.action_id = None, None, ""
    job.proposed = ""
    if new:
        ledger.came(job)
    else:
        ledger.file(job)
    turn.tell(job.job_id, "running", f"attempt {job.attempt} runs on {where(event.placement)}")
