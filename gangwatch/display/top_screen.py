"""Screen of `gangwatch top`: the overview page for a terminal of any size.

The functions draw a document of /api/overview. The most important sections come first. Each section is cut to the
remaining height, with a line that counts the omitted rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from agent.schema.verdicts.kinds import Tone, row_of
from gangwatch.display.rendering import size_of
from scheduler_feedback.api.web.words import count

Document = dict[str, Any]
Section = tuple[list[RenderableType], int]
"""One section of the screen: its content, and its height in lines."""

NARROW = 90
"""Terminal width in characters below which less important columns are omitted."""

LEAST_TEXT = 4
"""Least width, in characters, of a column with text. If the screen has no room for it, all columns are cut."""

MAX_STALE_AGENTS = 5
"""Maximum number of agents that are not reporting to name on the screen; `gangwatch nodes` lists all."""

_CONTROLS = dict.fromkeys((*range(32), 127, *range(128, 160)), "�")
"""Translation table that replaces control characters, so that a job's name can't move the cursor."""

_STYLES = {
    **dict.fromkeys(("running", "healthy", "completed"), "green"),
    **dict.fromkeys(("pending", "starting", "stopping", "probation", "suspect"), "yellow"),
    **dict.fromkeys(("failed", "quarantine", "absent"), "red"),
    **dict.fromkeys(("cancelled", "maintenance"), "dim"),
}
_TONES: dict[Tone, str] = {"bad": "red", "doubtful": "yellow", "quiet": ""}
_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_cyan", "bright_magenta", "bright_green")


def screen(document: Document, width: int, height: int | None, trouble: str = "") -> RenderableType:
    """Return the whole screen as an object that the console prints.

    width: in characters. height: in lines; None for no limit. trouble: reason why the document is out of date, for a
    warning; '' if it is current.
    """
    top = list(_header(document, trouble))
    left = None if height is None else height - len(top)
    parts: list[RenderableType] = list(top)
    sections: tuple[tuple[str, Callable[[Document, int, int], Section], int], ...] = (
        ("Verdicts", _verdicts, document["verdicts_total"]),
        ("Running", _running, _held(document)),
        ("Queue and reservation", _timetable, len(document["timetable"]["rows"])),
        ("Pending", _waiting, document["waiting_total"]),
        ("Unhealthy nodes", _nodes, len(document["troubled"])),
    )
    shown = [(title, draw) for title, draw, number in sections if number]
    for position, (title, draw) in enumerate(shown):
        # Leave room for a title and two lines of each following section. The next section gets unused lines.
        rows = 1000 if left is None else left - 1 - 3 * (len(shown) - position - 1)
        if rows < 2:
            break
        drawn, lines = draw(document, width, rows)
        parts += [Rule(Text(title, style="bold"), align="left", style="dim"), *drawn]
        if left is not None:
            left -= 1 + lines
    return Group(*parts)


def _held(document: Document) -> int:
    jobs = document["jobs"]
    return int(jobs["running"] + jobs["starting"] + jobs["stopping"])


def _header(document: Document, trouble: str) -> Iterable[Text]:
    slots, nodes = document["slots"], document["nodes"]
    usable = slots["total"] - slots["unavailable"]
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append("gangwatch", style="bold")
    line.append(f"  {_clock(document['now_ns'])}  slots {slots['used']}/{usable}  running {_held(document)}  ")
    line.append(f"pending {document['waiting_total']}  ")
    for name, number in nodes.items():
        if number:
            line.append(f"{number} {name}  ", style=_STYLES.get(name, ""))
    if document["verdicts_total"]:
        line.append(count(document["verdicts_total"], "verdict"), style="red")
    yield line
    if document["frozen"]:
        by = f" by {document['frozen_by']}" if document["frozen_by"] else ""
        yield _text(f"frozen{by}: nothing is started, moved or stopped", "yellow")
    if document["mode"] == "observe":
        yield _text("mode observe: decisions are logged, not applied", "yellow")
    for words in document.get("troubles", ()):
        yield _text(words, "red")
    if silent := document.get("silent_agents", ()):
        yield _text(f"no telemetry from {', '.join(map(_stale, silent[:MAX_STALE_AGENTS]))}{_more(silent)}", "red")
    if trouble:
        yield _text(trouble, "red")


def _stale(agent: Document) -> str:
    age = "none received yet" if agent["age_seconds"] is None else f"last received {_span(agent['age_seconds'])} ago"
    return f"{agent['node']} ({age})"


def _more(silent: Sequence[Document]) -> str:
    return f" and {len(silent) - MAX_STALE_AGENTS} more" if len(silent) > MAX_STALE_AGENTS else ""


def _verdicts(document: Document, _width: int, rows: int) -> Section:
    lines: list[RenderableType] = []
    for verdict in document["verdicts"]:
        lines.append(
            _text(
                f"{verdict['sentence']}, for {_span((document['now_ns'] - verdict['first_wall_ns']) / 1e9)}",
                _TONES[row_of(verdict["kind"]).tone],
            )
        )
    return _cut(lines, rows, document["verdicts_total"])


def _running(document: Document, width: int, rows: int) -> Section:
    wide = width >= NARROW
    table = _table("JOB", "NAME", "STATE", "RANKS", "STEP", *(("RUN TIME", "QUEUE") if wide else ()), "SLOWED BY")
    seconds = document["step_seconds"]
    jobs = document["running"][: max(rows - 2, 0)]
    for job in jobs:
        began = job["attempt_started_ns"]
        more = (_span((document["now_ns"] - began) / 1e9) if began else "-", job["queue"]) if wide else ()
        held = "; ".join(verdict["short"] for verdict in job["verdicts"])
        step = seconds.get(job["job"])
        size = size_of(job["size"], job["running_ranks"])
        _row(
            *(table, job["job"], job["name"], _text(job["state"], _STYLES.get(job["state"], "")), size),
            *("-" if step is None else _step(step), *more, _text(held, "red")),
        )
    return _tabled(table, width, _held(document))


def _waiting(document: Document, width: int, rows: int) -> Section:
    table = _table("JOB", "NAME", "RANKS", "EXPECTED START", *(("REASON",) if width >= NARROW else ()))
    jobs = document["waiting"][: max(rows - 2, 0)]
    for job in jobs:
        at = job["expected_start_ns"]
        expected = "-" if at is None else f"in {_span(max(at - document['now_ns'], 0) / 1e9)}"
        more = (job["waiting_because"],) if width >= NARROW else ()
        _row(table, job["job"], job["name"], job["size"], expected, *more)
    return _tabled(table, width, document["waiting_total"])


def _nodes(document: Document, width: int, rows: int) -> Section:
    table = _table("NODE", "STATE", "REASON")
    nodes = document["troubled"][: max(rows - 2, 0)]
    for node in nodes:
        _row(table, node["node"], _text(node["state"], _STYLES.get(node["state"], "")), node["reason"])
    return _tabled(table, width, sum(number for name, number in document["nodes"].items() if name != "healthy"))


# --- the timetable ----------------------------------------------------------------------------------------------------

_MARKS = {"held": "█", "ahead": "▒", "stopping": "░", "kept": "+"}


def _timetable(document: Document, width: int, rows: int) -> Section:
    """Draw one line per node, with a bar for each job on the node until the job's expected end."""
    drawn = document["timetable"]
    label = min(max((len(row["node"]) for row in drawn["rows"]), default=0), 16)
    columns = max(width - label - 2, 20)
    span_ns = drawn["until_ns"] - drawn["from_ns"]
    now = int((drawn["now_ns"] - drawn["from_ns"]) / span_ns * columns)
    lines: list[RenderableType] = []
    shown = drawn["rows"][: max(rows - 3, 1)]
    for row in shown:
        cells: list[tuple[str, str]] = [("·", "dim")] * columns
        for bar in row["bars"]:
            style = "bright_black" if bar["kind"] == "kept" else _colour_of(bar["job"])
            for cell in range(*(_column(bar[end], drawn, columns) for end in ("from_ns", "until_ns"))):
                cells[cell] = _MARKS[bar["kind"]], style
        cells[min(max(now, 0), columns - 1)] = "│", "bold"
        line = Text(no_wrap=True, overflow="crop")
        line.append(f"{_safe(row['node'])[:label]:>{label}}  ")
        for mark, style in cells:
            line.append(mark, style=style)
        lines.append(line)
    ends = _clock(drawn["from_ns"]), _clock(drawn["until_ns"])
    axis = f"{'':{label}}  {ends[0]}{ends[1]:>{columns - len(ends[0])}}"
    lines.append(Text(axis, style="dim", no_wrap=True, overflow="crop"))
    return [*lines, _legend(drawn, drawn["nodes"] - sum(row["nodes"] for row in shown))], len(lines) + 1


def _column(at_ns: int, drawn: Document, columns: int) -> int:
    share = (at_ns - drawn["from_ns"]) / (drawn["until_ns"] - drawn["from_ns"])
    return int(min(max(round(share * columns), 0), columns))


def _legend(drawn: Document, left_out: int) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    if drawn["reserved_for"] is not None:
        at = drawn["reserved_from_ns"]
        slots = drawn["reserved_slots"]
        text.append(f"+ {slots} slot{'' if slots == 1 else 's'} reserved for {drawn['reserved_for']}")
        text.append(f"{'' if at is None else ' from ' + _clock(at)}  ")
    for job in sorted(drawn["names"]):
        if job != drawn["reserved_for"]:
            went = "▒" if job in drawn["ahead"] else "█"
            text.append(f"{went} ", style=_colour_of(job))
            text.append(f"{job}{' backfilled' if job in drawn['ahead'] else ''}  ")
    if left_out > 0:
        text.append(f"{left_out} more nodes", style="dim")
    return text


def _colour_of(job: str) -> str:
    digits = "".join(filter(str.isdecimal, job))
    return _COLOURS[(int(digits[-9:]) if digits else len(job)) % len(_COLOURS)]


# --- parts ------------------------------------------------------------------------------------------------------------


def _safe(value: object) -> str:
    return str(value).translate(_CONTROLS)


def _text(value: object, style: str = "") -> Text:
    return Text(_safe(value), style=style, no_wrap=True, overflow="ellipsis")


_TEXT = frozenset({"NAME", "QUEUE", "SLOWED BY", "REASON"})


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", expand=False)
    for column in columns:
        table.add_column(column, no_wrap=True, overflow="ellipsis")
    return table


def _row(table: Table, *cells: object) -> None:
    table.add_row(*(cell if isinstance(cell, Text) else _text("-" if cell in (None, "") else cell) for cell in cells))


def _cut(lines: Sequence[RenderableType], rows: int, total: int) -> Section:
    if total <= len(lines) <= rows:
        return list(lines), len(lines)
    kept = list(lines[: max(rows - 1, 1)])
    return [*kept, _text(f"{total - len(kept)} more", "dim")], len(kept) + 1


def _tabled(table: Table, width: int, total: int) -> Section:
    """Return a section with this table and, if rows were left out, a line with their number.

    total: number of rows, including those that were left out. Columns with text are cut first. Numbers and ids are cut
    only if the screen has no room for them.
    """
    whole = [
        (column, max(len(str(cell)) for cell in (column.header, *column.cells)))
        for column in table.columns
        if column.header not in _TEXT
    ]
    texts = len(table.columns) - len(whole)
    if sum(characters + 1 for _, characters in whole) + texts * (LEAST_TEXT + 1) <= width:
        for column, characters in whole:
            column.min_width = characters
    more = total - table.row_count
    lines = table.row_count + 1
    return ([table, _text(f"{more} more", "dim")], lines + 1) if more > 0 else ([table], lines)


def _step(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"


def _span(seconds: float) -> str:
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min"
    return f"{whole / 3600:.1f} h" if whole < 172_800 else f"{whole // 86_400} d"


def _clock(wall_ns: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(wall_ns / 1e9))


def console() -> Console:
    """Return a console that prints text unchanged: square brackets in names are not interpreted as markup."""
    return Console(markup=False, highlight=False, emoji=False)
