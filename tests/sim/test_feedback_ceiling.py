"""Best possible result of feedback without foresight: it is optimal, and it agrees with randomly drawn faults."""

from __future__ import annotations

import itertools
import math
import random
import statistics

import pytest

from benchmarks.feedback_ceiling import Hit, Life, witnessed
from scheduler_feedback.sim import faults
from scheduler_feedback.sim.job_trace import Trace
from tests.sim.scenario import job

LIFE = Life(600.0, 1.5)


def test_the_duration_law_agrees_with_drawn_durations() -> None:
    """Integrate numerically: E min(L, t) is the area below the survival function."""
    steps = [2.0 ** (step / 64) for step in range(-640, 64 * 24)]
    area = steps[0]
    for low, high in itertools.pairwise(steps):
        area += (LIFE.outlasts(low) + LIFE.outlasts(high)) / 2 * (high - low)
        if low in (1.0, 256.0, 65536.0):
            assert LIFE.until(high) == pytest.approx(area, rel=1e-3)
    assert LIFE.until(math.inf) == LIFE.mean_seconds == pytest.approx(area, rel=1e-3)
    many = [job(str(number), 0.0, 16, 3600.0) for number in range(4000)]
    drawn = [fault.lasts_ns / 1e9 for fault in (faults.transient(many, 1).by_job or {}).values()]
    mean, sigma = faults.life(16)
    assert statistics.fmean(map(math.log, drawn)) == pytest.approx(math.log(mean) - sigma**2 / 2, abs=0.1)
    assert statistics.stdev(map(math.log, drawn)) == pytest.approx(sigma, rel=0.05)


@pytest.mark.parametrize("cost", [10.0, 60.0, 300.0, 900.0])
@pytest.mark.parametrize("slowdown", [1.15, 1.5, 2.2])
def test_no_other_wait_is_cheaper_and_drawn_durations_agree(slowdown: float, cost: float) -> None:
    draw = random.Random(1)
    lives = [LIFE.mean_seconds * math.exp(draw.gauss(0.0, 1.5) - 1.5**2 / 2) for _ in range(20_000)]
    expected = Hit(LIFE, 0.0, slowdown, 20_000.0).expected(cost)
    drawn = [Hit(LIFE, one, slowdown, 20_000.0).drawn(cost) for one in lives[:2000]]
    assert expected.knows <= expected.stops <= min(expected.stays, cost)
    assert statistics.fmean(one.stops for one in drawn) == pytest.approx(expected.stops, rel=0.1)
    assert statistics.fmean(one.knows for one in drawn) == pytest.approx(expected.knows, rel=0.1)
    rate = 1 - 1 / slowdown
    for wait in (0.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10_000.0):
        made = statistics.fmean(rate * min(one, wait) + cost * (one > wait) for one in lives)
        assert made >= 0.98 * expected.stops


def test_a_gang_that_ends_before_the_end_of_the_wait_stays() -> None:
    hit = Hit(LIFE, 5000.0, 1.5, 100.0)
    assert hit.best_wait(300.0)[1] == math.inf
    assert hit.drawn(300.0).stops == pytest.approx(100.0 / 3)


def test_witnessed_hits_explain_all_losses_without_feedback() -> None:
    """Start thirty gangs at once on separate nodes, so that none starts on a slow node."""
    trace = Trace("thirty", tuple(job(str(number), 0.0, 16, 36_000.0) for number in range(30)))
    hits, lost_seconds = witnessed(trace, 3)
    assert len(hits) >= 5
    assert lost_seconds == pytest.approx(sum(hit.drawn(300.0).stays for hit in hits), rel=1e-6)
