"""Study of MIG instances: fixed ones, and ones that follow the requests."""

from __future__ import annotations

import pytest

from scheduler_feedback.policies.shares.mig_profiles import PROFILES
from scheduler_feedback.sim.studies.mig_study import (
    CREATE_SECONDS,
    FixedInstances,
    FollowingInstances,
    MigTask,
    demand_of,
    fitted,
    poisson,
    useful_slices,
)


def task(at: float, name: str, seconds: float = 100.0) -> MigTask:
    return MigTask(at, seconds, PROFILES[name])


END = task(1000.0, "1g")
"""Last arrival: the time until which work counts."""


def test_a_task_takes_the_smallest_fixed_instance_that_is_large_enough() -> None:
    fixed = FixedInstances([("4g", "2g", "1g")])
    assert fixed.take(PROFILES["1g"]) == "1g"
    assert fixed.take(PROFILES["1g"]) == "2g"
    assert fixed.take(PROFILES["3g"]) == "4g"
    assert fixed.take(PROFILES["1g"]) is None
    fixed.give("2g")
    assert fixed.take(PROFILES["2g"]) == "2g" and fixed.take(PROFILES["7g"]) is None


def test_work_counts_by_the_slices_that_a_task_needs() -> None:
    tasks = [task(0.0, "1g"), END]
    assert useful_slices(tasks, FixedInstances([("7g",)]), 1) == pytest.approx(100 / 7000)
    following = FollowingInstances(1, None)
    assert useful_slices([task(0.0, "1g", 2000.0), END], following, 1) == pytest.approx((1000 - CREATE_SECONDS) / 7000)


def test_a_waiting_task_starts_when_an_instance_is_given_back() -> None:
    tasks = [task(0.0, "7g"), task(1.0, "7g"), END]
    assert useful_slices(tasks, FixedInstances([("7g",)]), 1) == pytest.approx(0.2)
    assert useful_slices(tasks, FixedInstances([("4g", "3g")]), 1) == 0.0, "no instance is large enough"


def test_a_smaller_task_passes_one_that_does_not_fit() -> None:
    tasks = [task(0.0, "4g"), task(1.0, "4g"), task(2.0, "3g"), END]
    assert useful_slices(tasks, FixedInstances([("4g", "3g")]), 1) == pytest.approx((400 + 400 + 300) / 7000)


def test_following_instances_are_destroyed_at_the_end_of_their_task() -> None:
    following = FollowingInstances(2, {"3g": 1.0})
    first = following.take(PROFILES["7g"])
    assert following.take(PROFILES["7g"]) is not None and following.take(PROFILES["1g"]) is None
    following.give(first)
    assert following.busy[0] == 0 and following.take(PROFILES["3g"]) is not None


def test_arrivals_request_the_given_load() -> None:
    kinds = [(PROFILES["2g"], 50.0), (PROFILES["4g"], 150.0)]
    tasks = poisson(kinds, 4000, 3, 1.5, 1)
    work = sum(one.profile.compute * one.seconds for one in tasks)
    assert work / (tasks[-1].at * 3 * 7) == pytest.approx(1.5, rel=0.06)
    assert tasks == poisson(kinds, 4000, 3, 1.5, 1) != poisson(kinds, 4000, 3, 1.5, 2)


def test_demand_is_the_share_of_each_profile() -> None:
    kinds = [(PROFILES["2g"], 50.0), (PROFILES["4g"], 150.0)]
    assert demand_of(kinds, lambda _: 1.0) == {"2g": 0.5, "4g": 0.5}
    assert demand_of(kinds, lambda seconds: seconds) == {"2g": 0.25, "4g": 0.75}


def test_a_fitted_layout_fills_the_gpus_with_the_kinds_that_run() -> None:
    assert fitted([(PROFILES["7g"], 1.0)], 3, 0) == [("7g",)] * 3
    layouts = fitted([(PROFILES["4g"], 1.0), (PROFILES["3g"], 1.0)], 4, 0)
    assert all(sum(PROFILES[name].memory for name in layout) == 8 for layout in layouts)
