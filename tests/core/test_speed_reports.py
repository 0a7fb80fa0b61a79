"""Reports of measured speeds: windows, units, warm-up, and a new attempt."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler_feedback.core.telemetry.steps.speed_reports import (
    FIRST_SECONDS,
    LEAST_STEPS,
    NEXT_SECONDS,
    WARM_STEPS,
    SpeedReports,
)
from scheduler_feedback.core.telemetry.telemetry import JobTelemetry, Shape, StepTable, Telemetry, no_counters

SECOND = 1_000_000_000


def telemetry_of(jobs: list[JobTelemetry]) -> Telemetry:
    return Telemetry(0, tuple(jobs), no_counters(sum(len(job.shape) for job in jobs)))


class Training:
    """Two ranks whose steps take one second; rank 1 ends each step a tenth of a second later."""

    def __init__(self, seconds: float = 1.0, tokens: tuple[float, float] | None = (30.0, 10.0)) -> None:
        self.reports = SpeedReports()
        self.seconds = seconds
        self.tokens = tokens
        self.step = 0
        self.now = 0.0

    def steps(self, count: int, attempt: int = 1) -> list[tuple[float, float, str, int]]:
        """Report these steps in one tick. Return (work per second, seconds, unit, attempt) of the reports."""
        shape = Shape("j-1", attempt, np.arange(2), ("n0", "n1"))
        ends = self.now + self.seconds * np.arange(1, count + 1)
        self.now += self.seconds * count
        numbers = np.arange(self.step, self.step + count)
        self.step += count
        end_ns = np.stack([ends * SECOND, (ends + 0.1) * SECOND], axis=1).astype(np.int64)
        tokens = None if self.tokens is None else np.tile(np.array(self.tokens), (count, 1))
        table = StepTable(numbers, end_ns, np.full((count, 2), self.seconds), np.zeros((count, 2)), tokens)
        found = self.reports.take(telemetry_of([JobTelemetry(shape, table)]))
        return [(one.per_second, one.seconds, one.unit, one.attempt) for one in found]


def test_tokens_of_all_ranks_count_after_the_warm_up() -> None:
    training = Training()
    assert training.steps(WARM_STEPS) == []
    assert training.steps(int(FIRST_SECONDS) - 1) == []
    ((rate, seconds, unit, attempt),) = training.steps(1)
    assert (rate, seconds) == pytest.approx((40.0, FIRST_SECONDS))
    assert (unit, attempt) == ("tokens", 1)


def test_the_next_reports_are_rarer_and_a_new_attempt_begins_again() -> None:
    training = Training()
    assert len(training.steps(WARM_STEPS + int(FIRST_SECONDS))) == 1
    assert training.steps(int(NEXT_SECONDS) - 1) == []
    assert len(training.steps(1)) == 1
    assert training.steps(WARM_STEPS + int(FIRST_SECONDS), attempt=2)[0][3] == 2


@pytest.mark.parametrize(
    ("waits", "share"), [((0.3, 0.1), 0.1), ((0.0, 0.4), 0.0), ((0.3, float("nan")), None), ((1.0, 1.0), 1.0)]
)
def test_the_wait_of_the_rank_that_waits_least_is_communication(
    waits: tuple[float, float], share: float | None
) -> None:
    count = WARM_STEPS + int(FIRST_SECONDS)
    ends = (np.arange(1, count + 1) * SECOND)[:, None].repeat(2, axis=1)
    table = StepTable(np.arange(count), ends, np.ones((count, 2)), np.tile(np.array(waits), (count, 1)))
    (report,) = SpeedReports().take(telemetry_of([JobTelemetry(Shape("j-1", 1, np.arange(2), ("a", "b")), table)]))
    assert report.wait_share == (None if share is None else pytest.approx(share))


@pytest.mark.parametrize("tokens", [None, (30.0, float("nan")), (0.0, 0.0)])
def test_without_tokens_of_every_rank_steps_count(tokens: tuple[float, float] | None) -> None:
    training = Training(tokens=tokens)
    ((rate, _, unit, _),) = training.steps(WARM_STEPS + int(FIRST_SECONDS))
    assert rate == pytest.approx(1.0)
    assert unit == "steps"


def test_long_steps_are_reported_once_there_are_enough() -> None:
    training = Training(seconds=60.0)
    assert training.steps(WARM_STEPS + LEAST_STEPS - 1) == []
    assert len(training.steps(1)) == 1


def test_jobs_without_steps_and_gone_jobs_are_forgotten() -> None:
    training = Training()
    training.steps(WARM_STEPS + 3)
    shape = Shape("other", 1, np.arange(1), ("n0",))
    assert training.reports.take(telemetry_of([JobTelemetry(shape)])) == []
    training.reports.take(telemetry_of([]))
    assert not training.reports._windows
