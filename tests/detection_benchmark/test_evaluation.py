"""Evaluation command: the structure of its JSON document, on a sample that takes seconds."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks.detection import __main__ as evaluation
from benchmarks.detection import healthy
from benchmarks.detection.baselines import NAMES
from benchmarks.detection.cells import Cell
from benchmarks.detection.fleet import Fleet, run
from benchmarks.detection.healthy import Health

HEADLINE = (
    "precision",
    "recall",
    "f1",
    "ttd_seconds_p50",
    "ttd_seconds_p95",
    "ttd_steps_p95",
    "localisation_8k",
    "kind_confusion",
    "false_alarms_per_1000_gpu_days",
    "false_alarms_upper95",
    "healthy_gpu_days",
)


def test_gangwatch_and_the_capable_rules_find_a_slow_gpu_of_a_plain_job() -> None:
    cells = (
        Cell("clock-lock", 0.5, 64, "step", "balanced", 1, 1.0, 4_100_001),
        Cell("clock-lock", 0.5, 64, "step", "balanced", 1, 1.5, 4_100_002),
    )
    results = run(Fleet(cells, 3, 10.0))
    assert len(results) == 2
    for result in results:
        assert result.slowdown == pytest.approx(0.5, abs=0.1)
        assert (result.outcomes["ours"].tp, result.outcomes["ours"].fp) == (1, 0)
        assert result.outcomes["sliding_window"].tp == 1
        assert result.outcomes["bocd_verified"].tp == 1
        assert result.outcomes["dlrover"].tp == 0


def test_healthy_jobs_last_the_requested_gpu_days() -> None:
    found = healthy.run(Health("balanced", 4.0, 4_100_003, baselines=True))
    assert found.gpu_days == pytest.approx(4.0, rel=0.3)
    assert set(found.by_method) == {"ours", *NAMES}
    assert found.by_method["ours"] == 0


@pytest.mark.slow
def test_the_document_has_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    few = (
        "--quick --json --cells 2 --classes grid --healthy-days 0 --located 0 --sizes 64 --workloads balanced "
        "--counter-only"
    )
    assert evaluation.main([*few.split(), "--jobs", "1", "--seed", "4100005"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert "parts" in captured.err
    for part in (document, document["counter_only"]):
        assert set(part["baselines"]) == set(NAMES)
        for row in (part["ours"], *part["baselines"].values()):
            assert set(HEADLINE) <= set(row)
        for row in part["grid"]:
            assert {"fault", "severity", "gpus", "shape", "workload", "ours", "baselines"} <= set(row)
            assert set(row["ours"]) == {"tp", "fp", "fn"}
            assert set(row["baselines"]) == set(NAMES)
    assert set(document["counter_only"]["period"]) >= {"jobs", "inferred", "within_2_percent"}


@pytest.mark.slow
def test_the_evaluation_runs_as_a_module() -> None:
    few = (
        "--quick --json --cells 1 --classes grid --healthy-days 0 --located 0 --sizes 16 --workloads balanced --jobs 2 "
        "--seed 4100006"
    )
    command = [sys.executable, "-m", "benchmarks.detection", *few.split()]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert json.loads(result.stdout)["parts"] == {"planned": 1, "run": 1}


def test_the_error_names_an_unknown_workload(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        evaluation.parsed(["--workloads", "balanced,fancy"])
    assert "fancy" in capsys.readouterr().err


def test_tuning_and_test_sets_share_no_seed_and_not_all_workloads() -> None:
    tuning, test = evaluation.parsed(["--tuning"]), evaluation.parsed([])
    assert tuning.seed < 100_000 < test.seed
    assert set(tuning.workloads) < set(test.workloads)
