"""Reader of ByteDance's step traces (StragglerAnalysis, OSDI'25): Parquet files with one row per operation.

Columns: dp_rank, stage, rank, step, optype, start_ts (seconds from the start of the step), duration (seconds). The
columns seq_id, mc, mb_id and gmc are not used.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from agent.schema.errors import ExtraMissingError, TraceError
from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import Shape, StepTable
from scheduler_feedback.step_traces.operation_replay import OWN, Operations
from scheduler_feedback.step_traces.step_trace import LONGEST, Trace, check_size, ends_of, unique_columns

WHOLE = ("dp_rank", "stage", "rank", "step")
TIMES = ("start_ts", "duration")
MOST_COORDINATE = 1 << 17


def read(path: Path) -> Trace:
    """Read one trace.

    Raises TraceError with column and row if it is invalid, ExtraMissingError if pyarrow is not installed.
    """
    table = _table(path)
    where = str(path)
    unique_columns(table.column_names, (*WHOLE, "optype", *TIMES), where)
    check_size(table.num_rows, 1, where)
    columns = {name: _whole(table, name, where) for name in WHOLE}
    start, duration = (_times(table, name, where) for name in TIMES)
    optype = np.array(["" if value is None else str(value) for value in table.column("optype").to_pylist()])
    _refuse(optype == "", where, "optype", "the name of the operation is missing")
    rows = np.stack([*(columns[name] for name in WHOLE), np.unique(optype, return_inverse=True)[1]], axis=1)
    _, kept = np.unique(np.column_stack([rows.astype(float), start, duration]), axis=0, return_index=True)
    notes = () if len(kept) == len(rows) else (f"{len(rows) - len(kept)} duplicate rows are ignored",)
    kept = np.sort(kept)
    rank_of, step_of = columns["rank"][kept], columns["step"][kept]
    ranks, rank = np.unique(rank_of, return_inverse=True)
    numbers, step = np.unique(step_of, return_inverse=True)
    check_size(len(numbers), len(ranks), where)
    coordinates = {}
    for name in ("dp_rank", "stage"):
        values = np.full(len(ranks), -1, np.int64)
        values[rank] = columns[name][kept]
        _refuse(_spread(kept, values[rank] != columns[name][kept], len(rows)), where, name, "differs for one rank")
        coordinates[name] = values
    start, duration, optype = start[kept], duration[kept], optype[kept]
    shape = Shape(
        path.stem, 1, ranks, tuple(f"rank-{one}" for one in ranks), data=coordinates["dp_rank"],
        stage=coordinates["stage"],
    )  # fmt: skip
    kinds, kind = np.unique(optype, return_inverse=True)
    cell = step * len(ranks) + rank

    def total(chosen: tuple[str, ...]) -> FloatArray:
        picked = np.isin(optype, chosen)
        sums = np.bincount(cell[picked], duration[picked], len(numbers) * len(ranks))
        return sums.astype(np.float64).reshape(len(numbers), len(ranks))

    begun, ended = np.full(len(numbers), np.inf), np.full(len(numbers), -np.inf)
    np.minimum.at(begun, step, start)
    np.maximum.at(ended, step, start + duration)
    _refuse(_spread(kept, ((ended - begun) <= 0)[step], len(rows)), where, "duration", "the step has no duration")
    present = np.bincount(cell, minlength=len(numbers) * len(ranks)).reshape(len(numbers), len(ranks)) > 0
    seconds = np.where(present, (ended - begun)[:, None], np.nan)
    own = tuple(str(one) for one in kinds if one in OWN or str(one).endswith("-compute"))
    steps = StepTable(
        number=numbers.astype(np.int64),
        end_ns=ends_of(seconds),
        seconds=seconds,
        wait_seconds=np.maximum(seconds - total(own), 0.0),
        forward_seconds=np.where(present, total(("forward-compute",)), np.nan),
        backward_seconds=np.where(present, total(("backward-compute",)), np.nan),
    )
    operations = Operations(
        tuple(str(one) for one in kinds), step_of, rank.astype(np.int64), kind.astype(np.int64),
        start, duration, coordinates["dp_rank"], coordinates["stage"],
    )  # fmt: skip
    return Trace(path.stem, shape, steps, operations=operations, notes=notes)


def _table(path: Path) -> Any:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ExtraMissingError(f"{path}: reading Parquet", "traces") from None
    try:
        return parquet.read_table(path)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise TraceError(f"{path}: cannot be read as a Parquet file: {error}") from None


def _whole(table: Any, name: str, where: str) -> Any:
    column = table.column(name)
    _refuse(np.asarray(column.is_null()), where, name, "the cell is empty")
    try:
        values = column.to_numpy().astype(np.float64)
    except (TypeError, ValueError):
        raise TraceError(f"{where}: column '{name}' contains {column.type}, not whole numbers") from None
    most = float(1 << 53) if name == "step" else MOST_COORDINATE
    with np.errstate(invalid="ignore"):
        _refuse(~np.isfinite(values) | (values != np.floor(values)), where, name, "not a whole number")
        _refuse((values < 0) | (values >= most), where, name, "out of range")
    return values.astype(np.int64)


def _times(table: Any, name: str, where: str) -> FloatArray:
    column = table.column(name)
    _refuse(np.asarray(column.is_null()), where, name, "the cell is empty")
    try:
        values: FloatArray = column.to_numpy().astype(np.float64)
    except (TypeError, ValueError):
        raise TraceError(f"{where}: column '{name}' contains {column.type}, not numbers") from None
    _refuse(~np.isfinite(values), where, name, "not a finite number")
    _refuse(np.abs(values) > LONGEST, where, name, f"out of range, at most {LONGEST:g}")
    if name == "duration":
        _refuse(values < 0, where, name, "a negative duration")
    return values


def _spread(kept: Any, wrong: Any, count: int) -> Any:
    """Expand a mask of the kept rows to all rows of the file, with False for all other rows.

    kept: mask of all rows, True for kept rows. wrong: mask of the kept rows only. count: number of all rows.
    """
    result = np.zeros(count, np.bool_)
    result[kept] = wrong
    return result


def _refuse(wrong: Any, where: str, column: str, what: str) -> None:
    if wrong.any():
        raise TraceError(f"{where}: row {int(wrong.argmax()) + 1}, column '{column}': {what}")
