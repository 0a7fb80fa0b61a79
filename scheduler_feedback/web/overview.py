"""The first page: who runs, who waits and for what, which nodes are ill, and what was found and done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scheduler_feedback.web import figures, frame, words
from scheduler_feedback.web.markup import Child, Markup, join, tag
from scheduler_feedback.web.verdicts import card, short

Document = dict[str, Any]


def parts(overview: Document, latest: Sequence[Document], paces: Mapping[str, float]) -> dict[str, Markup]:
    """What the stream keeps up to date, by name. latest: entries, the newest first. paces: seconds a step, by job."""
    return {
        "summary": _summary(overview),
        "notice": _notice(overview),
        "verdicts": _verdicts(overview),
        "running": running("Jobs that run", overview["running"], paces, "Nothing runs."),
        "timetable": figures.timetable(overview["timetable"]),
        "waiting": _waiting(overview),
        "nodes": _nodes(overview),
        "ended": _ended(overview),
        "latest": story(latest, "latest", with_subject=True),
    }


def main(made: Mapping[str, Markup]) -> Markup:
    jobs, nodes = (tag("a", f"All {what}", href=f"/{what}", class_="more") for what in ("jobs", "nodes"))
    freeze = frame.action("Freeze", "/api/freeze", "Stop all actions at once? Running jobs go on.")
    return join(
        (
            tag("h1", "Overview", class_="unseen"),
            frame.live("notice", made),
            frame.live("summary", made),
            frame.panel("Verdicts", "verdicts", made),
            frame.panel("Running", "running", made, jobs),
            frame.panel("Queue and reservation", "timetable", made, freeze),
            frame.panel("Waiting", "waiting", made),
            tag(
                "div",
                frame.panel("Nodes to look at", "nodes", made, nodes),
                frame.panel("Ended lately", "ended", made),
                class_="pair",
            ),
            frame.panel("What happened", "latest", made),
        )
    )


def _summary(overview: Document) -> Markup:
    jobs, slots, nodes = overview["jobs"], overview["slots"], overview["nodes"]
    usable = slots["total"] - slots["unavailable"]
    running = jobs["running"] + jobs["starting"] + jobs["stopping"]
    ill = {name: number for name, number in nodes.items() if number and name != "healthy"}
    head = overview["timetable"]["reserved_for"]
    return tag(
        "ul",
        figure("Slots in use", f"{slots['used']:,}", f"of {usable:,} usable", meter=(slots["used"], usable)),
        figure("Jobs running", f"{running:,}", words.count(jobs["completed"], "completed", "completed")),
        figure("Jobs waiting", f"{overview['waiting_total']:,}", f"first: {head}" if head else "no place is kept"),
        figure(
            *("Nodes healthy", f"{nodes['healthy']:,}"),
            ", ".join(f"{number:,} {name}" for name, number in ill.items()) or "all of them",
            words.DOUBTFUL if ill else "",
        ),
        figure(
            *("Verdicts", f"{overview['verdicts_total']:,}"),
            "stand now" if overview["verdicts_total"] else "nobody is slow",
            words.BAD if overview["verdicts_total"] else "",
        ),
        class_="figures",
    )


def figure(name: str, value: Child, note: str, tone: str = "", meter: tuple[int, int] | None = None) -> Markup:
    bar = None
    if meter is not None and meter[1]:
        share = 100 * min(meter[0] / meter[1], 1)
        bar = tag(
            "svg",
            tag("rect", width="100%", height="100%", rx="2", class_="rest"),
            tag("rect", width=f"{share:.1f}%", height="100%", rx="2", class_="used"),
            *(),
            class_="meter",
            width="100%",
            height="4",
            aria_hidden="true",
        )
    return tag(
        "li",
        tag("span", name, class_="name"),
        tag("strong", value),
        tag("span", note, class_="note"),
        bar,
        class_=tone or None,
    )


def _notice(overview: Document) -> Markup:
    """What holds for everything: frozen, or only watched."""
    told: list[Markup] = []
    if overview["frozen"]:
        by = f" by {overview['frozen_by']}" if overview["frozen_by"] else ""
        thaw = frame.action("Thaw", "/api/thaw", "Allow actions again?")
        told.append(
            tag("p", tag("strong", f"Frozen{by}."), " Jobs go on; nothing is started, moved or stopped. ", thaw)
        )
    if overview["mode"] == "observe":
        told.append(tag("p", tag("strong", "Observing."), " What feedback decides is told and scored, and not done."))
    return tag("div", told, class_="notice") if told else Markup("")


def _verdicts(overview: Document) -> Markup:
    shown = overview["verdicts"]
    if not shown:
        return tag("p", "No verdict stands: every rank keeps pace.", class_="empty good")
    more = overview["verdicts_total"] - len(shown)
    return join(
        (
            tag("ul", [tag("li", card(verdict, brief=True)) for verdict in shown], class_="cards"),
            tag("p", f"{more:,} more stand.", class_="hint") if more else None,
        )
    )


_JOB_COLUMNS = ("Job", "Name", "State", "Ranks", "Step", "Runs for", "Queue", "Held up by")


def running(caption: str, jobs: Sequence[Document], paces: Mapping[str, float], empty: str) -> Markup:
    """Jobs that hold slots."""
    wide = (3, 5, 6)
    rows = [
        frame.row(
            job["job"],
            (
                words.job_link(job["job"], job["name"]),
                job["name"],
                words.state(job["state"]),
                job["size"],
                words.seconds(paces.get(job["job"])),
                words.instant(job["attempt_started_ns"], "for"),
                job["queue"],
                [short(verdict) for verdict in job["verdicts"]] or tag("span", "–", class_="dim"),
            ),
            wide,
            "accused" if job["verdicts"] else "",
        )
        for job in jobs
    ]
    return frame.table(caption, _JOB_COLUMNS, rows, empty, wide)


def _waiting(overview: Document) -> Markup:
    wide = (1, 3, 4)
    rows = [
        frame.row(
            job["job"],
            (
                words.job_link(job["job"], job["name"]),
                job["name"],
                words.instant(job["expected_start_ns"], "in"),
                job["size"],
                words.instant(job["submitted_ns"], "for"),
                tag("span", job["waiting_because"], class_="why"),
            ),
            wide,
        )
        for job in overview["waiting"]
    ]
    more = overview["waiting_total"] - len(rows)
    columns = ("Job", "Name", "Expected", "Ranks", "Waits for", "Because")
    return join(
        (
            frame.table("Jobs that wait, first the first", columns, rows, "Nobody waits.", wide),
            tag("p", f"{more:,} more wait.", class_="hint") if more > 0 else None,
        )
    )


def _nodes(overview: Document) -> Markup:
    rows = [
        frame.row(
            node["node"],
            (
                words.node_link(node["node"]),
                words.state(node["state"]),
                words.instant(node["since_ns"], "ago"),
                tag("span", node["reason"], class_="why"),
            ),
            (2,),
        )
        for node in overview["troubled"]
    ]
    healthy = words.count(overview["nodes"]["healthy"], "node is", "nodes are")
    return frame.table(
        "Nodes that are not healthy", ("Node", "State", "Since", "Why"), rows, f"{healthy} healthy, and no other.", (2,)
    )


def _ended(overview: Document) -> Markup:
    rows = [
        frame.row(
            job["job"],
            (
                words.job_link(job["job"], job["name"]),
                job["name"],
                words.state(job["state"]),
                words.instant(job["ended_ns"], "ago"),
            ),
        )
        for job in overview["ended"]
    ]
    return frame.table("Jobs that have ended lately", ("Job", "Name", "How", "When"), rows, "None yet.")


def story(entries: Sequence[Document], name: str, with_subject: bool = False) -> Markup:
    """Entries as a list, in the order given."""
    if not entries:
        return tag("p", "Nothing yet.", class_="empty")
    items = []
    for entry in entries:
        detail = tag(
            "details",
            tag("summary", "Numbers"),
            tag("dl", [(tag("dt", key), tag("dd", value)) for key, value in entry["detail"].items()]),
            id=f"{name}-{entry['id']}-detail",
        )
        items.append(
            tag(
                "li",
                words.instant(entry["wall_ns"]),
                tag("span", entry["kind"], class_="kind"),
                tag(
                    "div",
                    (_subject(entry["subject"]), " ") if with_subject else None,
                    entry["text"],
                    None if entry["applied"] else tag("em", " (not applied)"),
                    detail if entry["detail"] else None,
                ),
                id=f"{name}-{entry['id']}",
                class_=f"entry {_TONES.get(entry['kind'], '')}".strip(),
            )
        )
    return tag("ol", items, class_="story")


_TONES = {
    **dict.fromkeys(("verdict", "quarantine", "rank-failed", "start-failed", "refused", "frozen"), words.BAD),
    **dict.fromkeys(("suspect", "probation", "preempt", "stay", "unknown"), words.DOUBTFUL),
    **dict.fromkeys(("cleared", "migrate", "released", "running", "healthy"), words.GOOD),
}


def _subject(subject: str) -> Child:
    kind, _, node = subject.partition(":")
    if kind == "node" and node:
        return words.node_link(node)
    return subject if subject == "cluster" else words.job_link(subject)
