"""Time shifts on simulated uplinks: windows that do not overlap, and speeds with and without them."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean

import pytest

from scheduler_feedback.sim.speeds.shared_links import Flow, Profile, SharedLinks, Window, link_speeds
from scheduler_feedback.sim.speeds.time_shifts import ShiftedLinks, shifted_speeds, windows


def flow(compute: float, network: float, *links: str) -> Flow:
    return Flow(Profile(compute, network), tuple((link, 1.0) for link in links or ("x",)))


def test_a_gang_waits_for_its_window_unless_it_is_a_little_late() -> None:
    window = Window(0.5, 1.0)
    assert window.begins(3.5) == 3.5
    assert window.begins(3.55) == 3.55
    assert window.begins(3.7) == pytest.approx(4.5)
    assert window.begins(4.4) == pytest.approx(4.5)


def test_windows_of_gangs_that_fit_do_not_overlap() -> None:
    gangs = [flow(0.7, 0.3), flow(0.7, 0.3), flow(0.7, 0.3)]
    found = sorted(one.offset_seconds for one in windows(gangs, 1.0) if one is not None)
    assert len(found) == 3
    assert all(b - a >= 0.3 for a, b in pairwise([*found, found[0] + 1.02]))


def test_a_shorter_step_gets_a_whole_fraction_of_the_common_period() -> None:
    long, short = windows([flow(0.8, 0.2), flow(0.25, 0.05)], 1.0)
    assert long is not None and short is not None
    assert [long.period_seconds, short.period_seconds] == pytest.approx([1.02, 0.34])


def test_a_gang_that_hardly_communicates_gets_no_window() -> None:
    assert windows([flow(1.0, 0.001), flow(1.0, 0.001)], 1.0) == (None, None)


def test_shifted_gangs_that_fit_run_at_nearly_full_speed() -> None:
    pair = (flow(0.6, 0.4), flow(0.6, 0.4))
    plain = fmean(fmean(link_speeds(pair, 1.0, seed)) for seed in range(10))
    shifted = fmean(fmean(shifted_speeds(pair, 1.0, seed)) for seed in range(10))
    assert plain < 0.95
    assert shifted > 0.975


def test_shifts_are_not_used_where_they_cost_speed() -> None:
    """A step of 0.26 s would be stretched to 0.52 s."""
    pair = (flow(0.13, 0.13), flow(0.30, 0.21))
    assert shifted_speeds(pair, 1.0, 0) == link_speeds(pair, 1.0, 0)


def test_links_of_a_simulation_can_be_shifted() -> None:
    pair = (flow(0.6, 0.4), flow(0.6, 0.4))
    assert ShiftedLinks({}, 1.0, 3).speeds(pair) == shifted_speeds(pair, 1.0, 3)
    assert SharedLinks({}, 1.0, 3).speeds(pair) == link_speeds(pair, 1.0, 3)
