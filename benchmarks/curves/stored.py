"""Stored runs of the benchmarks, as judged jobs, and their traces, generated again from their seeds."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.crosscheck import score as crosscheck_score
from benchmarks.crosscheck import trace as crosscheck_trace
from benchmarks.curves.points import Judged
from benchmarks.curves.rules import Trace
from benchmarks.reality import score as reality_score
from benchmarks.traces import generate as traces_generate
from benchmarks.traces.figures import HEADLINE_COST

Row = dict[str, Any]


class StoredError(Exception):
    """Error: a file contains no stored runs. The message says what to do."""


def rows(path: Path) -> list[Row]:
    """Return the rows of a result file, which may be compressed. Raises StoredError."""
    wanted = "give a result file of benchmarks.traces, .crosscheck or .reality"
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
        found = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (OSError, EOFError, ValueError) as error:
        raise StoredError(f"{path}: {error}: {wanted}") from None
    if not found or not isinstance(found[0], dict) or kind(found[0]) == "":
        raise StoredError(f"{path} has no runs: {wanted}")
    return found


def kind(row: Row) -> str:
    """Return 'traces', 'crosscheck' or 'reality': the benchmark that wrote a row; '' if none did."""
    for name, key in (("traces", "outcome"), ("crosscheck", "layout"), ("reality", "class")):
        if key in row:
            return name
    return ""


def judged(row: Row) -> Judged | None:
    """Return our accusations about a row's job; None if the row doesn't count.

    Rows with unknown waits do not count, because the other rules need waits, nor do faults that cost less than 5 %.
    """
    if kind(row) == "traces":
        truth = row["truth"]
        if truth["waits"] != "known" or not (truth["healthy"] or truth["cost"] >= HEADLINE_COST):
            return None
        found = [(v["confidence"], v["mark"] == "right") for v in row["outcome"]["verdicts"] if v["accuses"]]
        return Judged(not truth["healthy"] and truth["localisable"], found)
    if kind(row) == "crosscheck":
        if row["waits"] != "known" or not (row["fault"] is None or row["cost"] >= crosscheck_score.COSTLY):
            return None
        accusing = crosscheck_score.ACCUSING
        found = [(v["confidence"], bool(v["right"])) for v in row["verdicts"] if v["kind"] in accusing]
        named = row["fault"] in crosscheck_score.NAMED_BY_TIMES and len(row["culprits"]) < row["ranks"]
        return Judged(named, found)
    if "discarded" in row or not (row["healthy"] or reality_score.costly(row)):
        return None
    found = [(v["confidence"], v["mark"] == "right") for v in reality_score.verdicts(row) if v["accuses"]]
    return Judged(not row["healthy"], found)


def traces(chosen: list[Row]) -> Iterator[Trace | None]:
    """Yield the trace of each row; None for a real run, whose step times are not stored."""
    for row in chosen:
        made = {"traces": _of_traces, "crosscheck": _of_crosscheck}.get(kind(row))
        yield made(row) if made else None


def _of_traces(row: Row) -> Trace:
    job = traces_generate.generate(
        row["seed"], row["truth"]["name"], most_ranks=row["most_ranks"], waits=row["waits"], layout=row.get("layout")
    )
    order, again = [], {last: first for first, last in job.repeats}
    for step in range(job.steps):
        order.append(step)
        order += range(max(again[step], 0), step + 1) if step in again else ()
    own = job.faulty_own if job.lost is None else np.where(job.lost, np.nan, job.faulty_own)
    onset = order.index(job.truth.onset) if job.truth.onset >= 0 else -1
    culprits = frozenset(job.truth.culprits)
    return Trace(own[order], job.seconds[order], job.layout.stage_of(), job.layout.node_of(), culprits, onset)


def _of_crosscheck(row: Row) -> Trace:
    try:
        made = crosscheck_trace.generate(row["seed"], 512, 40_000, None)
    except FileNotFoundError as error:
        raise StoredError(f"{error}: set GANGWATCH_DATA to the folder of public traces") from None
    culprits = frozenset(made.fault.positions) if made.fault else frozenset()
    onset = int(np.flatnonzero(made.fault.active)[0]) if made.fault and made.fault.active.any() else -1
    own = np.where(made.lost, np.nan, made.own)
    seconds = np.nanmax(np.where(made.lost, np.nan, made.seconds), axis=1)
    return Trace(own, seconds, made.job.place()[1], made.job.node(), culprits, onset)
