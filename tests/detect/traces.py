"""Public traces as tables that tests can change and write."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from click.testing import CliRunner
from pyarrow import parquet

from gangwatch.cli import cli
from tests import needs

Table = dict[str, np.ndarray]


def bytedance(name: str) -> Table:
    """Return the columns of a ByteDance trace."""
    read = parquet.read_table(needs.data("steps", f"bytedance-{name}.parquet"))
    return {
        column: read.column(column).cast("string").to_numpy(zero_copy_only=False)
        if column == "optype"
        else read.column(column).to_numpy()
        for column in read.column_names
    }


def write_bytedance(path: Path, table: Table) -> Path:
    parquet.write_table(pyarrow.table({name: pyarrow.array(values) for name, values in table.items()}), path)
    return path


def authors(name: str) -> dict[str, Any]:
    """Return the result for the trace that its authors published."""
    result: dict[str, Any] = json.loads(needs.data("steps", f"bytedance-{name}.result.json").read_text())
    return result


def pai(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return iterations [k] and times [k, workers] of a PAI trace; NaN if a worker has no sample."""
    cells: dict[tuple[int, int], float] = {}
    with needs.data("steps", f"{name}.csv").open() as file:
        for row in csv.DictReader(file):
            cells[int(row["time"]), int(row["worker"])] = float(row["batch_time_norm"])
    iterations = np.array(sorted({key[0] for key in cells}))
    workers = sorted({key[1] for key in cells})
    times = np.array([[cells.get((at, worker), np.nan) for worker in workers] for at in iterations.tolist()])
    return iterations, times


def write_pai(path: Path, iterations: np.ndarray, times: np.ndarray, order: np.ndarray | None = None) -> Path:
    rows = [
        (worker, at, time)
        for at, row in zip(iterations.tolist(), times.tolist(), strict=True)
        for worker, time in enumerate(row)
        if np.isfinite(time)
    ]
    if order is not None:
        rows = [rows[index] for index in order.tolist()]
    lines = [f"{number},{worker},25,{at},{time!r}" for number, (worker, at, time) in enumerate(rows)]
    path.write_text("\n".join([",worker,gpu,time,batch_time_norm", *lines]) + "\n")
    return path


def detect(*arguments: object) -> dict[str, Any]:
    """Return the output of `gangwatch detect --json`."""
    done = CliRunner().invoke(cli, ["detect", "--json", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def of_kind(found: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [verdict for verdict in found["verdicts"] if verdict["kind"] == kind]
