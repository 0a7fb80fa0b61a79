"""Preemption and queue limits: jobs of a full queue neither preempt gangs nor delay other jobs."""

from __future__ import annotations

import pytest

from scheduler_feedback.core.events import Submitted
from scheduler_feedback.core.job import JobSpec, JobState
from scheduler_feedback.core.state import Estimates, Order, Policy, Queue
from tests.cluster.cycle_world import World

ORDERS = [Order.SJF, Order.SRTF, Order.SRSF, Order.LAS]


def _world(order: Order) -> World:
    queues = (Queue("small", limit=1),)
    policy = Policy(order=order, estimates=Estimates.EXACT, preempt=True, min_run_seconds=0.0, queues=queues)
    return World({"n0": 4}, policy)


def _short(name: str, queue: str, seconds: float = 10.0) -> Submitted:
    return Submitted(name, JobSpec(name, ("train",), 1, queue=queue, exact_seconds=seconds))


@pytest.mark.parametrize("order", ORDERS)
def test_a_job_behind_jobs_at_their_limit_starts_in_free_slots(order: Order) -> None:
    world = _world(order)
    world.submit(2, 1000.0, exact_seconds=1000.0)
    world.running()
    world.cycle(*(_short(f"s{number}", "small") for number in range(3)), _short("behind", "default", 100.0))
    started = [name for name in ("s0", "s1", "s2", "behind") if world.job_state(name) is JobState.STARTING]
    assert started == ["s0", "behind"]


@pytest.mark.parametrize("order", [Order.SJF, Order.SRTF, Order.SRSF])
def test_no_gang_is_preempted_for_jobs_at_their_limit(order: Order) -> None:
    world = _world(order)
    movable = {"restartable": True, "preemptible": True, "grace_seconds": 2.0}
    long = world.submit(3, 1000.0, exact_seconds=1000.0, **movable)
    world.running()
    world.cycle(*(_short(f"s{number}", "small") for number in range(3)))
    assert "preempt" not in world.entry_kinds(long)
    assert [world.job_state(f"s{number}") for number in range(3)].count(JobState.STARTING) == 1
