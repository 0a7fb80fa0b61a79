"""Study of power limits: completion times, energy and power of small cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from scheduler_feedback.sim.studies.energy_study import IDLE_WATTS, EnergyJob, Running, run, uniform
from scheduler_feedback.sim.studies.power_caps import PowerPoint

POINTS = (PowerPoint(100, 0.5, 100), PowerPoint(200, 1.0, 180))


def job(at: float, gpus: int, seconds: float) -> EnergyJob:
    return EnergyJob(at, gpus, seconds, POINTS)


def test_a_lower_limit_takes_longer_and_less_power() -> None:
    fast = run([job(0.0, 2, 100.0)], 3, uniform(200))
    assert (fast.jct, fast.most_watts) == (pytest.approx(100.0), pytest.approx(360 + IDLE_WATTS))
    assert fast.joules == pytest.approx(100 * (360 + IDLE_WATTS))
    slow = run([job(0.0, 2, 100.0)], 3, uniform(100))
    assert slow.jct == pytest.approx(200.0) and slow.joules == pytest.approx(200 * (200 + IDLE_WATTS))


def test_jobs_wait_in_order_and_smaller_ones_pass() -> None:
    result = run([job(0.0, 2, 100.0), job(1.0, 3, 10.0), job(2.0, 1, 10.0)], 3, uniform(200))
    assert result.jct == pytest.approx((100 + 109 + 10) / 3)


def test_limits_are_chosen_again_at_each_event() -> None:
    seen: list[tuple[int, int]] = []

    def choose(running: Running, waiting: Sequence[int]) -> Mapping[str, PowerPoint]:
        seen.append((len(running), len(waiting)))
        return dict.fromkeys(running, POINTS[1] if waiting else POINTS[0])

    result = run([job(0.0, 1, 100.0), job(50.0, 1, 10.0)], 1, choose)
    assert seen == [(1, 0), (1, 1), (1, 0)]
    assert result.jct == pytest.approx((125 + 95) / 2), "25 of 100 s are done when the second one arrives"


def test_a_job_that_is_too_large_is_an_error() -> None:
    with pytest.raises(ValueError, match="needs 4 GPUs, and there are 2"):
        run([job(0.0, 4, 1.0)], 2, uniform(200))
