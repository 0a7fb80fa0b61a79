"""The timetable: who holds which slots until when, what is kept for the head of the queue, and who went ahead of it.

A row is a node, a lane in it a slot. Of a large cluster it has the nodes that say the most: those of the reservation,
then those of jobs that went ahead of it, then others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain, groupby, islice
from typing import Any

from scheduler_feedback.core.job import Job, JobState, Slot
from scheduler_feedback.core.state import State
from scheduler_feedback.policies.estimate import remaining_ns
from scheduler_feedback.policies.ledger import ledger_of

MOST_ROWS = 24
"""Nodes that are drawn."""

LEAST_SPAN_NS, MOST_SPAN_NS = 60_000_000_000, 24 * 3600 * 1_000_000_000
PAST_SHARE = 0.2
"""Of the time that is drawn, what lies behind."""

_DIGITS = re.compile(r"([0-9]+)")

GRAIN = 240
"""Steps of the axis: it moves on by one at a time, so that a drawing that did not change otherwise stays the same."""


def of_state(state: State) -> dict[str, Any]:
    """The timetable of the state as it is. Times are wall nanoseconds.

    rows: [{node, slots, bars: [{job, first, slots, from_ns, until_ns, kind}]}] where kind is 'held', 'ahead' (went
    ahead of the reservation's job), 'stopping' or 'kept'. overdue ends stand at now.
    """
    head = state.jobs.get(state.reserved_for or "")
    reserved_ns = state.reserved_from_ns if head is not None else None
    holding = [job for job in state.jobs.values() if job.state.holds_slots]
    ends = {job.job_id: _end_ns(state, job) for job in holding}
    ahead = {job.job_id for job in holding if head is not None and job.submitted_ns > head.submitted_ns}
    kept: dict[str, list[Slot]] = {}
    for slot in state.reserved_slots if head is not None else ():
        kept.setdefault(slot.node, []).append(slot)
    drawn = _drawn(state, kept, ahead)
    of_node: dict[str, dict[str, list[Slot]]] = {name: {} for name in drawn}
    for job in holding:
        for rank in job.ranks:
            if rank.slot.node in of_node:
                of_node[rank.slot.node].setdefault(job.job_id, []).append(rank.slot)
    shown = [ends[job] for node in drawn for job in of_node.get(node, ())]
    from_ns, until_ns = _window(state.now_ns, reserved_ns, shown)
    rows: list[dict[str, Any]] = []
    for name in drawn:
        bars = [bar for job in of_node.get(name, ()) for bar in _held(state.jobs[job], of_node[name][job], ends, ahead)]
        if head is not None and reserved_ns is not None:
            length_ns = remaining_ns(state.policy, head)
            bars += [
                _bar(head.job_id, first, count, max(reserved_ns, state.now_ns), reserved_ns + length_ns, "kept")
                for first, count in _runs(kept.get(name, ()))
            ]
        rows.append({"node": name, "slots": state.nodes[name].slots, "bars": bars})
    named = {bar["job"] for row in rows for bar in row["bars"]}
    return {
        "now_ns": state.now_ns,
        "from_ns": from_ns,
        "until_ns": until_ns,
        "reserved_for": None if head is None else head.job_id,
        "reserved_from_ns": reserved_ns,
        "reserved_slots": len(state.reserved_slots) if head is not None else 0,
        "ahead": sorted(ahead & named),
        "rows": rows,
        "nodes": len(state.nodes),
        "names": {job: state.jobs[job].spec.name for job in named},
        "ends": {job: ends.get(job) for job in named},
    }


def _end_ns(state: State, job: Job) -> int:
    """When the job is expected to be gone; now where it should be already."""
    releases = ledger_of(state).ends_of.get(job.job_id, ())
    return max([release.at_ns for release in releases] + [state.now_ns])


def _drawn(state: State, kept: Iterable[str], ahead: Iterable[str]) -> list[str]:
    """Names of the nodes that are drawn, in their order."""
    if len(state.nodes) <= MOST_ROWS:
        return sorted(state.nodes, key=natural)
    of_ahead = (rank.slot.node for job in sorted(ahead)[:MOST_ROWS] for rank in state.jobs[job].ranks)
    telling = dict.fromkeys(name for name in chain(sorted(kept, key=natural), of_ahead) if name in state.nodes)
    return sorted(islice(dict.fromkeys(chain(telling, state.nodes)), MOST_ROWS), key=natural)


@lru_cache(maxsize=1 << 16)
def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A key by which node-2 comes before node-10."""
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in _DIGITS.split(name) if part)


def _window(now_ns: int, reserved_ns: int | None, ends: Iterable[int]) -> tuple[int, int]:
    """From when to when is drawn: a little of the past, and what shows the reservation with room behind it."""
    ahead_ns = max((end - now_ns for end in ends), default=0)
    if reserved_ns is not None:
        ahead_ns = max(min(ahead_ns, 3 * (reserved_ns - now_ns)), int(1.5 * (reserved_ns - now_ns)))
    ahead_ns = min(max(ahead_ns, LEAST_SPAN_NS), MOST_SPAN_NS)
    span_ns = int(ahead_ns / (1 - PAST_SHARE))
    # A span of round length, and a beginning that moves by steps.
    round_ns = 10_000_000_000
    while span_ns > 10 * round_ns:
        round_ns *= 2
    span_ns = -(-span_ns // round_ns) * round_ns
    step_ns = span_ns // GRAIN
    from_ns = (now_ns - int(span_ns * PAST_SHARE)) // step_ns * step_ns
    return from_ns, from_ns + span_ns


def _held(job: Job, slots: list[Slot], ends: dict[str, int], ahead: set[str]) -> Iterator[dict[str, Any]]:
    kind = "stopping" if job.state is JobState.STOPPING else "ahead" if job.job_id in ahead else "held"
    for first, count in _runs(slots):
        yield _bar(job.job_id, first, count, job.attempt_started_ns or job.submitted_ns, ends[job.job_id], kind)


def _runs(slots: Iterable[Slot]) -> Iterator[tuple[int, int]]:
    """(first, how many) of slots that stand side by side."""
    numbers = sorted(slot.slot for slot in slots)
    for _, members in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in members]
        yield run[0], len(run)


def _bar(job: str, first: int, slots: int, from_ns: int, until_ns: int, kind: str) -> dict[str, Any]:
    return {"job": job, "first": first, "slots": slots, "from_ns": from_ns, "until_ns": until_ns, "kind": kind}
