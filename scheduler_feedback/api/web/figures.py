"""SVG drawings of the timetable and of the nodes. Their widths are percentages, so that they fit any screen."""

from __future__ import annotations

import time
from typing import Any

from scheduler_feedback.api.web import words
from scheduler_feedback.api.web.markup import Child, Markup, join, tag

Document = dict[str, Any]

COLOURS = 8
"""Number of colours of jobs (page.css defines as many). Jobs of the same colour are distinguished by their names."""

LANE, MOST_HEIGHT, LEAST_HEIGHT = 13, 72, 22
"""Heights in pixels: of a slot, and the largest and smallest height of a node's row."""

FOLDED_HEIGHT, FOLDED_MOST, FOLDED_LEAST = 900, 200, 30
"""Heights in pixels, if a row is a group of nodes: of all rows together, and the largest and smallest of one row."""


def colour_of(job: str) -> int:
    """Return the number of a job's colour, 0 to COLOURS - 1. Jobs with adjacent ids have different colours."""
    digits = "".join(filter(str.isdecimal, job))
    return (int(digits[-9:]) if digits else sum(job.encode())) % COLOURS


def timetable(drawn: Document) -> Markup:
    """Draw the jobs on each node's slots over time, and the slots reserved for the head of the queue."""
    if not drawn["rows"]:
        return tag("p", "No node yet.", class_="empty")
    from_ns, until_ns = drawn["from_ns"], drawn["until_ns"]

    def across(wall_ns: int) -> float:
        return float(min(max((wall_ns - from_ns) / (until_ns - from_ns), 0.0), 1.0) * 100)

    ticks = _ticks(from_ns, until_ns)
    lines = [
        tag("line", x1=_share(across(at)), x2=_share(across(at)), y1="0", y2="100%", class_="grid") for at in ticks
    ]
    now = tag(
        "line", x1=_share(across(drawn["now_ns"])), x2=_share(across(drawn["now_ns"])), y1="0", y2="100%", class_="now"
    )
    rows = []
    for node in drawn["rows"]:
        height = min(max(node["slots"] * LANE, LEAST_HEIGHT), MOST_HEIGHT)
        if drawn["folded"]:
            share = node["slots"] / max(sum(row["slots"] for row in drawn["rows"]), 1)
            height = min(max(round(FOLDED_HEIGHT * share), FOLDED_LEAST), FOLDED_MOST)
        bars = [_bar(drawn, bar, across, height / max(node["slots"], 1)) for bar in node["bars"]]
        picture = tag("svg", lines, bars, now, width="100%", height=height, aria_hidden="true")
        rows.append(tag("li", tag("span", _row_name(drawn, node), class_="who"), picture))
    labels = [
        tag("text", _tick_name(at, until_ns - from_ns), x=_share(across(at)), y="12", text_anchor="middle")
        for at in ticks
        if 3 < across(at) < 97
    ]
    axis = tag(
        "li", tag("span", class_="who"), tag("svg", labels, width="100%", height=18), class_="axis", aria_hidden="true"
    )
    how = ""
    if drawn["folded"]:
        how = (
            f" {words.count(drawn['nodes'], 'node')}, folded by {drawn['folded']}: the height of a bar is the job's"
            " number of slots there, and bars are in the order of expected end."
        )
    return join(
        (
            tag("ul", rows, axis, class_="timetable folded" if drawn["folded"] else "timetable"),
            tag("p", _in_words(drawn), how, class_="hint"),
            _legend(drawn),
        )
    )


def _row_name(drawn: Document, row: Document) -> Child:
    if not drawn["folded"]:
        return words.node_link(row["node"])
    others = "".join(f", {number} {state}" for state, number in row["states"].items() if drawn["folded"] != "state")
    named = words.count(row["nodes"], "node") + others
    if drawn["folded"] == "state":
        name: Child = tag("a", row["node"], href=f"/nodes?state={row['node']}")
    else:
        name = f"{drawn['folded']} {row['node']}"
    return join((name, tag("small", named, title=named)))


def _share(percent: float) -> str:
    return f"{percent:.2f}%"


def _bar(drawn: Document, bar: Document, across: Any, lane: float) -> Markup:
    left, right = across(bar["from_ns"]), across(bar["last_ns"])
    top, height = bar["first"] * lane, bar["slots"] * lane
    kind = bar["kind"]
    until = time.strftime("%H:%M:%S", time.localtime(bar["until_ns"] / 1e9))
    held = words.count(bar["slots"], "slot")
    if bar["job"]:
        label = f"{bar['job']} {drawn['names'].get(bar['job'], '')}"
        text = f"{label}, {held}, expected until {until}"
        label = f"reserved for {bar['job']}" if kind == "kept" else label
        colour = "" if kind == "kept" else f" job{colour_of(bar['job'])}"
    else:
        last = time.strftime("%H:%M:%S", time.localtime(bar["last_ns"] / 1e9))
        label, colour = f"{bar['jobs']:,} smaller jobs", " many"
        text = f"{label}, {held}, expected to end from {until} to {last}"
    full = 100 * (across(bar["until_ns"]) - left) / (right - left) if right > left else 100.0
    shape = f"{max(height - 2, min(height, 2)):.1f}"

    def block(x: float, width: float, more: str = "") -> Markup:
        return tag(
            *("rect",),
            x=_share(x),
            y="1",
            width=_share(width),
            height=shape,
            rx="3" if height > 8 else None,
            class_=f"bar {kind}{colour}{more}",
        )

    inner = [
        block(0, full),
        block(full, 100 - full, " ending") if full < 100 else None,
        tag("text", label, x="6", y=f"{height / 2 + 4:.1f}", class_=f"label {kind}")
        if height >= 12 and right - left > 7
        else None,
    ]
    return tag(
        "svg",
        tag("title", text),
        inner,
        x=_share(left),
        y=f"{top:.1f}",
        width=_share(max(right - left, 0.4)),
        height=f"{height:.1f}",
    )


_STEPS = (5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200)


def _ticks(from_ns: int, until_ns: int) -> list[int]:
    """Return about five points in time with round values, for the labels of the time axis."""
    span = (until_ns - from_ns) / 1e9
    step_ns = next((step for step in _STEPS if span / step <= 6), 86400) * 1_000_000_000
    return list(range(-(-from_ns // step_ns) * step_ns, until_ns, step_ns))


def _tick_name(at_ns: int, span_ns: int) -> str:
    return time.strftime("%H:%M:%S" if span_ns < 600e9 else "%H:%M", time.localtime(at_ns / 1e9))


def _in_words(drawn: Document) -> str:
    """Return a sentence that describes the timetable, also for screen readers."""
    head = drawn["reserved_for"]
    if head is None:
        return "No job is waiting for slots." if drawn["names"] else "All slots are free."
    at = drawn["reserved_from_ns"]
    when = "" if at is None else time.strftime(" from %H:%M:%S", time.localtime(at / 1e9))
    ahead = drawn["ahead"]
    others = " and others" if len(ahead) > 6 else ""
    passed = f" Backfilled without delaying it: {', '.join(ahead[:6])}{others}." if ahead else ""
    return f"{words.count(drawn['reserved_slots'], 'slot')} reserved for {head}{when}.{passed}"


MOST_LEGEND = 16


def _legend(drawn: Document) -> Markup | None:
    jobs = [job for job in sorted(drawn["names"]) if job != drawn["reserved_for"]]
    if not jobs:
        return None
    ahead = set(drawn["ahead"])
    items = [
        tag(
            "li",
            tag("span", class_=f"swatch job{colour_of(job)}{' ahead' if job in ahead else ''}"),
            words.job_link(job),
            f" {drawn['names'][job]}",
            tag("small", " backfilled") if job in ahead else None,
        )
        for job in jobs[:MOST_LEGEND]
    ]
    if drawn["reserved_for"] is not None:
        items.insert(
            0, tag("li", tag("span", class_="swatch kept"), "reserved for ", words.job_link(drawn["reserved_for"]))
        )
    return tag(
        "ul", items, tag("li", f"{len(jobs) - MOST_LEGEND} more") if len(jobs) > MOST_LEGEND else None, class_="legend"
    )


def tiles(drawn: list[Document]) -> Markup:
    """Draw each node as a tile in the colour of its state, with the node's name as the tile's title."""
    bad = sum(tile["bad"] for tile in drawn)
    nodes = sum(tile["nodes"] for tile in drawn)
    label = f"{words.count(nodes, 'node')}, {bad or 'none'} of them not healthy"
    items = [
        tag(
            "span",
            title=f"{tile['names']}: {tile['state']}"
            + (f", {tile['bad']} of {tile['nodes']}" if tile["nodes"] > 1 and tile["bad"] else ""),
            class_=f"tile {words.TONES.get(tile['state'], words.QUIET)}",
        )
        for tile in drawn
    ]
    return tag("div", items, class_="tiles", role="img", aria_label=label)
