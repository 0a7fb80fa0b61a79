"""Windows of gangs on shared uplinks, which do not overlap, and speeds with and without them."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean

import pytest

from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.core.state import Estimates, Policy
from scheduler_feedback.policies.network.link_speeds import Flow, Profile, Sequential, Window, expected_speeds
from scheduler_feedback.policies.network.windows import better_windows, common_periods, windows
from scheduler_feedback.sim.job_trace import SIMULATED_COMMAND, Trace, TraceJob
from scheduler_feedback.sim.simulated_nodes import grid
from scheduler_feedback.sim.simulation import Simulation
from scheduler_feedback.sim.speeds.shared_links import SharedLinks


def flow(compute: float, network: float, *links: str) -> Flow:
    return Flow(Profile(compute, network), tuple((link, 1.0) for link in links or ("x",)))


def test_a_gang_waits_for_its_next_begin_unless_it_is_a_little_late() -> None:
    window = Window(0.5, 1.0)
    assert window.wait(3.5) == 0
    assert window.wait(3.55) == 0
    assert window.wait(3.7) == pytest.approx(0.8)
    assert window.wait(4.4) == pytest.approx(0.1)


def test_the_communication_of_gangs_that_fit_does_not_overlap() -> None:
    gangs = [flow(0.7, 0.3), flow(0.7, 0.3), flow(0.7, 0.3)]
    found = windows(gangs, 1.0, 1.04)
    begins = sorted((one.offset_seconds + 0.7) % 1.04 for one in found if one is not None)
    assert len(begins) == 3
    assert all(b - a >= 0.3 for a, b in pairwise([*begins, begins[0] + 1.04]))


def test_two_gangs_get_pauses_between_their_communication() -> None:
    begins = sorted((one.offset_seconds + 0.7) % 1.04 for one in windows([flow(0.7, 0.3)] * 2, 1.0, 1.04) if one)
    assert begins[1] - begins[0] > 0.4 and begins[0] + 1.04 - begins[1] > 0.4


def test_a_shorter_step_gets_a_whole_fraction_of_the_common_period() -> None:
    long, short = windows([flow(0.8, 0.2), flow(0.28, 0.05)], 1.0, 1.04)
    assert long is not None and short is not None
    assert [long.period_seconds, short.period_seconds] == pytest.approx([1.04, 1.04 / 3])


def test_a_gang_that_hardly_communicates_or_would_be_stretched_gets_no_window() -> None:
    gangs = [flow(1.0, 0.001), flow(0.6, 0.4), flow(0.4, 0.3)]
    assert [one is None for one in windows(gangs, 1.0, 1.04)] == [True, False, True]
    assert common_periods(gangs) == [], "no two of them fit each other"
    assert common_periods([flow(0.6, 0.4), flow(0.6, 0.4, "y")]) == [], "they share no uplink"


@pytest.mark.parametrize(("pair", "least"), [((0.6, 0.4), 0.1), ((0.7, 0.3), 0.07)])
def test_shifted_gangs_that_fit_run_at_nearly_full_speed(pair: tuple[float, float], least: float) -> None:
    gangs = (flow(*pair), flow(*pair))
    found = better_windows(gangs, 1.0)
    shifted = fmean(expected_speeds(gangs, 1.0, found))
    assert shifted > 0.955 and shifted - fmean(expected_speeds(gangs, 1.0)) > least
    assert expected_speeds.__wrapped__(gangs, 1.0, found) == expected_speeds(gangs, 1.0, found), "always the same"


def test_shifts_are_not_used_where_they_cost_speed() -> None:
    assert better_windows((flow(0.5, 0.1), flow(0.5, 0.1)), 2.0) == (), "the uplink carries both"
    assert better_windows((flow(0.1, 0.5), flow(0.1, 0.5), flow(0.1, 0.5)), 1.0) == (), "nothing fits"


def test_numbers_of_the_policy_are_spread_like_random_ones() -> None:
    draws = [Sequential(seed).uniform(0.0, 1.0) for seed in range(100)]
    assert fmean(draws) == pytest.approx(0.5, abs=0.1) and min(draws) < 0.05 and max(draws) > 0.95
    chance = Sequential(0)
    normal = [chance.gauss(1.0, 0.02) for _ in range(4000)]
    assert fmean(normal) == pytest.approx(1.0, abs=0.002)
    assert fmean((one - 1) ** 2 for one in normal) ** 0.5 == pytest.approx(0.02, rel=0.1)


def test_the_scheduler_shifts_gangs_of_a_simulation() -> None:
    """Two gangs of 12 GPUs over two racks each, whose steps fit each other."""
    links = SharedLinks({("gpt", 12): Profile(0.6, 0.4)}, 1.0, 0)
    spec = JobSpec("gpt", SIMULATED_COMMAND, 12, workload="gpt")
    trace = Trace("two", tuple(TraceJob(f"j{number}", number + 1, 0, 3600.0, spec) for number in range(2)))
    ends = []
    for shifts in (False, True):
        policy = Policy(estimates=Estimates.EXACT, time_shifts=shifts)
        simulation = Simulation(trace, grid(6, 4, 2), policy, links=links, seed=1)
        ends.append(simulation.run().makespan_seconds)
    assert ends[1] < 0.85 * ends[0]
