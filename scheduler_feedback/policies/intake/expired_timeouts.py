"""Clocks: what the passing of time alone brings: ends of quarantine, late starts and probes, waits that can't end."""

from __future__ import annotations

from scheduler_feedback.core.cycle_context import Turn, nanoseconds, span
from scheduler_feedback.core.job import Job, JobKind, JobState, StopReason
from scheduler_feedback.policies.index.scheduling_index import Ledger, ledger_of
from scheduler_feedback.policies.intake import user_requests
from scheduler_feedback.policies.nodes.quarantine import let_time_pass


def let_clocks_run_out(turn: Turn) -> None:
    state = turn.state
    ledger = ledger_of(state)
    ledger.overtake(turn.now_ns)
    for job_id in sorted(ledger.hopeless):
        stranded = state.jobs[job_id]
        why = ledger.dependencies.hopeless(stranded) or "what it waits for can't happen any more"
        user_requests.end(turn, stranded, JobState.CANCELLED, why)
    if state.frozen:
        return
    if ledger.doubtful:
        let_time_pass(turn)
    policy = state.policy
    for job_id in ledger.due(turn.now_ns):
        job = state.jobs.get(job_id)
        if job is None or job.attempt_started_ns is None or job.stop_reason is not None:
            continue
        age_ns = turn.now_ns - job.attempt_started_ns
        if _is_late_start(job, age_ns, policy.start_timeout_seconds):
            job.stop_reason = StopReason.START_FAILED
            job.failure = f"not all of its ranks had started within {span(policy.start_timeout_seconds)}"
            turn.tell(job.job_id, "start-failed", job.failure)
            ledger.stops(job)
        elif _is_late_probe(job, age_ns, policy.probe_timeout_seconds):
            job.stop_reason = StopReason.CANCEL
            job.failure = f"the probe had not ended within {span(policy.probe_timeout_seconds)}"
            turn.tell(job.job_id, "probe-failed", job.failure)
            ledger.stops(job)
    call_up(turn, ledger)


def call_up(turn: Turn, ledger: Ledger) -> None:
    """Those that have waited past the bound go before others from now on, as far as their share of the slots reaches.

    One is called at any time, however wide it is; a policy whose share is all of the cluster needs no calling.
    """
    if not ledger.late:
        return
    room = turn.state.policy.starvation_share * ledger.capacity.slots
    room -= sum(turn.state.jobs[job_id].spec.ranks for job_id in ledger.overdue)
    while (job := ledger.latest()) is not None and (not ledger.overdue or job.spec.ranks <= room):
        room -= job.spec.ranks
        job.overdue = True
        ledger.file(job)
        waited = span((turn.now_ns - job.submitted_ns - job.run_ns) / 1e9)
        turn.tell(job.job_id, "overdue", f"has waited {waited} in all, and goes before others from now on")


def _is_late_start(job: Job, age_ns: int, timeout_seconds: float) -> bool:
    return job.state is JobState.STARTING and timeout_seconds > 0 and age_ns >= nanoseconds(timeout_seconds)


def _is_late_probe(job: Job, age_ns: int, timeout_seconds: float) -> bool:
    """Users' jobs may overrun; a probe that does has shown what it was to show."""
    return job.spec.kind is JobKind.PROBE and job.state is JobState.RUNNING and age_ns >= nanoseconds(timeout_seconds)
