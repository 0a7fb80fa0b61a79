"""Computed values of the demonstration's report, and its list of missed targets."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from gangwatch.demo.listener import SeenStep
from gangwatch.demo.report import (
    Truth,
    failures,
    false_verdicts,
    is_true,
    per_step,
    steps_repeated,
    summary,
    typical,
)

SECOND = 1_000_000_000


def step(rank: int, number: int, ended: float, duration: float, attempt: int = 1, gang: str = "j-1") -> SeenStep:
    return SeenStep(gang, attempt, rank, number, round(ended * SECOND), duration, 0.0)


def verdict(**changes: Any) -> dict[str, Any]:
    return {"job": "j-1", "rank": 2, "node": "n1", "cause": "suspended", "sentence": "S", "wall_ns": 20} | changes


TRUTH = Truth("j-1", 2, "n1", 10, 30)

KEPT: dict[str, Any] = {
    "disturbed": {"job": "j-1", "rank": 2, "node": "n1"},
    "verdict": verdict(correct=True),
    "false_verdicts": 0,
    "abstentions": [],
    "seconds_to_detect": 6.0,
    "seconds_to_running_again": 3.0,
    "step_seconds": {"before": 0.10, "during": 0.2, "after": 0.105},
    "backfilled": {"job": "j-4", "head_delay_seconds": 0.0},
    "training": {"steps": 500, "steps_repeated": 0, "weights_match_uninterrupted": True},
    "reprobation_seconds": 9.0,
    "trusted_by_way_of": ["a probe", "probation"],
}


def test_a_step_lasts_as_long_as_its_slowest_rank_and_only_in_the_window() -> None:
    steps = [step(0, 1, 5.0, 0.1), step(1, 1, 5.0, 0.3), step(0, 2, 6.0, 0.2), step(0, 9, 50.0, 9.0)]
    steps.append(step(0, 1, 5.0, 7.0, gang="another"))
    assert per_step(steps, "j-1", 0, 10 * SECOND) == [0.3, 0.2]


def test_the_typical_step_ignores_up_to_a_quarter_of_outliers() -> None:
    assert typical([0.1] * 31 + [4.0] * 9) == pytest.approx(0.1)
    assert typical([0.1] * 25 + [4.0] * 15) == pytest.approx((0.1 * 15 + 4.0 * 5) / 20)
    assert typical([0.3]) == 0.3
    assert typical([]) is None


def test_a_step_in_two_attempts_counts_as_repeated_once() -> None:
    steps = [step(0, 1, 1, 0.1), step(0, 2, 2, 0.1), step(0, 2, 3, 0.1, attempt=2), step(1, 2, 3, 0.1, attempt=2)]
    assert steps_repeated(steps, "j-1") == 1


@pytest.mark.parametrize(
    "changes", [{"rank": 1}, {"node": "n2"}, {"job": "j-2"}, {"wall_ns": 9}], ids=["rank", "node", "job", "too early"]
)
def test_a_verdict_with_any_wrong_field_is_false(changes: dict[str, Any]) -> None:
    assert is_true(verdict(), TRUTH)
    assert not is_true(verdict(**changes), TRUTH)
    assert false_verdicts([verdict(), verdict(**changes)], TRUTH) == [verdict(**changes)]


def test_every_verdict_is_false_without_a_disturbance() -> None:
    assert false_verdicts([verdict()], None) == [verdict()]


def test_a_good_report_lists_no_broken_promise() -> None:
    assert failures(KEPT) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("verdict",), None),
        (("verdict", "correct"), False),
        (("false_verdicts",), 1),
        (("seconds_to_detect",), 15.1),
        (("seconds_to_running_again",), 10.1),
        (("seconds_to_running_again",), None),
        (("step_seconds", "after"), 0.1101),
        (("step_seconds", "after"), 0.0899),
        (("step_seconds", "before"), None),
        (("backfilled",), None),
        (("backfilled", "head_delay_seconds"), 0.6),
        (("backfilled", "head_delay_seconds"), None),
        (("training", "weights_match_uninterrupted"), False),
        (("training", "weights_match_uninterrupted"), None),
        (("reprobation_seconds",), None),
        (("reprobation_seconds",), -1.9),
    ],
)
def test_each_broken_promise_is_reported(path: tuple[str, ...], value: Any) -> None:
    report = copy.deepcopy(KEPT)
    inside = report
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    assert failures(report) != []


def test_the_summary_names_wrong_and_missing_verdicts() -> None:
    assert any("(correct)" in line for line in summary(KEPT))
    assert any("WRONG" in line for line in summary(KEPT | {"verdict": verdict(correct=False)}))
    unknown = summary(KEPT | {"verdict": None, "abstentions": ["processors are shared"]})
    assert any("processors are shared" in line for line in unknown)
