"""Slowdown test for jobs that report no steps, on constructed transfer rates."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import FEATURE, FEATURES
from scheduler_feedback.detectors.health.job_speed import Speed, Speeds
from scheduler_feedback.detectors.iteration import job_slowdown
from scheduler_feedback.detectors.iteration.job_slowdown import AGREE, COARSER, WARM_UP, SlowdownTest
from scheduler_feedback.detectors.iteration.period_estimation import EstimatedPeriod


def fed(
    slowdown_test: SlowdownTest, rates: FloatArray, seconds: float = 1.0, known: int = 8, name: str = "nvlink_bytes"
) -> SlowdownTest:
    """Add windows with these rates to the test, and return it. known: number of ranks, of eight, with a value."""
    for rate in rates.tolist():
        values = np.full((len(FEATURES), 8), np.nan, np.float32)
        values[FEATURE[name], :known] = rate
        slowdown_test.take(values, seconds)
    return slowdown_test


def steady(windows: int, level: float = 1.0, varies: float = 0.0) -> FloatArray:
    """Return a constant rate with small alternating variation."""
    return level + varies * np.where(np.arange(windows) % 2, 1.0, -1.0)


@pytest.mark.parametrize(("level", "slower"), [(1.0, 1.0), (0.97, 1.0), (0.9, 1 / 0.9), (0.5, 2.0), (1.2, 1.0)])
def test_the_slowdown_follows_the_loss_of_traffic(level: float, slower: float) -> None:
    slowdown_test = fed(SlowdownTest(), np.r_[steady(60, varies=0.005), steady(15, level)])
    assert slowdown_test.slower() == pytest.approx(slower, rel=0.01)
    assert (slowdown_test.recent_windows, slowdown_test.judged_by) == (15, "nvlink_bytes")


def test_a_change_within_chance_is_no_slowdown() -> None:
    """Five per cent less is more than two deviations in each window, but the mean differs by less than four."""
    before = steady(60, varies=0.0135)  # a standard deviation of two per cent, by its median deviation
    assert fed(SlowdownTest(), np.r_[before, steady(15, 0.945)]).slower() == 1.0
    assert fed(SlowdownTest(), np.r_[before, steady(15, 0.9)]).slower() == pytest.approx(1 / 0.9, rel=0.02)


def test_one_pause_is_no_slowdown() -> None:
    rates = steady(75)
    rates[-10:-3] = 0.0
    assert fed(SlowdownTest(), rates).slower() == 1.0


def test_a_job_slow_for_long_is_compared_with_its_best() -> None:
    assert fed(SlowdownTest(), steady(80, 0.8)).slower() == 1.0, "no faster time is known"
    assert fed(SlowdownTest(best={"nvlink_bytes": 1.0}), steady(80, 0.8)).slower() == pytest.approx(1 / 0.8)
    assert fed(SlowdownTest(best={"nvlink_bytes": 1.0}), steady(80, 0.97)).slower() == 1.0


def test_with_too_few_windows_there_is_no_slowdown() -> None:
    young = fed(SlowdownTest(), np.r_[steady(14), steady(15, 0.5)])
    assert (young.slower(), young.recent_windows, young.judged_by) == (1.0, 0, "")
    few = fed(SlowdownTest(), np.r_[steady(60), steady(15, 0.5)], known=3)
    assert few.slower() == 1.0, "three ranks of eight"
    half = fed(SlowdownTest(), np.r_[steady(60), steady(15, 0.5)], known=4)
    assert half.slower() == pytest.approx(2.0)
    other = fed(SlowdownTest(), np.r_[steady(60), steady(15, 0.5)], name="nic_transmit_bytes")
    assert other.slower() == pytest.approx(2.0) and other.judged_by == "nic_transmit_bytes"


def test_samples_of_another_length_reset_the_test() -> None:
    slowdown_test = fed(SlowdownTest(), steady(40))
    assert (
        len(slowdown_test.evenly["nvlink_bytes"]) == 40 and len(slowdown_test.coarsely["nvlink_bytes"]) == 40 // COARSER
    )
    fed(slowdown_test, steady(6), seconds=5.0)
    assert (slowdown_test.taken, slowdown_test.window_seconds) == (6, 5.0)
    assert len(slowdown_test.evenly["nvlink_bytes"]) == 6
    assert list(slowdown_test.coarsely["nvlink_bytes"]) == [1.0]


def test_missing_samples_are_missing_in_means_as_well() -> None:
    slowdown_test = fed(fed(SlowdownTest(), steady(3)), steady(1), known=1)
    assert np.isnan(slowdown_test.evenly["nvlink_bytes"][-1]) and np.isnan(slowdown_test.coarsely["nvlink_bytes"][-1])
    assert len(slowdown_test.signals["nvlink_bytes"]) == 3


def test_a_period_estimate_is_due_at_growing_intervals() -> None:
    slowdown_test = SlowdownTest()
    due = []
    for window in range(1, 400):
        fed(slowdown_test, steady(1))
        if slowdown_test.due >= 0:
            due.append(window)
            slowdown_test.evaluate()
    assert due[:4] == [16, 32, 48, 64]
    apart = np.diff(due)
    assert (apart >= 16).all() and (apart[-3:] > 40).all() and apart[-1] <= 1 + max(due[-2] // 4, 16)


@pytest.mark.parametrize(
    ("coarse", "fine", "found"),
    [
        (10.0, 10.2, 10.2),
        (10.0, 10.0 * (1 + 2 * AGREE), None),
        (None, 7.0, 7.0),
        (30.0, None, 30.0),
        (None, None, None),
    ],
)
def test_two_estimates_that_disagree_give_no_period(
    monkeypatch: pytest.MonkeyPatch, coarse: float | None, fine: float | None, found: float | None
) -> None:
    def estimate_period(rate: FloatArray, seconds: float) -> EstimatedPeriod | None:
        period = coarse if seconds == COARSER else fine
        return None if period is None else EstimatedPeriod(period, np.arange(3.0 if seconds == COARSER else 9.0), 1.0)

    monkeypatch.setattr(job_slowdown, "estimate_period", estimate_period)
    slowdown_test = fed(SlowdownTest(), steady(WARM_UP))
    slowdown_test.evaluate()
    assert slowdown_test.period_seconds == found
    assert slowdown_test.evaluated == WARM_UP


def test_jobs_with_short_or_unknown_iterations_need_every_sample() -> None:
    speeds = Speeds()
    for name, seconds in {"unknown": None, "short": 1.5, "long": 20.0, "reports": None}.items():
        speeds.slowdown_tests[name] = SlowdownTest(period_seconds=seconds)
    speeds.of["reports"] = Speed()
    assert set(speeds.needing_every_sample()) == {"unknown", "short"}
