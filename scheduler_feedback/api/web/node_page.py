"""A node's page: its state and the reason for it, its jobs, verdicts about it, and its story."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from scheduler_feedback.api.web import elements, overview, words
from scheduler_feedback.api.web.markup import Markup, join, tag
from scheduler_feedback.api.web.verdicts import card
from scheduler_feedback.core.telemetry.steps.pace import Speed

Document = dict[str, Any]


def parts(node: Document, story: Sequence[Document], speeds: Mapping[str, Speed], now_ns: int) -> dict[str, Markup]:
    """Render the parts of the page that the event stream updates, by name.

    story: the newest entries, newest first. speeds: speed of each job at now_ns, by job id.
    """
    verdicts = [tag("li", card(verdict, brief=True)) for verdict in node["verdicts"]]
    return {
        "head": _head(node),
        "facts": _facts(node),
        "jobs": overview.running("Jobs on the node", node["jobs"], speeds, now_ns, "No job is running on it."),
        "verdicts": tag("ul", verdicts, class_="cards") if verdicts else tag("p", "None.", class_="empty good"),
        "story": overview.story(story, "story"),
    }


def main(made: Mapping[str, Markup]) -> Markup:
    return join(
        (
            elements.live("head", made, "head"),
            elements.panel("State", "facts", made),
            elements.panel("Jobs on it", "jobs", made),
            elements.panel("Verdicts about it", "verdicts", made),
            elements.panel("Story", "story", made),
        )
    )


def _head(node: Document) -> Markup:
    path = f"/api/nodes/{quote(node['node'], safe='')}"
    name = node["node"]
    release = elements.action("Release", f"{path}/release", f"Release {name}?", reason=True)
    quarantine = elements.action("Quarantine", f"{path}/quarantine", f"Put {name} in quarantine?", reason=True)
    maintenance = elements.action(
        "Maintenance", f"{path}/maintenance", f"Take {name} out for maintenance?", reason=True
    )
    wanted = (quarantine, maintenance) if node["state"] == "healthy" else (release,)
    return join((tag("h1", name), words.state(node["state"]), wanted))


def _facts(node: Document) -> Markup:
    devices = (
        tag("ul", [tag("li", tag("code", device)) for device in node["devices"]]) if node["devices"] else "slots of CPU"
    )
    facts: tuple[tuple[str, object], ...] = (
        ("Telemetry", words.telemetry(node["agent"])),
        ("Since", words.instant(node["since_ns"], "ago")),
        ("Until", words.instant(node["until_ns"], "in")),
        ("Reason", node["reason"] or "–"),
        ("Verdict", tag("code", node["verdict_id"]) if node["verdict_id"] else "–"),
        ("Slots", f"{node['slots']}{', a spare' if node['spare'] else ''}"),
        ("Devices", devices),
        ("Machine", tag("code", node["machine"] or "–")),
    )
    return tag("dl", [tag("div", tag("dt", title), tag("dd", value)) for title, value in facts], class_="facts")
