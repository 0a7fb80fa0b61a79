"""Simulated services: loads, latencies, minutes in which the objective is kept, and guests."""

from __future__ import annotations

import math
import random

import pytest

from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.core.state import Estimates, Policy, Sharing
from scheduler_feedback.sim.engine import Engine
from scheduler_feedback.sim.job_trace import SIMULATED_COMMAND, Trace, TraceJob
from scheduler_feedback.sim.simulated_nodes import grid
from scheduler_feedback.sim.simulation import Simulation
from scheduler_feedback.sim.speeds.co_location import of_pairs
from scheduler_feedback.sim.speeds.services import Load, Services, latency_seconds

HOUR = 3600.0
PAIRS = {"v100": {"s": {"t": 0.6}, "t": {"s": 0.8}}}


def engine_of(sharing: Sharing = Sharing.MUXFLOW, objective: float = 0.2) -> Engine:
    """Return one GPU with a service of two hours, at which an offline job of 10 minutes arrives."""
    service = JobSpec("s0", SIMULATED_COMMAND, 1, workload="s", shareable=True, latency_objective_seconds=objective)
    offline = JobSpec(
        "j0", SIMULATED_COMMAND, 1, workload="t", shareable=True, opportunistic=sharing.opportunistic,
        restartable=True, preemptible=True,
    )  # fmt: skip
    jobs = (TraceJob("s0", 1, 0, 2 * HOUR, service), TraceJob("j0", 2, 60_000_000_000, 600.0, offline))
    policy = Policy(sharing=sharing, estimates=Estimates.EXACT)
    nodes = grid(1, 1, gpu_type="v100", jobs_per_slot=2)
    return Simulation(Trace("one", jobs), nodes, policy, co_speed=of_pairs(PAIRS)).engine()


def run(load: Load, **changes: object) -> tuple[Engine, Services]:
    engine = engine_of(**changes)  # type: ignore[arg-type]
    services = Services({"s0": load}, 0.01, 2 * HOUR)
    services.begin(engine)
    engine.run()
    return engine, services


def test_the_load_has_a_daily_course_and_surges() -> None:
    load = Load(0.1, 0.5, 6 * HOUR, 0.0, ((HOUR, 60.0, 0.3),))
    chance = random.Random(1)
    assert [round(load.at(hours * HOUR, chance), 6) for hours in (6, 18, 30)] == [0.5, 0.1, 0.5]
    assert load.at(HOUR + 59, chance) - load.at(HOUR + 61, chance) == pytest.approx(0.3, abs=0.001)


def test_the_latency_is_that_of_a_queue() -> None:
    assert latency_seconds(0.01, 0.5, 1.0) == pytest.approx(math.log(20) * 0.02)
    assert latency_seconds(0.01, 0.5, 0.75) == pytest.approx(math.log(20) * 0.04)
    assert latency_seconds(0.01, 0.9, 0.5) == pytest.approx(math.log(20) * 1.0), "overloaded"


def test_a_guest_gets_the_part_that_the_requests_leave() -> None:
    """With a load of 0.2 it gets 80 % of the slot: 0.64 of its speed, and the service keeps 1 - 0.8 x 0.4."""
    engine, services = run(Load(0.2, 0.2, 0.0, 0.0))
    job = engine.state.jobs["j0"]
    assert job.slot_part == 0.8
    ran_ns = (engine.courses["j0"].ended_ns or 0) - engine.first_ns
    assert 600 / 0.64 < ran_ns / 1e9 < 600 / 0.64 + 100
    assert services.kept == 1.0 and services.minutes == 120
    assert services.guest_seconds == pytest.approx(600, abs=10)
    assert engine.state.pair_speeds["s"]["t"] == pytest.approx(0.6, abs=1e-4)


def test_a_surge_recalls_the_guest_and_counts_the_broken_minute() -> None:
    engine, services = run(Load(0.2, 0.2, 0.0, 0.0, ((300.0, 1200.0, 0.4),)), objective=0.15)
    assert engine.courses["j0"].starts == 2
    assert services.broken == 1, "until it is recalled"
    assert services.kept == pytest.approx(1 - 1 / services.minutes)


def test_services_that_report_nothing_keep_their_guests() -> None:
    engine = engine_of(objective=0.15)
    services = Services({"s0": Load(0.2, 0.2, 0.0, 0.0, ((300.0, 1200.0, 0.4),))}, 0.01, 2 * HOUR, reports=False)
    services.begin(engine)
    engine.run()
    assert engine.courses["j0"].starts == 1 and services.broken > 5
