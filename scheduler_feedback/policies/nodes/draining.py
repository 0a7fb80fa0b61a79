"""Draining of nodes in maintenance, and removal of nodes that are gone."""

from __future__ import annotations

from scheduler_feedback.core.cluster import Node
from scheduler_feedback.core.job import Job, JobKind, JobState
from scheduler_feedback.core.state import Mode, State
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.intake.verdict_events import drop_verdict
from scheduler_feedback.policies.nodes.quarantine import drop_probe


def drain(context: CycleContext) -> None:
    """Stop every running, restartable gang with ranks on a draining node, so that it continues elsewhere.

    If no slots are free, the gang waits in its queue. In observe mode and during a freeze nothing is stopped.
    """
    index = context.index
    state = context.state
    nodes = {name for name in index.doubtful if state.nodes[name].draining}
    if not nodes or state.frozen or state.policy.mode is Mode.OBSERVE:
        return
    for job_id in sorted(index.running):
        job = state.jobs[job_id]
        on_them = sorted(nodes.intersection(rank.slot.node for rank in job.ranks))
        if not on_them or not may_leave(job) or job.state is not JobState.RUNNING or job.stop_reason is not None:
            continue
        context.decide(job_id, "drain", f"will be moved: {', '.join(on_them)} is being drained")
        job.migrations += 1
        index.move(job)


def may_leave(job: Job) -> bool:
    """Return whether a drain moves the job. External jobs and jobs that are not restartable are not moved."""
    return job.spec.restartable and job.spec.kind is JobKind.TRAINING


def why_not_removed(state: State, node: Node) -> str | None:
    """Return why the node cannot be removed now, and what to do; None if it can."""
    if node.present:
        return (
            f"{node.name} still reports, so it would come back at once. Stop it first: start gangwatch without it, "
            "`kubectl delete node`, or remove it from slurm.conf"
        )
    if jobs := jobs_on(state, node.name):
        names = ", ".join(job.job_id for job in jobs)
        return f"{names} still holds slots of {node.name}: `gangwatch cancel` it, or wait until it has ended"
    return None


def jobs_on(state: State, node: str) -> list[Job]:
    """Return the jobs that hold slots of the node, in the order of their submission."""
    return [job for job in state.jobs.values() if job.state.holds_slots and any(r.slot.node == node for r in job.ranks)]


def remove(context: CycleContext, node: Node, by: str, reason: str) -> None:
    """Remove the node and the verdicts about it, unless it is present or in use again."""
    state = context.state
    if why_not_removed(state, node) is not None:
        return
    drop_probe(context, node)
    for verdict in [one for one in state.verdicts.values() if one.node == node.name]:
        drop_verdict(context, verdict, "its node was removed")
    context.index.remove_node(node)
    who = f" by {by}" if by else ""
    context.record(f"node:{node.name}", "removed", f"removed{who}{f': {reason}' if reason else ''}")
