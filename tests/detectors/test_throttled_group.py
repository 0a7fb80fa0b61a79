"""Ranks on several nodes whose GPUs are throttled together: a rack under a power cap that holds whole stages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scheduler_feedback.core.verdict import Cause, Cleared, Kind
from scheduler_feedback.detectors import make_detection
from tests.detectors.test_detectors import Job, course, verdicts

RANKS = 16
STAGES = np.arange(RANKS) // 4
SLOW = STAGES == 2


def rack(counter: str = "power_throttle", clock: float = 0.83, slow: np.ndarray = SLOW, until: float = 999.0) -> Job:
    """Return a job of 8 nodes with two ranks each. Its stage 2 is on two nodes, whose GPUs are throttled from second 60
    on: they work 1.2 times as long."""
    job = Job(ranks=RANKS, nodes=8)
    job.shape = replace(job.shape, stage=STAGES)
    job.work = lambda second: np.where(slow & (60 < second < until), 0.84, 0.7)
    job.feature["sm_clock"] = lambda second: np.where(SLOW & (60 < second < until), clock, 1.0)
    job.feature[counter] = lambda second: np.where(SLOW & (60 < second < until), 0.9, 0.0)
    return job


@pytest.mark.parametrize(("counter", "cause"), [("power_throttle", Cause.POWER), ("thermal_throttle", Cause.THERMAL)])
def test_ranks_that_are_throttled_together_have_one_verdict(counter: str, cause: Cause) -> None:
    (verdict,) = verdicts(course(make_detection(), [rack(counter)], 140))
    assert (verdict.kind, verdict.cause, verdict.rank, verdict.node) == (Kind.STRAGGLER, cause, 8, "")
    assert verdict.ranks == tuple(np.flatnonzero(SLOW).tolist())
    assert verdict.confidence >= 0.9
    assert verdict.slowdown == pytest.approx(1.14, abs=0.02)
    assert {"compute_to_usual", counter, "sm_clock"} == {item.measure for item in verdict.evidence}


def test_it_ends_soon_after_the_clocks_have_recovered() -> None:
    found = course(make_detection(), [rack(until=100.0)], 160)
    (verdict,) = verdicts(found)
    assert verdict.cause is Cause.POWER
    assert [one.verdict_id for _, one in found if isinstance(one, Cleared)] == [verdict.verdict_id]


def test_other_ranks_may_be_throttled_at_their_usual_clock() -> None:
    job = rack()
    job.feature["power_throttle"] = lambda second: np.where((SLOW | (np.arange(RANKS) == 1)) & (second > 60), 0.9, 0.0)
    (verdict,) = verdicts(course(make_detection(), [job], 140))
    assert verdict.ranks == tuple(np.flatnonzero(SLOW).tolist())


@pytest.mark.parametrize(
    "job",
    [
        rack(clock=1.0),  # the clocks are as before
        rack(slow=STAGES == 1),  # other ranks take longer
        rack(slow=STAGES >= 2),  # ranks that are not throttled take longer, too
        rack(slow=np.arange(RANKS) == 8),  # most throttled ranks do not take longer
    ],
)
def test_throttling_that_does_not_explain_the_slowness_accuses_no_group(job: Job) -> None:
    assert not [one for one in verdicts(course(make_detection(), [job], 140)) if one.cause is Cause.POWER and one.ranks]
