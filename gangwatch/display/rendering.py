"""Functions that print tables and sentences for people on standard output. Programs use --json instead."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from gangwatch.display.slot_map import slot_map
from gangwatch.display.tables import add_row, output_console, print_table, shown, table_of
from gangwatch.display.times import clock, span
from scheduler_feedback.api.web.words import count
from scheduler_feedback.core.verdict_text import spans_of

if TYPE_CHECKING:
    from gangwatch.health.machine import Machine

_COLOURS = {
    **dict.fromkeys(("running", "healthy", "found", "completed"), "green"),
    **dict.fromkeys(("pending", "starting", "stopping", "probation", "suspect", "limited"), "yellow"),
    **dict.fromkeys(("failed", "quarantine"), "red"),
    **dict.fromkeys(("cancelled", "maintenance", "missing"), "dim"),
}


_HOLDING = ("starting", "running", "stopping")
"""States in which a job holds slots."""

_NARROW_COLUMNS = 100
"""Terminal width in characters below which `check` prints a list, and `jobs` omits the columns user and queue."""


def _state(word: str) -> Text:
    return Text(word, style=_COLOURS.get(word, ""))


def _places(ranks: Sequence[dict[str, Any]]) -> str:
    """Return a text with the ranks on each node, such as "node-0: 0-1; node-2: 2-3"."""
    by_node: dict[str, list[int]] = {}
    for rank in ranks:
        by_node.setdefault(shown(rank["node"]), []).append(rank["rank"])
    return "; ".join(f"{node}: {spans_of(numbers)}" for node, numbers in by_node.items())


def jobs(listed: Sequence[dict[str, Any]]) -> None:
    """Print the table of `gangwatch jobs`."""
    console = output_console()
    if not listed:
        console.print("no jobs")
        return
    whose = ("USER", "QUEUE") if console.width >= _NARROW_COLUMNS else ()
    table = table_of("JOB", "NAME", *whose, "STATE", "RANKS", "TIME", "REASON")
    for job in listed:
        add_row(
            *(
                table,
                job["job"],
                job["name"],
                *(job[name.lower()] for name in whose),
                _state(job["state"]),
                size_of(job["size"], len(job["ranks"]) if job["state"] in _HOLDING else 0),
            ),
            *(span(job["run_seconds"]) if job["attempt"] else None, _reason(job)),
        )
    print_table(console, table)


def size_of(size: int, running: int) -> str:
    """Return the number of ranks as text: '2 of 6' for an elastic gang that asks for 6 ranks and runs with 2."""
    return f"{running} of {size}" if running not in (0, size) else str(size)


def _reason(job: dict[str, Any]) -> str:
    """Return a sentence: why the job is pending, why it is slow, or why it ended."""
    if job["state"] == "pending":
        expected = job["expected_start_ns"]
        included = expected is None or "expected to start" in job["waiting_because"]
        when = "" if included else f"; expected to start at {clock(expected)}"
        return f"{job['waiting_because']}{when}"
    active = "; ".join(verdict["short"] for verdict in job["verdicts"] if verdict["standing"])
    return active if job["state"] == "running" else job["reason"] or active


def job_details(listed: Sequence[dict[str, Any]]) -> None:
    """Print all details of each job for `gangwatch jobs JOB`, one fact per line."""
    console = output_console()
    for position, job in enumerate(listed):
        if position:
            console.print()
        facts = {
            "job": f"{job['job']} ({job['name']})",
            "state": job["state"],
            "reason": _reason(job),
            "user, queue": f"{job['user'] or '-'}, {job['queue']}",
            "ranks": f"{job['size']}" + (f": {_places(job['ranks'])}" if job["ranks"] else ""),
            "attempt": f"{job['attempt']}" + (f", after {job['retries']} failures" if job["retries"] else ""),
            "submitted": clock(job["submitted_ns"]),
            "started": clock(job["started_ns"]) if job["started_ns"] is not None else "",
            "ended": clock(job["ended_ns"]) if job["ended_ns"] is not None else "",
            "run time": span(job["run_seconds"]) if job["attempt"] else "",
            "time limit": span(job["time_limit_seconds"]) if job["time_limit_seconds"] else "not set",
            "restartable": "yes: may be moved" if job["restartable"] else "no: never stopped or moved",
            "exit codes": _exit_codes(job["ranks"]),
            "folder": _own(job, "working_directory", job["working_directory"]),
            "command": _own(job, "command", shlex.join(job["command"])),
            "saves with": _own(job, "checkpoint_command", shlex.join(job.get("checkpoint_command", ()))),
        }
        for name, text in facts.items():
            if text:
                console.print(f"{name + ':':<13}{text}")
        for verdict in job["verdicts"]:
            when = "" if verdict["standing"] else f" (until {clock(verdict['until_ns'])}: {verdict['ended_because']})"
            console.print(f"{'verdict:':<13}{verdict['sentence']}{when}")


def _own(job: dict[str, Any], field: str, text: str) -> str:
    """Return the text of a job's field, or a note if the caller may not read it. Only its user and operators may."""
    hidden = field in job.get("hidden", ())
    return (
        "hidden: only the job's user and operators may read it (`gangwatch whoami` shows your role)" if hidden else text
    )


def _exit_codes(ranks: Sequence[dict[str, Any]]) -> str:
    """Return a text with the exit codes and their ranks, such as "0 of rank 0-2; 143 of rank 3"."""
    by_code: dict[int, list[int]] = {}
    for rank in ranks:
        if rank["exit_code"] is not None:
            by_code.setdefault(rank["exit_code"], []).append(rank["rank"])
    if len(by_code) == 1 and sum(map(len, by_code.values())) == len(ranks):
        return f"{next(iter(by_code))} of all ranks"
    return "; ".join(f"{code} of rank {spans_of(numbers)}" for code, numbers in sorted(by_code.items()))


def tokens(listed: Sequence[dict[str, Any]]) -> None:
    """Print the table of `gangwatch token list`."""
    table = table_of("NAME", "USER", "ROLE", "CREATED", "EXPIRES")
    for one in listed:
        add_row(table, one["name"], one["user"], one["role"], one.get("created", "-"), one.get("expires", "never"))
    print_table(output_console(), table)


def nodes(listed: Sequence[dict[str, Any]]) -> None:
    """Print the table of `gangwatch nodes`."""
    table = table_of("NODE", "STATE", "TELEMETRY", "SLOTS", "FREE", "JOBS", "REASON")
    for node in listed:
        state = _state(node["state"] if node["present"] else "absent")
        on_it = ", ".join(f"{one['job']} ({one['ranks']})" for one in node["jobs"])
        telemetry = (node.get("agent") or {"words": "–"})["words"]  # absent in older controllers
        add_row(table, node["node"], state, telemetry, node["slots"], node["free"], on_it, node["reason"])
    print_table(output_console(), table)


def queue(waiting: dict[str, Any], nodes: Sequence[dict[str, Any]], active: Sequence[dict[str, Any]]) -> None:
    """Print the pending jobs and a map of the cluster's slots for `gangwatch queue`."""
    console = output_console()
    if waiting["frozen"]:
        console.print(f"frozen{' by ' + waiting['frozen_by'] if waiting['frozen_by'] else ''}: no job starts")
    if waiting["waiting"]:
        table = table_of("JOB", "NAME", "RANKS", "EXPECTED START", "REASON")
        for job in waiting["waiting"]:
            expected = None if job["expected_start_ns"] is None else clock(job["expected_start_ns"])
            add_row(table, job["job"], job["name"], job["size"], expected, job["waiting_because"])
        print_table(console, table)
        console.print()
    else:
        console.print("no pending jobs")
    if not nodes:
        return
    for line in slot_map(waiting, nodes, active):
        console.print(line)


def verdicts(listed: Sequence[dict[str, Any]]) -> None:
    """Print the verdicts with their evidence for `gangwatch verdict list`."""
    console = output_console()
    if not listed:
        console.print("no verdicts yet")
    for verdict in listed:
        past = "" if verdict["standing"] else f" (until {clock(verdict['until_ns'])}: {verdict['ended_because']})"
        console.print(f"{verdict['verdict_id']}  {verdict['sentence']}{past}")
        for evidence in verdict.get("evidence", ()):
            console.print(
                f"    {evidence['measure']}: {evidence['value']:.4g} {evidence['unit']}, "
                f"{evidence['against']} {evidence['reference']:.4g}"
            )


def story(entries: Sequence[dict[str, Any]]) -> None:
    """Print the history of a job or node for `gangwatch story`: one line per entry, followed by its details."""
    console = output_console()
    if not entries:
        console.print("no entries yet")
    for entry in entries:
        not_applied = "" if entry.get("applied", True) else " (not applied)"
        console.print(f"{clock(entry['wall_ns'])}  {entry['kind']:<12} {entry['text']}{not_applied}")
        detail = entry.get("detail") or {}
        for name, value in detail.items() if isinstance(detail, dict) else detail:
            console.print(f"{'':21}{name}: {value}")


def explanation(explained: dict[str, Any]) -> None:
    """Print the controller's explanation for `gangwatch explain`."""
    console = output_console()
    state = explained["state"]
    console.print(
        f"{explained['job_id']} {'' if state in ('completed', 'failed') else 'is '}{state}: {explained['why']}"
    )
    if explained.get("binds"):
        console.print(f"limit: {explained['binds']}")
    if explained.get("expected_start_ns") is not None:
        between = explained.get("expected_start_range_ns")
        first, last = map(clock, between or (0, 0))
        reach = "" if first == last else f" (between {first} and {last})"
        console.print(f"expected start: {clock(explained['expected_start_ns'])}{reach}")
    if explained.get("memory_in_words"):
        console.print(explained["memory_in_words"])
    for title, items in (
        ("waits for", [_waits_for(one) for one in explained.get("waits_for", ())]),
        ("reserved slots", [f"{slot['node']} slot {slot['slot']}" for slot in explained.get("reservation", ())]),
        ("nodes that can't be used", [_blocker(one) for one in explained.get("blockers", ())]),
        ("what would start it sooner, cheapest first", explained.get("what_would_change_it", ())),
        ("learnt speeds of similar jobs", [_speed(one) for one in explained.get("speeds", ())]),
        ("learnt device memory of similar jobs", [_memory(one) for one in explained.get("memory", ())]),
    ):
        if items:
            console.print(f"{title}:")
        for item in items:
            console.print(f"    {item}")


def _waits_for(one: dict[str, Any]) -> str:
    return f"{one['job_id']} to free {count(one['ranks'], 'slot')}, expected by {clock(one['until_ns'])}"


def _speed(one: dict[str, Any]) -> str:
    on = f" on {one['gpu_type']}" if one["gpu_type"] else ""
    return (
        f"{one['ranks']} ranks{on} within one {one['level']}: {one['speed']:.2f} +-{one['error']:.0%} "
        f"(assumed {one['assumed']:.2f}; {one['measurements']:.1f} measurements)"
    )


def _memory(one: dict[str, Any]) -> str:
    failed = f"; {one['out_of_memory']} out of memory beside other jobs" if one["out_of_memory"] else ""
    runs = f"{one['runs']} run{'' if one['runs'] == 1 else 's'}"
    return (
        f"{one['ranks']} rank{'' if one['ranks'] == 1 else 's'}: at most {one['largest_mib']:,} MiB a rank in {runs}, "
        f"need {one['need_mib']:,} MiB{failed}"
    )


def _blocker(one: dict[str, Any]) -> str:
    return f"{one['node']} ({one['state']}, {one['free']} free): {one['reason']}"


def simulated(report: dict[str, Any]) -> None:
    """Print the tables of `gangwatch simulate`."""
    console = output_console()
    for note in report["notes"]:
        console.print(note)
    for one in report["refused"][:10]:
        console.print(f"refused: job {shown(one['job'])}: {one['reason']}")
    if len(report["refused"]) > 10:
        console.print(f"refused: {len(report['refused']) - 10} more")
    table = table_of("MEASURE", "VALUE")
    for key, value in report.items():
        if isinstance(value, int | float) or value is None:
            add_row(table, key, f"{value:.4g}" if isinstance(value, float) and abs(value) < 1e4 else _whole(value))
    add_row(table, "decision_ms", ", ".join(f"{name} {_whole(ms, 3)}" for name, ms in report["decision_ms"].items()))
    print_table(console, table)
    table = table_of("QUEUE", "JOBS", "AVERAGE JCT s", "P99 JCT s", "AVERAGE WAIT s")
    for name, queue in report["per_queue"].items():
        add_row(table, name, *(_whole(value) for value in queue.values()))
    console.print(table)


def _whole(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def machine(found: Machine) -> None:
    """Print the table of `gangwatch check`, or a list on a narrow terminal."""
    console = output_console()
    console.print(f"{found.host}: {found.processors} processors, {len(found.gpus)} GPUs")
    for gpu in found.gpus:
        console.print(f"    {gpu.uuid}  {gpu.model}")
    if console.width < _NARROW_COLUMNS:
        for finding in found.findings:
            console.print(Text.assemble(f"{finding.name}: ", _state(finding.state)))
            for text in filter(None, (finding.detail, f"remedy: {finding.remedy}" if finding.remedy else "")):
                for line in textwrap.wrap(text, console.width - 4, break_long_words=False, break_on_hyphens=False):
                    console.print(f"    {line}")
        return
    table = table_of("CHECK", "STATE", "DETAIL", "REMEDY")
    for finding in found.findings:
        add_row(table, finding.name, _state(finding.state), finding.detail, finding.remedy)
    print_table(console, table)


def still_there(node: str, left: dict[str, Any]) -> list[str]:
    """Return lines that list the jobs that still run on a node in quarantine or maintenance."""
    if not left["jobs"]:
        return [f"no jobs on {node}"]
    return [f"jobs still on {node}:", *(f"    {_on_node(job)}" for job in left["jobs"])]


def _on_node(job: dict[str, Any]) -> str:
    ranks = f"{job['ranks']} rank{'' if job['ranks'] == 1 else 's'}"
    who = f" of {job['user']}" if job["user"] else ""
    if job["moving"]:
        what = "is being stopped"
    else:
        what = "can be moved" if job["movable"] else "is not restartable: it runs to its end here"
    return f"{job['job']} ({job['name']}{who}, {ranks}, {job['state']}) {what}"
