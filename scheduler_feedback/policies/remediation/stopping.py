"""Stop requests to the backend for gangs with a stop reason."""

from __future__ import annotations

from scheduler_feedback.core.actions import StopGang
from scheduler_feedback.core.durations import span
from scheduler_feedback.core.job import JobState, StopReason
from scheduler_feedback.policies.cycle_context import CycleContext

_GOES_ON = frozenset({StopReason.MIGRATE, StopReason.PREEMPT, StopReason.RESIZE})


def ask_for_stops(context: CycleContext) -> None:
    """Request the stop of every gang with a stop reason. Repeat it if the backend refused it or did not act."""
    index = context.index
    for job_id in sorted(index.stopping):
        job = context.state.jobs[job_id]
        if job.stop_reason is None or not job.state.holds_slots or context.now_ns < job.not_before_ns:
            continue
        if context.state.frozen and job.stop_reason is not StopReason.CANCEL:
            continue
        spec, why = job.spec, job.stop_reason
        repeated = job.state is JobState.STOPPING
        # A gang that has not started has nothing to save. A gang that does not resume needs no checkpoint.
        command = spec.checkpoint_command if why in _GOES_ON and job.state is not JobState.STARTING else ()
        again_ns = context.after(spec.stop_seconds + context.state.policy.start_seconds)
        index.request_stop(job, context.action_id(), again_ns)
        reason = job.failure or why.value
        context.actions.append(
            StopGang(
                *(job.action_id, job.job_id, job.attempt, spec.checkpoint_signal, spec.grace_seconds, why, reason),
                checkpoint_command=command,
                checkpoint_timeout_seconds=spec.checkpoint_timeout_seconds if command else 0.0,
            )
        )
        again = " again" if repeated else ""
        first = f"{command[0]} within {span(spec.checkpoint_timeout_seconds)}, then " if command else ""
        context.record(
            job.job_id,
            "stopping",
            f"stop of attempt {job.attempt} requested{again} ({reason}): {first}{spec.checkpoint_signal}, "
            f"{span(spec.grace_seconds)} to save",
        )
