"""Uplinks: a gang that must cross uplinks uses those of least cost. Without known costs nothing changes."""

from __future__ import annotations

import pytest

from scheduler_feedback.core.cluster import Level, Node
from scheduler_feedback.core.job import Slot
from scheduler_feedback.core.state import MeasuredTraffic, Policy
from scheduler_feedback.core.verdict import Cleared, Kind
from scheduler_feedback.policies.index.scheduling_index import index_of
from scheduler_feedback.policies.index.slot_plan import Crossing, Plan
from scheduler_feedback.policies.index.uplink_loss import crossed, least_burdened
from tests.cluster.cycle_world import World


def three_gangs(policy: Policy) -> tuple[World, str, str]:
    """Return four racks of two nodes of two slots.

    A gang of six runs on two racks and one of three in a third; a gang of five is submitted.
    """
    world = World({f"n{i}": 2 for i in range(8)}, policy, racks=4)
    wide = world.submit(6, 1000.0)
    narrow = world.submit(3, 1000.0, required_level=Level.RACK)
    assert (racks_of(world, wide), racks_of(world, narrow)) == ({"r0", "r1"}, {"r2"})
    second = world.submit(5, 1000.0)
    world.running()
    return world, wide, second


def racks_of(world: World, job_id: str) -> set[str]:
    return {world.state.nodes[name].rack for name in world.nodes_of(job_id)}


@pytest.mark.parametrize(("slowdown", "racks"), [(0.0, {"r3", "r1"}), (0.3, {"r3", "r2"})])
def test_a_gang_that_must_cross_uplinks_takes_those_that_no_other_gang_crosses(
    slowdown: float, racks: set[str]
) -> None:
    world, _, second = three_gangs(Policy(uplink_slowdown=slowdown))
    assert racks_of(world, second) == racks


def test_gangs_are_counted_on_the_uplinks_that_they_cross_until_they_end() -> None:
    world, wide, second = three_gangs(Policy(uplink_slowdown=0.3))
    plan = index_of(world.state).plan
    names = {number: plan.topology.domains[number].name for number in range(len(plan.topology.domains))}
    found = {names[number]: {one: gang.ranks for one, gang in gangs.items()} for number, gangs in plan.crossing.items()}
    assert found == {"r0": {wide: 6}, "r1": {wide: 6}, "r2": {second: 5}, "r3": {second: 5}}
    world.end(wide, 0)
    assert {names[number] for number in plan.crossing} == {"r2", "r3"}
    world.end(second, 0)
    assert not plan.crossing


def test_domains_whose_worst_uplink_costs_least_are_selected() -> None:
    plan = Plan([Node(f"n{i}", 2, rack=f"r{i // 2}") for i in range(6)])
    holes = [(4, plan.topology.above[2 * rack][-1]) for rack in range(3)]
    gang, others = Crossing("g", 6), {name: Crossing(name, 6) for name in "ab"}
    assert least_burdened(plan, holes, 6, gang) == holes
    plan.congested = {holes[0][1]: 0.4}
    assert least_burdened(plan, holes, 6, gang) == holes[1:]
    assert least_burdened(plan, holes, 9, gang) == holes, "if all are needed, all are taken"
    plan.congested = {}
    plan.crossing, plan.uplink_slowdown = {holes[1][1]: others, holes[2][1]: {"a": others["a"]}}, 0.1
    assert least_burdened(plan, holes, 6, gang) == [holes[0], holes[2]]
    plan.crossing[holes[0][1]] = {"b": others["b"]}
    plan.traffic = {"a": MeasuredTraffic(0.9, 1.0)}
    assert least_burdened(plan, holes, 4, gang) == holes[:1], "b is assumed to communicate less than a"


def test_only_a_gang_in_several_domains_crosses_uplinks() -> None:
    plan = Plan([Node(f"n{i}", 2, rack=f"r{i // 2}", spine="s") for i in range(4)])
    names = {number: plan.topology.domains[number].name for number in range(len(plan.topology.domains))}
    assert crossed(plan, [Slot("n0", 0), Slot("n1", 0)]) == []
    assert [names[number] for number in crossed(plan, [Slot("n0", 0), Slot("n2", 0)])] == ["r0", "r1"]


def test_an_active_interference_verdict_keeps_other_gangs_off_its_uplinks() -> None:
    world, wide, second = three_gangs(Policy())
    plan = index_of(world.state).plan
    verdict = world.verdict(wide, kind=Kind.INTERFERENCE, aggressor=second, resource="uplink:x", slowdown=1.5)
    world.cycle(verdict)
    assert {plan.topology.domains[number].name: cost for number, cost in plan.congested.items()} == {"r1": 0.5}
    world.cycle(Cleared(verdict.verdict_id, wide, world.now_ns, "they keep out of each other's way"))
    assert not plan.congested
    world.cycle(verdict)
    world.end(second, 0)
    assert not plan.congested, "one of the two has ended"
