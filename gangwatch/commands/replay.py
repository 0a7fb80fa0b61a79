"""Command that decides the past again: replay."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from agent.schema.errors import GangwatchError
from gangwatch.commands.options import json_option, print_json, state_option
from gangwatch.state_folder import StateFolder
from scheduler_feedback.core.codec import printable
from scheduler_feedback.cycle import Outcome
from scheduler_feedback.journal.recovery import Replayed, replay_journal, replay_parts
from scheduler_feedback.journal.store import JournalRow, Reader


def _instant(_context: click.Context, _parameter: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    try:
        return round(datetime.fromisoformat(value).timestamp() * 1e9)
    except ValueError:
        raise click.BadParameter(f"{value!r} is no date and time; an example is '2026-11-21 10:30:00'") from None


@click.command()
@state_option
@click.option(
    "--journal",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A backup, or a simulation's journal. Default: that of the state folder.",
)
@click.option("--job", metavar="JOB", help="Only what was decided about this job.")
@click.option("--cycle", "cycle", type=click.IntRange(1), metavar="N", help="Only this cycle.")
@click.option("--at", "at_ns", callback=_instant, metavar="TIME", help="Up to this time, and what stood then.")
@click.option(
    "--processes",
    type=click.IntRange(1),
    metavar="N",
    help="Of a whole journal: parts at a time. Default: a processor each.",
)
@json_option
def replay(
    state: StateFolder,
    journal: Path | None,
    job: str | None,
    cycle: int | None,
    at_ns: int | None,
    processes: int | None,
    as_json: bool,
) -> int:
    """Take the decisions of the journal again, offline, and say whether they are the same; nothing is touched.

    Begins with the newest snapshot before what is asked for. With --job or --cycle it tells what was decided and why,
    with --at who ran and who waited then. With none of them the whole journal, cut at its snapshots, in several
    processes. Exits with 1 where any decision comes out otherwise than recorded.

    \b
    Example:
      gangwatch replay --job j-000001
      gangwatch replay --journal backup.sqlite --at "2026-11-14 10:30:00"
    """
    reader = Reader(journal if journal is not None else state.path / "store.sqlite")
    if not reader.path.exists():
        raise GangwatchError(f"{reader.path}: there is no journal")
    told: list[dict[str, Any]] = []

    def take(row: JournalRow, outcome: Outcome, same: bool) -> None:
        asked_for = row.cycle == cycle if cycle is not None else job is not None
        if asked_for and (document := _decided(row, outcome, same, job)):
            told.append(document)

    began = time.perf_counter()
    if job is None and cycle is None and at_ns is None:
        replayed = replay_parts(reader, processes or len(os.sched_getaffinity(0)))
    else:
        with reader.replaying(now_ns=at_ns, cycle=cycle, job=job) as loaded:
            replayed = replay_journal(loaded, take)
    if not told and at_ns is None and (job is not None or cycle is not None):
        raise GangwatchError(f"{reader.path}: {_unknown(job, cycle)}")
    document = {
        "journal": str(reader.path),
        "cycles": replayed.cycles,
        "events": replayed.events,
        "seconds": time.perf_counter() - began,
        "different": replayed.different,
        "decisions": told,
    }
    if at_ns is not None:
        document["then"] = _then(replayed)
    if as_json:
        print_json(document)
    else:
        _print(document)
    return 1 if replayed.different else 0


def _unknown(job: str | None, cycle: int | None) -> str:
    if cycle is not None:
        return f"nothing is recorded of cycle {cycle}{f' about {job}' if job is not None else ''}"
    return f"nothing is recorded of a job {job}"


def _decided(row: JournalRow, outcome: Outcome, same: bool, job: str | None) -> dict[str, Any] | None:
    actions = [printable(action) for action in outcome.actions if job is None or action.job_id == job]
    for action in actions:
        action.pop("spec", None)  # the submission's own; it may hold an environment that is nobody's business here
    entries = [printable(entry) for entry in outcome.entries if job is None or entry.subject == job]
    if not actions and not entries and job is not None:
        return None
    return {"cycle": row.cycle, "wall_ns": row.now_ns, "as_recorded": same, "actions": actions, "told": entries}


def _then(replayed: Replayed) -> dict[str, Any]:
    from scheduler_feedback.cycle import why_waits

    state = replayed.state
    return {
        "wall_ns": state.now_ns,
        "running": [
            {"job": job.job_id, "attempt": job.attempt, "nodes": sorted({rank.slot.node for rank in job.ranks})}
            for job in state.jobs.values()
            if job.state.holds_slots
        ],
        "waiting": [
            {"job": job.job_id, "ranks": job.spec.ranks, "because": why_waits(state, job)}
            for job in state.jobs.values()
            if job.state.value == "pending"
        ],
    }


def _print(document: dict[str, Any]) -> None:
    from gangwatch.display import rendering

    for one in document["decisions"]:
        rendering.story([{**entry, "detail": dict(entry["detail"])} for entry in one["told"]])
        if not one["as_recorded"]:
            click.echo(f"cycle {one['cycle']} comes out otherwise than recorded")
    then: dict[str, Sequence[dict[str, Any]]] = document.get("then", {})
    for one in then.get("running", ()):
        click.echo(f"runs: {one['job']}, attempt {one['attempt']}, on {' '.join(one['nodes'])}")
    for one in then.get("waiting", ()):
        click.echo(f"waits: {one['job']}, {one['ranks']} ranks: {one['because']}")
    click.echo(
        f"{document['cycles']} cycles with {document['events']} events in {document['seconds']:.1f} s; "
        f"{document['different'] or 'none'} decided otherwise than recorded"
    )
