"""A job with less work for a while (an evaluation) is not reported as slow afterwards."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler_feedback.core.telemetry.telemetry import JobTelemetry, Shape, StepTable, Telemetry, no_counters
from scheduler_feedback.core.verdict import Abstention, Finding
from scheduler_feedback.detectors.straggler.straggler import StragglerDetector
from tests.detectors.alone import alone

START_NS = 1_700_000_000_000_000_000
SHAPE = Shape("j", 1, np.arange(8), tuple(f"n{rank}" for rank in range(8)))
USUAL_SECONDS, BATCH_STEPS = 1.0, 50


def findings(phases: list[tuple[int, float]]) -> list[Finding]:
    """Return the results for a job with these phases: (number of steps, share of its usual work)."""
    random, detector, end_ns = np.random.default_rng(7), alone(StragglerDetector()), START_NS
    found: list[Finding] = []
    shares = np.concatenate([np.full(steps, share) for steps, share in phases])
    for first in range(0, len(shares), BATCH_STEPS):
        share = shares[first : first + BATCH_STEPS, None]
        own = USUAL_SECONDS * share * random.normal(1.0, 0.006, (len(share), len(SHAPE)))
        seconds = np.repeat(own.max(axis=1, keepdims=True) + 0.1, len(SHAPE), axis=1)
        ends = end_ns + np.cumsum(np.rint(seconds * 1e9).astype(np.int64), axis=0)
        end_ns = int(ends[-1, 0])
        table = StepTable(np.arange(first, first + len(share)), ends, seconds, seconds - own)
        found += detector.tick(Telemetry(end_ns, (JobTelemetry(SHAPE, table),), no_counters(len(SHAPE))))
    return found


@pytest.mark.parametrize("evaluation", [3, 20, 400])
def test_usual_steps_after_an_evaluation_are_not_slow(evaluation: int) -> None:
    assert not findings([(200, 1.0), (evaluation, 1 / 3), (200, 1.0)])


def test_a_job_that_was_faster_for_long_is_slow_at_its_initial_speed() -> None:
    lasting = round(2400.0 / (0.7 * USUAL_SECONDS + 0.1))
    (one,) = findings([(200, 1.0), (lasting, 0.7), (200, 1.0)])
    assert isinstance(one, Abstention)
    assert one.rank is None
    assert "times their best time" in one.reason
