"""The command `replay`: repeats recorded decisions offline and compares them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agent.schema.errors import GangwatchError
from gangwatch.commands.options import json_option, print_json, state_option
from gangwatch.state_folder import StateFolder

if TYPE_CHECKING:
    from scheduler_feedback.cycle import Outcome
    from scheduler_feedback.journal.recovery import Replayed
    from scheduler_feedback.journal.store import JournalRow

# The cycle, the journal and rich take five times as long to load as the command line, and `--help` and shell completion
# need none of them: the functions that do import them.


def _instant(_context: click.Context, _parameter: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    try:
        return round(datetime.fromisoformat(value).timestamp() * 1e9)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a date and time; an example is '2026-11-21 10:30:00'") from None


@click.command()
@state_option
@click.option(
    "--journal",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A backup or a simulation's journal. Default: the state folder's journal.",
)
@click.option("--job", metavar="JOB", help="Show only decisions about this job.")
@click.option("--cycle", "cycle", type=click.IntRange(1), metavar="N", help="Show only this cycle.")
@click.option("--at", "at_ns", callback=_instant, metavar="TIME", help="Replay up to this time and show the jobs then.")
@click.option(
    "--processes",
    type=click.IntRange(1),
    metavar="N",
    help="Parallel processes for a whole journal. Default: one per processor.",
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
    """Replay the journal's decisions offline and compare them with the record. Nothing is changed.

    The replay begins at the latest snapshot before the requested cycle or time. With --job or --cycle, print the
    decisions and their reasons. With --at, print the jobs that ran and the jobs that were pending at that time. With
    none of these, replay the whole journal in parallel, split at its snapshots. Exits with 1 if any decision differs.

    \b
    Example:
      gangwatch replay --job j-000001
      gangwatch replay --journal backup.sqlite --at "2026-11-14 10:30:00"
    """
    from scheduler_feedback.journal.recovery import replay_journal, replay_parts
    from scheduler_feedback.journal.store import Reader

    reader = Reader(journal if journal is not None else state.path / "store.sqlite")
    if not reader.path.exists():
        raise GangwatchError(f"{reader.path}: no such journal")
    decisions: list[dict[str, Any]] = []

    def take(row: JournalRow, outcome: Outcome, same: bool) -> None:
        asked_for = row.cycle == cycle if cycle is not None else job is not None
        if asked_for and (document := _decided(row, outcome, same, job)):
            decisions.append(document)

    began = time.perf_counter()
    if job is None and cycle is None and at_ns is None:
        replayed = replay_parts(reader, processes or len(os.sched_getaffinity(0)))
    else:
        with reader.replaying(now_ns=at_ns, cycle=cycle, job=job) as loaded:
            replayed = replay_journal(loaded, take)
    if not decisions and at_ns is None and (job is not None or cycle is not None):
        raise GangwatchError(f"{reader.path}: {_unknown(job, cycle)}")
    document = {
        "journal": str(reader.path),
        "cycles": replayed.cycles,
        "events": replayed.events,
        "seconds": time.perf_counter() - began,
        "different": replayed.different,
        "decisions": decisions,
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
        return f"the journal has no record of cycle {cycle}{f' about {job}' if job is not None else ''}"
    return f"the journal has no record of job {job}"


def _decided(row: JournalRow, outcome: Outcome, same: bool, job: str | None) -> dict[str, Any] | None:
    from scheduler_feedback.core.codec import printable

    actions = [printable(action) for action in outcome.actions if job is None or action.job_id == job]
    for action in actions:
        action.pop("spec", None)  # part of the submission; it may hold a private environment
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
            click.echo(f"cycle {one['cycle']} differs from the record")
    then: dict[str, Sequence[dict[str, Any]]] = document.get("then", {})
    for one in then.get("running", ()):
        click.echo(f"running: {one['job']}, attempt {one['attempt']}, on {' '.join(one['nodes'])}")
    for one in then.get("waiting", ()):
        click.echo(f"pending: {one['job']}, {one['ranks']} ranks: {one['because']}")
    click.echo(
        f"{document['cycles']} cycles with {document['events']} events in {document['seconds']:.1f} s; "
        f"{document['different'] or 'none'} differ from the record"
    )
