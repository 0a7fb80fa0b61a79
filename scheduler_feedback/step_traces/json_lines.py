"""Reader of gangwatch's own step traces: JSON lines, one object per rank and step.

Required keys: step, rank, seconds (from the end of the rank's previous step to the end of this one). Optional keys:
wait_seconds (the part spent waiting in collectives), tokens, squares (sum of squared sequence lengths),
forward_seconds, backward_seconds, end (time at which the rank ended the step, in seconds). Keys that must be constant
for a rank: job, node, gpu, dp_rank, stage, tp_rank, ep_rank, rail. Other keys are ignored. Lines of several jobs may be
mixed. Lines with the key `at` have counters (``counter_lines.py``).

A file is read in blocks of lines into columns, because an object per line would need gigabytes. A block that contains
anything unusual is read again line by line, which gives the error its line and key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from agent.schema.errors import TraceError
from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray, IntArray
from scheduler_feedback.core.telemetry.telemetry import Shape, StepTable
from scheduler_feedback.step_traces import counter_lines
from scheduler_feedback.step_traces.counter_lines import MOST_SECONDS, CounterRow, CounterTable, Samples
from scheduler_feedback.step_traces.step_trace import (
    LONGEST,
    MOST_NUMBER,
    MOST_RANKS,
    SHORTEST,
    START_NS,
    Trace,
    check_size,
    ends_of,
    number_of,
    seconds_of,
)

MEASURES = ("seconds", "wait_seconds", "tokens", "squares", "forward_seconds", "backward_seconds", "end")
COORDINATES = {"dp_rank": "data", "stage": "stage", "tp_rank": "tensor", "ep_rank": "expert", "rail": "rail"}
NAMES = ("node", "gpu")
LONGEST_LINE = 1 << 16
MOST_SPAN = 1e6
"""Longest recording with counters in seconds, eleven days: the detectors run at each half second of it."""

BLOCK_BYTES = 1 << 20
"""Approximate size of a block. The objects of its lines are dropped before the next block is read."""


class _Row(msgspec.Struct, gc=False):
    """One line."""

    step: int
    rank: int
    seconds: float
    wait_seconds: float | None = None
    tokens: float | None = None
    squares: float | None = None
    forward_seconds: float | None = None
    backward_seconds: float | None = None
    end: float | None = None
    job: str | None = None
    node: str | None = None
    gpu: str | None = None
    dp_rank: int | None = None
    stage: int | None = None
    tp_rank: int | None = None
    ep_rank: int | None = None
    rail: int | None = None


CONSTANTS = (*NAMES, *COORDINATES)


@dataclass(slots=True)
class _Block:
    """Columns of lines of one job."""

    step: IntArray
    rank: IntArray
    measures: dict[str, FloatArray]
    """Values by measure, NaN if a line has none. A measure that no line has is left out."""


@dataclass(slots=True)
class _Job:
    """Data of one job: its lines in blocks, and the constant values of each rank."""

    blocks: list[_Block] = field(default_factory=list)
    fixed: dict[int, dict[str, Any]] = field(default_factory=dict)
    constants: set[tuple[Any, ...]] = field(default_factory=set)
    """Each combination of a rank and its constant values that a line has."""
    samples: list[Samples] = field(default_factory=list)
    """Lines with counters, in blocks."""


def read(path: Path, progress: Callable[[int], None] = lambda _: None) -> tuple[Trace, ...]:
    """Read the jobs of one file. Raises TraceError with line and key if it is invalid.

    progress: called after each block with the number of its bytes.
    """
    jobs: dict[str, _Job] = {}
    decoder, of_counters = msgspec.json.Decoder(_Row), msgspec.json.Decoder(CounterRow)
    try:
        with path.open("rb") as file:
            number = 1
            while block := file.read(BLOCK_BYTES):
                if not block.endswith(b"\n"):
                    block += file.readline(LONGEST_LINE + 1)
                lines = block.count(b"\n")
                try:
                    of_steps, counters = _divided(block)
                    rows, samples = decoder.decode_lines(of_steps), of_counters.decode_lines(counters)
                    if len(rows) + len(samples) != lines:
                        raise ValueError
                    found = _samples(samples, path.stem)
                    if rows:
                        _take(jobs, rows, path.stem)
                except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
                    rows, samples = _checked_rows(jobs, block.removesuffix(b"\n").split(b"\n"), number, path)
                    found = _samples(samples, path.stem)
                    if rows:
                        _take(jobs, rows, path.stem)
                for name, one in found.items():
                    jobs.setdefault(name, _Job()).samples.append(one)
                number += lines
                progress(len(block))
    except OSError as error:
        raise TraceError(f"{path}: {error}") from None
    for name, job in jobs.items():
        if not job.blocks:
            raise TraceError(f"{path}: job {name} has counters but no steps")
    if len(jobs) > 1 and any(job.samples for job in jobs.values()):
        raise TraceError(f"{path}: a file with counters must have one job, but has {len(jobs)}: write one file per job")
    if not jobs:
        raise TraceError(f"{path}: the file contains no steps")
    return tuple(_trace(name, job, str(path)) for name, job in jobs.items())


def _divided(block: bytes) -> tuple[bytes, bytes]:
    """Return the lines of steps and the lines that may have counters."""
    if counter_lines.MARK not in block:
        return block, b""
    lines = block.removesuffix(b"\n").split(b"\n")
    return (
        b"\n".join(line for line in lines if counter_lines.MARK not in line),
        b"\n".join(line for line in lines if counter_lines.MARK in line),
    )


def _samples(rows: Sequence[Any], usual_name: str) -> dict[str, Samples]:
    """Return lines of counters by job. Raises ValueError or OverflowError if a value is invalid."""
    by_job: dict[str, list[Any]] = {}
    for row in rows:
        by_job.setdefault(row.job or usual_name, []).append(row)
    return {name: counter_lines.samples(ones) for name, ones in by_job.items()}


def _take(jobs: dict[str, _Job], rows: Sequence[_Row], usual_name: str) -> None:
    """Add the lines of a block to their jobs. Raises ValueError or OverflowError, before anything is added, if a value
    is invalid."""
    columns = _columns(rows)
    names = dict.fromkeys(name or usual_name for name in dict.fromkeys(columns["job"]))
    found = []
    for name in names:
        if len(names) > 1:
            columns = _columns([row for row in rows if (row.job or usual_name) == name])
        job = jobs.get(name) or _Job()
        # Most lines repeat the constants of their rank, so only new combinations are compared.
        constants = set(zip(*(columns[one] for one in ("rank", *CONSTANTS)), strict=True)) - job.constants
        found.append((name, _block(columns), constants, _new_fixed(job.fixed, constants)))
    for name, block, constants, fixed in found:
        job = jobs.setdefault(name, _Job())
        job.blocks.append(block)
        job.constants |= constants
        for rank, values in fixed.items():
            job.fixed.setdefault(rank, {}).update(values)


def _columns(rows: Sequence[_Row]) -> dict[str, tuple[Any, ...]]:
    """Return the values of the lines by key. One call in C per line: by attribute it takes three times as long."""
    values = zip(*map(msgspec.structs.astuple, rows), strict=True)
    return dict(zip(_Row.__struct_fields__, values, strict=True))


def _block(columns: Mapping[str, tuple[Any, ...]]) -> _Block:
    """Return the columns of lines of one job. Raises ValueError or OverflowError if a value is invalid."""
    step, rank = (np.array(columns[name], np.int64) for name in ("step", "rank"))
    measures = {
        name: np.array(columns[name], np.float64)  # None becomes NaN
        for name in MEASURES
        if columns[name].count(None) < len(step)
    }
    seconds, wait = measures["seconds"], measures.get("wait_seconds", np.float64(0.0))
    if (
        step.min() < 0 or step.max() >= MOST_NUMBER or rank.min() < 0 or rank.max() >= MOST_RANKS
        or seconds.min() <= 0 or (wait > seconds).any()
        or not all(_are_durations(values) for values in measures.values())
        or ("end" in measures and (measures["end"] > MOST_SECONDS).any())
    ):  # fmt: skip
        raise ValueError
    return _Block(step, rank, measures)


def _are_durations(values: FloatArray) -> bool:
    return bool((np.isnan(values) | (values == 0) | ((values >= SHORTEST) & (values <= LONGEST))).all())


def _new_fixed(fixed: dict[int, dict[str, Any]], constants: set[tuple[Any, ...]]) -> dict[int, dict[str, Any]]:
    """Return constant values by rank. Raises ValueError if one differs from another line's.

    fixed: values of earlier blocks. constants: rank and its values in the order of CONSTANTS, of lines of one job.
    """
    new: dict[int, dict[str, Any]] = {}
    for rank, *values in constants:
        known, mine = fixed.get(rank, {}), new.setdefault(rank, {})
        for name, value in zip(CONSTANTS, values, strict=True):
            if value is None or value == "":
                continue
            if known.get(name, value) != value or mine.setdefault(name, value) != value:
                raise ValueError
            if isinstance(value, int) and not 0 <= value < MOST_NUMBER:
                raise ValueError
    return new


def _checked_rows(
    jobs: dict[str, _Job], lines: Sequence[bytes], first: int, path: Path
) -> tuple[list[_Row], list[Any]]:
    """Read a block line by line, and return its steps and its counters.

    Raises TraceError for the first invalid line; otherwise the lines are only written in an unusual way, such as
    numbers in quotes.

    first: number of the first line.
    """
    decoder = msgspec.json.Decoder(dict[str, Any])
    fixed: dict[tuple[str, int], dict[str, Any]] = {}
    rows, counters = [], []
    for number, line in enumerate(lines, first):
        if not line.strip():
            continue
        where = f"{path}: line {number}"
        if len(line) > LONGEST_LINE:
            raise TraceError(f"{where}: {len(line)} bytes, more than {LONGEST_LINE}")
        try:
            values = decoder.decode(line)
            if values.get("at") is not None and values.get("step") is None:
                counters.append(counter_lines.checked_row(values, where))
                continue
            row = _checked_row(values, where)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise TraceError(f"{where}: {error}") from None
        job = row.job or path.stem
        if (job, row.rank) not in fixed:
            fixed[job, row.rank] = dict(jobs[job].fixed.get(row.rank, {})) if job in jobs else {}
        known = fixed[job, row.rank]
        for name in CONSTANTS:
            value = getattr(row, name)
            if value not in (None, "") and known.setdefault(name, value) != value:
                raise TraceError(f"{where}, key '{name}': {value!r}, but rank {row.rank} had {known[name]!r} before")
        rows.append(row)
    return rows, counters


def _checked_row(row: dict[str, Any], where: str) -> _Row:
    """Return the values of one line. Raises TraceError if one is invalid."""
    for name in ("step", "rank", "seconds"):
        if row.get(name) is None:
            raise TraceError(f"{where}: key '{name}' is missing")
    rank = number_of(row["rank"], f"{where}, key 'rank'")
    if rank >= MOST_RANKS:
        raise TraceError(f"{where}, key 'rank': {rank} is not a rank number below {MOST_RANKS}")
    step = number_of(row["step"], f"{where}, key 'step'")
    known = {name: value for name, value in row.items() if value is not None}
    measures = {
        name: seconds_of(known[name], f"{where}, key '{name}'", zero=name != "seconds")
        for name in MEASURES
        if name in known
    }
    if measures.get("end", 0.0) > MOST_SECONDS:
        raise TraceError(f"{where}, key 'end': {measures['end']:g} is out of range, seconds are expected")
    if measures.get("wait_seconds", 0.0) > measures["seconds"]:
        raise TraceError(f"{where}, key 'wait_seconds': longer than the step")
    coordinates = {name: number_of(known[name], f"{where}, key '{name}'") for name in COORDINATES if name in known}
    names = {name: known[name] for name in (*NAMES, "job") if name in known}
    for name, value in names.items():
        if not isinstance(value, str):
            raise TraceError(f"{where}, key '{name}': {value!r} is not a string")
    return _Row(step=step, rank=rank, **(measures | coordinates | names))


def _trace(name: str, job: _Job, where: str) -> Trace:
    step = np.concatenate([block.step for block in job.blocks])
    numbers, row = np.unique(step, return_inverse=True)
    ranks = np.array(sorted(job.fixed), np.int64)
    check_size(len(numbers), len(ranks), where)
    cell = row * len(ranks) + np.searchsorted(ranks, np.concatenate([block.rank for block in job.blocks]))
    del step, row
    # A line counts only if no earlier line has its step and rank.
    first = np.full(len(numbers) * len(ranks), -1, np.int64)
    first[cell[::-1]] = np.arange(len(cell) - 1, -1, -1)
    present = first >= 0
    tables = {
        measure: _table(job.blocks, measure, first, present).reshape(len(numbers), len(ranks))
        for measure in MEASURES
        if any(measure in block.measures for block in job.blocks)
    }
    twice = len(cell) - int(present.sum())
    fixed = [job.fixed[rank] for rank in ranks.tolist()]
    coordinates = {
        ours: np.array([one[theirs] for one in fixed], np.int64)
        for theirs, ours in COORDINATES.items()
        if all(theirs in one for one in fixed)
    }
    nodes = tuple(one.get("node", f"rank-{rank}") for one, rank in zip(fixed, ranks.tolist(), strict=True))
    gpus = tuple(one.get("gpu", "") for one in fixed)
    seconds = tables["seconds"]
    counters = CounterTable(job.samples, ranks, where) if job.samples else None
    end_ns, counted_from = _ends(seconds, tables.get("end"), counters, where)
    steps = StepTable(
        number=numbers,
        end_ns=end_ns,
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
    notes = (f"{twice} samples of {name} are duplicates; the first one counts",) if twice else ()
    return Trace(name, shape, steps, notes=notes, counters=counters, counters_start_ns=counted_from)


def _ends(
    seconds: FloatArray, ends: FloatArray | None, counters: CounterTable | None, where: str
) -> tuple[IntArray, int]:
    """Return the end of each step on each rank in ns, and the time in ns at which the first window of counters begins.

    seconds, ends: [k steps, n ranks], NaN if unknown. Steps follow each other from second 0 on if no line has an end.
    Raises TraceError if a step has no end while others have.
    """
    if counters is None:
        return ends_of(seconds), START_NS
    if float(np.nanmax(seconds)) > MOST_SPAN:
        raise TraceError(f"{where}: a step takes more than {MOST_SPAN:g} s; with counters, times are real seconds")
    if ends is None:
        found = ends_of(seconds)
        _check_clock((found.min() - START_NS) * 1e-9, (found.max() - START_NS) * 1e-9, counters, where)
        return found, START_NS + round(counters.first * 1e9)
    known = np.isfinite(ends)
    if not known.any(axis=1).all():
        raise TraceError(f"{where}: key 'end' is missing in all lines of a step, but other steps have it")
    latest = np.where(known, ends, -np.inf).max(axis=1, keepdims=True)
    _check_clock(float(np.nanmin(ends)), float(np.nanmax(ends)), counters, where)
    zero = min(counters.first, float(np.nanmin(ends)) - float(np.nanmin(seconds)))
    found = START_NS + np.rint((np.where(known, ends, latest) - zero) * 1e9).astype(np.int64)
    return found, START_NS + round((counters.first - zero) * 1e9)


def _check_clock(first: float, last: float, counters: CounterTable, where: str) -> None:
    """Raise TraceError if the steps, which end from `first` to `last`, and the counters are not at the same time."""
    begin, end = counters.first, counters.first + counters.windows * counters.seconds
    if last < begin or first > end:
        raise TraceError(
            f"{where}: steps end from second {first:.10g} to {last:.10g}, and counters are from {begin:.10g} to "
            f"{end:.10g}: 'end' and 'at' must be on one clock"
        )
    if max(last, end) - min(first, begin) > MOST_SPAN:
        raise TraceError(f"{where}: the times of the file span more than {MOST_SPAN:g} s")


def _table(blocks: Sequence[_Block], measure: str, first: IntArray, present: npt.NDArray[np.bool_]) -> FloatArray:
    """Return a measure of each cell (step x rank), NaN if it is unknown: float64 [cells].

    first: position of the line of each cell. present: whether a cell has a line.
    """
    lines = np.concatenate(
        [block.measures[measure] if measure in block.measures else np.full(len(block.step), np.nan) for block in blocks]
    )
    cells = np.full(len(first), np.nan)
    cells[present] = lines[first[present]]
    return cells
