"""Spare nodes: reserved for gangs that leave a bad node, lent to preemptible gangs, and returned when needed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler_feedback import cycle
from scheduler_feedback.core.actions import StartGang, StopGang
from scheduler_feedback.core.cluster import Level, NodeState
from scheduler_feedback.core.events import NodeCommand, NodeCommanded, NodeSeen, PolicySet, Submitted
from scheduler_feedback.core.job import JobSpec, JobState, StopReason
from scheduler_feedback.core.state import Order, Policy
from scheduler_feedback.policies.nodes.spares import count
from tests.cluster.cycle_world import World

_POLICY = Policy(spare_nodes=1, spare_level=Level.RACK)
_MOVABLE: dict[str, Any] = {"restartable": True, "grace_seconds": 4.0, "restart_cost_seconds": 6.0}
_LENT: dict[str, Any] = _MOVABLE | {"preemptible": True, "time_limit_seconds": 1000.0}


def spares(world: World) -> set[str]:
    return {node.name for node in world.state.nodes.values() if node.spare}


def four(policy: Policy = _POLICY) -> World:
    """Return four nodes of two slots in one rack; n3 is the spare."""
    return World({f"n{i}": 2 for i in range(4)}, policy, racks=1)


def test_a_spare_takes_only_preemptible_gangs() -> None:
    world = four()
    assert spares(world) == {"n3"}
    world.submit(6, 1000.0)
    plain = world.submit(2, 1000.0)
    assert world.job_state(plain) is JobState.PENDING
    lent = world.submit(2, 1000.0, **_LENT)
    assert world.nodes_of(lent) == {"n3"}


def test_a_gang_that_leaves_a_bad_node_gets_a_free_spare() -> None:
    world = four()
    gang = world.submit(6, 10_000.0, **_MOVABLE, time_limit_seconds=1000.0)
    world.running()
    world.advance(100.0)
    world.cycle(world.verdict(gang, rank=0))
    job = world.state.jobs[gang]
    assert job.stop_reason is StopReason.MIGRATE and {slot.node for slot in job.claim} == {"n1", "n2", "n3"}
    assert world.state.nodes["n0"].state is NodeState.QUARANTINE
    world.end(gang, 75)
    assert world.nodes_of(gang) == {"n1", "n2", "n3"}
    world.cycle()
    assert not spares(world), "the bad node replaces the spare that is in use"


def test_a_lent_spare_is_returned_when_a_verdict_needs_it() -> None:
    world = four()
    gang = world.submit(6, 10_000.0, **_MOVABLE, time_limit_seconds=1000.0)
    lent = world.submit(2, 10_000.0, **_LENT)
    world.running()
    world.advance(100.0)
    outcome = world.cycle(world.verdict(gang, rank=0, slowdown=3.0))
    assert {a.job_id: a.why for a in outcome.actions if isinstance(a, StopGang)} == {
        gang: StopReason.MIGRATE,
        lent: StopReason.PREEMPT,
    }
    entry = next(entry for entry in world.entries if entry.kind == "migrate")
    assert dict(entry.detail)["give back spares"] == lent
    world.end(gang, 75)
    assert world.job_state(gang) is JobState.PENDING, "not before the borrower has left"
    outcome = world.end(lent, 75)
    assert {a.job_id for a in outcome.actions if isinstance(a, StartGang)} == {gang}
    assert world.nodes_of(gang) == {"n1", "n2", "n3"}


def test_a_borrower_s_loss_counts_in_the_cost_of_the_move() -> None:
    world = four()
    gang = world.submit(6, 10_000.0, **_MOVABLE, time_limit_seconds=1000.0)
    world.submit(2, 10_000.0, **(_LENT | {"restart_cost_seconds": 3000.0}))
    world.running()
    world.advance(100.0)
    world.cycle(world.verdict(gang, rank=0, slowdown=1.5))
    assert world.state.jobs[gang].stop_reason is None


def test_an_operator_s_maintenance_reduces_the_spares_first() -> None:
    world = four()
    world.cycle(NodeCommanded("n0", NodeCommand.MAINTENANCE))
    world.cycle()
    assert not spares(world)
    assert len(world.nodes_of(world.submit(6, 100.0))) == 3
    world.advance(100.0)
    world.cycle(NodeCommanded("n0", NodeCommand.RELEASE))
    world.cycle()
    assert spares(world) == {"n3"}


def test_a_spare_used_by_a_moved_gang_is_replaced_by_a_free_node() -> None:
    world = four(replace(_POLICY, spare_nodes=2))
    assert spares(world) == {"n2", "n3"}
    gang = world.submit(4, 10_000.0, **_MOVABLE, time_limit_seconds=1000.0)
    world.running()
    world.advance(100.0)
    world.cycle(world.verdict(gang, rank=0))
    world.end(gang, 75)
    used = world.nodes_of(gang)
    world.cycle()
    assert len(spares(world)) == 1 and spares(world).isdisjoint(used)


def test_every_domain_of_the_level_has_its_own_spares() -> None:
    world = World({f"n{i}": 2 for i in range(6)}, _POLICY, racks=2)
    assert spares(world) == {"n4", "n5"}
    world.cycle(PolicySet(replace(_POLICY, spare_level=Level.SPINE)))
    world.cycle()
    assert len(spares(world)) == 1
    world.cycle(PolicySet(replace(_POLICY, spare_nodes=0)))
    world.cycle()
    assert not spares(world)


def test_an_absent_spare_is_replaced_by_another_node_or_by_none() -> None:
    world = four()
    world.cycle(NodeSeen("n3", 2, machine="", rack="r0", present=False))
    world.cycle()
    assert not spares(world), "the rack has lost one node: that was the spare"


def test_the_reason_says_that_only_spares_could_hold_the_gang() -> None:
    world = four()
    job_id = world.submit(8, 100.0)
    explanation = cycle.explain(world.state, job_id)
    assert explanation is not None and explanation.binds == "capacity"
    assert "reserved as spares: n3" in explanation.why


@pytest.mark.parametrize(
    ("nodes", "rate", "spares"),
    [(32, 0.0, 0), (32, 0.01, 2), (32, 0.05, 5), (1, 0.01, 0)],
)
def test_the_number_of_spares_follows_from_the_failure_rate(nodes: int, rate: float, spares: int) -> None:
    """Poisson distributions with means 0.32, 1.6 and 0.01: more nodes are out of use in at most 1 % of the time."""
    policy = Policy(spare_failures_per_day=rate, spare_repair_seconds=86400.0, spare_risk_fraction=0.01)
    assert count(policy, nodes) == spares


def test_a_preemption_pass_gives_spares_and_other_slots_in_one_cycle() -> None:
    policy = replace(_POLICY, preempt=True, order=Order.SRTF, replan_seconds=0.0, min_run_seconds=0.0)
    world = World({"n0": 1, "n1": 2}, policy, racks=1)
    assert spares(world) == {"n1"}
    runs = world.submit(1, 10_000.0, **_MOVABLE, preemptible=True, time_limit_seconds=10_000.0)
    assert world.nodes_of(runs) == {"n0"}
    world.running()
    world.advance(100.0)
    limits = {"lent": 500.0, "plain": 600.0, "last": 20_000.0}
    jobs = {
        name: JobSpec(
            name,
            ("train",),
            1,
            time_limit_seconds=limit,
            exact_seconds=limit,
            restartable=True,
            preemptible=name != "plain",
        )
        for name, limit in limits.items()
    }
    world.true_seconds |= limits
    outcome = world.cycle(*(Submitted(name, spec) for name, spec in jobs.items()))
    assert world.nodes_of("lent") == world.nodes_of("last") == {"n1"}, "both use the idle spare at once"
    assert [(a.job_id, a.why) for a in outcome.actions if isinstance(a, StopGang)] == [(runs, StopReason.PREEMPT)]
    world.end(runs, 75)
    assert world.nodes_of("plain") == {"n0"}


def test_a_gang_on_a_spare_keeps_it_when_a_job_needs_another_slot() -> None:
    policy = replace(_POLICY, preempt=True, order=Order.SRTF, replan_seconds=0.0, min_run_seconds=0.0)
    world = World({"n0": 1, "n1": 1}, policy, racks=1)
    ordinary = world.submit(1, 10_000.0, **_MOVABLE, preemptible=True, time_limit_seconds=10_000.0)
    lent = world.submit(1, 20_000.0, **_MOVABLE, preemptible=True, time_limit_seconds=20_000.0)
    assert (world.nodes_of(ordinary), world.nodes_of(lent)) == ({"n0"}, {"n1"})
    world.running()
    world.advance(100.0)
    world.submit(1, 100.0, time_limit_seconds=100.0)
    stopped = {job_id for job_id, job in world.state.jobs.items() if job.stop_reason is not None}
    assert stopped == {ordinary}, "a stop of the other one would free no slot that the job may use"
