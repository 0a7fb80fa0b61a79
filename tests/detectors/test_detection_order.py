"""The order of the detectors does not matter."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from scheduler_feedback.detectors import Detection, make_all
from tests.detectors.test_detectors import Job, course

RANKS = 16
ORDERS = list(itertools.permutations(range(5)))


def slow_job(reports: bool) -> Job:
    """Return a job of which rank 3 slows down with memory errors, so that two detectors accuse it."""
    job = Job("reports" if reports else "silent", ranks=RANKS)
    sick = np.arange(RANKS) == 3
    job.work = lambda second: np.where(sick & (second > 50), 0.95, 0.7)
    job.feature["memory_errors"] = lambda second: np.where(sick & (second > 50), 20.0, 0.0)
    job.feature["thermal_throttle"] = lambda second: np.where(sick & (second > 50), 0.4, 0.0)
    return job


def findings(order: tuple[int, ...]) -> list[str]:
    """Return all that is published, as text: NaN differs from itself."""
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
    assert not any(vars(detector)["_timed"] for detector in make_all(timed=False))
