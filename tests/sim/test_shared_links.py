"""Simulated uplinks: rates of gangs that communicate at once, speeds of gangs, and whole simulations."""

from __future__ import annotations

import random as chance
from statistics import fmean

import pytest

from scheduler_feedback.core.cluster import Node
from scheduler_feedback.core.job import JobSpec, Slot
from scheduler_feedback.core.state import Estimates, Policy
from scheduler_feedback.policies.network.link_speeds import Flow, Profile, distinct_links, rates
from scheduler_feedback.sim.job_trace import SIMULATED_COMMAND, Trace, TraceJob
from scheduler_feedback.sim.simulated_nodes import grid
from scheduler_feedback.sim.simulation import Simulation
from scheduler_feedback.sim.speeds.shared_links import SharedLinks, loads, random_speeds

HALF = Profile(0.5, 0.5)


def flow(*links: str, network_class: int = 0, profile: Profile = HALF) -> Flow:
    return Flow(profile, tuple((link, 1.0) for link in links), network_class)


def mean_speeds(*flows: Flow) -> list[float]:
    """Return the mean speed of each gang over twenty draws of the phases."""
    draws = [[one.speed for one in random_speeds(flows, 1.0, seed)] for seed in range(20)]
    return [fmean(one) for one in zip(*draws, strict=True)]


def test_only_a_gang_in_several_racks_loads_uplinks() -> None:
    nodes = {name: Node(name, 8, rack=rack) for name, rack in (("a", "r0"), ("b", "r0"), ("c", "r1"))}
    assert loads([Slot("a", 0), Slot("b", 7)], nodes) == ()
    assert loads([Slot("a", 0), Slot("b", 7), Slot("c", 0)], nodes) == (("r0", 1.0), ("r1", 1.0))


def test_a_gang_loads_the_uplinks_of_its_rails() -> None:
    nodes = {name: Node(name, 8, rack=rack) for name, rack in (("a", "r0"), ("b", "r1"))}
    slots = [Slot("a", 0), Slot("a", 1), Slot("a", 4), Slot("b", 7)]
    assert [link for link, _ in loads(slots, nodes, 4)] == ["r0, rail 0", "r0, rail 2", "r1, rail 3"]
    assert [link for link, _ in loads(slots, nodes, 16)] == ["r0, rail 0", "r0, rail 2", "r0, rail 8", "r1, rail 14"]
    assert loads(slots[:3], nodes, 4) == ()


def test_links_that_carry_the_same_gangs_count_once() -> None:
    both = distinct_links([flow("a", "b", "c"), flow("b", "c")])
    assert both == [flow("a", "b"), flow("b")]
    random = chance.Random(3)
    for _ in range(20):
        flows = [
            flow(*random.sample("abcdef", random.randint(1, 5)), network_class=random.randint(0, 1)) for _ in range(4)
        ]
        assert rates(distinct_links(flows), range(4), 1.0) == pytest.approx(rates(flows, range(4), 1.0)), flows


def test_rates_are_max_min_fair_and_higher_classes_go_first() -> None:
    flows = [flow("x"), flow("x", "y"), flow("y"), flow("z")]
    assert rates(flows, [0, 1, 2, 3], 1.0) == pytest.approx({0: 0.5, 1: 0.5, 2: 0.5, 3: 1.0})
    assert rates(flows, [0, 1, 2], 2.0) == pytest.approx({0: 1.0, 1: 1.0, 2: 1.0})
    three = [flow("x"), flow("x"), flow("x", "y"), flow("y")]
    assert rates(three, [0, 1, 2, 3], 1.0) == pytest.approx({0: 1 / 3, 1: 1 / 3, 2: 1 / 3, 3: 2 / 3}), "y has more left"
    first = [flow("x"), flow("x", network_class=1), flow("x")]
    assert rates(first, [0, 1, 2], 1.5) == pytest.approx({0: 0.25, 1: 1.0, 2: 0.25})
    assert rates(first, [], 1.0) == {}


def test_gangs_that_do_not_meet_run_at_full_speed() -> None:
    assert mean_speeds(flow("x"), flow("y")) == pytest.approx([1.0, 1.0], abs=0.01)
    assert mean_speeds(flow("x")) == pytest.approx([1.0], abs=0.01)


def test_two_gangs_that_always_communicate_share_the_link() -> None:
    always = Profile(1e-6, 1.0)
    assert mean_speeds(flow("x", profile=always), flow("x", profile=always)) == pytest.approx([0.5, 0.5], abs=0.02)
    first = mean_speeds(flow("x", profile=always, network_class=1), flow("x", profile=always))
    assert first == pytest.approx([1.0, 0.0], abs=0.02)


def test_priorities_move_the_phases_of_equal_gangs_apart() -> None:
    """Both fit beside each other, since each communicates for less than half of its step."""
    profile = Profile(0.6, 0.4)
    fair = mean_speeds(flow("x", profile=profile), flow("x", profile=profile))
    first = mean_speeds(flow("x", profile=profile, network_class=1), flow("x", profile=profile))
    assert sum(fair) < 1.93 < 1.97 < sum(first)


def test_a_link_of_long_and_short_steps_slows_both() -> None:
    fair = mean_speeds(flow("x"), flow("x", profile=Profile(0.05, 0.05)))
    assert all(0.6 < speed < 0.9 for speed in fair)


def simulate(policy: Policy, links: SharedLinks | None, sizes: tuple[int, ...] = (4, 4, 4)) -> dict[str, float]:
    """Run jobs of 100 s that start at once on three racks of two nodes of two GPUs. Return the average JCT."""
    jobs = tuple(
        TraceJob(f"j{n}", n + 1, n * 10**6, 1000.0, JobSpec(f"j{n}", SIMULATED_COMMAND, ranks, workload="w"))
        for n, ranks in enumerate(sizes)
    )
    report = Simulation(Trace("t", jobs), grid(6, 2, 2), policy, links=links).run()
    assert report.avg_jct_seconds is not None and not report.unfinished
    return {"jct": report.avg_jct_seconds, "held": report.utilization * 12 * report.makespan_seconds}


LINKS = SharedLinks({("w", 6): HALF, ("w", 4): HALF}, 1.0)
EXACT = Policy(estimates=Estimates.EXACT)


def test_gangs_within_racks_keep_their_speed() -> None:
    assert simulate(EXACT, LINKS)["jct"] == pytest.approx(1000.0, abs=0.01)


def test_two_gangs_that_share_a_rack_slow_each_other_down() -> None:
    """Six ranks need three nodes, so the second rack belongs to both gangs."""
    alone, shared = simulate(EXACT, None, (6, 6)), simulate(EXACT, LINKS, (6, 6))
    assert alone["jct"] == pytest.approx(1000.0, abs=0.01)
    assert 1150 < shared["jct"] < 1500
    assert simulate(EXACT, LINKS, (6,))["jct"] == pytest.approx(1000.0, rel=0.02)


def test_a_gang_that_is_left_alone_gets_its_speed_back() -> None:
    jobs = tuple(
        TraceJob(f"j{n}", n + 1, n * 10**6, seconds, JobSpec(f"j{n}", SIMULATED_COMMAND, 6, workload="w"))
        for n, seconds in enumerate((100.0, 1000.0))
    )
    report = Simulation(Trace("t", jobs), grid(6, 2, 2), EXACT, links=LINKS).run()
    assert 1010 < report.makespan_seconds < 1100, "it was slow for the first minutes only"


def test_the_scheduler_learns_the_waits_that_gangs_report() -> None:
    jobs = (TraceJob("j", 1, 0, 1000.0, JobSpec("j", SIMULATED_COMMAND, 6, workload="w")),)
    engine = Simulation(Trace("t", jobs), grid(6, 2, 2), EXACT, links=LINKS).engine()
    engine.run()
    assert engine.state.traffic["|w"].share == pytest.approx(0.5, rel=0.15)


def test_the_class_of_the_start_is_that_of_the_traffic() -> None:
    policy = Policy(estimates=Estimates.EXACT, uplink_slowdown=0.1, network_classes=8)
    blind, classed = simulate(EXACT, LINKS, (6, 6)), simulate(policy, LINKS, (6, 6))
    assert classed["jct"] < 0.97 * blind["jct"]
    assert simulate(policy, None, (6, 6))["jct"] == pytest.approx(1000.0, abs=0.01)
