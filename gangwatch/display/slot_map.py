"""Map of the cluster for `gangwatch queue`: one character per slot, and a legend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gangwatch.display.times import clock

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
"""Characters that represent jobs in the map, one per job. If there are more jobs, the others share '#'."""

_MOST_LEGEND = 40
"""Maximum number of jobs in the legend of the map."""


def slot_map(waiting: dict[str, Any], nodes: Sequence[dict[str, Any]], active: Sequence[dict[str, Any]]) -> list[str]:
    """Return the cluster as one line per node and one character per slot, followed by a legend.

    A letter is a job, '.' a free slot, '+' a free slot that is reserved, 'x' a slot that can't be used. Neighbouring
    nodes with the same content share a line. The legend marks the jobs that were backfilled ahead of the reservation.
    """
    letters = {
        name: LETTERS[number] if number < len(LETTERS) else "#"
        for number, name in enumerate(dict.fromkeys(one["job"] for node in nodes for one in node["jobs"]))
    }
    kept = waiting["reserved_nodes"]
    drawn = [(node["node"], _slots(node, letters, kept.get(node["node"], 0)), _node_note(node, kept)) for node in nodes]
    lines = []
    position = 0
    while position < len(drawn):
        last = position
        while last + 1 < len(drawn) and drawn[last + 1][1:] == drawn[position][1:]:
            last += 1
        name, slots, note = drawn[position]
        many = f" ... {drawn[last][0]} ({last - position + 1} nodes)" if last > position else ""
        lines.append((f"{name}{many}", slots, note))
        position = last + 1
    width = max(len(name) for name, _, _ in lines)
    return [
        *(f"{name:<{width}}  [{slots}]{'  ' + note if note else ''}" for name, slots, note in lines),
        *_legend(waiting, letters, active),
    ]


def _slots(node: dict[str, Any], letters: dict[str, str], kept: int) -> str:
    held: str = "".join(letters[one["job"]] * int(one["ranks"]) for one in node["jobs"])
    free = max(int(node["slots"]) - len(held), 0)
    if not node["present"] or node["state"] in ("quarantine", "maintenance"):
        return held + "x" * free
    return held + "+" * min(kept, free) + "." * (free - min(kept, free))


def _node_note(node: dict[str, Any], kept: dict[str, int]) -> str:
    notes = [] if node["present"] and node["state"] == "healthy" else [node["state"] if node["present"] else "absent"]
    if node["node"] in kept:
        notes.append(f"{kept[node['node']]} reserved")
    return ", ".join(notes)


def _legend(waiting: dict[str, Any], letters: dict[str, str], active: Sequence[dict[str, Any]]) -> Iterator[str]:
    head = waiting["reserved_for"]
    if head is not None:
        since = waiting["reserved_from_ns"]
        slots = sum(waiting["reserved_nodes"].values())
        plural, begin = "" if slots == 1 else "s", "" if since is None else f" from {clock(since)}"
        yield f"+ reserved for {head}: {slots} slot{plural}{begin}"
    submitted = {one["job"]: one["submitted_ns"] for one in (*waiting["waiting"], *active)}
    names = {one["job"]: one["name"] for one in active}
    for job, letter in list(letters.items())[:_MOST_LEGEND]:
        ahead = head is not None and submitted.get(job, 0) > submitted.get(head, 0)
        text = f"{letter} {job}" + (f" ({names[job]})" if names.get(job) else "")
        yield text + (f", backfilled ahead of {head}" if ahead else "")
    if len(letters) > _MOST_LEGEND:
        yield f"{len(letters) - _MOST_LEGEND} more jobs"
