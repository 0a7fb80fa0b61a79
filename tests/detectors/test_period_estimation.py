"""Period of constructed traffic: only reliable periods are reported."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.detectors.iteration.period_estimation import estimate_period


def bursts(lengths: FloatArray, samples: int, share: float = 0.3, finer: int = 20) -> FloatArray:
    """Return the mean rate in each second of a job that sends only in the last `share` of each iteration."""
    ends = np.cumsum(lengths)
    fine = np.arange(0, samples, 1 / finer)
    step = np.searchsorted(ends, fine)
    sends = ends[step] - fine < share * lengths[step]
    return sends.reshape(-1, finer).mean(axis=1)


@pytest.mark.parametrize("seconds", [4.0, 7.3, 12.9, 31.0])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_iteration_time_is_found_in_the_traffic(seconds: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    lengths = seconds * random.normal(1.0, 0.02, 400)
    signal = bursts(lengths, 500) * random.normal(1.0, 0.02, 500)
    signal[random.random(500) < 0.05] = np.nan
    found = estimate_period(signal, 1.0)
    assert found is not None
    assert found.seconds == pytest.approx(np.mean(lengths[: int(500 / seconds)]), rel=0.02)


@pytest.mark.parametrize("seed", range(6))
def test_iterations_that_differ_by_a_tenth_are_counted_one_by_one(seed: int) -> None:
    """The spectral line is smeared, but the phase is not."""
    random = np.random.default_rng(seed)
    lengths = 9.0 * random.lognormal(-0.005, 0.1, 60)
    lengths[20] += 8.0  # the job saved
    found = estimate_period(bursts(lengths, 440), 1.0)
    assert found is not None
    assert found.seconds == pytest.approx(np.delete(lengths[:48], 20).mean(), rel=0.02)


@pytest.mark.parametrize("seconds", [2.7, 2.93, 3.25, 3.4])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_period_mixed_with_an_alias_of_its_harmonic_is_not_reported(seconds: float, seed: int) -> None:
    """With three samples an iteration, a reported period could be wrong by seven per cent."""
    random = np.random.default_rng(seed)
    for uneven in (0.003, 0.02):
        lengths = seconds * random.normal(1.0, uneven, 400)
        found = estimate_period(bursts(lengths, 160, 0.1) * random.normal(1.0, 0.02, 160), 1.0)
        assert found is None or found.seconds == pytest.approx(seconds, rel=0.02)


@pytest.mark.parametrize("seconds", [0.3, 0.7, 1.216, 1.643, 1.9, 2.2])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_iterations_too_short_for_the_samples_are_not_taken_for_longer_ones(seconds: float, seed: int) -> None:
    """Their alias has as clear a line as a real period, only a weaker one."""
    random = np.random.default_rng(seed)
    lengths = seconds * random.normal(1.0, 0.002, round(600 / seconds))
    found = estimate_period(bursts(lengths, 400), 1.0)
    assert found is None or found.seconds == pytest.approx(seconds, rel=0.02)


def test_two_equal_halves_count_as_one_period() -> None:
    random = np.random.default_rng(4)
    fine = np.arange(0, 480, 0.05)
    phase = fine % 12.4
    traffic = (phase < 1.4) + 0.6 * ((phase > 6.2) & (phase < 7.6))
    signal = traffic.reshape(-1, 20).mean(axis=1) * random.normal(1.0, 0.02, 480)
    found = estimate_period(signal, 1.0)
    assert found is not None
    assert found.seconds == pytest.approx(12.4, rel=0.02)


@pytest.mark.parametrize("seed", range(10))
def test_noise_has_no_estimated_period(seed: int) -> None:
    random = np.random.default_rng(seed)
    assert estimate_period(random.normal(1.0, 1.0, 400), 1.0) is None
    assert estimate_period(random.exponential(1.0, 400), 1.0) is None
    assert estimate_period(np.exp(np.cumsum(random.normal(0.0, 0.2, 400))), 1.0) is None
    assert estimate_period((random.random(400) < 0.2).astype(float), 1.0) is None


@pytest.mark.parametrize("rate", [np.zeros(400), np.ones(400), np.full(400, np.nan), np.ones(3), np.zeros(0)])
def test_an_uninformative_rate_has_no_period(rate: FloatArray) -> None:
    assert estimate_period(rate, 1.0) is None


@pytest.mark.parametrize("seed", range(1, 5))
def test_a_period_under_equally_strong_noise_is_not_reliable(seed: int) -> None:
    wave = 2.0 + np.cos(2 * np.pi * np.arange(440) / 12.3)
    random = np.random.default_rng(seed)
    assert estimate_period(wave + random.normal(0.0, 1.0, 440), 1.0) is None
    found = estimate_period(wave + random.normal(0.0, 0.3, 440), 1.0)
    assert found is not None and found.seconds == pytest.approx(12.3, rel=0.01)


@pytest.mark.parametrize("iterations", [8, 9, 10])
def test_half_of_a_long_iteration_is_not_reported_as_the_period(iterations: int) -> None:
    samples = int(12.4 * iterations)
    phase = np.arange(0, samples, 0.05) % 12.4
    traffic = (phase < 1.4) + 0.6 * ((phase > 6.2) & (phase < 7.6))
    signal = traffic.reshape(-1, 20).mean(axis=1) * np.random.default_rng(iterations).normal(1.0, 0.02, samples)
    assert estimate_period(signal, 1.0) is None


def test_a_period_that_fades_for_a_while_is_not_reported() -> None:
    """Meanwhile the job transfers as much, but evenly."""
    random = np.random.default_rng(3)
    signal = bursts(np.full(60, 9.3), 440)
    assert estimate_period(signal * random.normal(1.0, 0.02, 440), 1.0) is not None
    signal[200:288] = signal.mean()
    assert estimate_period(signal * random.normal(1.0, 0.02, 440), 1.0) is None
