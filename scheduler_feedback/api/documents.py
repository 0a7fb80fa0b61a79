"""Functions that build the JSON documents of the API from the state. No document contains a job's environment.

core/disclosure.py defines which fields a reader may see.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from scheduler_feedback.core.actions import StartGang
from scheduler_feedback.core.cluster import Node
from scheduler_feedback.core.codec import printable
from scheduler_feedback.core.disclosure import for_journal
from scheduler_feedback.core.job import Job, JobState, RankRecord, Slot
from scheduler_feedback.core.state import Decision, PastVerdict, State
from scheduler_feedback.core.verdict import Verdict
from scheduler_feedback.core.verdict_text import sentence, short
from scheduler_feedback.feed.agent_reporting import AgentStatus, AgentStatuses
from scheduler_feedback.journal.store import JournalRow, NumberedEntry, RecordedAction
from scheduler_feedback.policies.nodes.draining import jobs_on, may_leave
from scheduler_feedback.policies.queue import order
from scheduler_feedback.policies.queue.waiting_reasons import why_waits

Document = dict[str, Any]


def job_document(
    state: State,
    job: Job,
    verdicts: Sequence[Document | msgspec.Raw] | None = None,
    reasons: State | None = None,
    ranks: msgspec.Raw | None = None,
) -> Document:
    """Return the document of a job with its newest attempt and all verdicts about it.

    verdicts: the documents of these verdicts, which may be encoded; None: they are computed here. reasons: a state with
    a scheduling index, to compute why the job is pending; None: `state`. ranks: encoded result of ``rank_documents``;
    None: not encoded.
    """
    spec = job.spec
    if verdicts is None:
        verdicts = [verdict for verdict in verdicts_document(state) if verdict["job"] == job.job_id]
    return {
        "job": job.job_id,
        "name": spec.name,
        "state": job.state.value,
        "attempt": job.attempt,
        "ranks": rank_documents(job.ranks) if ranks is None else ranks,
        "verdicts": verdicts,
        "kind": spec.kind.value,
        "user": spec.user,
        "queue": spec.queue,
        "size": spec.ranks,
        "command": list(spec.command),
        "checkpoint_command": list(spec.checkpoint_command),
        "working_directory": spec.working_directory,
        "restartable": spec.restartable,
        "time_limit_seconds": spec.time_limit_seconds,
        "max_retries": spec.max_retries,
        "retries": job.retries,
        "submitted_ns": job.submitted_ns,
        "started_ns": job.started_ns,
        "attempt_started_ns": job.attempt_started_ns,
        "first_step_ns": job.first_step_ns,
        "ended_ns": job.ended_ns,
        "waiting_because": waiting_because(reasons or state, job),
        "expected_start_ns": job.expected_start_ns,
        "reason": job.end_reason or job.failure,
        "run_seconds": run_seconds(state, job),
    }


def rank_documents(ranks: Iterable[RankRecord]) -> list[Document]:
    """Return the documents of a job's ranks."""
    return [
        {
            "rank": rank.rank,
            "node": rank.slot.node,
            "slot": rank.slot.slot,
            "pid": rank.pid,
            "start_time": rank.start_time,
            "exit_code": rank.exit_code,
        }
        for rank in ranks
    ]


def jobs_document(
    state: State, active: bool, states: Container[str] | None = None, user: str = "", queue: str = ""
) -> list[Document]:
    """Return the documents of jobs and probes, in the order of submission.

    active: leave out ended jobs. states: only jobs in one of these states; None for any. user, queue: '' for any.
    """
    verdicts: dict[str, list[Document]] = {}
    for verdict in verdicts_document(state):
        verdicts.setdefault(verdict["job"], []).append(verdict)
    return [
        job_document(state, job, verdicts.get(job.job_id, []))
        for job in state.jobs.values()
        if not (active and job.state.ended)
        and (states is None or job.state.value in states)
        and user in ("", job.spec.user)
        and queue in ("", job.spec.queue)
    ]


def waiting_because(state: State, job: Job) -> str:
    """Return why the job is pending, as a sentence; '' for other jobs."""
    return why_waits(state, job) if job.state is JobState.PENDING else ""


def run_seconds(state: State, job: Job) -> float:
    """Return the run time of all attempts in seconds."""
    if job.state.holds_slots and job.attempt_started_ns is not None:
        return (job.run_ns + max(state.now_ns - job.attempt_started_ns, 0)) / 1e9
    return job.run_ns / 1e9


def verdict_document(state: State, verdict: Verdict, past: PastVerdict | None = None) -> Document:
    """Return the document of a verdict, with the decision about it and the review of an operator."""
    case = state.open_decisions.get(verdict.verdict_id)
    return {
        "job": verdict.gang,
        **msgspec.to_builtins(verdict),
        "sentence": sentence(verdict),
        "short": short(verdict),
        "standing": past is None,
        "until_ns": None if past is None else past.until_ns,
        "ended_because": "" if past is None else past.why,
        "judged": state.judged.get(verdict.verdict_id),
        "ruling": case.choice if case is not None else "",
        "ruling_reason": case.reason if case is not None else "",
    }


def verdicts_document(state: State) -> list[Document]:
    """Return the documents of all active verdicts, then of past verdicts, the newest first."""
    active = [verdict_document(state, verdict) for verdict in state.verdicts.values()]
    return active + [verdict_document(state, past.verdict, past) for past in reversed(state.past_verdicts)]


def nodes_document(state: State) -> list[Document]:
    """Return the documents of all nodes, sorted by name, each with the jobs on the node."""
    on_node: dict[str, dict[str, int]] = {name: {} for name in state.nodes}
    for job in state.jobs.values():
        if job.state.holds_slots:
            for rank in job.ranks:
                jobs = on_node.setdefault(rank.slot.node, {})
                jobs[job.job_id] = jobs.get(job.job_id, 0) + 1
    return [node_document(node, on_node[name]) for name, node in sorted(state.nodes.items())]


def with_agent_status(nodes: list[Document], statuses: Mapping[str, AgentStatus]) -> list[Document]:
    """Add the agent's status to each node's document: {"age_seconds", "silent", "words"}; None if not known."""
    return [node | {"agent": agent_document(statuses.get(node["node"]))} for node in nodes]


def agent_document(status: AgentStatus | None) -> Document | None:
    """Return the document of an agent's status; None if it is not known."""
    if status is None:
        return None
    return {"age_seconds": status.age_seconds, "silent": status.silent, "words": status.words}


def silent_agents(statuses: AgentStatuses, nodes: Iterable[str]) -> list[Document]:
    """Return the nodes among `nodes` whose agent is not reporting, the longest outage first."""
    return [
        {"node": node, "age_seconds": one.age_seconds, "since_ns": one.since_ns} for node, one in statuses.silent(nodes)
    ]


def node_document(node: Node, jobs: Mapping[str, int]) -> Document:
    """Return the document of a node. jobs: number of ranks on the node, by job id."""
    return {
        "node": node.name,
        "state": node.state.value,
        "present": node.present,
        "slots": node.slots,
        "free": max(0, node.slots - sum(jobs.values())) if node.present else 0,
        "jobs": [{"job": job, "ranks": ranks} for job, ranks in jobs.items()],
        "devices": list(node.devices),
        "machine": node.machine,
        "since_ns": node.since_ns,
        "until_ns": node.until_ns,
        "reason": node.reason,
        "verdict_id": node.verdict_id,
        "probe_job": node.probe_job,
        "spare": node.spare,
        "draining": node.draining,
    }


def left_on(state: State, node: str) -> Document:
    """Return the jobs that hold slots of the node, and whether a drain can move each of them."""
    found = state.nodes.get(node)
    return {
        "state": found.state.value if found is not None else "removed",
        "draining": found is not None and found.draining,
        "frozen": state.frozen,
        "mode": state.policy.mode.value,
        "jobs": [
            {
                "job": job.job_id,
                "name": job.spec.name,
                "user": job.spec.user,
                "state": job.state.value,
                "ranks": sum(rank.slot.node == node for rank in job.ranks),
                "movable": may_leave(job),
                "moving": job.stop_reason is not None,
            }
            for job in jobs_on(state, node)
        ],
    }


def queue_document(state: State) -> Document:
    """Return the pending jobs in scheduling order, and the head job's reservation."""
    frame = queue_frame(state)
    return frame | {"waiting": [waiting_document(job, state) for job in order.queue(state)]}


def waiting_document(job: Job, reasons: State) -> Document:
    """Return the document of a pending job. reasons: a state with a scheduling index, to compute why it is pending."""
    return {
        "job": job.job_id,
        "name": job.spec.name,
        "size": job.spec.ranks,
        "submitted_ns": job.submitted_ns,
        "waiting_because": waiting_because(reasons, job),
        "expected_start_ns": job.expected_start_ns,
    }


def queue_frame(state: State) -> Document:
    """Return the document of the queue without the list of jobs."""
    return {
        "frozen": state.frozen,
        "frozen_by": state.frozen_by,
        "waiting": [],
        "reserved_for": state.reserved_for,
        "reserved_from_ns": state.reserved_from_ns,
        "reserved_nodes": dict(state.reserved_nodes),
    }


def decision_document(decision: Decision) -> Document:
    """Return the document of a decision to move a gang."""
    document: Document = msgspec.to_builtins(decision)
    return document


def entry_document(numbered: NumberedEntry) -> Document:
    """Return the document of one entry of a story."""
    entry = numbered.entry
    return {
        "id": numbered.entry_id,
        "cycle": numbered.cycle,
        "wall_ns": entry.wall_ns,
        "subject": entry.subject,
        "kind": entry.kind,
        "text": entry.text,
        "applied": entry.applied,
        "detail": dict(entry.detail),
    }


def placement_of(recorded: RecordedAction) -> tuple[Slot, ...]:
    """Return the slots on which the action starts a gang; empty for any other action."""
    return recorded.action.placement if isinstance(recorded.action, StartGang) else ()


def journal_document(row: JournalRow) -> Document:
    """Return the journal's document of one cycle, for a replay. It omits environments, on which no decision depends."""
    return {
        "cycle": row.cycle,
        "now_ns": row.now_ns,
        "events": [printable(for_journal(event)) for event in row.events],
        "actions": [printable(for_journal(action)) for action in row.actions],
    }
