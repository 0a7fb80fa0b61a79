"""Reader of Alibaba PAI's mini-batch times (cluster-trace-gpu-v2020): CSV files with one row per worker and iteration.

Columns: worker, time (number of the iteration), batch_time_norm (the worker's time for it, in an unknown unit). Other
columns are not used. The times of workers in one iteration differ by half, so they cannot include waiting. The reader
assumes that an iteration lasts as long as that of its slowest worker, while the other workers wait.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from agent.schema.errors import TraceError
from scheduler_feedback.core.telemetry.telemetry import Shape, StepTable
from scheduler_feedback.step_traces.step_trace import Trace, check_size, ends_of, number_of, seconds_of, unique_columns

COLUMNS = ("worker", "time", "batch_time_norm")
MOST_WORKER = 1 << 17


def read(path: Path) -> Trace:
    """Read one trace. Raises TraceError with line and column if it is invalid."""
    found: dict[tuple[int, int], float] = {}
    twice = 0
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.reader(file, strict=True)
            header = next(rows, [])
            unique_columns(header, COLUMNS, str(path))
            places = [header.index(name) for name in COLUMNS]
            for row in rows:
                if not row:
                    continue
                where = f"{path}: line {rows.line_num}"
                if len(row) != len(header):
                    raise TraceError(f"{where}: {len(row)} values for {len(header)} columns")
                worker, iteration, taken = (row[place] for place in places)
                key = (
                    number_of(iteration, f"{where}, column 'time'"),
                    number_of(worker, f"{where}, column 'worker'"),
                )
                if key[1] >= MOST_WORKER:
                    raise TraceError(f"{where}, column 'worker': {key[1]} is not a worker number below {MOST_WORKER}")
                seconds = seconds_of(taken, f"{where}, column 'batch_time_norm'")
                twice += key in found
                found.setdefault(key, seconds)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: cannot be read as a CSV file: {error}") from None
    numbers, workers = sorted({key[0] for key in found}), sorted({key[1] for key in found})
    check_size(len(numbers), len(workers), str(path))
    row_of, column_of = {n: k for k, n in enumerate(numbers)}, {w: k for k, w in enumerate(workers)}
    own = np.full((len(numbers), len(workers)), np.nan)
    for (number, worker_number), seconds in found.items():
        own[row_of[number], column_of[worker_number]] = seconds
    longest = np.nanmax(own, axis=1, keepdims=True)
    seconds_all = np.where(np.isnan(own), np.nan, longest)
    ranks = np.array(workers, np.int64)
    steps = StepTable(np.array(numbers, np.int64), ends_of(seconds_all), seconds_all, longest - own)
    notes = (f"{twice} samples are duplicates; the first one counts",) if twice else ()
    shape = Shape(path.stem, 1, ranks, tuple(f"worker-{one}" for one in workers))
    return Trace(path.stem, shape, steps, worker=True, notes=notes)
