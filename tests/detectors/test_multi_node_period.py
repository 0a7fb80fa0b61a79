"""Iteration time of a job from nodes that sample at different times: only reliable periods are reported."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import FEATURE, FEATURES, Float32Array, Shape
from scheduler_feedback.detectors.iteration.job_slowdown import SlowdownTest
from scheduler_feedback.detectors.iteration.multi_node_period import KEPT, NodeSignals
from scheduler_feedback.detectors.iteration.period_estimation import estimate_period

SAMPLES = 300
PER_NODE = 2


def moved(ends: FloatArray, at: FloatArray, share: float = 0.3) -> FloatArray:
    """Return the traffic until each time of a job that sends only in the last `share` of each iteration."""
    lengths = np.diff(ends, prepend=0.0)
    sends = share * lengths
    index = np.minimum(np.searchsorted(ends, at), len(ends) - 1)
    before = np.concatenate([[0.0], np.cumsum(sends)])[index]
    return before + np.clip(at - (ends[index] - sends[index]), 0.0, sends[index])


def node_signals(
    lengths: FloatArray,
    lags: FloatArray,
    seconds: float = 1.0,
    samples: int = SAMPLES,
    jitter: float = 0.005,
    lost: float = 0.02,
    stages: int = 1,
    share: float = 0.3,
) -> NodeSignals:
    """Return the nodes' signals for a job whose iterations have these lengths.

    lags: seconds by which each node samples before the end of a window. share: last part of an iteration in which the
    job sends.
    """
    random = np.random.default_rng(7)
    ranks = len(lags) * PER_NODE
    nodes = tuple(f"n{rank // PER_NODE}" for rank in range(ranks))
    stage = np.arange(ranks) * stages // ranks
    signals = NodeSignals(Shape("job", 1, np.arange(ranks), nodes, stage=stage))
    ends = np.cumsum(lengths)
    lag = (lags * seconds)[None] + seconds * jitter * random.standard_normal((samples + 1, len(lags)))
    at = seconds * (5.0 + np.arange(samples + 1))[:, None] - lag
    rate = (
        np.diff(moved(ends, at, share), axis=0) / np.diff(at, axis=0) * random.normal(1.0, 0.01, (samples, len(lags)))
    )
    rate[random.random(rate.shape) < lost] = np.nan
    for window in range(samples):
        values = np.zeros((len(FEATURES), ranks), np.float32)
        values[FEATURE["nvlink_bytes"]] = 1e9 * np.repeat(rate[window], PER_NODE)
        signals.take(values, np.repeat(lag[window + 1], PER_NODE).astype(np.float32), seconds)
    return signals


def even(period: float, seconds: float = 1.0, samples: int = SAMPLES, uneven: float = 0.002) -> FloatArray:
    random = np.random.default_rng(11)
    return period * random.normal(1.0, uneven, int((samples + 10) * seconds / period) + 2)


LAGS = np.array([0.05, 0.31, 0.48, 0.83])


@pytest.mark.parametrize("period", [0.31, 0.41, 0.73, 1.31, 1.9, 2.3, 3.4, 7.7])
def test_nodes_with_different_sample_times_resolve_short_iterations(period: float) -> None:
    lengths = even(period)
    found = node_signals(lengths, LAGS).period(1.0)
    assert found == pytest.approx(lengths.mean(), rel=0.01)


def test_the_period_does_not_depend_on_the_window_length() -> None:
    lengths = even(13.1, seconds=10.0)
    assert node_signals(lengths, LAGS, seconds=10.0).period(10.0) == pytest.approx(lengths.mean(), rel=0.01)


@pytest.mark.parametrize("period", [0.31, 0.73, 1.31, 1.9])
def test_nodes_with_equal_sample_times_give_no_period(period: float) -> None:
    assert node_signals(even(period), np.full(4, 0.4)).period(1.0) is None
    assert node_signals(even(period), LAGS[:1]).period(1.0) is None


@pytest.mark.parametrize("period", [20.0, 24.3, 31.2])
def test_a_harmonic_of_a_slow_period_is_not_reported(period: float) -> None:
    """Ten or fifteen iterations are too few for a spectral line, but their second harmonic has one."""
    assert node_signals(even(period), LAGS, share=0.9).period(1.0) is None


@pytest.mark.parametrize("seed", range(20))
def test_nodes_out_of_phase_give_no_wrong_period(seed: int) -> None:
    """This happens to pipeline stages without a known layout: one of many aliases fits moderately by chance."""
    lengths = even(0.73)
    found = node_signals(lengths, LAGS)
    found.lag += found.counted * np.random.default_rng(seed).uniform(0.0, 0.73, len(LAGS))
    reported = found.period(1.0)
    assert reported is None or reported == pytest.approx(lengths.mean(), rel=0.02)


def test_nodes_of_different_stages_need_not_be_in_phase() -> None:
    assert node_signals(even(0.73), LAGS, stages=4).period(1.0) is None


def test_varying_sample_times_give_no_period() -> None:
    assert node_signals(even(0.73), LAGS, jitter=0.1).period(1.0) is None


@pytest.mark.parametrize("period", [1.0, 0.5])
def test_a_period_that_divides_the_window_is_hidden(period: float) -> None:
    found = node_signals(even(period, uneven=0.0), LAGS).period(1.0)
    assert found is None or found == pytest.approx(period, rel=0.02)


@pytest.mark.parametrize("seed", range(8))
def test_noise_has_no_period(seed: int) -> None:
    random = np.random.default_rng(seed)
    for uneven in (0.3, 0.6):
        lengths = 1.7 * random.lognormal(0.0, uneven, 400)
        assert node_signals(lengths, LAGS).period(1.0) is None


@pytest.mark.parametrize("half", [0.43, 0.62, 0.77, 1.21, 2.6])
def test_slightly_different_halves_are_one_iteration(half: float) -> None:
    """The spectral line of the half is the strongest; the line of the iteration exists too.

    If a half takes 0.62 s, its line is at the alias of the iteration's.
    """
    halves = even(half)
    halves[::2] *= 1.4
    found = node_signals(halves, LAGS).period(1.0)
    assert found is None or found == pytest.approx(2 * halves.mean(), rel=0.02)


def test_the_slowdown_test_uses_several_nodes_if_one_rate_gives_no_period() -> None:
    lengths = even(0.73)
    signals = node_signals(lengths, LAGS)
    slowdown_test = SlowdownTest()
    slowdown_test.of(signals.shape)
    assert slowdown_test.voices is not None
    for window in range(SAMPLES):
        values = np.zeros((len(FEATURES), len(signals.shape)), np.float32)
        for place, ranks in enumerate(signals.members):
            values[FEATURE["nvlink_bytes"], ranks] = signals.ring[window % KEPT, place]
        lag: Float32Array = np.repeat(LAGS, PER_NODE).astype(np.float32)
        slowdown_test.take(values, 1.0, lag)
    assert estimate_period(np.array(slowdown_test.evenly["nvlink_bytes"]), 1.0) is None
    slowdown_test.evaluate()
    assert slowdown_test.period_seconds == pytest.approx(lengths.mean(), rel=0.01)
