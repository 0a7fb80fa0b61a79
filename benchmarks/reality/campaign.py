"""A campaign: the runs of consecutive seeds, one after the other, kept in a file so that it can be resumed."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.reality import score
from benchmarks.reality.cases import Case, case

Row = dict[str, Any]
TARGET = 300
"""Number of valid runs that a complete table needs."""


class ResultFileError(Exception):
    """Error: the file of results can't be used. The message says what to do."""


def read(path: Path) -> list[Row]:
    """Return the rows of a result file; empty if it does not exist. An incomplete last line is removed from it."""
    if not path.exists():
        return []
    text = path.read_text()
    complete, _, rest = text.rpartition("\n")
    if rest:
        path.write_text(complete + "\n" if complete else "")
    rows = []
    for number, line in enumerate(complete.splitlines(), 1):
        try:
            row = json.loads(line)
            _ = row["seed"], row["class"]
        except (ValueError, TypeError, KeyError):
            raise ResultFileError(
                f"{path}, line {number}: this is not a row of this benchmark: name another file with --resume"
            ) from None
        rows.append(row)
    return rows


def run(
    seed: int, seconds: float, path: Path | None, perform: Callable[[Case], Row], target: int = TARGET
) -> list[Row]:
    """Perform runs from this seed on until the time is over or enough runs are valid. Return all rows.

    Seeds that the file already contains are not run again, discarded ones included: a run is never repeated because of
    its result.
    """
    rows = read(path) if path is not None else []
    known = {row["seed"] for row in rows}
    until = time.monotonic() + seconds
    while time.monotonic() < until and sum("discarded" not in row for row in rows) < target:
        if seed not in known:
            row = perform(case(seed))
            rows.append(row)
            if path is not None:
                with path.open("a") as file:
                    file.write(json.dumps(row) + "\n")
            sys.stderr.write(describe(row, len(rows)) + "\n")
        seed += 1
    return rows


def describe(row: Row, count: int) -> str:
    """Return a line of progress about a run."""
    what = f"{count:4d}  seed {row['seed']}  {row['class']} ({row['framework']}, {row['ranks']} ranks)"
    if "discarded" in row:
        return f"{what}: discarded: {row['discarded']} {row.get('error', '')}"
    severity = f", severity {row['severity']:.2f}" if row.get("severity") else ""
    delay = score.delay_seconds(row)
    after = f" after {delay:.0f} s" if delay is not None else ""
    result = score.outcome(row) if row["healthy"] or score.costly(row) else "below the bar"
    return f"{what}{severity}: {result}{after}  [{row['seconds']:.0f} s, load {row['load_average']:.1f}]"
