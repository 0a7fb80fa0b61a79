"""Observations: what the backend saw. After a restart it tells everything again, so each is taken in at most once."""

from __future__ import annotations

import signal

from scheduler_feedback.core.cluster import Node
from scheduler_feedback.core.cycle_context import Turn, span
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
    as_seen,
)
from scheduler_feedback.core.job import Job, JobKind, JobState, RankRecord, Slot, StopReason
from scheduler_feedback.policies.index import runtime_history
from scheduler_feedback.policies.index.scheduling_index import ledger_of
from scheduler_feedback.policies.intake.user_requests import end
from scheduler_feedback.policies.intake.verdict_events import drop_verdicts_of
from scheduler_feedback.policies.queue.order.fair import appraise
from scheduler_feedback.policies.remediation.decision_scores import score_applied


def node_seen(turn: Turn, event: NodeSeen) -> None:
    node = turn.state.nodes.get(event.node)
    if node is None:
        if event.present:
            node = turn.state.nodes[event.node] = Node(event.node, event.slots, since_ns=turn.now_ns)
            _describe(node, event)
            ledger_of(turn.state).nodes_came()
            turn.tell(f"node:{event.node}", "seen", f"a node with {event.slots} slots")
        return
    if node.present is not event.present:
        kind, text = ("seen", "is back") if event.present else ("absent", "is gone: it takes nothing until it is back")
        turn.tell(f"node:{event.node}", kind, text)
    elif event.present and node.slots != event.slots:
        turn.tell(f"node:{event.node}", "seen", f"has {event.slots} slots now, {node.slots} before")
    if as_seen(node) == event:
        return
    node.present = event.present
    if event.present:
        _describe(node, event)
        ledger_of(turn.state).nodes_came()
    ledger_of(turn.state).node_changed(node)


def _describe(node: Node, event: NodeSeen) -> None:
    node.slots, node.devices, node.machine, node.gpu_type = event.slots, event.devices, event.machine, event.gpu_type
    node.spine, node.rack, node.rail, node.island = event.spine, event.rack, event.rail, event.island
    node.island_slots, node.refuses, node.queues = event.island_slots, event.refuses, event.queues


def attempt_running(turn: Turn, event: AttemptRunning) -> None:
    job = _held(turn, event.job_id, event.attempt, "running")
    if job is None:
        return
    if event.ranks:
        seen = {rank.rank: rank for rank in event.ranks}
        job.ranks = [
            RankRecord(old.rank, Slot(new.node, new.slot), new.pid, new.start_time, old.exit_code)
            if (new := seen.get(old.rank)) is not None
            else old
            for old in job.ranks
        ]
        if job.state is JobState.RUNNING:
            ledger_of(turn.state).runs(job)
    if job.state is JobState.STARTING:
        job.state = JobState.RUNNING
        job.excluded_nodes = ()
        ledger_of(turn.state).runs(job)
        began = turn.now_ns - (job.attempt_started_ns or turn.now_ns)
        turn.tell(job.job_id, "running", f"all ranks of attempt {job.attempt} run, {span(began / 1e9)} after the start")


def first_step(turn: Turn, event: FirstStep) -> None:
    job = _held(turn, event.job_id, event.attempt, "first step")
    if job is None or job.first_step_ns is not None:
        return
    job.first_step_ns = event.wall_ns
    turn.tell(job.job_id, "first-step", f"attempt {job.attempt} made its first step, number {event.step}")
    score_applied(turn, job, event.wall_ns)


def progressed(turn: Turn, event: Progressed) -> None:
    """What is left is counted from here on."""
    job = _held(turn, event.job_id, event.attempt, "progress")
    if job is not None:
        job.done_seconds, job.progress_ns = event.done_seconds, turn.now_ns
        ledger_of(turn.state).expect_anew(job)


def rank_failed(turn: Turn, event: RankFailed) -> None:
    """The gang cannot go on without the rank: it is to be stopped."""
    job = _held(turn, event.job_id, event.attempt, "failure of a rank")
    if job is None or job.stop_reason is not None:
        return
    job.stop_reason = StopReason.RANK_FAILED
    job.failure = exit_in_words(event.rank, event.exit_code)
    ledger_of(turn.state).stops(job)
    turn.tell(job.job_id, "rank-failed", f"{job.failure} while others still ran")


def attempt_ended(turn: Turn, event: AttemptEnded) -> None:
    """No process of the attempt is left: what the job becomes depends on why it ended."""
    job = _held(turn, event.job_id, event.attempt, "end")
    if job is None:
        return
    codes, other = {item.rank: item.exit_code for item in event.exits}, event.all_exited_with
    job.ranks = [
        RankRecord(r.rank, r.slot, r.pid, r.start_time, codes.get(r.rank, r.exit_code if other is None else other))
        for r in job.ranks
    ]
    if event.checkpointed is not None:
        _tell_of_checkpoint(turn, job, event.checkpointed)
    _leave_attempt(turn, job, event.ended_wall_ns, event.started, event.done_seconds)
    completed = event.started and (
        all(codes.get(r.rank, other) == 0 for r in job.ranks) if codes else other == 0 or not job.ranks
    )
    if job.spec.kind is JobKind.HOSTED:  # what becomes of it is decided where it is hosted
        moved = job.stop_reason is not None
        if completed and not moved:
            runtime_history.learn(turn.state, job, _lived(job))
        state = JobState.CANCELLED if moved else JobState.COMPLETED if completed else JobState.FAILED
        end(turn, job, state, event.reason or failure_in_words(job, event))
        return
    # Many trainings save and exit with 0 when told to stop. One that had finished all the same loses nothing by another
    # attempt: it resumes from its last checkpoint and ends at once.
    again = job.stop_reason in (StopReason.MIGRATE, StopReason.PREEMPT, StopReason.RESIZE)
    saved = again and event.signalled
    if job.stop_reason is StopReason.CANCEL:
        end(turn, job, JobState.CANCELLED, job.failure or "cancelled")
    elif job.stop_reason is None and event.why == StopReason.CANCEL:
        end(turn, job, JobState.CANCELLED, event.reason or "cancelled")
    elif completed and not saved:
        runtime_history.learn(turn.state, job, _lived(job))
        end(turn, job, JobState.COMPLETED, "all ranks exited with 0")
    elif again:
        why = job.failure if job.stop_reason is not StopReason.MIGRATE else ""
        _wait_again(turn, job, why or ("stopped to be moved" if job.claim else "stopped to wait for another place"))
    elif job.stop_reason is None and not event.started:
        end(turn, job, JobState.FAILED, f"it could not be started: {event.reason or 'the backend gave no reason'}")
    else:
        _fail(turn, job, job.failure or failure_in_words(job, event))


def _tell_of_checkpoint(turn: Turn, job: Job, done: Checkpointed) -> None:
    """It was signalled whatever the command said; a save that failed costs it what came since the one before."""
    if done.exit_code is None:
        text = f"the checkpoint command of attempt {job.attempt} saved nothing: {done.reason}"
    else:
        text = (
            f"the checkpoint command of attempt {job.attempt} exited with {done.exit_code} after {span(done.seconds)}"
        )
    code = "" if done.exit_code is None else str(done.exit_code)
    turn.tell(job.job_id, "checkpoint", text, (("exit_code", code), ("seconds", f"{done.seconds:.3f}")))


def attempt_unknown(turn: Turn, event: AttemptUnknown) -> None:
    """The backend holds nothing of the attempt.

    A start that was never carried out is decided anew. An attempt that did run and has left no trace may have done its
    work: only a job that can be restarted is started again.
    """
    job = _held(turn, event.job_id, event.attempt, "loss")
    if job is None:
        return
    ran = any(rank.pid is not None for rank in job.ranks)
    _leave_attempt(turn, job, 0, ran)
    if job.stop_reason is StopReason.CANCEL:
        end(turn, job, JobState.CANCELLED, job.failure or "cancelled")
    elif ran and not job.spec.restartable:
        end(turn, job, JobState.FAILED, f"attempt {job.attempt} ran, and the backend has lost every trace of its end")
    else:
        _wait_again(turn, job, f"attempt {job.attempt} is void: the backend holds nothing of it")


def action_failed(turn: Turn, event: ActionFailed) -> None:
    """The backend refused: the same is decided again after a pause."""
    job = turn.state.jobs.get(event.job_id)
    if job is None or not job.action_id or job.action_id != event.action_id:
        return
    job.action_id = ""
    again_ns = turn.after(turn.state.policy.retry_backoff_seconds)
    again = f"it is tried again in {span(turn.state.policy.retry_backoff_seconds)}"
    if job.state is JobState.STARTING:
        turn.tell(job.job_id, "refused", f"attempt {job.attempt} could not be set going: {event.reason}; {again}")
        _leave_attempt(turn, job, 0, False)
        if job.stop_reason is StopReason.CANCEL:
            end(turn, job, JobState.CANCELLED, job.failure or "cancelled")
        else:
            _wait_again(turn, job, f"the backend refused to start it: {event.reason}")
            job.not_before_ns = again_ns
            ledger_of(turn.state).file(job)
    elif job.state is JobState.STOPPING:
        job.not_before_ns = again_ns
        ledger_of(turn.state).stops(job)
        turn.tell(job.job_id, "refused", f"attempt {job.attempt} could not be stopped: {event.reason}; {again}")


def _held(turn: Turn, job_id: str, attempt: int, what: str) -> Job | None:
    """The job, if it is this attempt of it that holds slots. An attempt that nobody asked for is worth a sentence."""
    job = turn.state.jobs.get(job_id)
    if job is None:
        return None
    if attempt > job.attempt:
        turn.tell(job_id, "ignored", f"the backend reports the {what} of attempt {attempt}, which was never decided")
        return None
    return job if attempt == job.attempt and job.state.holds_slots else None


def _leave_attempt(turn: Turn, job: Job, ended_wall_ns: int, ran: bool, done_seconds: float | None = None) -> None:
    """The attempt holds no slots any more; its verdicts fall with it."""
    begun_ns = job.attempt_started_ns if job.attempt_started_ns is not None else turn.now_ns
    job.attempt_ended_ns = min(max(ended_wall_ns, begun_ns), turn.now_ns) if ended_wall_ns else turn.now_ns
    if ran:
        job.run_ns += job.attempt_ended_ns - begun_ns
    job.done_seconds = done_seconds if done_seconds is not None else _work_done(job, begun_ns, ran)
    job.progress_ns = None
    job.stopping_ns, job.action_id, job.not_before_ns = None, "", 0
    if turn.state.verdicts:
        drop_verdicts_of(turn, job.job_id, "the attempt has ended")


def _lived(job: Job) -> float:
    """The work that it took the job to end, in seconds."""
    if job.spec.restartable:
        return job.done_seconds or 0.0
    return ((job.attempt_ended_ns or 0) - (job.attempt_started_ns or 0)) / 1e9 * job.speed


def _work_done(job: Job, begun_ns: int, ran: bool) -> float:
    """What is saved when nobody says: the time run, without the restart that came first."""
    done = job.done_seconds or 0.0
    assert job.attempt_ended_ns is not None
    if not ran or not job.spec.restartable:
        return done
    if job.progress_ns is not None:
        return done + max(job.attempt_ended_ns - job.progress_ns, 0) / 1e9 * job.speed
    restart = job.spec.restart_cost_seconds if job.attempt > 1 else 0.0
    return done + max((job.attempt_ended_ns - begun_ns) / 1e9 - restart, 0.0) * job.speed


def _wait_again(turn: Turn, job: Job, why: str) -> None:
    job.state, job.stop_reason, job.failure = JobState.PENDING, None, why
    appraise(turn.state, job, turn.now_ns)
    ledger_of(turn.state).file(job)
    turn.arrived.append(job.job_id)
    turn.tell(job.job_id, "pending", f"waits for its next attempt: {why}")


def _fail(turn: Turn, job: Job, why: str) -> None:
    """The attempt failed: another one if the job allows it, else the end."""
    job.claim = []
    if job.retries >= job.spec.max_retries:
        end(turn, job, JobState.FAILED, why)
        return
    job.retries += 1
    _wait_again(turn, job, f"{why}; retry {job.retries} of {job.spec.max_retries}")


def failure_in_words(job: Job, event: AttemptEnded) -> str:
    """Why the attempt counts as failed: its first rank, by number, that did not exit with 0."""
    codes = {item.rank: item.exit_code for item in event.exits}
    for record in job.ranks:
        if (code := codes.get(record.rank, event.all_exited_with)) != 0:
            return exit_in_words(record.rank, code)
    return "it ended before all of its ranks had been started"


def exit_in_words(rank: int, code: int | None) -> str:
    """'rank 2 exited with 1'; a code of 128 + n is a death by signal n, as a shell counts."""
    if code is None:
        return f"how rank {rank} ended could not be learnt"
    if code > 128:
        try:
            return f"rank {rank} was killed by {signal.Signals(code - 128).name}"
        except ValueError:
            pass
    return f"rank {rank} exited with {code}"
