"""Compute time that a rank's tokens explain, and a job's work rate by its traffic."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import FEATURE, FEATURES
from scheduler_feedback.detectors.iteration.work_rate import WorkRate, averaged, steady_width
from scheduler_feedback.detectors.steps.expected_work import LEAST_FACTOR, MOST_FACTOR, Work, fit

WINDOWS, RANKS = 25, 8
NOTHING = np.full((WINDOWS, RANKS), np.nan)


def given(seed: int = 1) -> tuple[FloatArray, FloatArray]:
    """Return tokens and sums of squared sequence lengths, each [windows, ranks]. They are not proportional."""
    random = np.random.default_rng(seed)
    return random.uniform(500, 1500, (WINDOWS, RANKS)), random.uniform(1e5, 9e5, (WINDOWS, RANKS))


def test_both_factors_are_found_and_usual_work_takes_the_usual_time() -> None:
    tokens, squares = given()
    compute = 0.2 + 3e-4 * tokens + 5e-7 * squares
    compute *= 0.3 / float(np.median(compute))  # the unit of time does not matter
    work = fit(compute, tokens, squares)
    assert work is not None
    assert work.factor(tokens, squares) == pytest.approx(compute / 0.3, rel=0.02)
    assert work.a_square / work.a_token == pytest.approx(5e-7 / 3e-4, rel=1e-6)
    assert float(np.median(work.factor(tokens, squares))) == pytest.approx(1.0, rel=0.02)


def test_a_rank_that_is_slower_does_not_look_like_work() -> None:
    tokens, _ = given()
    tokens[:, 3] += 400  # and has more work as well
    compute = (0.2 + 3e-4 * tokens) * np.where(np.arange(RANKS) == 3, 2.0, 1.0)
    work = fit(compute[:, [0, 1, 2, 4]], tokens[:, [0, 1, 2, 4]], NOTHING[:, :4])
    with_it = fit(compute, tokens, NOTHING)
    assert work is not None and with_it is not None
    assert with_it.a_token == pytest.approx(work.a_token, rel=0.35)


def test_negative_factors_are_dropped() -> None:
    tokens, squares = given()
    compute = 1.0 + 4e-4 * tokens - 2e-7 * squares
    work = fit(compute, tokens, squares)
    assert work is not None
    assert (work.a_square, work.a_token > 0) == (0.0, True)
    assert fit(2.0 - 4e-4 * tokens, tokens, NOTHING) is None


def test_tokens_that_explain_little_give_no_fit() -> None:
    tokens, squares = given()
    for seed in range(10):
        noise = np.random.default_rng(seed).normal(0.0, 0.1, tokens.shape)
        assert fit(1.0 + noise, tokens, squares) is None
    assert fit(1.0 + 0.1 * noise + 3e-4 * tokens, tokens, squares) is not None
    assert fit(np.ones_like(tokens), tokens, squares) is None, "nothing varies"
    assert fit(1.0 + 3e-4 * tokens, np.full_like(tokens, 1000.0), NOTHING) is None, "the given work does not vary"


@pytest.mark.parametrize("missing", ["tokens", "compute", "a rank"])
def test_without_work_reports_of_all_ranks_there_is_no_fit(missing: str) -> None:
    tokens, _ = given()
    compute = 1.0 + 3e-4 * tokens
    if missing == "tokens":
        tokens = NOTHING
    elif missing == "compute":
        compute = NOTHING
    else:
        tokens = np.where(np.arange(RANKS) == 2, np.nan, tokens)
    assert fit(compute, tokens, NOTHING) is None


def test_work_far_from_usual_explains_more_time_if_the_fit_is_uncertain() -> None:
    random = np.random.default_rng(3)
    even = 1000.0 * (1.0 + random.normal(0.0, 0.02, (8, RANKS)))
    far = np.array([1600.0, 1000.0, 400.0])
    slopes = []
    for _ in range(30):
        work = fit(even / 1000.0 * np.exp(random.normal(0.0, 0.02, even.shape)), even, NOTHING[:8])
        if work is not None:
            assert 0.08 < work.error < 0.3
            assert work.longest(far, None)[1] == pytest.approx(1.0, abs=0.01)
            assert (work.longest(far, None) >= work.factor(far, None)).all()
            slopes.append((work.factor(far, None)[0], work.longest(far, None)[0]))
    too_low = [expected for expected, _ in slopes if expected < 1.6 / 1.05]
    assert too_low and len([one for _, one in slopes if one < 1.6 / 1.05]) <= len(too_low) // 4
    tokens, squares = given()
    exact = fit(0.2 + 3e-4 * tokens + 5e-7 * squares, tokens, squares)
    assert exact is not None and exact.error < 1e-9


def test_unreported_work_counts_as_usual_and_the_factor_is_bounded() -> None:
    work = Work(0.1, 9e-4, 0.0)
    factors = work.factor(np.array([1000.0, np.nan, 1e9, -1e9, 0.0]), None)
    assert factors.tolist() == pytest.approx([1.0, 1.0, MOST_FACTOR, LEAST_FACTOR, LEAST_FACTOR])
    assert Work(0.1, 9e-4, 1e-6).factor(np.array([1000.0]), None).tolist() == pytest.approx([1.0])
    assert Work(0.0, 0.0, 1e-6).factor(np.array([1.0]), np.array([2e6])).tolist() == pytest.approx([2.0])


# --- a job that reports no steps --------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 2, 3, 8])
def test_averages_at_the_ends_cover_fewer_values(width: int) -> None:
    rate = np.random.default_rng(2).uniform(0.0, 1.0, 20)
    found = averaged(rate, width)
    for place in range(20):
        near = rate[max(0, place - width // 2) : min(20, place + (width + 1) // 2)]
        assert found[place] == pytest.approx(near.mean())


def test_a_rate_is_averaged_over_as_few_windows_as_make_it_steady() -> None:
    pattern = np.tile([0.0, 0.0, 3.0, 3.0], 32)
    assert steady_width(np.ones(64)) == 1
    assert steady_width(pattern) == 4
    assert steady_width(pattern[:28]) is None, "seven blocks are too few"
    assert steady_width(np.random.default_rng(1).uniform(0.0, 1.0, 128)) is None
    stops = pattern.copy()
    stops[40:48] = 0.0
    assert steady_width(stops) == 4, "a single event does not count"


def rate_of(values: FloatArray, known: int = 4, counter: str = "nvlink_bytes") -> WorkRate:
    found = WorkRate()
    for value in values:
        window = np.full((len(FEATURES), 8), np.nan, np.float32)
        window[FEATURE[counter], :known] = value
        found.take(window)
    return found


def test_less_traffic_means_longer_iterations() -> None:
    values = np.r_[np.full(60, 2.0), np.full(20, 1.0), np.full(20, 2.0)]
    lost = rate_of(values, known=8).lost()
    assert lost is not None
    assert lost[[10, 70, 95]] == pytest.approx([0.0, 1.0, 0.0], abs=0.01)
    stopped = rate_of(np.r_[np.full(60, 2.0), np.zeros(10), np.full(30, 2.0)], known=8).lost()
    assert stopped is not None and stopped.max() == 3.0, "the slowdown is limited"


def test_a_rate_is_known_if_most_ranks_are_known() -> None:
    assert rate_of(np.ones(40), known=4).lost() is None, "half of the ranks are not most of them"
    assert rate_of(np.ones(40), known=5).lost() is not None
    assert rate_of(np.ones(40), known=8, counter="tensor_active").lost() is not None, "the next counter is used"
    assert rate_of(np.zeros(40), known=8).lost() is None
    assert WorkRate().lost() is None
