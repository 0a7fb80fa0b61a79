"""The pages of all jobs and of all nodes, with 50 entries each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler_feedback.api.web import elements, figures, overview, words
from scheduler_feedback.api.web.markup import Markup, join, tag
from scheduler_feedback.core.cluster import NodeState
from scheduler_feedback.core.job import JobState
from scheduler_feedback.core.telemetry.steps.pace import Speed

Document = dict[str, Any]

JOB_FILTERS = ("", "active", *(state.value for state in JobState))
NODE_FILTERS = ("", *(state.value for state in NodeState), "absent")


def job_parts(
    listed: Document, query: Mapping[str, str], speeds: Mapping[str, Speed], now_ns: int
) -> dict[str, Markup]:
    """Render the list of jobs, which the event stream updates. speeds: speed of each job at now_ns, by job id."""
    table = overview.running("Jobs, newest first", listed["jobs"], speeds, now_ns, "No matching jobs.")
    return {"jobs": join((table, elements.pager("/jobs", query, listed["page"], listed["pages"])))}


def job_main(made: Mapping[str, Markup], query: Mapping[str, str]) -> Markup:
    return tag(
        "section",
        tag("header", tag("h1", "Jobs")),
        _search("/jobs", query, JOB_FILTERS, "Id, name, user or queue"),
        elements.live("jobs", made),
        class_="panel",
    )


def node_parts(listed: Document, query: Mapping[str, str]) -> dict[str, Markup]:
    """Render the tiles and the list of nodes, which the event stream updates."""
    columns = ("Node", "State", "Telemetry", "Slots", "Since", "Until", "Reason")
    rows = [
        elements.row(
            node["node"],
            (
                words.node_link(node["node"]),
                join((words.state(node["state"]), tag("small", " spare") if node["spare"] else None)),
                words.telemetry(node["agent"]),
                node["slots"],
                words.instant(node["since_ns"], "ago"),
                words.instant(node["until_ns"], "in"),
                tag("span", node["reason"], class_="why"),
            ),
            columns,
        )
        for node in listed["nodes"]
    ]
    counted = [tag("li", words.state(name), f" {number:,}") for name, number in listed["by_state"].items() if number]
    return {
        "tiles": join((figures.tiles(listed["tiles"]), tag("ul", counted, class_="legend"))),
        "nodes": join(
            (
                elements.table("Nodes, worst first", columns, rows, "No matching nodes."),
                elements.pager("/nodes", query, listed["page"], listed["pages"]),
            )
        ),
    }


def node_main(made: Mapping[str, Markup], query: Mapping[str, str]) -> Markup:
    return tag(
        "section",
        tag("header", tag("h1", "Nodes")),
        elements.live("tiles", made),
        _search("/nodes", query, NODE_FILTERS, "Name"),
        elements.live("nodes", made),
        class_="panel",
    )


def _search(path: str, query: Mapping[str, str], filters: tuple[str, ...], words_label: str) -> Markup:
    chosen = query.get("state", "")
    options = [tag("option", name or "all", value=name, selected=name == chosen) for name in filters]
    return tag(
        "form",
        tag("label", "State", tag("select", options, name="state")),
        tag(
            "label",
            words_label,
            tag("input", name="words", type="search", value=query.get("words", ""), maxlength="100"),
        ),
        tag("button", "Show", type="submit", class_="plain"),
        action=path,
        method="get",
        role="search",
        class_="search",
    )
