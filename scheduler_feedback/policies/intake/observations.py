"""Reports of the backend, applied to the state.

Every function may be called again with the same report, because a backend repeats all reports after a restart.
"""

from __future__ import annotations

import signal

from scheduler_feedback.core.durations import span
from scheduler_feedback.core.events import (
    ActionFailed,
    AttemptEnded,
    AttemptRunning,
    AttemptUnknown,
    Checkpointed,
    FirstStep,
    NodeSeen,
    Progressed,
    RankFailed,
    SpeedMeasured,
    as_seen,
)
from scheduler_feedback.core.job import Job, JobKind, JobState, RankRecord, Slot, StopReason
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.data.dataset_cache import note_use
from scheduler_feedback.policies.index import runtime_history
from scheduler_feedback.policies.intake.user_requests import end
from scheduler_feedback.policies.intake.verdict_events import drop_verdicts_of
from scheduler_feedback.policies.network import time_shifts
from scheduler_feedback.policies.power.own_limits import at_full_power
from scheduler_feedback.policies.remediation.decision_scores import score_applied
from scheduler_feedback.policies.sharing import memory_pressure
from scheduler_feedback.policies.speeds import learnt_speeds, learnt_traffic


def node_seen(context: CycleContext, event: NodeSeen) -> None:
    node = context.state.nodes.get(event.node)
    if node is None:
        if event.present:
            context.index.report_node(event)
            context.record(f"node:{event.node}", "seen", f"new node with {event.slots} slots")
        return
    if node.present is not event.present:
        kind, text = (
            ("seen", "reported again")
            if event.present
            else ("absent", "no longer reported: it gets no jobs until it is back")
        )
        context.record(f"node:{event.node}", kind, text)
    elif event.present and node.slots != event.slots:
        context.record(f"node:{event.node}", "seen", f"slots changed from {node.slots} to {event.slots}")
    if as_seen(node) != event:
        context.index.report_node(event)


def attempt_running(context: CycleContext, event: AttemptRunning) -> None:
    job = _held(context, event.job_id, event.attempt, "running")
    if job is None:
        return
    ranks = None
    if event.ranks:
        seen = {rank.rank: rank for rank in event.ranks}
        ranks = [
            RankRecord(old.rank, Slot(new.node, new.slot), new.pid, new.start_time, old.exit_code)
            if (new := seen.get(old.rank)) is not None
            else old
            for old in job.ranks
        ]
    starting = job.state is JobState.STARTING
    context.index.run(job, ranks)
    if starting:
        note_use(context.state, job.spec, (rank.slot.node for rank in job.ranks))
        began = context.now_ns - (job.attempt_started_ns or context.now_ns)
        text = f"all ranks of attempt {job.attempt} are running, {span(began / 1e9)} after the start"
        context.record(job.job_id, "running", text)


def first_step(context: CycleContext, event: FirstStep) -> None:
    job = _held(context, event.job_id, event.attempt, "first step")
    if job is None or job.first_step_ns is not None:
        return
    job.first_step_ns = event.wall_ns
    context.record(job.job_id, "first-step", f"attempt {job.attempt} made its first step, number {event.step}")
    score_applied(context, job, event.wall_ns)


def progressed(context: CycleContext, event: Progressed) -> None:
    """Record the job's reported progress, from which its remaining run time is estimated."""
    job = _held(context, event.job_id, event.attempt, "progress")
    if job is not None:
        context.index.report_progress(job, event.done_seconds)


def speed_measured(context: CycleContext, event: SpeedMeasured) -> None:
    """Learn the speed of the job's class, and correct the expected end of the job."""
    state = context.state
    job = _held(context, event.job_id, event.attempt, "speed")
    if job is None or job.stop_reason is not None or any(one.gang == job.job_id for one in state.verdicts.values()):
        return
    if job.spec.latency_objective_seconds:
        return  # the steps of a service are requests: their rate is its load
    if context.index.partners(job.job_id):
        return  # it says how fast the job is beside others, not what its class can do
    time_shifts.speed_measured(context, job, event)
    per_second = at_full_power(context, job, event.per_second, event.seconds)
    if per_second is None:
        return  # it was measured at several power limits
    if event.wait_share is not None and learnt_traffic.record_wait(state, job, event.wait_share, event.seconds):
        context.index.evaluate_all()
    if learnt_speeds.record(state, job, per_second, event.seconds, event.unit) is None:
        return
    place = learnt_speeds.placed(state, job)
    if place is not None and state.policy.learn_speeds:
        speed = learnt_speeds.learnt_of(state).speed(job.job_id, job.spec, *place)
        context.index.correct_speed(job, speed)


def rank_failed(context: CycleContext, event: RankFailed) -> None:
    """Request the stop of the gang of a failed rank, because a gang cannot continue without one of its ranks."""
    job = _held(context, event.job_id, event.attempt, "failure of a rank")
    if job is None or job.stop_reason is not None:
        return
    context.index.stop(job, StopReason.RANK_FAILED, exit_in_words(event.rank, event.exit_code))
    others = "; the other ranks are stopped" if len(job.ranks) > 1 else ""
    context.record(job.job_id, "rank-failed", f"{job.failure}{others}")


def attempt_ended(context: CycleContext, event: AttemptEnded) -> None:
    """Handle the end of an attempt: end the job, or put it back into the queue, depending on the reason."""
    job = _held(context, event.job_id, event.attempt, "end")
    if job is None:
        return
    codes, other = {item.rank: item.exit_code for item in event.exits}, event.all_exited_with
    ranks = [
        RankRecord(r.rank, r.slot, r.pid, r.start_time, codes.get(r.rank, r.exit_code if other is None else other))
        for r in job.ranks
    ]
    if event.checkpointed is not None:
        _log_checkpoint(context, job, event.checkpointed)
    out_of_memory = memory_pressure.ran_out(context, job, event)
    _leave_attempt(context, job, ranks, event.ended_wall_ns, event.started, event.done_seconds)
    completed = event.started and (
        all(codes.get(r.rank, other) == 0 for r in job.ranks) if codes else other == 0 or not job.ranks
    )
    if job.spec.kind is JobKind.EXTERNAL:  # its own scheduler decides whether it starts again
        moved = job.stop_reason is not None
        if completed and not moved:
            runtime_history.learn(context.state, job, _lived(job))
        state = JobState.CANCELLED if moved else JobState.COMPLETED if completed else JobState.FAILED
        end(context, job, state, event.reason or failure_in_words(job, event))
        return
    # Many training programs save and exit with 0 on a stop request. If the job had in fact finished, another attempt
    # costs little: it resumes from the last checkpoint and ends at once.
    again = job.stop_reason in (StopReason.MIGRATE, StopReason.PREEMPT, StopReason.RESIZE)
    saved = again and event.signalled
    if job.stop_reason is StopReason.CANCEL:
        end(context, job, JobState.CANCELLED, job.failure or "cancelled")
    elif job.stop_reason is None and event.why == StopReason.CANCEL:
        end(context, job, JobState.CANCELLED, event.reason or "cancelled")
    elif completed and not saved:
        runtime_history.learn(context.state, job, _lived(job))
        end(context, job, JobState.COMPLETED, "all ranks exited with 0")
    elif again:
        why = job.failure if job.stop_reason is not StopReason.MIGRATE else ""
        _wait_again(
            context, job, why or ("stopped to be moved" if job.claim else "stopped and put back into the queue")
        )
    elif job.stop_reason is None and not event.started:
        end(context, job, JobState.FAILED, f"it could not be started: {event.reason or 'the backend gave no reason'}")
    elif out_of_memory and job.spec.restartable:  # because of its place, so it costs no retry
        _wait_again(context, job, out_of_memory, keep_claim=False)
    else:
        _fail(context, job, out_of_memory or job.failure or failure_in_words(job, event))


def _log_checkpoint(context: CycleContext, job: Job, done: Checkpointed) -> None:
    """Log the result of the checkpoint command. The gang was stopped even if the command failed."""
    if done.exit_code is None:
        text = f"the checkpoint command of attempt {job.attempt} saved nothing: {done.reason}"
    else:
        text = (
            f"the checkpoint command of attempt {job.attempt} exited with {done.exit_code} after {span(done.seconds)}"
        )
    code = "" if done.exit_code is None else str(done.exit_code)
    context.record(job.job_id, "checkpoint", text, (("exit_code", code), ("seconds", f"{done.seconds:.3f}")))


def attempt_unknown(context: CycleContext, event: AttemptUnknown) -> None:
    """Handle an attempt of which the backend has no record.

    If the attempt never started, the job returns to the queue. An attempt that ran may have completed its work, so
    only a restartable job is started again.
    """
    job = _held(context, event.job_id, event.attempt, "loss")
    if job is None:
        return
    ran = any(rank.pid is not None for rank in job.ranks)
    _leave_attempt(context, job, job.ranks, 0, ran)
    if job.stop_reason is StopReason.CANCEL:
        end(context, job, JobState.CANCELLED, job.failure or "cancelled")
    elif ran and not job.spec.restartable:
        end(context, job, JobState.FAILED, f"attempt {job.attempt} ran, but the backend has no record of its end")
    else:
        _wait_again(context, job, f"attempt {job.attempt} is lost: the backend has no record of it")


def action_failed(context: CycleContext, event: ActionFailed) -> None:
    """Handle an action that the backend could not do. The cycle decides again after ``retry_backoff_seconds``."""
    job = context.state.jobs.get(event.job_id)
    if job is None or not job.action_id or job.action_id != event.action_id:
        return
    job.action_id = ""
    again_ns = context.after(context.state.policy.retry_backoff_seconds)
    again = f"next try in {span(context.state.policy.retry_backoff_seconds)}"
    if job.state is JobState.STARTING:
        context.record(job.job_id, "refused", f"attempt {job.attempt} could not be started: {event.reason}; {again}")
        _leave_attempt(context, job, job.ranks, 0, False)
        if job.stop_reason is StopReason.CANCEL:
            end(context, job, JobState.CANCELLED, job.failure or "cancelled")
        else:
            _wait_again(context, job, f"the backend refused to start it: {event.reason}", again_ns)
    elif job.state is JobState.STOPPING:
        context.index.repeat_stop(job, again_ns)
        context.record(job.job_id, "refused", f"attempt {job.attempt} could not be stopped: {event.reason}; {again}")


def _held(context: CycleContext, job_id: str, attempt: int, what: str) -> Job | None:
    """Return the job of a backend's report if the report is about its active attempt, else None.

    A report of an attempt that was never started is logged. what: name of the report for the log entry.
    """
    job = context.state.jobs.get(job_id)
    if job is None:
        return None
    if attempt > job.attempt:
        text = f"ignored the {what} of attempt {attempt}: the backend reports it, but gangwatch never started it"
        context.record(job_id, "ignored", text)
        return None
    return job if attempt == job.attempt and job.state.holds_slots else None


def _leave_attempt(
    context: CycleContext,
    job: Job,
    ranks: list[RankRecord],
    ended_wall_ns: int,
    ran: bool,
    done_seconds: float | None = None,
) -> None:
    """Record the end of the attempt, and clear its verdicts."""
    begun_ns = job.attempt_started_ns if job.attempt_started_ns is not None else context.now_ns
    ended_ns = min(max(ended_wall_ns, begun_ns), context.now_ns) if ended_wall_ns else context.now_ns
    done = done_seconds if done_seconds is not None else _work_done(job, begun_ns, ended_ns, ran)
    context.index.leave_attempt(job, ranks, ended_ns, ended_ns - begun_ns if ran else 0, done)
    if ran:
        note_use(context.state, job.spec, (rank.slot.node for rank in ranks))
    if context.state.verdicts:
        drop_verdicts_of(context, job.job_id, "the attempt has ended")


def _lived(job: Job) -> float:
    """Return the total work of a completed job, in seconds at full speed."""
    if job.spec.restartable:
        return job.done_seconds or 0.0
    return ((job.attempt_ended_ns or 0) - (job.attempt_started_ns or 0)) / 1e9 * job.speed


def _work_done(job: Job, begun_ns: int, ended_ns: int, ran: bool) -> float:
    """Return the job's saved work in seconds, estimated from its run time because the backend did not report it."""
    done = job.done_seconds or 0.0
    if not ran or not job.spec.restartable:
        return done
    if job.progress_ns is not None:
        return done + max(ended_ns - job.progress_ns, 0) / 1e9 * job.speed
    restart = job.spec.restart_cost_seconds if job.attempt > 1 else 0.0
    return done + max((ended_ns - begun_ns) / 1e9 - restart, 0.0) * job.speed


def _wait_again(context: CycleContext, job: Job, why: str, not_before_ns: int = 0, keep_claim: bool = True) -> None:
    context.index.requeue(job, why, not_before_ns, keep_claim)
    context.arrived.append(job.job_id)
    context.record(job.job_id, "pending", f"waits for its next attempt: {why}")


def _fail(context: CycleContext, job: Job, why: str) -> None:
    """Start another attempt if the job has retries left, else end the job as failed."""
    if job.retries >= job.spec.max_retries:
        end(context, job, JobState.FAILED, why)
        return
    job.retries += 1
    _wait_again(context, job, f"{why}; retry {job.retries} of {job.spec.max_retries}", keep_claim=False)


def failure_in_words(job: Job, event: AttemptEnded) -> str:
    """Return why the attempt failed: the exit status of the lowest rank that did not exit with 0."""
    codes = {item.rank: item.exit_code for item in event.exits}
    for record in job.ranks:
        if (code := codes.get(record.rank, event.all_exited_with)) != 0:
            return exit_in_words(record.rank, code)
    return "it ended before all of its ranks were started"


def exit_in_words(rank: int, code: int | None) -> str:
    """Describe an exit status, such as 'rank 2 exited with 1'. A code of 128 + n means killed by signal n."""
    if code is None:
        return f"the exit status of rank {rank} is unknown"
    if code > 128:
        try:
            return f"rank {rank} was killed by {signal.Signals(code - 128).name}"
        except ValueError:
            pass
    return f"rank {rank} exited with {code}"
