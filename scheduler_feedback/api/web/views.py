"""Views: documents of limited size about the state, for the pages and for `gangwatch top`.

All readers share one thread, and each view is computed there from a snapshot. A view therefore counts all jobs and
nodes, but describes only as many as fit on a screen.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from msgspec.structs import replace

from scheduler_feedback.api import documents as documents
from scheduler_feedback.api.reading.listing import Kept
from scheduler_feedback.api.reading.node_summary import NodeSummary, summary_of
from scheduler_feedback.api.web import timetable
from scheduler_feedback.api.web.job_progress import progress_of
from scheduler_feedback.api.web.words import node_state
from scheduler_feedback.core.cluster import Node, NodeState
from scheduler_feedback.core.explanation import Explanation
from scheduler_feedback.core.job import Job, JobState
from scheduler_feedback.core.state import State
from scheduler_feedback.core.telemetry.steps.pace import Speed
from scheduler_feedback.core.verdict import Verdict
from scheduler_feedback.core.verdict_text import short
from scheduler_feedback.cycle import explain, why_waits
from scheduler_feedback.policies.queue import order

Document = dict[str, Any]

MOST_RUNNING, MOST_WAITING, MOST_ENDED, MOST_VERDICTS, MOST_TROUBLED = 30, 20, 8, 12, 20
"""Maximum lengths of the lists on the overview, which fit on about one screen. Other pages list all items."""

PAGE = 50
"""Number of jobs or nodes on one page of a list."""

MOST_RANKS = 24
"""Maximum number of ranks that a job's page lists: ranks with a verdict first, then failed ranks, then the slowest."""

_WORST_FIRST = {
    name: position
    for position, name in enumerate(("absent", "quarantine", "maintenance", "suspect", "probation", "healthy"))
}


def overview(
    state: State,
    speeds: Mapping[str, Speed],
    now_ns: int,
    reasons: State | None = None,
    kept: Kept | None = None,
) -> Document:
    """Return the document of the overview page and of `gangwatch top`.

    speeds: speed of each gang, by job id. now_ns: wall time, for the age of the last step. reasons: a state with a
    scheduling index, to compute why jobs are pending and when they end; None: `state`. kept: values of earlier
    snapshots; None: none.
    """
    kept = Kept() if kept is None else kept
    nodes = kept.summary_of(state)
    jobs = state.jobs.values()
    running = [job for job in jobs if job.state.holds_slots]
    by_gang = _standing(state)
    progress = {
        job.job_id: progress_of(job.state, job.attempt, job.job_id in by_gang, speeds.get(job.job_id), now_ns)
        for job in running
    }
    # Jobs with a verdict come first, then slow or stalled ones, then the newest.
    shown = heapq.nsmallest(
        MOST_RUNNING,
        running,
        key=lambda job: (
            job.job_id not in by_gang,
            not progress[job.job_id].noteworthy,
            -(job.started_ns or job.submitted_ns),
        ),
    )
    waiting = list(order.queue(state))
    ended = heapq.nlargest(MOST_ENDED, (job for job in jobs if job.state.ended), key=lambda job: job.ended_ns or 0)
    verdicts = sorted(state.verdicts.values(), key=lambda verdict: -verdict.first_wall_ns)
    return {
        "now_ns": state.now_ns,
        "mode": state.policy.mode.value,
        "frozen": state.frozen,
        "frozen_by": state.frozen_by,
        "jobs": {known.value: 0 for known in JobState} | Counter(job.state.value for job in jobs),
        "nodes": nodes.by_state,
        "slots": slots_by_use(state, nodes),
        "running": [brief(job, by_gang.get(job.job_id, ())) for job in shown],
        "progress": dict(Counter(word.value for word in progress.values())),
        "waiting": [brief(job, ()) | _wait(reasons or state, job) for job in waiting[:MOST_WAITING]],
        "waiting_total": len(waiting),
        "ended": [brief(job, ()) for job in ended],
        "verdicts": [documents.verdict_document(state, verdict) for verdict in verdicts[:MOST_VERDICTS]],
        "verdicts_total": len(verdicts),
        "troubled": [node_row(node) for node in _troubled(nodes)],
        "timetable": timetable.of_state(reasons or state, kept.counts.of, kept.rows),
    }


def slots_by_use(state: State, nodes: NodeSummary) -> dict[str, int]:
    """Count the slots of present nodes: used, free, and unavailable because the node accepts no jobs.

    nodes: summary of the state's nodes.
    """
    holding = [job for job in state.jobs.values() if job.state.holds_slots]
    # An absent node has no free slots. A job's slots there count until the job's end is confirmed.
    lost = sum(rank.slot.node in nodes.absent for job in holding for rank in job.ranks) if nodes.absent else 0
    total = nodes.slots + lost
    used = min(sum(len(job.ranks) for job in holding), total)
    held = sum(rank.slot.node in nodes.closed for job in holding for rank in job.ranks) if nodes.closed else 0
    unavailable = max(sum(nodes.closed.values()) - held, 0)
    return {"total": total, "used": used, "free": total - used - unavailable, "unavailable": unavailable}


def _standing(state: State) -> Mapping[str, Sequence[Verdict]]:
    found: dict[str, list[Verdict]] = {}
    for verdict in state.verdicts.values():
        found.setdefault(verdict.gang, []).append(verdict)
    return found


def _troubled(nodes: NodeSummary) -> list[Node]:
    """Return the nodes that are not healthy, worst first."""
    return heapq.nsmallest(
        MOST_TROUBLED, nodes.doubtful, key=lambda node: (_WORST_FIRST[node_state(node)], -node.since_ns)
    )


def _wait(state: State, job: Job) -> Document:
    return {"waiting_because": why_waits(state, job), "expected_start_ns": job.expected_start_ns}


def brief(job: Job, verdicts: Iterable[Verdict]) -> Document:
    """Return a short document of a job, for a line of a list."""
    return {
        "job": job.job_id,
        "name": job.spec.name,
        "state": job.state.value,
        "size": job.spec.ranks,
        "running_ranks": len(job.ranks) if job.state.holds_slots else 0,
        "queue": job.spec.queue,
        "user": job.spec.user,
        "kind": job.spec.kind.value,
        "attempt": job.attempt,
        "submitted_ns": job.submitted_ns,
        "started_ns": job.started_ns,
        "attempt_started_ns": job.attempt_started_ns,
        "ended_ns": job.ended_ns,
        "run_seconds": run_seconds(job),
        "reason": job.end_reason or job.failure,
        "verdicts": [in_short(verdict) for verdict in islice(verdicts, 3)],
    }


def run_seconds(job: Job) -> float | None:
    """Return the total run time of the job's ended attempts in seconds; None if no attempt has run."""
    return job.run_ns / 1e9 if job.run_ns else None


def in_short(verdict: Verdict) -> Document:
    """Return a short document of a verdict, for a line of a list."""
    return {
        "verdict_id": verdict.verdict_id,
        "kind": verdict.kind.value,
        "cause": verdict.cause.value,
        "rank": verdict.rank,
        "node": verdict.node,
        "short": short(verdict),
        "slowdown": verdict.slowdown,
        "confidence": verdict.confidence,
        "first_wall_ns": verdict.first_wall_ns,
    }


# --- lists ------------------------------------------------------------------------------------------------------------


def jobs_page(state: State, wanted: str, words: str, page: int) -> Document:
    """Return the document of one page of jobs, the newest first.

    wanted: a state, 'active', or '' for all. words: part of an id, name, user or queue; '' for any.
    """
    words = words.casefold()
    found = [
        job
        for job in reversed(state.jobs.values())
        if (not wanted or job.state.value == wanted or (wanted == "active" and not job.state.ended))
        and (not words or any(words in text.casefold() for text in _names(job)))
    ]
    by_gang = _standing(state)
    shown = [brief(job, by_gang.get(job.job_id, ())) for job in found[(page - 1) * PAGE : page * PAGE]]
    return {"jobs": shown, "total": len(found), "page": page, "pages": max(1, -(-len(found) // PAGE))}


def _names(job: Job) -> tuple[str, ...]:
    return job.job_id, job.spec.name, job.spec.user, job.spec.queue


def nodes_page(state: State, wanted: str, words: str, page: int) -> Document:
    """Return the document of one page of nodes, the worst first, and the tiles of all nodes."""
    words = words.casefold()
    named = sorted(state.nodes.values(), key=lambda node: timetable.natural(node.name))
    found = [
        node
        for node in named
        if (not wanted or node_state(node) == wanted) and (not words or words in node.name.casefold())
    ]
    found.sort(key=lambda node: _WORST_FIRST[node_state(node)])
    return {
        "by_state": summary_of(state.nodes.values()).by_state,
        "tiles": _tiles(named),
        "nodes": [node_row(node) for node in found[(page - 1) * PAGE : page * PAGE]],
        "total": len(found),
        "page": page,
        "pages": max(1, -(-len(found) // PAGE)),
    }


MOST_TILES = 480
"""Maximum number of tiles in the drawing of all nodes. In a larger cluster several nodes share a tile."""


def _tiles(named: Sequence[Node]) -> list[Document]:
    share = max(1, -(-len(named) // MOST_TILES))
    tiles = []
    for first in range(0, len(named), share):
        members = named[first : first + share]
        worst = min((node_state(node) for node in members), key=_WORST_FIRST.__getitem__)
        bad = sum(node_state(node) != NodeState.HEALTHY.value for node in members)
        names = members[0].name if len(members) == 1 else f"{members[0].name} to {members[-1].name}"
        tiles.append({"names": names, "state": worst, "nodes": len(members), "bad": bad})
    return tiles


def node_row(node: Node) -> Document:
    """Return a short document of a node, for a line of a list."""
    return {
        "node": node.name,
        "state": node_state(node),
        "slots": node.slots,
        "since_ns": node.since_ns,
        "until_ns": node.until_ns,
        "reason": node.reason,
        "verdict_id": node.verdict_id,
        "spare": node.spare,
    }


# --- one job, one node ------------------------------------------------------------------------------------------------


def job_page(
    state: State,
    job_id: str,
    slowest: Sequence[int] = (),
    reasons: State | None = None,
    explained: Callable[[str], Explanation | None] | None = None,
) -> Document | None:
    """Return the document of a job with its verdicts and why it is pending; None if there is no such job.

    slowest: the slowest ranks, which the page lists after ranks with a verdict. reasons: a state with a scheduling
    index, to compute why the job is pending; None: `state`. explained: returns the full explanation; None to compute it
    from `state`. In the document, `placed` lists every rank of the newest attempt.
    """
    job = state.jobs.get(job_id)
    if job is None:
        return None
    verdicts = [verdict for verdict in documents.verdicts_document(state) if verdict["job"] == job_id]
    accused = {rank for verdict in verdicts if verdict["standing"] for rank in (verdict["rank"], *verdict["ranks"])}
    order_of = {rank: place for place, rank in enumerate(slowest)}
    last = len(order_of)
    ranks = heapq.nsmallest(
        MOST_RANKS,
        job.ranks,
        key=lambda one: (
            one.rank not in accused,
            one.exit_code in (None, 0),
            order_of.get(one.rank, last),
            one.rank,
        ),
    )
    return documents.job_document(state, replace(job, ranks=[]), verdicts, reasons) | {
        "now_ns": state.now_ns,
        "frozen": state.frozen,
        "verdicts": verdicts,
        "accused": sorted(accused),
        "ranks_total": len(job.ranks),
        "placed": job.ranks[:],
        "run_seconds": run_seconds(job),
        "ranks": [
            {"rank": one.rank, "node": one.slot.node, "slot": one.slot.slot, "exit_code": one.exit_code}
            for one in ranks
        ],
        "migrations": job.migrations,
        "preemptions": job.preemptions,
        "explained": _explained(state, job, explained),
    }


def _explained(state: State, job: Job, explained: Callable[[str], Explanation | None] | None) -> Explanation | None:
    if job.state is not JobState.PENDING:
        return None
    return explain(state, job.job_id) if explained is None else explained(job.job_id)


def node_page(state: State, name: str) -> Document | None:
    """Return the document of a node with its jobs; None if there is no such node."""
    node = state.nodes.get(name)
    if node is None:
        return None
    on_it = Counter(
        job.job_id
        for job in state.jobs.values()
        if job.state.holds_slots
        for rank in job.ranks
        if rank.slot.node == name
    )
    by_gang = _standing(state)
    return node_row(node) | {
        "now_ns": state.now_ns,
        "frozen": state.frozen,
        "devices": list(node.devices),
        "machine": node.machine,
        "jobs": [brief(state.jobs[job], by_gang.get(job, ())) | {"here": ranks} for job, ranks in on_it.items()],
        "verdicts": [one for one in documents.verdicts_document(state) if one["node"] == name][:MOST_VERDICTS],
    }
