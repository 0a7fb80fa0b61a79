"""gangwatch's own step traces: JSON lines, one object per rank and step.

Required keys: step, rank, seconds (from the end of the rank's previous step to the end of this one). Optional keys:
wait_seconds (the part spent waiting in collectives), tokens, squares (sum of squared sequence lengths),
forward_seconds, backward_seconds; and, constant for each rank: job, node, gpu, dp_rank, stage, tp_rank, ep_rank, rail.
Other keys are ignored. Lines of several jobs may be mixed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from agent.schema.errors import TraceError
from scheduler_feedback.core.telemetry.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import Shape, StepTable
from scheduler_feedback.step_traces.step_trace import MOST_RANKS, Trace, check_size, ends_of, number_of, seconds_of

MEASURES = ("seconds", "wait_seconds", "tokens", "squares", "forward_seconds", "backward_seconds")
COORDINATES = {"dp_rank": "data", "stage": "stage", "tp_rank": "tensor", "ep_rank": "expert", "rail": "rail"}
NAMES = ("node", "gpu")
LONGEST_LINE = 1 << 16


@dataclass(slots=True)
class _Job:
    """Data of one job: measures by (step, rank), and constant values by rank."""

    cells: dict[tuple[int, int], dict[str, float]] = field(default_factory=dict)
    fixed: dict[int, dict[str, Any]] = field(default_factory=dict)
    twice: int = 0


def read(path: Path) -> tuple[Trace, ...]:
    """Read the jobs of one file. Raises TraceError with line and key if it is invalid."""
    jobs: dict[str, _Job] = {}
    decoder = msgspec.json.Decoder(dict[str, Any])
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                where = f"{path}: line {number}"
                if len(line) > LONGEST_LINE:
                    raise TraceError(f"{where}: {len(line)} bytes, more than {LONGEST_LINE}")
                try:
                    _take(jobs, decoder.decode(line), where, path.stem)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                    raise TraceError(f"{where}: {error}") from None
    except OSError as error:
        raise TraceError(f"{path}: {error}") from None
    if not jobs:
        raise TraceError(f"{path}: the file contains no steps")
    return tuple(_trace(name, job, str(path)) for name, job in jobs.items())


def _take(jobs: dict[str, _Job], row: dict[str, Any], where: str, usual_name: str) -> None:
    for name in ("step", "rank", "seconds"):
        if row.get(name) is None:
            raise TraceError(f"{where}: key '{name}' is missing")
    rank = number_of(row["rank"], f"{where}, key 'rank'")
    if rank >= MOST_RANKS:
        raise TraceError(f"{where}, key 'rank': {rank} is not a rank number below {MOST_RANKS}")
    step = number_of(row["step"], f"{where}, key 'step'")
    measures = {}
    for name in MEASURES:
        if row.get(name) is not None:
            measures[name] = seconds_of(row[name], f"{where}, key '{name}'", zero=name != "seconds")
    if measures.get("wait_seconds", 0.0) > measures["seconds"]:
        raise TraceError(f"{where}, key 'wait_seconds': longer than the step")
    fixed: dict[str, Any] = {}
    for name in COORDINATES:
        if row.get(name) is not None:
            fixed[name] = number_of(row[name], f"{where}, key '{name}'")
    for name in (*NAMES, "job"):
        if row.get(name) is not None and not isinstance(row[name], str):
            raise TraceError(f"{where}, key '{name}': {row[name]!r} is not a string")
    fixed.update({name: row[name] for name in NAMES if row.get(name)})
    job = jobs.setdefault(row.get("job") or usual_name, _Job())
    known = job.fixed.setdefault(rank, fixed)
    for name, value in fixed.items():
        if known.setdefault(name, value) != value:
            raise TraceError(f"{where}, key '{name}': {value!r}, but rank {rank} had {known[name]!r} before")
    job.twice += (step, rank) in job.cells
    job.cells.setdefault((step, rank), measures)


def _trace(name: str, job: _Job, where: str) -> Trace:
    numbers = np.array(sorted({step for step, _ in job.cells}), np.int64)
    ranks = np.array(sorted(job.fixed), np.int64)
    check_size(len(numbers), len(ranks), where)
    tables: dict[str, FloatArray] = {}
    row_of, column_of = {n: k for k, n in enumerate(numbers.tolist())}, {r: k for k, r in enumerate(ranks.tolist())}
    for (step, rank), measures in job.cells.items():
        for key, value in measures.items():
            table = tables.get(key)
            if table is None:
                table = tables[key] = np.full((len(numbers), len(ranks)), np.nan)
            table[row_of[step], column_of[rank]] = value
    fixed = [job.fixed[rank] for rank in ranks.tolist()]
    coordinates = {
        ours: np.array([one[theirs] for one in fixed], np.int64)
        for theirs, ours in COORDINATES.items()
        if all(theirs in one for one in fixed)
    }
    nodes = tuple(one.get("node", f"rank-{rank}") for one, rank in zip(fixed, ranks.tolist(), strict=True))
    gpus = tuple(one.get("gpu", "") for one in fixed)
    seconds = tables["seconds"]
    steps = StepTable(
        number=numbers,
        end_ns=ends_of(seconds),
        seconds=seconds,
        wait_seconds=tables.get("wait_seconds", np.full_like(seconds, np.nan)),
        tokens=tables.get("tokens"),
        squares=tables.get("squares"),
        forward_seconds=tables.get("forward_seconds"),
        backward_seconds=tables.get("backward_seconds"),
    )
    shape = Shape(
        name, 1, ranks, nodes, gpus if any(gpus) else (),
        data=coordinates.get("data"), stage=coordinates.get("stage"), tensor=coordinates.get("tensor"),
        expert=coordinates.get("expert"), rail=coordinates.get("rail"),
    )  # fmt: skip
    notes = (f"{job.twice} samples of {name} are duplicates; the first one counts",) if job.twice else ()
    return Trace(name, shape, steps, notes=notes)
