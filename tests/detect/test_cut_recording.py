"""Output of `gangwatch detect` for a verdict whose values its detector updates later in the recording."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gangwatch.commands.offline.detect import document
from scheduler_feedback.core.telemetry.telemetry import Shape
from scheduler_feedback.core.verdict import Cause, Cleared, Finding, Kind, Verdict
from scheduler_feedback.step_traces.judging import JobReport, _take

FIRST = Verdict(
    "v", Kind.STRAGGLER, "j", 1, 3, "n-3", Cause.UNKNOWN, 0.95, 1.5, 1.0, 1.5, 0, 1, ranks=(2, 3), first_step=10,
    last_step=14,
)  # fmt: skip


def reported(*findings: tuple[int, Finding]) -> JobReport:
    report = JobReport("j", Shape("j", 1, np.arange(4), tuple(f"n-{rank}" for rank in range(4))))
    for step, finding in findings:
        _take(report, finding, step)
    return report


def values(report: JobReport) -> dict[str, object]:
    (verdict,) = document(report, __file__)["verdicts"]  # type: ignore[arg-type]
    result: dict[str, object] = verdict
    return result


@pytest.mark.parametrize(
    "later",
    [
        replace(FIRST, confidence=0.7),
        replace(FIRST, confidence=0.99),
        replace(FIRST, ranks=(3,)),
        replace(FIRST, cause=Cause.THERMAL, slowdown=2.0),
    ],
)
def test_values_are_those_of_the_detected_step(later: Verdict) -> None:
    cut, whole = values(reported((14, FIRST))), values(reported((14, FIRST), (40, later)))
    keys = ("rank", "ranks", "cause", "confidence", "slowdown", "detected_step", "evidence")
    assert {key: whole[key] for key in keys} == {key: cut[key] for key in keys}
    latest = whole["latest"]
    assert isinstance(latest, dict)
    assert (latest["confidence"], latest["ranks"]) == (later.confidence, list(later.ranks))
    assert latest["cause"] == later.cause


def test_verdict_is_detected_when_its_confidence_suffices_to_act() -> None:
    doubtful = replace(FIRST, confidence=0.6)
    course = [(14, doubtful), (20, replace(FIRST, confidence=0.8)), (30, FIRST), (50, replace(FIRST, confidence=0.97))]
    whole, cut = values(reported(*course)), values(reported(*course[:3]))
    assert (whole["detected_step"], whole["confidence"]) == (30, 0.95)
    assert (cut["detected_step"], cut["confidence"]) == (30, 0.95)
    assert values(reported(*course[:2]))["detected_step"] == 14


def test_clearing_sets_the_last_step() -> None:
    report = reported((14, FIRST), (40, replace(FIRST, first_step=8, last_step=38)), (50, Cleared("v", "j", 2, "", 44)))
    verdict = values(report)
    assert (verdict["first_step"], verdict["last_step"]) == (8, 44)


def test_a_verdict_that_ends_unconfirmed_is_unknown() -> None:
    """A short slowdown that ended looks like a recompilation or a checkpoint. The public trace pai-job2 has one."""
    doubtful = replace(FIRST, confidence=0.6)
    report = reported((14, doubtful), (50, Cleared("v", "j", 2, "it recovered", 17, confirmed=False)))
    verdict = values(report)
    assert (verdict["kind"], verdict["confidence"], verdict["ranks"]) == ("unknown", 0.0, [2, 3])
    assert (verdict["first_step"], verdict["last_step"], verdict["detected_step"]) == (10, 17, 50)
    assert "it recovered: the slowdown was short" in str(verdict["evidence"])
    assert values(reported((14, doubtful), (50, Cleared("v", "j", 2, "", 17))))["kind"] == "straggler"


def test_a_verdict_that_a_better_one_replaced_is_not_reported() -> None:
    own = replace(FIRST, verdict_id="own", kind=Kind.WORKLOAD)
    report = reported((12, own), (14, FIRST), (14, Cleared("own", "j", 2, "", explained_by="v")))
    assert values(report)["kind"] == "straggler"
