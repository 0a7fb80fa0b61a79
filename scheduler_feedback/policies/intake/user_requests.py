"""Requests of users and operators, applied to the state. A repeated request changes nothing."""

from __future__ import annotations

from dataclasses import fields

from scheduler_feedback.core.cluster import Node, NodeState
from scheduler_feedback.core.events import (
    CancelRequested,
    FreezeSet,
    NodeCommand,
    NodeCommanded,
    PolicySet,
    Submitted,
    VerdictJudged,
)
from scheduler_feedback.core.job import Job, JobState, StopReason
from scheduler_feedback.core.state import Policy, State
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.index.scheduling_index import index_of
from scheduler_feedback.policies.intake.job_admission import malformed
from scheduler_feedback.policies.intake.verdict_events import drop_verdict, subject_of
from scheduler_feedback.policies.mig.demand import note_instances
from scheduler_feedback.policies.nodes import draining, quarantine
from scheduler_feedback.policies.shares.seen_requests import note_request


def submitted(context: CycleContext, event: Submitted) -> None:
    """Add a pending job. A malformed job fails at once; the API rejects such jobs earlier."""
    if event.job_id in context.state.jobs:
        return
    spec = event.spec
    wrong = malformed(spec)
    if spec.array_size and wrong is None:
        _submitted_array(context, event)
        return
    array, number = event.array_of, event.array_index
    state = JobState.PENDING if wrong is None else JobState.FAILED
    job = Job(event.job_id, spec, state, context.now_ns, attempt=event.attempt, array_of=array, array_index=number)
    limit = "no time limit" if spec.time_limit_seconds is None else f"time limit {spec.time_limit_seconds:g} s"
    ranks = f"{spec.ranks} rank{'' if spec.ranks == 1 else 's'}"
    context.record(job.job_id, "submitted", f"{spec.name or job.job_id}: {ranks}, {limit}{_by(spec.user)}{_for(event)}")
    if wrong is None:
        arrived(context, job)
    else:
        context.index.add_job(job)
        end(context, job, JobState.FAILED, wrong)


def _submitted_array(context: CycleContext, event: Submitted) -> None:
    """Add each member of the array as a separate job: 'ID.0', 'ID.1', ..."""
    spec = event.spec
    text = f"{spec.name or event.job_id}: an array of {spec.array_size} jobs, {spec.ranks} ranks each{_by(spec.user)}"
    text += _for(event)
    context.record(event.job_id, "submitted", text)
    for index in range(spec.array_size):
        job_id = f"{event.job_id}.{index}"
        if job_id not in context.state.jobs:
            job = Job(job_id, spec, JobState.PENDING, context.now_ns, array_of=event.job_id, array_index=index)
            arrived(context, job)


def arrived(context: CycleContext, job: Job) -> None:
    """Add a new job to the queue."""
    context.index.add_job(job)
    note_request(context.state, job)
    note_instances(context.state, job)
    context.arrived.append(job.job_id)


def cancel_requested(context: CycleContext, event: CancelRequested) -> None:
    """Cancel a job. A pending job ends at once. An active job ends as cancelled once its processes have ended."""
    job = context.state.jobs.get(event.job_id)
    if job is None:
        for member in sorted(array_members(context.state, event.job_id)):
            cancel_requested(context, CancelRequested(member, event.by))
        return
    if job.state.ended or job.stop_reason is StopReason.CANCEL:
        return
    if job.state is JobState.PENDING:
        end(context, job, JobState.CANCELLED, f"cancelled while pending{_by(event.by)}")
        return
    context.index.cancel(job, f"cancelled{_by(event.by)}")
    context.record(job.job_id, "cancel", f"cancellation requested{_by(event.by)}")


def array_members(state: State, array: str) -> set[str]:
    """Return the ids of the array's jobs; empty if there is no such array."""
    found = index_of(state).dependencies.arrays.get(array)
    return set() if found is None else found.members


def node_commanded(context: CycleContext, event: NodeCommanded) -> None:
    node = context.state.nodes.get(event.node)
    if node is None or _is_so(node, event):
        return
    if event.command is NodeCommand.REMOVE:
        draining.remove(context, node, event.by, event.reason)
    elif event.command is NodeCommand.RELEASE:
        quarantine.release(context, node, event.by, event.reason)
    elif event.command is NodeCommand.QUARANTINE:
        quarantine.quarantine_by_operator(context, node, event.by, event.reason)
    else:
        quarantine.maintain(context, node, event.by, event.reason, event.drain)


def _is_so(node: Node, event: NodeCommanded) -> bool:
    """Return whether the command would change nothing, because the node already has the requested state."""
    command = event.command
    if command is NodeCommand.REMOVE:
        return False
    if command is NodeCommand.RELEASE:
        return node.state is NodeState.HEALTHY and not node.backoff
    if command is NodeCommand.QUARANTINE:
        return node.state is NodeState.QUARANTINE and node.until_ns is None and node.probe_job is None
    return node.state is NodeState.MAINTENANCE and (node.draining or not event.drain)


def verdict_judged(context: CycleContext, event: VerdictJudged) -> None:
    """Apply an operator's judgement of a verdict. A rejected verdict has no effect, even if it is reported again."""
    if context.state.judged.get(event.verdict_id) is event.confirmed:
        return
    context.state.judged[event.verdict_id] = event.confirmed
    verdict = context.state.verdicts.get(event.verdict_id)
    past = (one.verdict for one in context.state.past_verdicts if one.verdict.verdict_id == event.verdict_id)
    judged = verdict or next(past, None)
    word = "confirmed" if event.confirmed else "rejected"
    if judged is not None:
        context.record(subject_of(judged), f"verdict-{word}", f"verdict {event.verdict_id} was {word}{_by(event.by)}")
    if event.confirmed:
        quarantine.confirm(context, event.verdict_id, event.by)
        return
    quarantine.reject(context, event.verdict_id, event.by)
    if verdict is not None:
        drop_verdict(context, verdict, "an operator rejected it")


def freeze_set(context: CycleContext, event: FreezeSet) -> None:
    if context.state.frozen is event.frozen:
        return
    context.state.frozen = event.frozen
    context.index.evaluate_all()
    context.state.frozen_by = event.by if event.frozen else ""
    kind, text = ("frozen", "all actions are frozen") if event.frozen else ("thawed", "actions are allowed again")
    context.record("cluster", kind, f"{text}{_by(event.by)}")


def policy_set(context: CycleContext, event: PolicySet) -> None:
    """Replace the policy, and log the settings that changed."""
    before = context.state.policy
    context.index.set_policy(event.policy)
    changed = tuple(
        (field.name, f"{getattr(before, field.name)} -> {getattr(event.policy, field.name)}")
        for field in fields(Policy)
        if getattr(before, field.name) != getattr(event.policy, field.name)
    )
    if changed:
        context.index.evaluate_all()
        context.record("cluster", "policy", f"policy changed{_by(event.by)}", changed)


def end(context: CycleContext, job: Job, state: JobState, reason: str) -> None:
    """End the job with a final state and a reason, and log it."""
    context.index.end(job, state, reason)
    context.record(job.job_id, "ended", f"{state}: {reason}")


def _by(who: str) -> str:
    return f" by {who}" if who else ""


def _for(event: Submitted) -> str:
    """Return a phrase that names the submitter if it is not the job's user; else ''."""
    return f", submitted by {event.by}" if event.by else ""
