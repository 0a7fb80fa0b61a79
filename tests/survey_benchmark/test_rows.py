"""The survey's rows: a figure or a reason in each, and a wrong reproduction fails the run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.survey.__main__ import ROWS, far_off
from benchmarks.survey.row import NOT_REQUESTED, Outcome, Row, chosen, measured

ROOT = Path(__file__).resolve().parents[2]
KEYS = {"system", "mechanism", "published", "reproduced", "ours", "seconds"}


def test_each_row_without_a_measurement_has_a_reason() -> None:
    assert all(row.reason for row in ROWS if row.run is None)
    assert all(row.source for row in ROWS)


def test_a_row_has_the_keys_of_the_survey() -> None:
    row = measured(Row("S", "m", "s", 2.0, "source", lambda: Outcome(1.0, 3.0, "why")))
    assert row.keys() >= KEYS
    assert (row["published"], row["reproduced"], row["ours"], row["reason"]) == (2.0, 1.0, 3.0, "why")


def test_a_slow_row_is_measured_only_on_request() -> None:
    row = Row("S", "m", "s", None, "source", lambda: Outcome(1.0, 3.0), slow=True)
    assert measured(row)["reason"] == NOT_REQUESTED and measured(row)["ours"] is None
    assert measured(row, slow=True)["ours"] == 3.0


def test_rows_are_chosen_by_system() -> None:
    assert {row.system for row in chosen(ROWS, ["tiresias"])} == {"Tiresias"}
    assert chosen(ROWS, []) == list(ROWS) and chosen(ROWS, ["nobody"]) == []


def test_a_reproduction_that_is_off_by_more_than_5_percent_is_reported() -> None:
    def row(published: float | None, reproduced: float | None) -> dict[str, float | None]:
        return {"published": published, "reproduced": reproduced}

    rows = [row(100.0, 104.9), row(100.0, 94.9), row(100.0, 105.1), row(None, 7.0), row(7.0, None), row(0.0, 0.0)]
    assert far_off(rows) == [rows[1], rows[2]]


def test_the_command_prints_one_document() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.survey", "MIGER", "CASSINI", "--json"],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["system"] for row in rows] == ["CASSINI", "MIGER"] and all(row["reason"] for row in rows)
