"""Functions that format numbers, times, states and names for the pages."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from scheduler_feedback.api.web.markup import Markup, tag
from scheduler_feedback.core.cluster import Node

GOOD, DOUBTFUL, BAD, QUIET = "good", "doubtful", "bad", "quiet"
TONES = {
    **dict.fromkeys(("running", "healthy", "completed"), GOOD),
    **dict.fromkeys(("pending", "starting", "stopping", "probation", "suspect", "limited"), DOUBTFUL),
    **dict.fromkeys(("failed", "quarantine", "absent"), BAD),
    **dict.fromkeys(("cancelled", "maintenance"), QUIET),
}
"""Colour of each state of a job or node. The page also shows the state as a word."""


def state(word: str) -> Markup:
    """Render the state of a job or node as a coloured dot and its name."""
    return tag("span", word, class_=f"state {TONES.get(word, QUIET)}")


def node_state(node: Node) -> str:
    """Return the name of the node's state; 'absent' if the backend does not report the node."""
    return node.state.value if node.present else "absent"


def size(ranks: int, running: int) -> str:
    """Return the number of ranks, as '2 of 6' for an elastic gang that runs with 2 ranks and asks for 6."""
    return f"{running} of {ranks}" if running not in (0, ranks) else str(ranks)


def seconds(value: float | None) -> str:
    """Format a duration in seconds, such as '84 ms', '42 s', '3 min 20 s' or '3 d 4 h'."""
    if value is None:
        return "–"
    if value < 0.9995:
        return f"{value * 1000:.3g} ms"
    if value < 10:
        return f"{value:.2f} s"
    if value < 120:
        return f"{value:.0f} s"
    whole = int(value)
    for small, large, names in ((1, 60, ("min", "s")), (60, 3600, ("h", "min")), (3600, 86400, ("d", "h"))):
        if whole < large * (60, 48, 10**9)[(1, 60, 3600).index(small)]:
            rest = whole % large // small
            return f"{whole // large} {names[0]}" + (f" {rest} {names[1]}" if rest else "")
    raise AssertionError("days cover every longer duration")


def instant(wall_ns: int | None, how: str = "") -> Markup:
    """Render a point in time as the time of day.

    how: with 'ago', 'in' or 'for' the page's script shows the time since or until this point instead; '' for neither.
    """
    if wall_ns is None:
        return Markup("–")
    at = wall_ns / 1e9
    shown = time.strftime("%H:%M:%S", time.localtime(at))
    if abs(time.time() - at) > 43200:
        shown = time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
    exact = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(at))
    return tag("time", shown, datetime=exact, data_count=how or None, title=exact if how else None)


def telemetry(agent: Mapping[str, Any] | None) -> Markup:
    """Render the age of the newest samples from a node's agent. agent: its API document; None if there is none."""
    if agent is None:
        return Markup("–")
    return tag("span", agent["words"], class_=f"state {BAD if agent['silent'] else GOOD}")


def job_link(job: str, name: str = "") -> Markup:
    """Render a link to the job's page. name: text of the link; '' for the job's id."""
    return tag("a", job, href=f"/jobs/{quote(job, safe='')}", title=name or None)


def node_link(node: str) -> Markup:
    return tag("a", node, href=f"/nodes/{quote(node, safe='')}")


def count(number: int, one: str, many: str = "") -> str:
    """Format a number with its noun: '1 node', '12,500 nodes'."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def spans(numbers: Iterable[int]) -> str:
    """Format ascending whole numbers as ranges, such as '0–2, 5'."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in found)
