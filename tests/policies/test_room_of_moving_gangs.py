"""CPU and memory of a gang that moves: on its own nodes, and on those of gangs that make room."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_feedback.core.cluster import Limit
from scheduler_feedback.core.events import NodeSeen
from scheduler_feedback.core.job import JobState, StopReason
from scheduler_feedback.core.state import Policy
from scheduler_feedback.policies.index.scheduling_index import index_of
from scheduler_feedback.policies.queue.preemption import place_without
from tests.cluster.cycle_world import World

WIDE: dict[str, Any] = {
    "constraint": "wide", "requests": (("cpu", 40),), "restartable": True, "grace_seconds": 4.0,
    "restart_cost_seconds": 6.0, "time_limit_seconds": 1000.0,
}  # fmt: skip
POLICY = Policy(quarantine_seconds=100.0, probation_seconds=50.0, suspect_seconds=30.0)


def report(name: str, cpu: int) -> NodeSeen:
    """Return the report of a node with 8 slots and 64 processors. cpu: how many of them are free."""
    return NodeSeen(name, 8, limits=(Limit("wide", cpu // 40, 1, 40 / 64),), free=(("cpu", cpu),))


def two_pods(spare: int = 64, policy: Policy = POLICY) -> tuple[World, str]:
    """Run a gang of two pods with 40 processors each, on two nodes. spare: free processors of a third node."""
    world = World({f"n{i}": 8 for i in range(3)}, policy)
    world.cycle(report("n0", 64), report("n1", 64), report("n2", spare))
    job_id = world.submit(2, 10_000.0, **WIDE)
    world.running()
    assert {rank.slot.node for rank in world.state.jobs[job_id].ranks} == {"n0", "n1"}
    world.cycle(report("n0", 24), report("n1", 24))
    world.advance(100.0)
    return world, job_id


def test_a_gang_keeps_its_healthy_node_although_its_own_pod_uses_the_processors_there() -> None:
    world, job_id = two_pods()
    world.cycle(world.verdict(job_id, rank=1))
    job = world.state.jobs[job_id]
    assert (job.state, job.stop_reason) == (JobState.STOPPING, StopReason.MIGRATE)
    assert {slot.node for slot in job.claim} == {"n0", "n2"}


def test_a_gang_stays_if_the_other_node_has_too_few_processors() -> None:
    world, job_id = two_pods(spare=24)
    world.cycle(world.verdict(job_id, rank=1))
    assert world.state.jobs[job_id].claim == []


def test_the_plan_is_unchanged_after_the_evaluation() -> None:
    world, job_id = two_pods(spare=24)
    before = index_of(world.state).plan.count[:]
    world.cycle(world.verdict(job_id, rank=1))
    plan = index_of(world.state).plan
    assert plan.unreported == {} and plan.count == before


@pytest.mark.parametrize(("with_victim", "fits"), [(False, False), (True, True)])
def test_a_preempted_gang_frees_its_processors(with_victim: bool, fits: bool) -> None:
    world, job_id = two_pods(spare=24)
    waiting = world.submit(1, 10.0, **WIDE)
    assert world.job_state(waiting) is JobState.PENDING
    index, jobs = index_of(world.state), world.state.jobs
    victims = [jobs[job_id]] if with_victim else []
    assert (place_without(index, jobs[waiting], victims, world.state) is not None) is fits
    assert index.plan.unreported == {}


def test_a_gang_that_stays_after_all_keeps_its_processors() -> None:
    world, job_id = two_pods(spare=24)
    waiting = world.submit(1, 10.0, **WIDE)
    index, jobs = index_of(world.state), world.state.jobs
    mark = index.plan.checkpoint()
    index.vacate(jobs[job_id])
    index.stay(jobs[job_id])
    assert place_without(index, jobs[waiting], [], world.state) is None
    index.plan.rollback(mark)
    assert index.plan.unreported == {}
