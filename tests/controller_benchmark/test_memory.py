"""Memory benchmark of telemetry and detection: a small run has the figures that it promises."""

from __future__ import annotations

import sys
import tracemalloc

import pytest

from benchmarks.ingest.memory import LARGEST, main, measure


def test_a_small_run_has_figures_by_time_and_names_places_of_the_product() -> None:
    found = measure(6, 6, 1, 2)
    assert list(found["kib_a_node"]) == ["2", "4", "6"]
    assert all(1.0 < kib < 10_000.0 for kib in found["kib_a_node"].values())
    assert 0 < len(found["largest"]) <= LARGEST
    places = {one["place"].split("/")[0] for one in found["largest"]}
    assert places <= {"agent", "scheduler_feedback"}
    assert sum(one["kib_a_node"] for one in found["largest"]) <= found["kib_a_node"]["6"] + 1.0
    assert not tracemalloc.is_tracing()


def test_a_period_longer_than_the_run_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["memory", "--seconds", "10", "--period", "20"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert "--period 20 is longer than --seconds 10" in capsys.readouterr().err
