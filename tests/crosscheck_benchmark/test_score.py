"""Scoring of `benchmarks.crosscheck`, and a run of its command."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.crosscheck.__main__ import detected
from benchmarks.crosscheck.ablation import CHECKS, COLUMNS, PARTS, figures, with_all, without
from benchmarks.crosscheck.score import calibration, judged, summary
from benchmarks.crosscheck.trace import generate, write
from tests import needs

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def public_traces() -> None:
    needs.data("steps", "pai-job3.csv")


def verdict(**fields: Any) -> dict[str, Any]:
    return {
        "kind": "straggler", "cause": "unknown", "confidence": 0.95, "detected_step": 90, "first_step": 60, "rank": 0,
        "ranks": [], "node": None,
    } | fields  # fmt: skip


def faulty() -> Any:
    """Return a trace with one slow rank, which costs more than 5 %."""
    seeds = (seed for seed in range(1, 400, 20) if generate(seed, 32, 4000, "known").cost >= 1.05)
    return generate(next(seeds), 32, 4000, "known")


def test_only_culprits_may_be_accused() -> None:
    trace = faulty()
    (culprit,) = trace.culprits
    innocent = (culprit + 1) % trace.job.ranks
    right, wrong, own, weak = (
        judged(trace, [one])
        for one in (
            verdict(rank=culprit),
            verdict(ranks=[culprit, innocent]),
            verdict(kind="workload", cause="standing-offset", rank=None, ranks=[culprit]),
            verdict(rank=culprit, confidence=0.8),
        )
    )
    assert summary([right])["recall"]["known"] == "1 of 1"
    assert summary([right])["accusations_right"] == "1 of 1"
    assert summary([wrong])["recall"]["known"] == "0 of 1"
    assert summary([wrong])["accusations_right"] == "0 of 1"
    assert summary([own])["kind_confusion"] == "1 of 1"
    assert summary([own])["own_work_right"] == "0 of 1"
    assert summary([weak])["recall"]["known"] == "0 of 1", "only confident verdicts count"
    assert [one["seed"] for one in summary([weak])["missed"]] == [trace.seed]


def test_an_accusation_in_a_healthy_trace_is_wrong() -> None:
    result = judged(generate(2, 32, 4000, "known"), [verdict()])
    assert summary([result])["healthy_accused"] == "1 of 1"
    assert summary([result])["wrong"]


def test_calibration_is_the_mean_distance_of_confidence_and_frequency() -> None:
    assert calibration([(0.92, True), (0.92, False)])["error"] == pytest.approx(0.42)
    assert calibration([(0.99, True)] * 3 + [(0.8, False)])["error"] == pytest.approx((0.03 + 0.8) / 4)
    assert calibration([]) == {"error": None, "verdicts": 0}


def test_each_part_of_the_ablation_exists_and_is_replaced_for_one_run_only(tmp_path: Path) -> None:
    for target, _ in PARTS.values():
        module, name = target.rsplit(".", 1)
        assert hasattr(importlib.import_module(module), name), target
    assert {f"check{check.__name__.replace('_', '-')}" for check in CHECKS} <= set(PARTS)
    trace, path = faulty(), tmp_path / "t.jsonl"
    write(trace, path)
    usual, active = with_all(trace, path)
    recall = COLUMNS.index("recall")
    assert figures([usual])[recall] == "1 of 1" and usual == judged(trace, detected(path))
    assert "doubt" in active and "popular-expert" not in active, "the job has no experts"
    assert figures([without("whole-gang-note", trace, path)])[recall] == "1 of 1"
    assert without("check-slows-the-job", trace, path)
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(PARTS, "all", ("scheduler_feedback.detectors.straggler.straggler.verdict", lambda *_: []))
        assert figures([without("all", trace, path)])[recall] == "0 of 1"
        assert "all" in with_all(trace, path)[1]
    assert judged(trace, detected(path)) == usual, "all parts are back"


def test_a_run_can_be_continued(tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    command = [sys.executable, "-m", "benchmarks.crosscheck", "--seed", "500", "--most-ranks", "8", "--json"]
    command += ["--most-samples", "1000", "--out", str(out)]
    for runs in (2, 4):
        done = subprocess.run([*command, "--runs", str(runs)], cwd=ROOT, capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["traces"] == runs
    assert [json.loads(line)["seed"] for line in out.read_text().splitlines()] == [500, 501, 502, 503]
