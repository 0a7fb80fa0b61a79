"""A job's page: its speed, rank by rank; verdicts about it; why it is pending; and its story."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby, islice
from typing import Any
from urllib.parse import quote

from scheduler_feedback.api.web import elements, overview, words
from scheduler_feedback.api.web.job_progress import Progress, is_stalled, progress_of, unknown_since
from scheduler_feedback.api.web.markup import Child, Markup, join, tag
from scheduler_feedback.api.web.verdicts import card, tone_of
from scheduler_feedback.api.web.views import MOST_RANKS
from scheduler_feedback.core.explanation import Explanation
from scheduler_feedback.core.job import RankRecord
from scheduler_feedback.core.telemetry.steps.pace import Speed

Document = dict[str, Any]

MOST_PAST = 20
"""Maximum number of past verdicts that the page shows."""

MOST_PLACED = 512
"""Maximum number of nodes in the collapsed list of ranks. `gangwatch jobs --json` lists all nodes."""


def parts(job: Document, story: Sequence[Document], pace: Document | None, now_ns: int) -> dict[str, Markup]:
    """Render the parts that the stream updates, by name.

    story: the newest entries, newest first. pace: the document of paces.summary. now_ns: wall time, for the age of the
    last step.
    """
    active = [verdict for verdict in job["verdicts"] if verdict["standing"]]
    past = [verdict for verdict in job["verdicts"] if not verdict["standing"]]
    if pace is not None and pace["speed"].attempt != job["attempt"]:
        pace = None  # an earlier attempt's, on other slots
    speed = None if pace is None else pace["speed"]
    unknown = unknown_since(story, job["attempt_started_ns"])
    unknown_ns = None if unknown is None else unknown["wall_ns"]
    progress = progress_of(job["state"], job["attempt"], bool(active), speed, now_ns, unknown_ns)
    return {
        "head": _head(job),
        "summary": _summary(job, progress, active, pace, now_ns),
        "waits": _waits(job),
        "verdicts": _verdicts(active, past, _no_verdict(job, progress, speed, unknown)),
        "ranks": _ranks(job, pace),
        "placements": _placements(job["placed"]),
        "facts": _facts(job),
        "story": overview.story(story, "story"),
    }


def main(made: Mapping[str, Markup], has_pace: bool) -> Markup:
    return join(
        (
            elements.live("head", made, "head"),
            elements.live("summary", made),
            elements.live("waits", made),
            elements.panel("Verdicts", "verdicts", made),
            _charts(has_pace),
            tag(
                "div",
                tag(
                    "section",
                    tag("header", tag("h2", "Ranks", id="ranks-title")),
                    elements.live("ranks", made),
                    elements.live("placements", made),
                    class_="panel",
                    aria_labelledby="ranks-title",
                ),
                elements.panel("As submitted", "facts", made),
                class_="pair",
            ),
            elements.panel("Story", "story", made),
        )
    )


_HEAT = ("as its peers", "1.1 times", "1.3 times", "2 times or more")
"""Labels of the colours in the map of ranks: how slow a rank is (--heat-0 to --heat-3 in page.css)."""


def _charts(has_pace: bool) -> Markup:
    """Render the empty elements in which the script pace.js draws the charts."""
    heat = [tag("li", tag("span", class_=f"swatch heat{at}"), words_) for at, words_ in enumerate(_HEAT)]
    return tag(
        "section",
        tag("header", tag("h2", "Step time by rank", id="pace-title")),
        tag("p", "No step of this attempt was received.", id="pace-empty", class_="empty", hidden=has_pace),
        tag(
            "div",
            tag(
                "p",
                "The longest step of each second. A rank's own time excludes its waits for other ranks, so that the"
                " slow rank is visible. Hatched: no step ended.",
                tag("span", " The scale is logarithmic.", id="pace-scale", hidden=True),
                class_="hint",
            ),
            tag("div", id="pace-chart", role="img", aria_labelledby="pace-title pace-said"),
            tag("ul", id="pace-legend", class_="legend"),
            tag("p", "", id="pace-said", class_="hint"),
            tag("h3", "Each rank, second by second"),
            tag(
                "div",
                tag("div", id="pace-names", aria_hidden="true"),
                tag(
                    "div",
                    tag(
                        "canvas",
                        id="pace-map",
                        tabindex="0",
                        role="img",
                        aria_label="Own time of each rank over its peers', second by second. Arrow keys read a cell.",
                        aria_describedby="pace-cell",
                    ),
                    class_="hatched",
                ),
                tag("div", id="pace-times", aria_hidden="true"),
                class_="map",
            ),
            tag(
                "ul",
                tag("li", tag("small", "Own time relative to the peers' median:")),
                heat,
                tag("li", tag("span", class_="swatch none"), "no step"),
                id="pace-heat",
                class_="legend",
            ),
            tag("p", "", id="pace-cell", class_="cell", aria_live="polite"),
            id="pace",
            hidden=not has_pace,
        ),
        class_="panel",
        aria_labelledby="pace-title",
    )


def _head(job: Document) -> Markup:
    quoted = quote(job["job"], safe="")
    cancel = elements.action("Cancel", f"/api/jobs/{quoted}/cancel", f"Cancel {job['job']}?", "danger", reason=True)
    ended = job["ended_ns"] is not None
    return join(
        (
            tag("h1", job["name"] or job["job"], " ", tag("small", job["job"])),
            words.state(job["state"]),
            None if ended else cancel,
        )
    )


def _summary(
    job: Document, progress: Progress, active: Sequence[Document], pace: Document | None, now_ns: int
) -> Markup:
    figures = [
        overview.figure("Ranks", f"{job['size']:,}", f"attempt {job['attempt']}" if job["attempt"] else "not started")
    ]
    if pace is not None:
        figures.append(_step(progress, pace["speed"], now_ns))
        slowest = f"slowest rank {pace['worst_rank']}, {pace['worst_ratio']:.2f} times its peers"
        figures.append(overview.figure("Steps", f"{pace['speed'].newest + 1:,}", slowest if job["size"] > 1 else ""))
    if active:
        worst = max(active, key=lambda verdict: float(verdict["slowdown"]))
        who = f"rank {worst['rank']}" if worst["rank"] >= 0 else "the job itself"
        kind = worst["kind"].replace("_", " ")
        note = f"{kind} on {worst['node']}" if worst["node"] else kind
        figures.append(overview.figure("Slowed by", who, note, tone_of(worst)))
    elif progress is Progress.NOT_RUNNING and job["state"] == "pending":
        at = words.instant(job["expected_start_ns"], "in")
        figures.append(overview.figure("Expected start", at, "by current estimates"))
        figures.append(overview.figure("Pending for", words.instant(job["submitted_ns"], "for"), job["queue"]))
    elif progress in _IN_WORDS:
        figures.append(overview.figure("Speed", *_IN_WORDS[progress]))
    moved = [words.count(job[name], one) for name, one in (("migrations", "move"), ("retries", "retry")) if job[name]]
    if job["ended_ns"] is not None:
        figures.append(overview.figure("Ran for", words.seconds(job["run_seconds"]), ", ".join(moved)))
        figures.append(overview.figure("Ended", words.instant(job["ended_ns"], "ago"), job["reason"] or job["state"]))
    elif job["attempt_started_ns"] is not None and job["state"] != "pending":
        figures.append(
            overview.figure(
                "Running for", words.instant(job["attempt_started_ns"], "for"), ", ".join(moved) or "never moved"
            )
        )
    return tag("ul", figures, class_="figures")


_IN_WORDS = {
    Progress.NORMAL: ("normal", "no verdict is active", words.GOOD),
    Progress.SLOW: ("slow", "cause unknown", words.BAD),
    Progress.LEARNING: ("not known yet", "too few steps so far", ""),
    Progress.UNREPORTED: ("not known", "no step reported so far", ""),
}
"""Text, note and colour of the field that shows the job's speed, by its progress."""


def _step(progress: Progress, speed: Speed, now_ns: int) -> Markup:
    """Render the step time, compared with the usual step time, and the age of the last step."""
    known = speed.usual_seconds == speed.usual_seconds
    usual = f"usually {words.seconds(speed.usual_seconds)}" if known else ""
    took = words.seconds(speed.seconds)
    if progress is Progress.ENDED:
        return overview.figure(
            "Last step", took, join((usual, ", at " if usual else "at ", words.instant(speed.end_ns)))
        )
    if is_stalled(speed, now_ns):
        before = f"steps took {took} before" + (f", {usual}" if known else "")
        return overview.figure("No step for", words.instant(speed.end_ns, "for"), before, words.BAD)
    note = ""
    if known:
        slower = speed.seconds / speed.usual_seconds
        note = f"{slower:.2f} times the usual {words.seconds(speed.usual_seconds)}, " if speed.slow else f"{usual}, "
    return overview.figure(
        *("Step now", took), join((note, words.instant(speed.end_ns, "ago"))), words.BAD if speed.slow else ""
    )


def _waits(job: Document) -> Markup:
    """Render why the job is pending, as `gangwatch explain` prints it; empty for any other job."""
    explained: Explanation | None = job["explained"]
    if explained is None:
        return Markup("")
    facts: list[tuple[str, object]] = [("Reason", explained.why)]
    if explained.expected_start_ns is not None:
        facts.append(("Expected start", words.instant(explained.expected_start_ns, "in")))
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
        facts.append(("Waiting for", tag("ul", waited)))
    if explained.blockers:
        blocked = [
            tag("li", words.node_link(one.node), f" ({one.state}, {one.free} free): {one.reason}")
            for one in explained.blockers[:10]
        ]
        facts.append(("Slots that it cannot use", tag("ul", blocked)))
    if explained.what_would_change_it:
        facts.append(("What would change it", tag("ol", [tag("li", text) for text in explained.what_would_change_it])))
    listed = [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts]
    return tag(
        "section",
        tag("header", tag("h2", "Why it is pending", id="waits-title")),
        tag("dl", listed, class_="facts"),
        class_="panel",
        aria_labelledby="waits-title",
    )


def _no_verdict(job: Document, progress: Progress, speed: Speed | None, unknown: Document | None) -> Markup:
    """Render the job's progress while no verdict is active."""
    sentence: Child = "No verdict is active."
    if job["state"] == "pending":
        sentence = "None: the job has not started." if job["attempt"] == 0 else "None: the job is waiting to restart."
    match progress:
        case Progress.ENDED:
            sentence = "No verdict was active when the job ended." if job["attempt"] else "None: the job never started."
        case Progress.NORMAL:
            return tag("p", "No verdict is active: the job runs at normal speed.", class_="empty good")
        case Progress.SLOW:
            assert speed is not None
            slower = (
                f"steps take {speed.seconds / speed.usual_seconds:.2f} times as long as usual" if speed.slow else ""
            )
            sentence = f"No verdict is active, but {slower or 'a detector found slowness'}. The cause is unknown."
        case Progress.STALLED:
            assert speed is not None
            since = words.instant(speed.end_ns, "for")
            sentence = join(("No verdict is active, but the job has made no step for ", since, "."))
        case Progress.LEARNING:
            sentence = "No verdict is active. The job has made too few steps for its usual speed to be known."
        case Progress.UNREPORTED if job["first_step_ns"] is not None:
            sentence = "No verdict is active. No step was received since the controller started."
        case Progress.UNREPORTED:
            sentence = (
                "No verdict is active. No step of this attempt was received yet: only the counters of its ranks are"
                " evaluated."
            )
    doubt = progress in (Progress.SLOW, Progress.STALLED)
    why = None
    if doubt and unknown is not None:
        why = tag("p", words.instant(unknown["wall_ns"]), f": {unknown['text']}", class_="hint")
    return join((tag("p", sentence, class_=f"empty {'doubt' if doubt else ''}".strip()), why))


def _verdicts(active: Sequence[Document], past: Sequence[Document], none: Markup) -> Markup:
    shown = [tag("li", card(verdict)) for verdict in active]
    folded = [tag("li", card(verdict)) for verdict in past[:MOST_PAST]]
    return join(
        (
            tag("ul", shown, class_="cards") if shown else none,
            tag(
                "details",
                tag("summary", f"{words.count(len(past), 'earlier verdict')}"),
                tag("ul", folded, class_="cards"),
                id="past-verdicts",
            )
            if folded
            else None,
        )
    )


def _ranks(job: Document, pace: Document | None) -> Markup:
    """Render the ranks with verdicts and the slowest ranks as a list, the worst first."""
    accused = set(job["accused"])
    rows = [
        elements.row(
            f"rank-{rank['rank']}",
            (
                rank["rank"],
                words.node_link(rank["node"]),
                rank["slot"],
                "–" if pace is None else words.seconds(pace["own_seconds"].get(rank["rank"])),
                "–" if pace is None else _times(pace["ratios"].get(rank["rank"])),
                "–" if rank["exit_code"] is None else rank["exit_code"],
            ),
            _RANK_COLUMNS,
            "accused" if rank["rank"] in accused else "",
        )
        for rank in job["ranks"]
    ]
    caption = "Ranks of the newest attempt"
    some = job["ranks_total"] > len(rows)
    first = "with a verdict, then failed, then slow" if pace is not None else "with a verdict, then failed"
    note = f"{len(rows)} of {job['ranks_total']:,} ranks, in this order: {first}." if some else None
    return join(
        (
            tag("p", note, class_="hint above") if note else None,
            elements.table(caption, _RANK_COLUMNS, rows, "Not placed yet."),
        )
    )


_RANK_COLUMNS = ("Rank", "Node", "Slot", "Own time", "Relative to peers", "Exit code")


def _times(ratio: float | None) -> str:
    return "–" if not ratio else f"{ratio:.2f} times"


def _placements(placed: Sequence[RankRecord]) -> Markup:
    """Render the collapsed list of the nodes of all ranks; empty if the page already lists every rank."""
    if len(placed) <= MOST_RANKS:
        return Markup("")
    items, listed = [], 0
    for node, members in islice(groupby(placed, lambda one: one.slot.node), MOST_PLACED):
        ranks = [one.rank for one in members]
        listed += len(ranks)
        items.append(tag("li", words.node_link(node), f": {words.spans(ranks)}"))
    more = len(placed) - listed
    return tag(
        "details",
        tag("summary", f"Where all {len(placed):,} ranks are"),
        tag("ul", items, class_="placements"),
        tag("p", f"{more:,} more ranks: see gangwatch jobs --json.", class_="hint") if more else None,
        id="all-placements",
    )


def _facts(job: Document) -> Markup:
    limit = job["time_limit_seconds"]
    facts = (
        ("Queue", job["queue"]),
        ("User", job["user"] or "–"),
        ("Command", _own(job, "command", " ".join(job["command"]))),
        ("Folder", _own(job, "working_directory", job["working_directory"])),
        ("Restartable", "yes: it may be moved" if job["restartable"] else "no: it is never moved"),
        ("Time limit", "none given" if limit is None else words.seconds(limit)),
        ("Submitted", words.instant(job["submitted_ns"], "ago")),
        ("First step", words.instant(job["first_step_ns"], "ago")),
    )
    return tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts], class_="facts")


def _own(job: Document, field: str, text: str) -> Markup:
    """Render a field that only the job's user and operators may see."""
    if field in job.get("hidden", ()):
        return tag("span", "shown to its user and to operators after login", class_="hint")
    return tag("code", text or "–")
