"""The timetable: the jobs on the slots over time, the slots reserved for the head of the queue, and backfilled jobs.

A row is a node, and each of its slots has a line in the row. A large cluster is folded: a row is a rack, a spine, or
all nodes in one state. In a folded row jobs are stacked by their expected end, and a job's height is its number of
slots.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import groupby
from typing import Any

from scheduler_feedback.api.reading.of_nodes import OfNodes
from scheduler_feedback.api.reading.rank_counts import ranks_by_node
from scheduler_feedback.api.web import words
from scheduler_feedback.core.cluster import NodeState
from scheduler_feedback.core.job import Job, JobState, Slot
from scheduler_feedback.core.state import State
from scheduler_feedback.policies.index.runtime_estimate import remaining_ns
from scheduler_feedback.policies.index.scheduling_index import index_of

MOST_ROWS = 24
"""Maximum number of nodes with a row each. In a larger cluster a row is a group of nodes."""

MOST_FOLDED = 40
"""Maximum number of racks or spines with a row each. If there are more, nodes are grouped by state."""

MOST_BARS = 40
"""Maximum number of jobs with a bar each in the row of a group: those with the most slots. The others share a bar."""

LEAST_SPAN_NS, MOST_SPAN_NS = 60_000_000_000, 24 * 3600 * 1_000_000_000
PAST_SHARE = 0.2
"""Share of the time axis that lies in the past."""

_DIGITS = re.compile(r"([0-9]+)")

GRAIN = 240
"""Number of steps of the time axis. The axis moves by whole steps, so that an unchanged timetable is not sent again."""


RowsOfNodes = tuple[str, dict[str, str], dict[str, dict[str, Any]]]
"""Type of the rows, name of each node's row, and the rows without bars."""


def of_state(
    state: State, on_nodes: Callable[[Job], Mapping[str, int]] = ranks_by_node, kept: OfNodes[RowsOfNodes] | None = None
) -> dict[str, Any]:
    """Return the timetable of the current state. Times are wall nanoseconds.

    on_nodes: function that returns the number of a job's ranks by node, perhaps from a cache. kept: rows of an earlier
    snapshot, which are used if it has the same nodes; None: none.

    rows: [{node, nodes, slots, states, bars: [{job, jobs, first, slots, from_ns, until_ns, last_ns, kind}]}]. node:
    name of the node or of the folded row; nodes: number of nodes in it; states: number of nodes by state, except
    healthy. kind is 'held', 'ahead' (backfilled before the job with the reservation), 'stopping' or 'kept' (reserved).
    A bar of several jobs has job '', their number (jobs), and the end of the last of them (last_ns). An overdue end
    counts as now. folded: type of the rows ('rack', 'spine' or 'state'), '' for nodes.
    """
    head = state.jobs.get(state.reserved_for or "")
    reserved_ns = state.reserved_from_ns if head is not None else None
    holding = [job for job in state.jobs.values() if job.state.holds_slots]
    ends = {job.job_id: _end_ns(state, job) for job in holding}
    ahead = {job.job_id for job in holding if head is not None and job.submitted_ns > head.submitted_ns}
    folded, row_of, empty = (OfNodes() if kept is None else kept).of(state.nodes, lambda: _rows_without_bars(state))
    rows = {name: row | {"states": dict(row["states"]), "bars": []} for name, row in empty.items()}
    if folded:
        held = {job.job_id: _by_row(on_nodes(job), row_of) for job in holding}
        _fold(state, rows, held, ends, ahead)
    else:
        _fill(rows, holding, ends, ahead)
    from_ns, until_ns = _window(
        state.now_ns, reserved_ns, [bar["until_ns"] for row in rows.values() for bar in row["bars"]]
    )
    if head is not None and reserved_ns is not None:
        _reserve(state, rows, row_of, head, reserved_ns, bool(folded))
    named = {bar["job"] for row in rows.values() for bar in row["bars"]} - {""}
    return {
        "now_ns": state.now_ns,
        "from_ns": from_ns,
        "until_ns": until_ns,
        "reserved_for": None if head is None else head.job_id,
        "reserved_from_ns": reserved_ns,
        "reserved_slots": len(state.reserved_slots) if head is not None else 0,
        "ahead": sorted(ahead & named),
        "rows": list(rows.values()),
        "nodes": len(state.nodes),
        "folded": folded,
        "names": {job: state.jobs[job].spec.name for job in named},
        "ends": {job: ends.get(job) for job in named},
    }


def _rows_without_bars(state: State) -> RowsOfNodes:
    folded, row_of = _rows(state)
    return folded, row_of, _empty_rows(state, row_of)


def _rows(state: State) -> tuple[str, dict[str, str]]:
    """Return (type of the rows: 'rack', 'spine', 'state', or '' for nodes; name of each node's row)."""
    nodes = state.nodes.values()
    if len(state.nodes) <= MOST_ROWS:
        return "", {name: name for name in state.nodes}
    if all(node.rack for node in nodes):
        spines = len({node.spine for node in nodes})
        racks = {node.name: f"{node.spine}/{node.rack}" if spines > 1 else node.rack for node in nodes}
        if len(set(racks.values())) <= MOST_FOLDED:
            return "rack", racks
    if all(node.spine for node in nodes) and 1 < len({node.spine for node in nodes}) <= MOST_FOLDED:
        return "spine", {node.name: node.spine for node in nodes}
    return "state", {node.name: words.node_state(node) for node in nodes}


def _empty_rows(state: State, row_of: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Return the rows with their nodes and slots, still without bars of jobs, sorted by name."""
    rows: dict[str, dict[str, Any]] = {
        name: {"node": name, "nodes": 0, "slots": 0, "states": {}, "bars": []}
        for name in sorted(set(row_of.values()), key=natural)
    }
    for node in state.nodes.values():
        row = rows[row_of[node.name]]
        row["nodes"] += 1
        row["slots"] += node.slots
        if (word := words.node_state(node)) != NodeState.HEALTHY.value:
            row["states"][word] = row["states"].get(word, 0) + 1
    return rows


def _fill(rows: dict[str, dict[str, Any]], holding: Iterable[Job], ends: dict[str, int], ahead: set[str]) -> None:
    """Add bars to the rows of single nodes: for each job one bar for each group of adjacent slots."""
    for job in holding:
        of_node: dict[str, list[Slot]] = {}
        for rank in job.ranks:
            of_node.setdefault(rank.slot.node, []).append(rank.slot)
        for name, slots in of_node.items():
            if name in rows:
                rows[name]["bars"] += _held(job, slots, ends, ahead)


def _reserve(
    state: State, rows: dict[str, dict[str, Any]], row_of: dict[str, str], head: Job, from_ns: int, folded: bool
) -> None:
    """Add the bars of the slots that are reserved for the head of the queue. from_ns: its expected start."""
    begin_ns, end_ns = max(from_ns, state.now_ns), from_ns + remaining_ns(state.policy, head)
    kept: dict[str, list[Slot]] = {}
    for slot in state.reserved_slots:
        if slot.node in row_of:
            kept.setdefault(row_of[slot.node], []).append(slot)
    for name, slots in kept.items():
        row = rows[name]
        places = [(row["slots"] - len(slots), len(slots))] if folded else _runs(slots)
        row["bars"] += [_bar(head.job_id, first, count, begin_ns, end_ns, "kept") for first, count in places]


def _fold(
    state: State,
    rows: dict[str, dict[str, Any]],
    slots_of: Mapping[str, Mapping[str, int]],
    ends: dict[str, int],
    ahead: set[str],
) -> None:
    """Add bars to the rows of groups of nodes. The job that ends last is at the bottom. slots_of: number of slots of
    each job in each row."""
    held: dict[str, list[tuple[str, int]]] = {name: [] for name in rows}
    for job_id, in_rows in slots_of.items():
        for name, slots in in_rows.items():
            held[name].append((job_id, slots))
    for name, jobs in held.items():
        jobs.sort(key=lambda pair: -pair[1])
        shown, rest = jobs[:MOST_BARS], jobs[MOST_BARS:]
        bars = [_whole(state.jobs[job], slots, ends, ahead) for job, slots in shown]
        if rest:
            from_ns = min(_began_ns(state.jobs[job]) for job, _ in rest)
            bar = _bar("", 0, sum(slots for _, slots in rest), from_ns, min(ends[job] for job, _ in rest), "held")
            bars.append(bar | {"jobs": len(rest), "last_ns": max(ends[job] for job, _ in rest)})
        bars.sort(key=lambda bar: (-bar["last_ns"], bar["job"]))
        first = 0
        for bar in bars:
            bar["first"] = first
            first += bar["slots"]
        rows[name]["bars"] = bars


def _by_row(on_nodes: Mapping[str, int], row_of: Mapping[str, str]) -> dict[str, int]:
    """Return the number of slots in each row. Slots on nodes without a row are left out."""
    found: dict[str, int] = {}
    for node, slots in on_nodes.items():
        if name := row_of.get(node, ""):
            found[name] = found.get(name, 0) + slots
    return found


def _end_ns(state: State, job: Job) -> int:
    """Return when the job is expected to end, in ns; the current time if it is overdue."""
    releases = index_of(state).ends_of.get(job.job_id, ())
    return max([release.at_ns for release in releases] + [state.now_ns])


@lru_cache(maxsize=1 << 16)
def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that compares numbers in names by value: node-2 comes before node-10."""
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in _DIGITS.split(name) if part)


def _window(now_ns: int, reserved_ns: int | None, ends: Iterable[int]) -> tuple[int, int]:
    """Return (start, end) of the time axis, in ns. It shows some past, and all time until the reservation."""
    ahead_ns = max((end - now_ns for end in ends), default=0)
    if reserved_ns is not None:
        ahead_ns = max(min(ahead_ns, 3 * (reserved_ns - now_ns)), int(1.5 * (reserved_ns - now_ns)))
    ahead_ns = min(max(ahead_ns, LEAST_SPAN_NS), MOST_SPAN_NS)
    span_ns = int(ahead_ns / (1 - PAST_SHARE))
    # Round the span, and move the start in whole steps.
    round_ns = 10_000_000_000
    while span_ns > 10 * round_ns:
        round_ns *= 2
    span_ns = -(-span_ns // round_ns) * round_ns
    step_ns = span_ns // GRAIN
    from_ns = (now_ns - int(span_ns * PAST_SHARE)) // step_ns * step_ns
    return from_ns, from_ns + span_ns


def _began_ns(job: Job) -> int:
    return job.attempt_started_ns or job.submitted_ns


def _kind(job: Job, ahead: set[str]) -> str:
    return "stopping" if job.state is JobState.STOPPING else "ahead" if job.job_id in ahead else "held"


def _held(job: Job, slots: list[Slot], ends: dict[str, int], ahead: set[str]) -> Iterator[dict[str, Any]]:
    for first, count in _runs(slots):
        yield _bar(job.job_id, first, count, _began_ns(job), ends[job.job_id], _kind(job, ahead))


def _whole(job: Job, slots: int, ends: dict[str, int], ahead: set[str]) -> dict[str, Any]:
    return _bar(job.job_id, 0, slots, _began_ns(job), ends[job.job_id], _kind(job, ahead))


def _runs(slots: Iterable[Slot]) -> Iterator[tuple[int, int]]:
    """Yield (number of the first slot, number of slots) of each group of adjacent slots."""
    numbers = sorted(slot.slot for slot in slots)
    for _, members in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in members]
        yield run[0], len(run)


def _bar(job: str, first: int, slots: int, from_ns: int, until_ns: int, kind: str) -> dict[str, Any]:
    return {
        "job": job,
        "jobs": 1,
        "first": first,
        "slots": slots,
        "from_ns": from_ns,
        "until_ns": until_ns,
        "last_ns": until_ns,
        "kind": kind,
    }
