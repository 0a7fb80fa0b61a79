"""How answers look to a person: tables and sentences on standard output. Programs read --json instead."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from gangwatch.machine import Machine

_COLOURS = {
    **dict.fromkeys(("running", "healthy", "found", "completed"), "green"),
    **dict.fromkeys(("pending", "starting", "stopping", "probation", "suspect", "limited"), "yellow"),
    **dict.fromkeys(("failed", "quarantine"), "red"),
    **dict.fromkeys(("cancelled", "maintenance", "missing"), "dim"),
}


def _console() -> Console:
    # No markup: names and reasons hold square brackets of their own.
    return Console(markup=False, highlight=False, emoji=False, soft_wrap=True)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _row(table: Table, *cells: object) -> None:
    # Text, not str: a table reads markup in a str whatever the console was told.
    table.add_row(*(cell if isinstance(cell, Text) else Text(_shown(cell)) for cell in cells))


def _shown(value: object) -> str:
    return "-" if value is None or value == "" else str(value)


def _state(word: str) -> Text:
    return Text(word, style=_COLOURS.get(word, ""))


def _spans(numbers: Iterable[int]) -> str:
    """0,1,2,5 as 0-2,5."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and spans[-1][-1] == number - 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return ",".join("-".join(map(str, span)) for span in spans)


def _places(ranks: Sequence[dict[str, Any]]) -> str:
    """Ranks by node: node-0: 0-1; node-2: 2-3."""
    by_node: dict[str, list[int]] = {}
    for rank in ranks:
        by_node.setdefault(_shown(rank["node"]), []).append(rank["rank"])
    return "; ".join(f"{node}: {_spans(numbers)}" for node, numbers in by_node.items())


def jobs(listed: Sequence[dict[str, Any]]) -> None:
    """The table of `gangwatch jobs`."""
    console = _console()
    if not listed:
        console.print("no jobs")
        return
    table = _table("JOB", "NAME", "STATE", "ATTEMPT", "RANKS", "VERDICTS")
    for job in listed:
        verdicts = "; ".join(_verdict(verdict) for verdict in job["verdicts"] if verdict["standing"])
        _row(
            *(table, job["job"], job["name"], _state(job["state"]), job["attempt"] or None),
            *(_places(job["ranks"]), verdicts),
        )
    console.print(table)


def _verdict(verdict: dict[str, Any]) -> str:
    return (
        f"rank {verdict['rank']} on {verdict['node']}: {verdict['kind']}, {verdict['cause']} "
        f"({100 * verdict['confidence']:.0f} %)"
    )


def nodes(listed: Sequence[dict[str, Any]]) -> None:
    """The table of `gangwatch nodes`."""
    table = _table("NODE", "STATE", "SLOTS", "FREE", "JOBS", "WHY")
    for node in listed:
        state = _state(node["state"] if node["present"] else "absent")
        on_it = ", ".join(f"{one['job']} ({one['ranks']})" for one in node["jobs"])
        _row(table, node["node"], state, node["slots"], node["free"], on_it, node["reason"])
    _console().print(table)


def queue(waiting: dict[str, Any]) -> None:
    """The table of `gangwatch queue`."""
    console = _console()
    if waiting["frozen"]:
        console.print(f"frozen{' by ' + waiting['frozen_by'] if waiting['frozen_by'] else ''}: nothing starts")
    if not waiting["waiting"]:
        console.print("nobody waits")
        return
    table = _table("JOB", "NAME", "RANKS", "EXPECTED", "WAITS BECAUSE")
    for job in waiting["waiting"]:
        expected = None if job["expected_start_ns"] is None else _clock(job["expected_start_ns"])
        _row(table, job["job"], job["name"], job["size"], expected, job["waiting_because"])
    console.print(table)


def verdicts(listed: Sequence[dict[str, Any]]) -> None:
    """The table of `gangwatch verdict list`, each with its evidence."""
    console = _console()
    if not listed:
        console.print("no verdict yet")
    for verdict in listed:
        past = "" if verdict["standing"] else f" (until {_clock(verdict['until_ns'])}: {verdict['ended_because']})"
        console.print(f"{verdict['verdict_id']}  {verdict['job']}: {_verdict(verdict)}{past}")
        for evidence in verdict.get("evidence", ()):
            console.print(
                f"    {evidence['measure']}: {evidence['value']:.4g} {evidence['unit']}, "
                f"{evidence['against']} {evidence['reference']:.4g}"
            )


def story(told: Sequence[dict[str, Any]]) -> None:
    """One line an entry, its numbers under it."""
    console = _console()
    if not told:
        console.print("nothing has happened yet")
    for entry in told:
        not_applied = "" if entry.get("applied", True) else " (not applied)"
        console.print(f"{_clock(entry['wall_ns'])}  {entry['kind']:<12} {entry['text']}{not_applied}")
        detail = entry.get("detail") or {}
        for name, value in detail.items() if isinstance(detail, dict) else detail:
            console.print(f"{'':21}{name}: {value}")


def explanation(explained: dict[str, Any]) -> None:
    """What `gangwatch explain` says, in the controller's own words."""
    console = _console()
    console.print(f"{explained['job_id']} is {explained['state']}: {explained['why']}")
    if explained.get("expected_start_ns") is not None:
        console.print(f"expected start: {_clock(explained['expected_start_ns'])}")
    for title, items in (
        ("it waits for", [_waits_for(one) for one in explained.get("waits_for", ())]),
        ("slots kept for it", [f"{slot['node']} slot {slot['slot']}" for slot in explained.get("reservation", ())]),
        ("not usable freely", [_blocker(one) for one in explained.get("blockers", ())]),
        ("what would change it", explained.get("what_would_change_it", ())),
    ):
        if items:
            console.print(f"{title}:")
        for item in items:
            console.print(f"    {item}")


def _waits_for(one: dict[str, Any]) -> str:
    return f"{one['job_id']} to free {one['ranks']} slot(s), expected by {_clock(one['until_ns'])}"


def _blocker(one: dict[str, Any]) -> str:
    return f"{one['node']} ({one['state']}, {one['free']} free): {one['reason']}"


def _clock(wall_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall_ns / 1e9))


def simulated(report: dict[str, Any]) -> None:
    """The table of `gangwatch simulate`."""
    console = _console()
    for note in report["notes"]:
        console.print(note)
    for one in report["refused"][:10]:
        console.print(f"refused: job {_shown(one['job'])}: {one['reason']}")
    if len(report["refused"]) > 10:
        console.print(f"refused: {len(report['refused']) - 10} more")
    table = _table("WHAT", "")
    for key, value in report.items():
        if isinstance(value, int | float) or value is None:
            _row(table, key, f"{value:.4g}" if isinstance(value, float) and abs(value) < 1e4 else _whole(value))
    _row(table, "decision_ms", ", ".join(f"{name} {_whole(ms, 3)}" for name, ms in report["decision_ms"].items()))
    console.print(table)
    table = _table("QUEUE", "JOBS", "AVERAGE JCT s", "P99 JCT s", "AVERAGE WAIT s")
    for name, queue in report["per_queue"].items():
        _row(table, name, *(_whole(value) for value in queue.values()))
    console.print(table)


def _whole(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def machine(found: Machine) -> None:
    """The table of `gangwatch check`."""
    console = _console()
    console.print(f"{found.host}: {found.processors} processors, {len(found.gpus)} GPUs")
    for gpu in found.gpus:
        console.print(f"    {gpu.uuid}  {gpu.model}")
    table = _table("WHAT", "", "DETAIL", "WHAT BRINGS IT")
    for finding in found.findings:
        _row(table, finding.name, _state(finding.state), finding.detail, finding.remedy)
    console.print(table)
