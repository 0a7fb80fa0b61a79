"""Metrics of the power budget."""

from __future__ import annotations

from agent.schema.catalog import BY_NAME
from scheduler_feedback.core.state import State
from scheduler_feedback.policies.power.power_metrics import power_metrics
from tests.policies.test_power_budget import world_of


def test_the_metrics_of_the_budget() -> None:
    world = world_of(1000.0)
    job = world.submit(4, 100.0)
    found = {(name, labels): value for name, labels, value in power_metrics(world.state)}
    assert found == {
        ("gangwatch_power_budget_watts", ()): 1000.0,
        ("gangwatch_power_committed_watts", (("part", "busy"),)): 880.0,
        ("gangwatch_power_committed_watts", (("part", "idle"),)): 120.0,
        ("gangwatch_gang_power_limit_watts", (("gang", job),)): 220.0,
        ("gangwatch_gang_power_speed_ratio", (("gang", job),)): world.state.jobs[job].power_speed,
    }
    assert all(name in BY_NAME for name, _ in found)
    assert not list(power_metrics(State()))
