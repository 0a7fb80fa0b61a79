"""Speeds at power limits: the default curve, and learnt sensitivities of job classes."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from scheduler_feedback.policies.power import power_speeds
from scheduler_feedback.policies.power.power_speeds import default_speed, sensitivity, speed_at
from tests.cluster.cycle_world import World

ZEUS = Path(__file__).parents[2] / "benchmarks" / "survey" / "data" / "zeus-power.csv"


def curves() -> dict[str, dict[float, float]]:
    found: dict[str, dict[float, float]] = {}
    with ZEUS.open() as file:
        for row in csv.DictReader(file):
            found.setdefault(row["workload"], {})[float(row["limit_watts"])] = float(row["speed"])
    return found


def test_the_default_curve_is_the_mean_of_the_measured_ones_and_continues_below() -> None:
    for limit in (100.0, 125.0, 150.0, 175.0, 200.0, 225.0, 250.0):
        mean = math.exp(sum(math.log(one[limit]) for one in curves().values()) / len(curves()))
        assert default_speed(limit / 250.0) == pytest.approx(mean, abs=2e-4)
    assert 0.3 < default_speed(0.2) < default_speed(0.3) < 0.64
    assert default_speed(0.0) > 0
    assert default_speed(1.2) == 1.0


def test_one_number_describes_each_measured_training_within_four_percent() -> None:
    """Learnt from two limits, the speeds at the other five are predicted."""
    for name, speeds in curves().items():
        world = World({"n0": 1})
        job = world.state.jobs[world.submit(1, workload=name)]
        for limit in (125.0, 250.0):
            for _ in range(4):
                power_speeds.record(world.state, job, limit / 250.0, 40 * speeds[limit], 20.0)
        a = sensitivity(world.state, job.job_id, job.spec)
        for limit, speed in speeds.items():
            assert speed_at(limit, 250.0, a) == pytest.approx(speed, abs=0.04), (name, limit, a)


def test_without_measurements_and_from_one_limit_the_sensitivity_is_one() -> None:
    world = World({"n0": 1})
    job = world.state.jobs[world.submit(1, workload="w")]
    assert sensitivity(world.state, job.job_id, job.spec) == 1.0
    power_speeds.record(world.state, job, 0.6, 10.0, 20.0)
    assert sensitivity(world.state, job.job_id, job.spec) == 1.0
    for wrong in (math.nan, math.inf, 0.0, -1.0):
        power_speeds.record(world.state, job, 0.8, wrong, 20.0)
    power_speeds.record(world.state, job, 0.8, 1.0, 0.0)
    assert world.state.power_rates["|w"][0].weight == 1.0


def test_a_lag_is_measured_against_higher_limits_only() -> None:
    world = World({"n0": 1})
    job = world.state.jobs[world.submit(1, workload="w")]
    assert power_speeds.lag(world.state, job, 0.6, 10.0) is None
    power_speeds.record(world.state, job, 0.8, 10.0, 20.0)
    expected = 10.0 * default_speed(0.6) / default_speed(0.8)
    assert power_speeds.lag(world.state, job, 0.6, 0.9 * expected) == pytest.approx(0.9)
    assert power_speeds.lag(world.state, job, 0.8, 5.0) is None
    assert power_speeds.lag(world.state, job, 1.0, 5.0) is None, "a job that does not gain from power is not harmed"


def test_old_classes_and_configurations_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power_speeds, "MOST_CLASSES", 2)
    monkeypatch.setattr(power_speeds, "MOST_PLACES", 2)
    world = World({"n0": 8})
    for ranks in (1, 2, 3):
        job = world.state.jobs[world.submit(ranks, workload="w")]
        power_speeds.record(world.state, job, 0.8, 10.0, 20.0)
    assert [row.ranks for row in world.state.power_rates["|w"]] == [2, 3]
    for name in ("x", "y"):
        job = world.state.jobs[world.submit(1, workload=name)]
        power_speeds.record(world.state, job, 0.8, 10.0, 20.0)
    assert list(world.state.power_rates) == ["|x", "|y"]
