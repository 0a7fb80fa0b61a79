"""Verdicts on the pages: the affected rank, the cause, the slowdown, the confidence and the evidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from agent.schema.verdicts.causes import CAUSES, Cause
from agent.schema.verdicts.kinds import Tone, row_of
from scheduler_feedback.api.web import elements, words
from scheduler_feedback.api.web.markup import Markup, join, tag

Document = dict[str, Any]

STRONGEST = 4
"""Number of pieces of evidence that a job's page shows. The others are collapsed."""


def short(verdict: Document) -> Markup:
    """Render a verdict in short form, for a line of a list."""
    return tag("span", verdict["short"], class_=f"accusation {tone_of(verdict)}")


def tone_of(verdict: Document) -> Tone:
    """Return the colour of an active verdict."""
    return row_of(verdict["kind"]).tone


def headline(verdict: Document) -> str:
    """Return a sentence about the verdict, without its confidence."""
    claim = str(verdict["sentence"]).rpartition(", confidence ")[0]
    return f"R{claim[1:]}" if claim.startswith("rank") else claim


def card(verdict: Document, brief: bool = False) -> Markup:
    """Render a verdict with its evidence. brief: collapse the evidence, and add a link to the job."""
    gang, row = verdict["job"], row_of(verdict["kind"])
    title = tag("h3", headline(verdict))
    facts = [
        ("Job", words.job_link(gang)) if gang and brief else None,
        ("Node", words.node_link(verdict["node"])) if verdict["node"] else None,
        ("Cause", CAUSES[Cause(verdict["cause"])].page),
        ("Slowdown", f"{verdict['slowdown']:.2f} times")
        if verdict["slowdown"] > 1 and row.wording.states_slowdown
        else None,
        ("Confidence", words.percent(verdict["confidence"])),
        (
            "Step",
            f"{words.seconds(verdict['step_seconds_before'])} when healthy, "
            f"{words.seconds(verdict['step_seconds_now'])} now",
        )
        if verdict["step_seconds_now"] > 0
        else None,
        ("Suspected device", f"{verdict['level']} {verdict['device']}") if verdict["device"] else None,
        ("Aggressor", words.job_link(verdict["aggressor"])) if verdict["aggressor"] else None,
        ("Shared resource", verdict["resource"]) if verdict["resource"] else None,
        ("Could also be", ", ".join(verdict["suspects"])) if verdict["suspects"] else None,
        ("Since", words.instant(verdict["first_wall_ns"], "ago")),
        ("Until", join((words.instant(verdict["until_ns"]), f": {verdict['ended_because']}")))
        if not verdict["standing"]
        else None,
        ("Decision", _decision(verdict)) if verdict["ruling"] else None,
        ("Review", "confirmed by a person" if verdict["judged"] else "rejected by a person")
        if verdict["judged"] is not None
        else None,
    ]
    listed = tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in filter(None, facts)])
    return tag(
        "article",
        title,
        listed,
        _evidence(verdict, 0 if brief else STRONGEST),
        None if brief or verdict["judged"] is not None else _judging(verdict["verdict_id"]),
        class_=f"verdict {f'standing {row.tone}' if verdict['standing'] else 'past'}",
        id=f"verdict-{verdict['verdict_id']}",
    )


def _decision(verdict: Document) -> str:
    ruling, reason = verdict["ruling"], verdict["ruling_reason"]
    if ruling == "migrate":
        return "the job is migrated"
    if ruling == "restart":
        return "the job is restarted"
    if reason.startswith("not restarted"):
        return str(reason)
    return f"no action: {reason or ruling}"


def _evidence(verdict: Document, shown: int) -> Markup:
    """Render the `shown` strongest pieces of evidence, and the others collapsed."""
    items = sorted(verdict["evidence"], key=lambda item: -abs(float(item["log_likelihood_ratio"])))
    frames = ", ".join(f"{node} #{number}" for node, number in verdict["frames"][:8])
    rest = items[shown:]
    words_for_rest = "Evidence" if not shown else f"{len(rest)} more pieces of evidence" if rest else "Source frames"
    return join(
        (
            _table(verdict, items[:shown], "Strongest evidence") if items[:shown] else None,
            tag(
                "details",
                tag("summary", words_for_rest),
                _table(verdict, rest, "Evidence") if rest else None,
                tag("p", f"Verdict {verdict['verdict_id']}, frames {frames or 'none'}", class_="hint"),
                id=f"why-{verdict['verdict_id']}",
            ),
        )
    )


_MEASURES = {"unrest_of_others": "spread of the other ranks' step times"}
"""Texts that the page shows for measures whose field names are not plain."""


def _table(verdict: Document, items: Sequence[Document], caption: str) -> Markup:
    head = [tag("th", name, scope="col") for name in ("Measure", "Value", "Compared with", "Weight")]
    rows = [
        tag(
            "tr",
            tag(
                "th",
                _MEASURES.get(item["measure"], item["measure"].replace("_", " ")),
                scope="row",
                data_label="Measure",
            ),
            tag("td", _value(item["value"], item["unit"]), data_label="Value"),
            tag(
                "td",
                _value(item["reference"], item["unit"]),
                tag("small", f" {item['against']}"),
                data_label="Compared with",
            ),
            tag("td", f"{item['log_likelihood_ratio']:+.1f}", data_label="Weight"),
        )
        for item in items
    ]
    drawn = tag("table", tag("caption", caption, class_="unseen"), tag("thead", tag("tr", head)), tag("tbody", rows))
    label = f"{caption} of {verdict['verdict_id']}"
    return tag("div", drawn, class_="scroll", tabindex="0", role="region", aria_label=label)


def _value(value: float, unit: str) -> str:
    if unit == "seconds" and value >= 0.0005:
        return words.seconds(value)
    return f"{value:.4g} {unit}"


def _judging(verdict_id: str) -> Markup:
    path = f"/api/verdicts/{quote(verdict_id, safe='')}"
    return tag(
        "p",
        elements.action("Confirm", f"{path}/confirm", "Confirm this verdict?"),
        elements.action("Reject", f"{path}/reject", "Reject this verdict? Its node is released."),
        class_="buttons",
    )
