"""Effects of expired timeouts: ends of quarantine, late starts, late probes, unmet dependencies, starvation."""

from __future__ import annotations

from scheduler_feedback.core.durations import nanoseconds, span
from scheduler_feedback.core.job import Job, JobKind, JobState, StopReason
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.intake.user_requests import end
from scheduler_feedback.policies.nodes.quarantine import expire_node_states


def expire_timeouts(context: CycleContext) -> None:
    """Apply the effects of all timeouts that have expired."""
    state = context.state
    index = context.index
    index.correct_expected_ends(context.now_ns)
    while index.hopeless:  # each end may make the dependencies of further jobs hopeless
        for job_id in sorted(index.hopeless):
            job = state.jobs[job_id]
            why = index.dependencies.hopeless(job) or "its dependency can no longer be met"
            end(context, job, JobState.CANCELLED, why)
    if state.frozen:
        return
    if index.doubtful:
        expire_node_states(context)
    policy = state.policy
    start_seconds = policy.start_seconds
    for job_id in index.due(context.now_ns):
        late = state.jobs.get(job_id)
        if late is None or late.attempt_started_ns is None or late.stop_reason is not None:
            continue
        age_ns = context.now_ns - late.attempt_started_ns
        if _is_late_start(late, age_ns, start_seconds):
            why = f"not all of its ranks started within {span(start_seconds)}"
            context.record(late.job_id, "start-failed", why)
            index.stop(late, StopReason.START_FAILED, why)
        elif _is_late_probe(late, age_ns, policy.probe_timeout_seconds):
            why = f"the probe did not end within {span(policy.probe_timeout_seconds)}"
            context.record(late.job_id, "probe-failed", why)
            index.stop(late, StopReason.CANCEL, why)
    promote_starved_jobs(context)


def promote_starved_jobs(context: CycleContext) -> None:
    """Mark jobs that have waited past the starvation bound as overdue, which puts them ahead of other jobs.

    Overdue jobs may use at most the share ``starvation_share`` of the slots; at least one job may always be overdue.
    """
    index = context.index
    if not index.starved:
        return
    room = context.state.policy.starvation_share * index.capacity.slots
    room -= sum(context.state.jobs[job_id].spec.ranks for job_id in index.overdue)
    while (job := index.first_starved()) is not None and (not index.overdue or job.spec.ranks <= room):
        room -= job.spec.ranks
        index.set_overdue(job)
        waited = span((context.now_ns - job.submitted_ns - job.run_ns) / 1e9)
        context.record(job.job_id, "overdue", f"has waited {waited} in total and now goes ahead of other jobs")


def _is_late_start(job: Job, age_ns: int, timeout_seconds: float) -> bool:
    return job.state is JobState.STARTING and timeout_seconds > 0 and age_ns >= nanoseconds(timeout_seconds)


def _is_late_probe(job: Job, age_ns: int, timeout_seconds: float) -> bool:
    """Return whether the job is a probe that runs longer than its timeout. Only probes are stopped for that."""
    return job.spec.kind is JobKind.PROBE and job.state is JobState.RUNNING and age_ns >= nanoseconds(timeout_seconds)
