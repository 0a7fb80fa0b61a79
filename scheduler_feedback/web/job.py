"""A job's page: how fast it goes, rank by rank; who holds it up; why it waits; and its story."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from scheduler_feedback.core.explanation import Explanation
from scheduler_feedback.web import frame, overview, words
from scheduler_feedback.web.markup import Markup, join, tag
from scheduler_feedback.web.verdicts import card

Document = dict[str, Any]

MOST_PAST = 20
"""Past verdicts that are shown, the newest."""


def parts(job: Document, story: Sequence[Document], pace: Document | None) -> dict[str, Markup]:
    """What the stream keeps up to date, by name. story: the newest entries, the newest first. pace: pace.summary."""
    standing = [verdict for verdict in job["verdicts"] if verdict["standing"]]
    past = [verdict for verdict in job["verdicts"] if not verdict["standing"]]
    return {
        "head": _head(job),
        "summary": _summary(job, standing, pace),
        "waits": _waits(job),
        "verdicts": _verdicts(standing, past, job["state"]),
        "ranks": _ranks(job, pace),
        "facts": _facts(job),
        "story": overview.story(story, "story"),
    }


def main(made: Mapping[str, Markup], has_pace: bool) -> Markup:
    charts = tag(
        "section",
        tag("header", tag("h2", "Step time by rank", id="pace-title")),
        tag("p", "No step is known of it yet.", id="pace-empty", class_="empty", hidden=has_pace),
        tag(
            "div",
            tag(
                "p",
                "Each rank's own time a step, waiting for the others left out: the one that is slow stands out, and the"
                " others do not look slow for waiting.",
                class_="hint",
            ),
            tag("div", id="pace-chart", role="img", aria_labelledby="pace-title pace-told"),
            tag("ul", id="pace-legend", class_="legend"),
            tag("h3", "Every rank, second by second"),
            tag(
                "canvas",
                id="pace-map",
                tabindex="0",
                role="img",
                aria_label="Own time of each rank over its peers', second by second. Arrow keys read a cell.",
                aria_describedby="pace-told",
            ),
            tag("p", "", id="pace-told", class_="told", aria_live="polite"),
            id="pace",
            hidden=not has_pace,
        ),
        class_="panel",
        aria_labelledby="pace-title",
    )
    return join(
        (
            frame.live("head", made, "head"),
            frame.live("summary", made),
            frame.live("waits", made),
            frame.panel("Verdicts", "verdicts", made),
            charts,
            tag(
                "div",
                frame.panel("Ranks", "ranks", made),
                frame.panel("As submitted", "facts", made),
                class_="pair",
            ),
            frame.panel("Story", "story", made),
        )
    )


def _head(job: Document) -> Markup:
    quoted = quote(job["job"], safe="")
    cancel = frame.action("Cancel", f"/api/jobs/{quoted}/cancel", f"Cancel {job['job']}?", "danger", reason=True)
    ended = job["ended_ns"] is not None
    return join(
        (
            tag("h1", job["name"] or job["job"], " ", tag("small", job["job"])),
            words.state(job["state"]),
            None if ended else cancel,
        )
    )


def _summary(job: Document, standing: Sequence[Document], pace: Document | None) -> Markup:
    figures = [
        overview.figure("Ranks", f"{job['size']:,}", f"attempt {job['attempt']}" if job["attempt"] else "not started")
    ]
    if pace is not None:
        usual, now = pace["usual_seconds"], pace["seconds"]
        slower = now / usual if usual else 1.0
        note = "as usual" if abs(slower - 1) < 0.1 else f"{slower:.2f} times the usual {words.seconds(usual)}"
        tone = words.BAD if slower > 1.25 else words.DOUBTFUL if slower > 1.1 else ""
        figures.append(overview.figure("Step now", words.seconds(now), note, tone))
        figures.append(
            overview.figure(
                "Steps",
                f"{pace['newest']:,}",
                f"slowest rank {pace['worst_rank']}, {pace['worst_ratio']:.2f} times its peers",
            )
        )
    if standing:
        worst = max(standing, key=lambda verdict: float(verdict["slowdown"]))
        who = f"rank {worst['rank']}" if worst["rank"] >= 0 else "the gang"
        figures.append(
            overview.figure(
                "Held up by", who, f"{worst['kind']} on {worst['node']}" if worst["node"] else worst["kind"], words.BAD
            )
        )
    elif job["state"] == "pending":
        at = words.instant(job["expected_start_ns"], "in")
        figures.append(overview.figure("Expected to start", at, "as things stand"))
        figures.append(overview.figure("Waits for", words.instant(job["submitted_ns"], "for"), job["queue"]))
    else:
        figures.append(overview.figure("Held up by", "nobody", "no verdict stands"))
    moved = [words.count(job[name], one) for name, one in (("migrations", "move"), ("retries", "retry")) if job[name]]
    if job["attempt_started_ns"] is not None and job["ended_ns"] is None:
        figures.append(
            overview.figure(
                "Runs for", words.instant(job["attempt_started_ns"], "for"), ", ".join(moved) or "never moved"
            )
        )
    elif job["ended_ns"] is not None:
        figures.append(overview.figure("Ended", words.instant(job["ended_ns"], "ago"), job["reason"] or job["state"]))
    return tag("ul", figures, class_="figures")


def _waits(job: Document) -> Markup:
    """Why it waits, as `gangwatch explain` has it; nothing where it does not."""
    explained: Explanation | None = job["explained"]
    if explained is None:
        return Markup("")
    facts: list[tuple[str, object]] = [("Why", explained.why)]
    if explained.expected_start_ns is not None:
        facts.append(("Expected to start", words.instant(explained.expected_start_ns, "in")))
    if explained.waits_for:
        waited = [
            tag(
                "li",
                words.job_link(one.job_id),
                f": {words.count(one.ranks, 'slot')}, expected by ",
                words.instant(one.until_ns),
            )
            for one in explained.waits_for[:10]
        ]
        facts.append(("It waits for", tag("ul", waited)))
    if explained.blockers:
        blocked = [
            tag("li", words.node_link(one.node), f" ({one.state}, {one.free} free): {one.reason}")
            for one in explained.blockers[:10]
        ]
        facts.append(("Not usable freely", tag("ul", blocked)))
    if explained.what_would_change_it:
        facts.append(("What would change it", tag("ol", [tag("li", text) for text in explained.what_would_change_it])))
    listed = [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts]
    return tag(
        "section",
        tag("header", tag("h2", "Why it waits", id="waits-title")),
        tag("dl", listed, class_="facts"),
        class_="panel",
        aria_labelledby="waits-title",
    )


def _verdicts(standing: Sequence[Document], past: Sequence[Document], state: str) -> Markup:
    if not standing and not past:
        runs = state == "running"
        return tag("p", "None: every rank keeps pace." if runs else "None.", class_="empty good" if runs else "empty")
    shown = [tag("li", card(verdict)) for verdict in standing]
    folded = [tag("li", card(verdict)) for verdict in past[:MOST_PAST]]
    return join(
        (
            tag("ul", shown, class_="cards") if shown else tag("p", "None stands.", class_="empty good"),
            tag(
                "details",
                tag("summary", f"{words.count(len(past), 'verdict')} that stood"),
                tag("ul", folded, class_="cards"),
                id="past-verdicts",
            )
            if folded
            else None,
        )
    )


def _ranks(job: Document, pace: Document | None) -> Markup:
    own = {} if pace is None else pace["own_seconds"]
    accused = set(job["accused"])
    rows = [
        frame.row(
            f"rank-{rank['rank']}",
            (
                rank["rank"],
                words.node_link(rank["node"]),
                rank["slot"],
                words.seconds(own.get(rank["rank"])),
                "–" if rank["exit_code"] is None else rank["exit_code"],
            ),
            (2, 4),
            "accused" if rank["rank"] in accused else "",
        )
        for rank in job["ranks"]
    ]
    more = job["ranks_total"] - len(rows)
    return join(
        (
            frame.table(
                "Ranks of the newest attempt",
                ("Rank", "Node", "Slot", "Own time", "Exit"),
                rows,
                "Not placed yet.",
                (2, 4),
            ),
            tag("p", f"{more:,} more; the map above has all of them.", class_="hint") if more > 0 else None,
        )
    )


def _facts(job: Document) -> Markup:
    limit = job["time_limit_seconds"]
    facts = (
        ("Queue", job["queue"]),
        ("User", job["user"] or "–"),
        ("Command", tag("code", " ".join(job["command"]))),
        ("Folder", tag("code", job["working_directory"] or "–")),
        ("Restartable", "yes: it may be moved" if job["restartable"] else "no: it is never signalled"),
        ("Time limit", "none given" if limit is None else words.seconds(limit)),
        ("Submitted", words.instant(job["submitted_ns"], "ago")),
        ("First step", words.instant(job["first_step_ns"], "ago")),
    )
    return tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts], class_="facts")
