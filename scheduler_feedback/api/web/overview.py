"""The overview page: running and pending jobs, unhealthy nodes, active verdicts and recent events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scheduler_feedback.api.web import elements, figures, words
from scheduler_feedback.api.web.job_progress import Progress, progress_of
from scheduler_feedback.api.web.markup import Child, Markup, join, tag
from scheduler_feedback.api.web.verdicts import card, short
from scheduler_feedback.core.job import JobState
from scheduler_feedback.core.telemetry.steps.pace import Speed

Document = dict[str, Any]


def parts(
    overview: Document, latest: Sequence[Document], speeds: Mapping[str, Speed], now_ns: int
) -> dict[str, Markup]:
    """Render the parts of the page that the event stream updates, by name.

    latest: entries, newest first. speeds: speed of each job at now_ns, by job id.
    """
    return {
        "summary": _summary(overview),
        "notice": _notice(overview),
        "verdicts": _verdicts(overview),
        "running": running("Running jobs", overview["running"], speeds, now_ns, "No running jobs."),
        "timetable": figures.timetable(overview["timetable"]),
        "waiting": _waiting(overview),
        "nodes": _nodes(overview),
        "ended": _ended(overview),
        "latest": story(latest, "latest", with_subject=True),
    }


def main(made: Mapping[str, Markup]) -> Markup:
    jobs, nodes = (tag("a", f"All {what}", href=f"/{what}", class_="more") for what in ("jobs", "nodes"))
    freeze = elements.action("Freeze", "/api/freeze", "Stop all actions at once? Running jobs continue.")
    return join(
        (
            tag("h1", "Overview", class_="unseen"),
            elements.live("notice", made),
            elements.live("summary", made),
            elements.panel("Verdicts", "verdicts", made),
            elements.panel("Running", "running", made, jobs),
            elements.panel("Queue and reservation", "timetable", made, freeze),
            elements.panel("Pending", "waiting", made),
            tag(
                "div",
                elements.panel("Unhealthy nodes", "nodes", made, nodes),
                elements.panel("Recently ended", "ended", made),
                class_="pair",
            ),
            elements.panel("Recent events", "latest", made),
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
        figure("Jobs pending", f"{overview['waiting_total']:,}", f"first: {head}" if head else "no reservation"),
        figure(
            *("Nodes healthy", f"{nodes['healthy']:,}"),
            ", ".join(f"{number:,} {name}" for name, number in ill.items()) or "all nodes",
            words.DOUBTFUL if ill else "",
        ),
        _verdict_figure(overview),
        class_="figures",
    )


def _verdict_figure(overview: Document) -> Markup:
    """Render the number of active verdicts, and the number of slow jobs without a verdict."""
    total, unexplained = overview["verdicts_total"], _unexplained(overview)
    slow = f"{words.count(unexplained, 'job')} slow or without steps" if unexplained else ""
    note = ", ".join(filter(None, ("active now" if total else "none active", slow)))
    return figure("Verdicts", f"{total:,}", note, words.BAD if total else words.DOUBTFUL if unexplained else "")


def _unexplained(overview: Document) -> int:
    """Count the jobs without a verdict that are slow or make no steps."""
    return sum(int(overview["progress"].get(word, 0)) for word in (Progress.SLOW, Progress.STALLED))


def figure(name: str, value: Child, note: Child, tone: str = "", meter: tuple[int, int] | None = None) -> Markup:
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
    """Render a notice if actions are frozen or the mode is observe; empty otherwise."""
    notices: list[Markup] = []
    if overview["frozen"]:
        by = f" by {overview['frozen_by']}" if overview["frozen_by"] else ""
        thaw = elements.action("Thaw", "/api/thaw", "Allow actions again?")
        notices.append(
            tag(
                "p",
                tag("strong", f"Frozen{by}."),
                " Running jobs continue; no job is started, moved or stopped. ",
                thaw,
            )
        )
    if overview["mode"] == "observe":
        notices.append(
            tag("p", tag("strong", "Observe mode."), " Decisions are logged and scored, but not carried out.")
        )
    return tag("div", notices, class_="notice") if notices else Markup("")


def _verdicts(overview: Document) -> Markup:
    shown = overview["verdicts"]
    if not shown:
        return _no_verdict(overview)
    more = overview["verdicts_total"] - len(shown)
    return join(
        (
            tag("ul", [tag("li", card(verdict, brief=True)) for verdict in shown], class_="cards"),
            tag("p", f"{more:,} more are active.", class_="hint") if more else None,
        )
    )


_PHRASES = {
    Progress.NORMAL: ("runs at normal speed", "run at normal speed"),
    Progress.SLOW: ("is slow, cause unknown", "are slow, cause unknown"),
    Progress.STALLED: ("makes no steps", "make no steps"),
    Progress.LEARNING: ("has made too few steps to compare", "have made too few steps to compare"),
    Progress.UNREPORTED: ("reports no steps", "report no steps"),
}


def _no_verdict(overview: Document) -> Markup:
    """Render how the running jobs progress while no verdict is active."""
    progress = overview["progress"]
    counted = [
        f"{words.count(number, 'job')} {one if number == 1 else many}"
        for word, (one, many) in _PHRASES.items()
        if (number := int(progress.get(word, 0)))
    ]
    slow, normal = _unexplained(overview), int(progress.get(Progress.NORMAL, 0))
    tone = "doubt" if slow else "good" if normal and len(counted) == 1 else ""
    what = "; ".join(counted) if counted else "no running jobs"
    return tag("p", f"No verdict is active: {what}.", class_=f"empty {tone}".strip())


_JOB_COLUMNS = ("Job", "Name", "State", "Ranks", "Step", "Run time", "Queue", "Speed")


def running(caption: str, jobs: Sequence[Document], speeds: Mapping[str, Speed], now_ns: int, empty: str) -> Markup:
    """Render jobs as a table. speeds: speed of each job at now_ns, by job id. empty: text if there are no jobs."""
    rows = []
    for job in jobs:
        speed = speeds.get(job["job"])
        progress = progress_of(job["state"], job["attempt"], bool(job["verdicts"]), speed, now_ns)
        here = speed is not None and speed.attempt == job["attempt"] and job["state"] == "running"
        rows.append(
            elements.row(
                job["job"],
                (
                    words.job_link(job["job"], job["name"]),
                    job["name"],
                    words.state(job["state"]),
                    words.size(job["size"], job["running_ranks"]),
                    words.seconds(speed.seconds) if speed is not None and here else "–",
                    _run_time(job),
                    job["queue"],
                    [short(verdict) for verdict in job["verdicts"]] or _speed(progress, speed),
                ),
                _JOB_COLUMNS,
                "accused" if job["verdicts"] else "noted" if progress.noteworthy else "",
            )
        )
    return elements.table(caption, _JOB_COLUMNS, rows, empty)


def _run_time(job: Document) -> Child:
    """Render the run time of the current attempt, or of all attempts if none is running."""
    if JobState(job["state"]).holds_slots:
        return words.instant(job["attempt_started_ns"], "for")
    return words.seconds(job["run_seconds"])


def _speed(progress: Progress, speed: Speed | None) -> Markup:
    """Render the progress of a job without a verdict, for a row of a list of jobs."""
    match progress:
        case Progress.STALLED if speed is not None:
            return tag("span", "no step for ", words.instant(speed.end_ns, "for"), class_="accusation")
        case Progress.SLOW:
            return tag("span", "slow, cause unknown", class_="accusation")
        case Progress.NORMAL | Progress.UNREPORTED | Progress.LEARNING:
            return tag("span", progress.value, class_="dim")
    return tag("span", "–", class_="dim")


def _waiting(overview: Document) -> Markup:
    columns = ("Job", "Name", "Expected start", "Ranks", "Pending for", "Reason")
    rows = [
        elements.row(
            job["job"],
            (
                words.job_link(job["job"], job["name"]),
                job["name"],
                words.instant(job["expected_start_ns"], "in"),
                job["size"],
                words.instant(job["submitted_ns"], "for"),
                tag("span", job["waiting_because"], class_="why"),
            ),
            columns,
        )
        for job in overview["waiting"]
    ]
    more = overview["waiting_total"] - len(rows)
    return join(
        (
            elements.table("Pending jobs in scheduling order", columns, rows, "No pending jobs."),
            tag("p", f"{more:,} more are pending.", class_="hint") if more > 0 else None,
        )
    )


def _nodes(overview: Document) -> Markup:
    columns = ("Node", "State", "Since", "Reason")
    rows = [
        elements.row(
            node["node"],
            (
                words.node_link(node["node"]),
                words.state(node["state"]),
                words.instant(node["since_ns"], "ago"),
                tag("span", node["reason"], class_="why"),
            ),
            columns,
        )
        for node in overview["troubled"]
    ]
    healthy = words.count(overview["nodes"]["healthy"], "node is", "nodes are")
    return elements.table("Nodes that are not healthy", columns, rows, f"{healthy} healthy, none is unhealthy.")


def _ended(overview: Document) -> Markup:
    columns = ("Job", "Name", "State", "Ended", "Ran for")
    rows = [
        elements.row(
            job["job"],
            (
                words.job_link(job["job"], job["name"]),
                job["name"],
                words.state(job["state"]),
                words.instant(job["ended_ns"], "ago"),
                words.seconds(job["run_seconds"]),
            ),
            columns,
        )
        for job in overview["ended"]
    ]
    return elements.table("Recently ended jobs", columns, rows, "None yet.")


def story(entries: Sequence[Document], name: str, with_subject: bool = False) -> Markup:
    """Render log entries as a list, in the given order."""
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
                    _text(entry, name),
                    None if entry["applied"] else tag("em", " (not applied)"),
                    detail if entry["detail"] else None,
                ),
                id=f"{name}-{entry['id']}",
                class_=f"entry {_TONES.get(entry['kind'], '')}".strip(),
            )
        )
    return tag("ol", items, class_="story")


MOST_TEXT = 240
"""Maximum number of characters of an entry that the page shows. The rest is collapsed."""


def _text(entry: Document, name: str) -> Child:
    text = str(entry["text"])
    if len(text) <= MOST_TEXT:
        return text
    shown = text[:MOST_TEXT].rpartition(" ")[0] or text[:MOST_TEXT]
    whole = tag("details", tag("summary", "Full text"), tag("p", text), id=f"{name}-{entry['id']}-text")
    return join((f"{shown} …", whole))


_TONES = {
    **dict.fromkeys(
        ("verdict", "verdict-refused", "quarantine", "rank-failed", "start-failed", "refused", "frozen"), words.BAD
    ),
    **dict.fromkeys(("suspect", "probation", "preempt", "stay", "unknown"), words.DOUBTFUL),
    **dict.fromkeys(("cleared", "migrate", "restart", "released", "running", "healthy"), words.GOOD),
}


def _subject(subject: str) -> Child:
    kind, _, node = subject.partition(":")
    if kind == "node" and node:
        return words.node_link(node)
    return subject if subject == "cluster" else words.job_link(subject)
