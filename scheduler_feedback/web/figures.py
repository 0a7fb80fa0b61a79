"""Figures: the timetable and the nodes as SVG, whose widths are percentages, so that they fit any screen unscaled."""

from __future__ import annotations

import time
from typing import Any

from scheduler_feedback.web import words
from scheduler_feedback.web.markup import Markup, join, tag

Document = dict[str, Any]

COLOURS = 8
"""Of jobs; told apart by their names where they share one (page.css has as many)."""

LANE, MOST_HEIGHT, LEAST_HEIGHT = 13, 72, 22
"""Pixels: of a slot's lane, and of a node's row."""


def colour_of(job: str) -> int:
    """One of COLOURS; neighbours in number get different ones."""
    digits = "".join(filter(str.isdecimal, job))
    return (int(digits[-9:]) if digits else sum(job.encode())) % COLOURS


def timetable(drawn: Document) -> Markup:
    """Who holds which slots until when, a row a node, with what is kept for the head of the queue."""
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
        bars = [_bar(drawn, bar, across, height / max(node["slots"], 1)) for bar in node["bars"]]
        picture = tag("svg", lines, bars, now, width="100%", height=height, aria_hidden="true")
        rows.append(tag("li", tag("span", words.node_link(node["node"]), class_="who"), picture))
    labels = [
        tag("text", _tick_name(at, until_ns - from_ns), x=_share(across(at)), y="12", text_anchor="middle")
        for at in ticks
        if 3 < across(at) < 97
    ]
    axis = tag(
        "li", tag("span", class_="who"), tag("svg", labels, width="100%", height=18), class_="axis", aria_hidden="true"
    )
    more = drawn["nodes"] - len(drawn["rows"])
    left_out = f" {words.count(more, 'node')} more: those of the reservation come first." if more else ""
    return join(
        (
            tag("ul", rows, axis, class_="timetable"),
            tag("p", _in_words(drawn), left_out, class_="hint"),
            _legend(drawn),
        )
    )


def _share(percent: float) -> str:
    return f"{percent:.2f}%"


def _bar(drawn: Document, bar: Document, across: Any, lane: float) -> Markup:
    left, right = across(bar["from_ns"]), across(bar["until_ns"])
    top, height = bar["first"] * lane, bar["slots"] * lane
    kind = bar["kind"]
    name = drawn["names"].get(bar["job"], "")
    until = time.strftime("%H:%M:%S", time.localtime(bar["until_ns"] / 1e9))
    told = f"{bar['job']} {name}, {words.count(bar['slots'], 'slot')}, expected until {until}"
    label = f"{bar['job']} {name}" if kind != "kept" else f"kept for {bar['job']}"
    colour = "" if kind == "kept" else f" job{colour_of(bar['job'])}"
    inner = [
        tag(
            "rect", x="0", y="1", width="100%", height=f"{max(height - 2, 2):.1f}", rx="3", class_=f"bar {kind}{colour}"
        ),
        tag("text", label, x="6", y=f"{height / 2 + 4:.1f}", class_=f"label {kind}")
        if height >= 12 and right - left > 7
        else None,
    ]
    return tag(
        "svg",
        tag("title", told),
        inner,
        x=_share(left),
        y=f"{top:.1f}",
        width=_share(max(right - left, 0.4)),
        height=f"{height:.1f}",
    )


_STEPS = (5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200)


def _ticks(from_ns: int, until_ns: int) -> list[int]:
    """Round instants, about five of them."""
    span = (until_ns - from_ns) / 1e9
    step_ns = next((step for step in _STEPS if span / step <= 6), 86400) * 1_000_000_000
    return list(range(-(-from_ns // step_ns) * step_ns, until_ns, step_ns))


def _tick_name(at_ns: int, span_ns: int) -> str:
    return time.strftime("%H:%M:%S" if span_ns < 600e9 else "%H:%M", time.localtime(at_ns / 1e9))


def _in_words(drawn: Document) -> str:
    """What the drawing shows, for who doesn't see it."""
    head = drawn["reserved_for"]
    if head is None:
        return "Nobody waits for a place." if drawn["names"] else "All slots are free."
    at = drawn["reserved_from_ns"]
    when = "" if at is None else time.strftime(" from %H:%M:%S", time.localtime(at / 1e9))
    ahead = drawn["ahead"]
    gone = (
        f" {', '.join(ahead[:6])}{' and others' if len(ahead) > 6 else ''} went ahead of it without delaying it."
        if ahead
        else ""
    )
    return f"{words.count(drawn['reserved_slots'], 'slot')} kept for {head}{when}.{gone}"


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
            tag("small", " went ahead") if job in ahead else None,
        )
        for job in jobs[:MOST_LEGEND]
    ]
    if drawn["reserved_for"] is not None:
        items.insert(
            0, tag("li", tag("span", class_="swatch kept"), "kept for ", words.job_link(drawn["reserved_for"]))
        )
    return tag(
        "ul", items, tag("li", f"{len(jobs) - MOST_LEGEND} more") if len(jobs) > MOST_LEGEND else None, class_="legend"
    )


TILE = 14


def tiles(drawn: list[Document]) -> Markup:
    """Every node as a tile by its state; what each tile is, its title says, and the list below has the nodes."""
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
