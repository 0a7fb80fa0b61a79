"""Rails: gangs share an uplink only if they use a common rail, and parts of nodes are chosen by that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler_feedback.core.actions import StartGang
from scheduler_feedback.core.cluster import Node
from scheduler_feedback.core.events import SpeedMeasured
from scheduler_feedback.core.job import JobSpec, Packing, Slot
from scheduler_feedback.core.state import Estimates, Policy
from scheduler_feedback.core.verdict import Kind
from scheduler_feedback.policies.index.scheduling_index import drop_index, index_of
from scheduler_feedback.policies.index.slot_plan import Crossing, Plan
from scheduler_feedback.policies.index.uplink_loss import crossed, rails_of
from scheduler_feedback.policies.network.link_speeds import Profile
from scheduler_feedback.policies.network.rails import on_quiet_rails
from scheduler_feedback.sim.job_trace import SIMULATED_COMMAND, Trace, TraceJob
from scheduler_feedback.sim.simulated_nodes import grid
from scheduler_feedback.sim.simulation import Simulation
from scheduler_feedback.sim.speeds.shared_links import SharedLinks
from tests.cluster.cycle_world import World

RAILS = Policy(uplink_slowdown=0.2, uplink_rails=4)


def two_racks(slots: int = 8, islands: int = 0) -> Plan:
    plan = Plan([Node(f"n{i}", slots, rack=f"r{i % 2}", island_slots=islands) for i in range(4)])
    plan.uplink_slowdown, plan.rails = 0.2, 4
    return plan


def slots(numbers: dict[str, range]) -> list[Slot]:
    return [Slot(name, number) for name, inside in numbers.items() for number in inside]


def cross(plan: Plan, name: str, taken: list[Slot]) -> None:
    plan.hold(taken)
    for domain, rails in rails_of(plan, taken).items():
        plan.crossing.setdefault(domain, {})[name] = Crossing(name, len(taken), rails)


def test_slots_are_divided_evenly_over_the_rails() -> None:
    plan = two_racks()
    found = rails_of(plan, slots({"n0": range(3), "n1": range(6, 8)}))
    names = {plan.topology.domains[domain].name: rails for domain, rails in found.items()}
    assert names == {"r0": 0b0011, "r1": 0b1000}
    assert rails_of(plan, slots({"n0": range(8), "n2": range(8)})) == {}, "one rack"
    small = two_racks(slots=2)
    assert set(rails_of(small, slots({"n0": range(2), "n1": range(1)})).values()) == {0b0101, 0b0001}
    plan.rails = 1
    assert set(rails_of(plan, slots({"n0": range(3), "n1": range(6, 8)})).values()) == {1}


def test_gangs_without_a_common_rail_cost_each_other_nothing() -> None:
    plan = two_racks()
    cross(plan, "a", slots({"n0": range(4), "n1": range(4)}))
    domain = crossed(plan, slots({"n0": range(1), "n1": range(1)}))[0]
    assert plan.uplink_cost(domain, Crossing("b", 8, 0b1100)) == 0.0
    assert plan.uplink_cost(domain, Crossing("b", 8, 0b0110)) == pytest.approx(0.4)
    assert plan.uplink_cost(domain, Crossing("b", 8)) == pytest.approx(0.4), "its slots are not chosen yet"


def test_partly_used_nodes_give_slots_of_rails_that_no_other_gang_uses() -> None:
    plan = two_racks()
    cross(plan, "a", slots({"n0": range(4), "n1": range(4)}))
    pieces = [(plan.topology.number[name], plan.take(name, 3)) for name in ("n2", "n3")]
    gang = Crossing("b", 6)
    mark = plan.checkpoint()
    moved = on_quiet_rails(plan, pieces, gang)
    assert [[slot.slot for slot in inside] for _, inside in moved] == [[4, 5, 6], [4, 5, 6]]
    assert all(plan.free_slots(number) == 0b10001111 for number, _ in moved)
    plan.rollback(mark)
    assert all(plan.free_slots(number) == 0b11111000 for number, _ in moved), "as before"
    plan.hold([Slot("n3", slot) for slot in (5, 6, 7)])
    assert on_quiet_rails(plan, pieces, gang) == pieces, "one node has too few of them"


def test_own_slots_on_such_rails_stay() -> None:
    plan = two_racks()
    cross(plan, "a", slots({"n0": range(2), "n1": range(2)}))
    pieces = [(plan.topology.number[name], plan.take(name, 3)) for name in ("n2", "n3")]
    assert [[slot.slot for slot in inside] for _, inside in on_quiet_rails(plan, pieces, Crossing("b", 6))] == [
        [2, 3, 4],
        [2, 3, 4],
    ]


@pytest.mark.parametrize("reason", ["whole node", "islands", "one rail", "no cost"])
def test_slots_stay_where_no_rail_can_be_better(reason: str) -> None:
    plan = two_racks(islands=4 if reason == "islands" else 0)
    if reason == "one rail":
        plan.rails = 1
    if reason == "no cost":
        plan.uplink_slowdown = 0.0
    cross(plan, "a", slots({"n0": range(4), "n1": range(4)}))
    counts = (8, 3) if reason == "whole node" else (3, 3)
    pieces = [
        (plan.topology.number[name], plan.take(name, count)) for name, count in zip(("n2", "n3"), counts, strict=True)
    ]
    assert on_quiet_rails(plan, pieces, Crossing("b", 6)) == pieces


def two_gangs(policy: Policy) -> tuple[World, str, str]:
    """Start a gang of six on slots 0 to 2 of n2 and n3, and one of six that is spread over all four nodes."""
    world = World({f"n{i}": 8 for i in range(4)}, policy, racks=2)
    fillers = {min(world.nodes_of(job)): job for job in [world.submit(8, 1000.0) for _ in range(4)]}
    world.running()
    for name in ("n2", "n3"):
        world.end(fillers[name], 0)
    first = world.submit(6, 1000.0, packing=Packing.SPREAD)
    world.running()
    for name in ("n0", "n1"):
        world.end(fillers[name], 0)
    second = world.submit(6, 1000.0, packing=Packing.SPREAD)
    world.running()
    return world, first, second


def taken(world: World, job_id: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for rank in world.state.jobs[job_id].ranks:
        found.setdefault(rank.slot.node, []).append(rank.slot.slot)
    return found


def start_reason(world: World, job_id: str) -> str:
    return next(
        action.reason
        for outcome in world.outcomes
        for action in outcome.actions
        if isinstance(action, StartGang) and action.job_id == job_id
    )


def test_the_scheduler_starts_gangs_on_rails_of_their_own() -> None:
    world, first, second = two_gangs(RAILS)
    assert taken(world, first) == {"n2": [0, 1, 2], "n3": [0, 1, 2]}
    assert taken(world, second) == {"n0": [4, 5], "n1": [4, 5], "n2": [4], "n3": [4]}
    assert "shares uplinks" not in start_reason(world, second)
    world, first, second = two_gangs(Policy(uplink_slowdown=0.2))
    assert taken(world, second)["n0"] == [0, 1]
    assert f"shares uplinks with {first}" in start_reason(world, second)


def test_an_index_that_is_built_again_knows_the_rails() -> None:
    world, _, _ = two_gangs(RAILS)
    before = {domain: dict(gangs) for domain, gangs in index_of(world.state).plan.crossing.items()}
    assert {gang.rails for gangs in before.values() for gang in gangs.values()} == {0b0011, 0b0100}
    drop_index(world.state)
    assert index_of(world.state).plan.crossing == before


@pytest.mark.parametrize(("rails", "shifted"), [(1, True), (4, False)])
def test_only_gangs_on_a_common_rail_get_time_shifts(rails: int, shifted: bool) -> None:
    world, *both = two_gangs(Policy(uplink_slowdown=0.2, uplink_rails=rails, time_shifts=True))
    world.advance(20.0)
    for job in both:
        world.cycle(SpeedMeasured(job, 1, 6.0, 10.0, "steps", 0.4, 1.0, 0.4))
    jobs = [world.state.jobs[job] for job in both]
    assert all((job.time_shift is not None) == shifted for job in jobs)
    names = [set() if job.step_times is None else set(job.step_times.uplinks) for job in jobs]
    assert names[0].isdisjoint(names[1]) == (not shifted)
    assert "rack r0" in names[0] if rails == 1 else "rack r0, rail 1" in names[0]


@pytest.mark.parametrize(("rails", "cost"), [(1, 0.5), (4, 0.0)])
def test_interference_counts_on_the_rails_that_both_gangs_use(rails: int, cost: float) -> None:
    world, first, second = two_gangs(Policy(uplink_slowdown=0.2, uplink_rails=rails))
    world.cycle(world.verdict(first, kind=Kind.INTERFERENCE, aggressor=second, resource="uplink:x", slowdown=1.5))
    assert max(index_of(world.state).plan.congested.values(), default=0.0) == cost


def test_simulated_gangs_on_different_rails_run_at_full_speed() -> None:
    """Two gangs of four are spread over two racks, beside two short ones that leave them different slots."""

    def jct(policy: Policy) -> float:
        spread = {"packing": Packing.SPREAD, "workload": "w"}
        jobs = (
            TraceJob("wide", 1, 0, 1000.0, JobSpec("wide", SIMULATED_COMMAND, 4, **spread)),
            TraceJob("late", 2, 10**6, 1000.0, JobSpec("late", SIMULATED_COMMAND, 4, **spread)),
        )
        links = SharedLinks({("w", 4): Profile(0.5, 0.5)}, 1.0, rails=2)
        report = Simulation(Trace("t", jobs), grid(4, 4, 2), policy, links=links).run()
        assert report.avg_jct_seconds is not None and not report.unfinished
        return report.avg_jct_seconds

    exact = Policy(estimates=Estimates.EXACT, uplink_slowdown=0.1)
    assert jct(replace(exact, uplink_rails=2)) == pytest.approx(1000.0, rel=0.02)
    assert jct(exact) > 1100.0
