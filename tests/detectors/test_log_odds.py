"""Weight of each kind of evidence, and slowness that other load on a shared machine can explain."""

from __future__ import annotations

import math
from typing import Any

import pytest

from scheduler_feedback.core.verdict import Cause, Evidence
from scheduler_feedback.detectors.counters.cause_attribution import Attribution
from scheduler_feedback.detectors.stats import log_odds
from scheduler_feedback.detectors.stats.log_odds import (
    bounded,
    confidence,
    of_cause,
    of_margin,
    of_persistence,
    of_residual,
    of_slowdown,
    of_spread,
    of_waits,
)


def test_nan_is_no_evidence() -> None:
    assert bounded(math.nan) == 0.0
    assert (bounded(9.0), bounded(-9.0), bounded(9.0, 0.0, 2.0), bounded(-1.0, 0.0, 2.0)) == (5.0, -5.0, 2.0, 0.0)


def test_the_confidence_is_the_logistic_of_all_evidence() -> None:
    items = [Evidence("m", 0.0, 0.0, "", "", ratio) for ratio in (3.0, -0.5, 1.0)]
    assert confidence(items) == pytest.approx(1 / (1 + math.exp(-(3.5 + log_odds.PRIOR))))
    assert confidence(items, prior=-3.5) == pytest.approx(0.5)


def test_each_measure_is_monotonic() -> None:
    """A worse value for the suspect never gives less evidence. Each measure changes its sign somewhere."""
    courses: list[tuple[list[float], float, float]] = [
        ([of_residual(sigmas) for sigmas in (-9.0, 0.0, 1.0, 3.0, 7.0, 20.0)], -1.0, 3.0),
        ([of_slowdown(slower) for slower in (1.0, 1.05, 1.1, 1.2, 1.3, 9.0)], -0.5, 2.0),
        ([of_waits(held, 1.0) for held in (-3.0, 0.0, 0.25, 0.5, 1.0, 3.0)], -2.0, 1.5),
        ([of_persistence(hits, 12, own_past=True) for hits in (0, 1, 3, 6, 12)], -1.0, 3.0),
        ([of_persistence(hits, 12, own_past=False) for hits in (0, 1, 3, 6, 12)], -1.0, 1.5),
        ([of_margin(gain, 1.0) for gain in (-1.0, 0.1, 1.0, 3.0, 9.0, 99.0)], -2.0, 1.0),
        ([of_spread(now, 1.0) for now in (99.0, 4.0, 2.0, 1.0)], -1.5, 0.0),
    ]
    for course, low, high in courses:
        assert course == sorted(course)
        assert (course[0], course[-1]) == (low, high)
    assert of_residual(1.0) == 0.0
    assert of_waits(0.25, 1.0) == 0.0, "a quarter of the excess may be waited for by chance"
    assert of_margin(3.0, 1.0) == pytest.approx(0.0)
    assert of_spread(2.0, 1.0) == 0.0, "up to twice the usual difference"


def test_without_a_reference_there_is_no_evidence() -> None:
    assert of_waits(1.0, 0.0) == of_waits(1.0, -1.0) == -2.0
    assert of_margin(0.0, 0.0) == of_margin(-0.1, 0.0) == -2.0
    assert of_margin(0.5, 0.0) == 1.0, "no other rank explains anything"
    assert of_spread(0.0, 1.0) == of_spread(1.0, 0.0) == 0.0


# --- causes ----------------------------------------------------------------------------------------------------------


def split(cause: Cause = Cause.COMPUTE, known: bool = True, **more: Any) -> Attribution:
    """Return an attribution of one second's excess a step to this cause."""
    parts: dict[str, Any] = {"processor": 0.0, "queue": 0.0, "storage": 0.0, "rest": 0.0} | more
    return Attribution(cause, known, 1.0, **parts)


@pytest.mark.parametrize(
    ("one", "shared", "from_start", "worth"),
    [
        (split(known=False), False, False, log_odds.COUNTERS_MISSING),
        (split(Cause.UNKNOWN), False, False, log_odds.CAUSE_UNKNOWN),
        (split(Cause.UNKNOWN, on_device=True), False, False, 0.0),
        (split(Cause.SUSPENDED, stopped_again=True, queue=0.5), True, False, log_odds.SUSPENDED_SEEN),
        (split(Cause.SUSPENDED, rest=1.0), True, False, log_odds.CAUSE_CLEAR),
        (split(Cause.COMPUTE, processor=1.0), False, True, 0.0),
        (split(Cause.CPU_CONTENTION, queue=1.0), False, True, log_odds.CAUSE_CLEAR),
        (split(Cause.COMPUTE, processor=1.0), False, False, log_odds.CAUSE_CLEAR),
        (split(Cause.COMPUTE, processor=1.0), True, False, log_odds.CAUSE_CLEAR - 3.0 * 0.8),
        (split(Cause.CPU_CONTENTION, queue=0.7), True, False, log_odds.CAUSE_CLEAR - 3.0 * 0.5),
        (split(Cause.STORAGE, storage=1.0, queue=0.1), True, False, log_odds.CAUSE_CLEAR),
    ],
)
def test_a_clear_cause_supports_a_verdict_unless_other_load_can_explain_it(
    one: Attribution, shared: bool, from_start: bool, worth: float
) -> None:
    assert of_cause(one, shared, from_start) == pytest.approx(worth)


@pytest.mark.parametrize(
    ("one", "may"),
    [
        (split(known=False), True),
        (split(Cause.SUSPENDED, rest=1.0), False),
        (split(Cause.SUSPENDED, rest=0.4, queue=0.6), True),
        (split(Cause.SUSPENDED, rest=0.4, queue=0.6, stopped_again=True), False),
        (split(Cause.CPU_CONTENTION, queue=0.3, processor=0.3), True),
        (split(Cause.STORAGE, storage=0.6, queue=0.2, processor=0.2), False),
        (split(Cause.UNKNOWN, queue=0.1, processor=0.15), True),
        (split(Cause.UNKNOWN, queue=0.1, processor=-0.9), False),
        (split(Cause.UNKNOWN, rest=0.9, queue=0.1), False),
    ],
)
def test_other_load_can_explain_cpu_waits_and_additional_cpu_time(one: Attribution, may: bool) -> None:
    assert one.may_be_chance_load is may


def test_a_share_of_no_excess_is_zero() -> None:
    assert Attribution(Cause.COMPUTE, True, 0.0).share(1.0) == 0.0
    assert Attribution(Cause.COMPUTE, False, 2.0).share(1.0) == 0.0
    assert Attribution(Cause.COMPUTE, True, 2.0).share(1.0) == 0.5
