"""Verdicts do not depend on the order in which the detectors run."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import cast

import msgspec
import numpy as np
import pytest

from scheduler_feedback.core.telemetry.telemetry import FEATURES, Counters, JobTelemetry, Telemetry
from scheduler_feedback.core.verdict import Verdict
from scheduler_feedback.detectors import Detection, make_all, make_detection
from scheduler_feedback.detectors.context import Published
from scheduler_feedback.detectors.detection import SharedState
from scheduler_feedback.detectors.workload.unreported_workload import (
    ActiveVerdict,
    RoleActivity,
    UnreportedWorkloads,
)
from tests.detectors.test_detectors import Job, course

RANKS = 16
ORDERS = list(itertools.permutations(range(5)))


def slow_job(reports: bool) -> Job:
    """Return a job whose rank 3 slows down with memory errors, so that two detectors accuse it."""
    job = Job("reports" if reports else "silent", ranks=RANKS)
    sick = np.arange(RANKS) == 3
    job.work = lambda second: np.where(sick & (second > 50), 0.95, 0.7)
    job.feature["memory_errors"] = lambda second: np.where(sick & (second > 50), 20.0, 0.0)
    job.feature["thermal_throttle"] = lambda second: np.where(sick & (second > 50), 0.4, 0.0)
    return job


def findings(order: tuple[int, ...]) -> list[str]:
    """Return all published results as text, because NaN differs from itself."""
    every = make_all()
    found = course(Detection(every[place] for place in order), [slow_job(True), slow_job(False)], 90, seed=2)
    return [repr(one) for one in found]


@pytest.fixture(scope="module")
def usual() -> list[str]:
    return findings(ORDERS[0])


@pytest.mark.parametrize("order", [ORDERS[-1], *random.Random(5).sample(ORDERS[1:-1], 5)], ids=str)
def test_the_order_of_the_detectors_does_not_matter(order: tuple[int, ...], usual: list[str]) -> None:
    assert usual
    assert findings(order) == usual


def test_a_recorded_trace_has_no_clock_for_any_detector() -> None:
    for detector in make_all(timed=False):
        assert vars(detector).get("_timed") is False, f"{detector.name}: keep the argument `timed` as self._timed"


def test_a_health_snapshot_of_release_0_1_0_restores_the_shared_state() -> None:
    """That release stored fault history, counter baselines and best speeds in the health detector's snapshot."""
    before, after = make_detection(), make_detection()
    course(before, [slow_job(True), slow_job(False)], 60, seed=2)
    shared = before.shared
    history = shared.arbiter.fault_history.dump()
    old = msgspec.msgpack.encode((2, history, shared.counters.dump(), shared.speeds.dump()))
    after.restore({"health": old, "straggler": before.snapshots()["straggler"]})
    assert after.shared.arbiter.fault_history.dump() == history
    assert after.shared.counters._restored.keys() == {("reports", 1), ("silent", 1)}
    again = make_detection()
    again.restore(before.snapshots())
    assert again.shared.arbiter.published == before.shared.arbiter.published


def test_a_withdrawn_verdict_ends_once_even_if_no_counters_arrive_in_that_tick() -> None:
    """Counters may arrive only every half minute, but detectors get the arbiter's refusal in one tick only."""
    workloads = UnreportedWorkloads()
    workloads._activities["silent"] = activity = RoleActivity(slow_job(False).shape)
    activity.active["stage-3"] = ActiveVerdict(cast(Verdict, SimpleNamespace(verdict_id="v")), 0)
    shared = SharedState()
    shared.arbiter.published = Published(refused=frozenset({"v"}))
    nothing = Counters(np.zeros(0, np.int64), 1.0, np.zeros((len(FEATURES), 0, RANKS), np.float32))
    workloads.evaluate(shared.begin(Telemetry(1, (JobTelemetry(activity.shape),), nothing)))
    assert not activity.active
