"""Benchmark of jobs whose waits are unknown: what the detectors receive, and which verdicts count."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.detection import unknown_waits
from benchmarks.detection.unknown_waits import LEAST_SEVERITY, Sure, chosen, main, without_waits
from scheduler_feedback.core.telemetry.telemetry import JobTelemetry, Telemetry, no_counters
from scheduler_feedback.core.verdict import Cause, Kind, Verdict
from tests.detectors.gang_windows import shape_of, table_of


def telemetry() -> Telemetry:
    steps = table_of(np.array([[1.0, 2.0], [1.0, 1.5]]))
    jobs = (JobTelemetry(shape_of(2), steps), JobTelemetry(shape_of(2), None))
    return Telemetry(int(steps.end_ns.max()), jobs, no_counters(4))


def verdict(kind: Kind, confidence: float) -> Verdict:
    return Verdict("v", kind, "j", 1, 3, "n0", Cause.GPU, confidence, 1.5, 0.1, 0.15, 1, 2)


def test_only_the_waits_are_removed() -> None:
    before = telemetry()
    reported, unreported = without_waits(before).jobs
    assert reported.steps is not None and before.jobs[0].steps is not None and unreported.steps is None
    assert np.isnan(reported.steps.wait_seconds).all()
    assert reported.steps.seconds.tolist() == before.jobs[0].steps.seconds.tolist()
    assert np.isfinite(before.jobs[0].steps.wait_seconds).all(), "the original is unchanged"


def test_an_accusation_counts_when_it_becomes_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    reports = [
        [verdict(Kind.STRAGGLER, 0.6)],
        [verdict(Kind.STRAGGLER, 0.95)],
        [verdict(Kind.STRAGGLER, 0.99), verdict(Kind.WORKLOAD, 0.99)],
    ]
    monkeypatch.setattr(unknown_waits.Ours, "tick", lambda _self, _telemetry: reports.pop(0))
    ours = Sure(waits=True)
    for _ in range(3):
        ours.tick(telemetry())
    assert [claim.confidence for claim in ours.claims.values()] == [0.95]


def test_all_kinds_of_reports_have_the_same_faults(capsys: pytest.CaptureFixture[str]) -> None:
    cells = chosen(5, 12)
    assert cells == chosen(5, 12) != chosen(6, 12)
    assert min(cell.severity for cell in cells) >= LEAST_SEVERITY and {cell.gpus for cell in cells} == {64}
    assert main(["--cells", "0", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [document[reports]["recall_at_90"] for reports in ("waits", "no waits", "no steps")] == [None] * 3
