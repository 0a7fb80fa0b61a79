"""Fitted confidence, and reliability diagrams, from invented verdicts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks.traces import diagram, fit
from scheduler_feedback.core.verdict import Evidence
from scheduler_feedback.detectors.stats import log_odds
from scheduler_feedback.detectors.straggler import verdict_building


def row(*verdicts: tuple[float, bool], name: str = "one-rank", ended: tuple[tuple[int, bool], ...] = ()) -> Any:
    """Return a row with verdicts of the given log odds. waits are known."""
    return {
        "seed": 1,
        "truth": {"name": name, "waits": "known", "healthy": False, "cost": 1.2},
        "outcome": {
            "outcome": "right",
            "verdicts": [
                {"kind": "straggler", "cause": "unknown", "confidence": 0.95, "accuses": True, "early": False,
                 "mark": "right" if right else "innocent", "log_odds": value}
                for value, right in verdicts
            ],
            "ended": [{"steps": steps, "right": right, "kept": False} for steps, right in ended],
        },
    }  # fmt: skip


def test_the_line_has_the_true_offset_and_slope() -> None:
    random = np.random.default_rng(1)
    x = random.uniform(-3.0, 6.0, 20000)
    right = (random.random(len(x)) < 1.0 / (1.0 + np.exp(-(-1.0 + 0.5 * x)))).astype(float)
    assert fit.fit_line(x, right) == pytest.approx((-1.0, 0.5), abs=0.06)


def test_a_group_without_a_wrong_verdict_is_not_certain() -> None:
    offset, slope = fit.fit_line(np.array([3.0, 4.0, 5.0] * 10), np.ones(30))
    assert 0.0 <= slope < 5.0
    assert 0.9 < 1.0 / (1.0 + np.exp(-(offset + 4.0 * slope))) < 0.999


def test_held_out_classes_and_early_verdicts_do_not_count() -> None:
    wrong = [row((5.0, False), name=name) for name in fit.HELD_OUT]
    found = fit.fitted([row((5.0, True), (3.0, True)), *wrong])
    assert found["traces"] == 1
    assert (found["lines"]["straggler"]["verdicts"], found["lines"]["straggler"]["right"]) == (2, 2)
    assert found["early"]["share"] == 1.0


def test_accusations_by_counters_alone_have_a_line_of_their_own() -> None:
    one = row((7.0, True), (9.0, True), (7.0, False))
    assert fit.by_counters([one]) is None, "its waits are known"
    alone = one | {"counters": True, "truth": one["truth"] | {"waits": "null"}}
    held_out = alone | {"truth": alone["truth"] | {"name": "gradual"}}
    found = fit.by_counters([one, alone, held_out])
    assert found is not None
    assert (found["verdicts"], found["right"]) == (3, 2)


def test_a_line_is_checked_on_other_traces() -> None:
    rows = [row((4.0, True), (4.0, False)), row((4.0, True), name="gradual"), row((-9.0, False), name="hang")]
    found = fit.check(rows, {"offset": 0.0, "slope": 0.5})
    assert found["all"]["bins"][0]["verdicts"] == 3, "a confidence below .5 is no verdict"
    assert found["held_out"]["expected_calibration_error"] == pytest.approx(1 - 1 / (1 + np.exp(-2.0)), abs=1e-3)
    assert sorted(found["classes"]) == ["gradual", "one-rank"]


def test_a_line_is_fitted_to_a_result_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "r.jsonl"
    results.write_text("".join(json.dumps(row((5.0, True), (3.0, False)) | {"seed": 7}) + "\n" for _ in range(4)))
    assert fit.main(["--results", str(results), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["seed"], found["lines"]["straggler"]["verdicts"]) == (7, 8)
    results.write_text("")
    with pytest.raises(SystemExit):
        fit.main(["--results", str(results)])


def test_the_least_duration_separates_faults_from_own_work() -> None:
    ended = (*((steps, False) for steps in (3, 4, 4, 8)), (11, True), (12, True))
    assert fit.least_windows([row(ended=ended)]) == {"ended": 6, "faults": 2, "least": 10, "errors": 0}
    assert fit.least_windows([row()])["least"] is None


def test_the_product_uses_plausible_fitted_values() -> None:
    """A clean fault without counters may act, a weak one is unknown."""
    offset, slope = log_odds.WITHOUT_COUNTERS
    assert slope > 0
    assert 1.0 / (1.0 + np.exp(-(offset + 6.5 * slope))) > log_odds.ACTING_CONFIDENCE
    weights = [Evidence("one", 0.0, 0.0, "", "", weight) for weight in (log_odds.LEAST_FITTED - 0.1, 0.1)]
    assert log_odds.without_counters(weights) > log_odds.ACTING_CONFIDENCE
    assert log_odds.without_counters(weights[:1]) < log_odds.ACTING_CONFIDENCE, "the line is not used beyond its data"
    assert log_odds.without_counters([]) < log_odds.LEAST_CONFIDENCE
    assert log_odds.LEAST_CONFIDENCE <= verdict_building.UNSURE_CONFIDENCE < log_odds.ACTING_CONFIDENCE


def test_diagrams_show_each_class_with_its_counts(tmp_path: Path) -> None:
    results, svg = tmp_path / "r.jsonl", tmp_path / "d.svg"
    results.write_text("".join(json.dumps(row((4.0, True), name=name)) + "\n" for name in ("hang", "gradual")))
    assert diagram.main([str(results), str(svg)]) == 0
    texts = [one.text for one in ElementTree.parse(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert {"accusations", "hang", "gradual"} <= set(texts)
    verdicts = [{"confidence": 0.95, "mark": mark} for mark in ("right", "innocent")]
    assert diagram.bins(verdicts) == [(0.95, 1, 2)], "a confidence on an edge belongs to the bin above it"
