"""A job's ranks on shared hosts: the excess of each host in a step, and for how long its history is kept."""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt
import pytest

from scheduler_feedback.core.telemetry.telemetry import Shape
from scheduler_feedback.detectors.interference.host_ranks import LEAST_ELSEWHERE, HostRanks
from scheduler_feedback.detectors.interference.interference import InterferenceDetector, _Course
from scheduler_feedback.detectors.interference.load_history import HOLD_WINDOWS
from scheduler_feedback.detectors.interference.shared_resources import Resources


def shape_on(hosts: list[str], job: str = "x") -> Shape:
    return Shape(job, 1, np.arange(len(hosts)), tuple(hosts), sharing={"host": tuple(hosts)})


def one_by_one(
    shape: Shape, hosts: list[str], own: npt.NDArray[np.float64], fine: npt.NDArray[np.bool_]
) -> dict[str, float]:
    """Compute the excess host by host, rank by rank."""
    names = shape.sharing["host"]
    elsewhere = [rank for rank, name in enumerate(names) if name not in hosts]
    apart = len(elsewhere) >= LEAST_ELSEWHERE * len(names)
    known = [own[rank] for rank in elsewhere if fine[rank]] if apart else []
    usual = float(np.median(known)) if known else 0.0
    found = {}
    for host in hosts:
        there = [own[rank] for rank, name in enumerate(names) if name == host and fine[rank]]
        if there:
            found[host] = max(there) - usual
    return found


def test_the_excess_of_all_hosts_at_once_equals_that_of_one_host_after_the_other() -> None:
    chosen, apart = random.Random(3), set()
    for _ in range(200):
        shape = shape_on([chosen.choice("abcdef") for _ in range(chosen.randrange(1, 20))])
        hosts = chosen.sample("abcdefgh", chosen.randrange(0, 5))
        ranks = HostRanks(shape, hosts)
        for _ in range(3):
            fine = np.array([chosen.random() < 0.8 for _ in range(len(shape))])
            own = np.where(fine, np.array([chosen.uniform(0.5, 2.0) for _ in range(len(shape))]), np.nan)
            expected = one_by_one(shape, hosts, own, fine)
            assert dict(ranks.excess(own, fine)) == expected
            assert list(dict(ranks.excess(own, fine))) == [host for host in hosts if host in expected]
        apart.add(ranks._apart)
    assert apart == {True, False}


@pytest.mark.parametrize("windows", [HOLD_WINDOWS - 1, HOLD_WINDOWS])
def test_the_history_of_a_host_is_deleted_some_minutes_after_the_other_job_has_left(windows: int) -> None:
    """Jobs that follow each other share every node for seconds: their histories would add up for the whole run."""
    detector, course = InterferenceDetector(), _Course(shape_on(["a", "b", "c"]))
    detector._courses["x"] = course
    none = np.zeros(0, np.int64)
    both: Resources = {("host", "a"): {"x": none}, ("host", "b"): {"x": none}, ("nic", "a/0"): {"x": none}}
    one: Resources = {("host", "b"): {"x": none}}
    detector._follow_hosts(both)
    assert course.excess.keys() == {"a", "b"}
    course.hosts = HostRanks(course.shape, course.excess)
    course.steps.add(0, 1, {"": 0.1, "a": 0.2, "b": 0.3})
    detector._follow_hosts(one)
    detector._windows += windows
    detector._forget_hosts(course)
    kept = {"a", "b"} if windows < HOLD_WINDOWS else {"b"}
    assert course.excess.keys() == kept and course.steps.lost.keys() == {"", *kept}
    assert (course.hosts is None) == (kept == {"b"})


def test_a_host_that_is_shared_again_keeps_its_history() -> None:
    detector, course = InterferenceDetector(), _Course(shape_on(["a"]))
    detector._courses["x"] = course
    resources: Resources = {("host", "a"): {"x": np.zeros(1, np.int64)}}
    detector._follow_hosts(resources)
    means = course.excess["a"]
    detector._follow_hosts({})
    detector._windows += HOLD_WINDOWS - 1
    detector._follow_hosts(resources)
    detector._windows += HOLD_WINDOWS
    detector._forget_hosts(course)
    assert course.excess["a"] is means
