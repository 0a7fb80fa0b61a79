"""Cause of a slow rank by its counters: the most likely cause, its confidence and its evidence."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from scheduler_feedback.core.telemetry.telemetry import FEATURE, FEATURES, Grouping
from scheduler_feedback.core.verdict import Cause
from scheduler_feedback.detectors.ablation_switches import Switches
from scheduler_feedback.detectors.counters.cause_signatures import (
    CAUSES,
    MARGIN,
    PRIORS,
    SIGNATURES,
    Priors,
    evidence,
    weigh,
)
from scheduler_feedback.detectors.counters.counter_statistics import CounterStatistics

RANKS = 8


def statistics_of(
    rank: int = 3, alarmed: tuple[str, ...] = (), of_peers: bool = False, **sigmas: float
) -> CounterStatistics:
    """Return statistics in which counters deviate by these many standard deviations.

    of_peers: they deviate from the peers' values; otherwise from the rank's earlier values.
    """
    level, peers = (np.zeros((len(FEATURES), RANKS), np.float32) for _ in range(2))
    for name, value in sigmas.items():
        (peers if of_peers else level)[FEATURE[name], rank] = 0.5 * value
    score, newest = np.zeros_like(level), np.ones_like(level)
    for name in alarmed:
        score[FEATURE[name], rank] = 9.0
    newest[:, rank] = 7.0
    made = SimpleNamespace(level=level, peers=peers, scale=np.full_like(level, 0.5), score=score, newest=newest,
                           peers_of=Grouping([0] * 4 + [1] * 4))  # fmt: skip
    return cast(CounterStatistics, made)


def named(
    statistics: CounterStatistics, rank: int = 3, from_start: bool = False, priors: Priors | None = None
) -> Cause:
    return weigh(statistics, np.array([rank]), Priors() if priors is None else priors, None, from_start).name(0)


@pytest.mark.parametrize("cause", CAUSES, ids=str)
def test_each_cause_is_found_by_its_own_counters(cause: Cause) -> None:
    assert named(statistics_of(**{name: 8.0 * np.sign(weight) for name, weight in SIGNATURES[cause].items()})) is cause


def test_a_deviation_in_the_other_direction_is_no_evidence() -> None:
    assert named(statistics_of(sm_clock=9.0)) is Cause.UNKNOWN, "a higher clock is no fault"
    assert named(statistics_of(thermal_throttle=-9.0)) is Cause.UNKNOWN
    assert named(statistics_of(thermal_throttle=1.9, temperature=1.9)) is Cause.UNKNOWN, "within two deviations"


def test_two_equally_likely_causes_give_an_unknown_cause() -> None:
    level = statistics_of(cpu_waiting=8.0, io_waiting=8.0)
    weighed = weigh(level, np.array([3, 0]), Priors())
    assert weighed.name(0) is Cause.UNKNOWN
    assert weighed.margin[0] < MARGIN
    assert weighed.name(1) is Cause.UNKNOWN
    assert named(statistics_of(cpu_waiting=8.0, runqueue_wait=8.0, io_waiting=5.0)) is Cause.CPU_CONTENTION


def test_an_alarmed_cusum_alone_is_evidence() -> None:
    quiet, loud = (statistics_of(alarmed=alarmed, nvlink_errors=6.0) for alarmed in ((), ("nvlink_errors",)))
    column = CAUSES.index(Cause.NVLINK)
    odds = [float(weigh(statistics, np.array([3]), Priors()).odds[0, column]) for statistics in (quiet, loud)]
    assert odds[1] - odds[0] == pytest.approx(1.0)


def test_a_rank_slow_from_the_start_is_compared_with_its_peers_only() -> None:
    statistics = statistics_of(of_peers=True, sm_clock=-9.0)
    assert named(statistics) is Cause.UNKNOWN
    assert named(statistics, from_start=True) is Cause.GPU


def test_priors_are_the_published_shares_until_verdicts_are_confirmed() -> None:
    priors = Priors()
    assert np.exp(priors.logs()).sum() == pytest.approx(1.0)
    shares = dict(zip(CAUSES, np.exp(priors.logs()).tolist(), strict=True))
    assert shares[Cause.MEMORY] / shares[Cause.GPU] == pytest.approx(PRIORS[Cause.MEMORY] / PRIORS[Cause.GPU], rel=1e-5)
    for _ in range(40):
        priors.learn(Cause.CONGESTION)
    priors.learn(Cause.WHOLE_JOB)
    assert float(priors.logs()[CAUSES.index(Cause.CONGESTION)]) == pytest.approx(math.log(40.2 / 50.0), abs=1e-3)
    statistics = statistics_of(nic_congestion=6.5)
    assert (named(statistics), named(statistics, priors=priors)) == (Cause.UNKNOWN, Cause.CONGESTION)
    off = weigh(statistics, np.array([3]), priors, Switches(priors=False))
    assert off.odds[0].tolist() == weigh(statistics, np.array([3]), Priors(), Switches(priors=False)).odds[0].tolist()


def test_evidence_lists_the_largest_deviations_with_their_peers() -> None:
    statistics = statistics_of(
        sm_clock=-9.0, power=-5.0, temperature=2.5, tensor_active=1.9, dram_active=3.0, sm_active=2.1
    )
    statistics.newest[:, 0] = np.nan
    reported = evidence(statistics, 3)
    assert [one.measure for one in reported] == ["sm_clock", "power", "dram_active", "temperature"], "the first four"
    assert {(one.value, one.reference) for one in reported} == {(7.0, 1.0)}
    assert reported[0].unit == "hertz" and "median of 4 peers; -9.0 sigma" in reported[0].against
    assert [one.measure for one in evidence(statistics, 3, most=9)][-1] == "sm_active", (
        "deviations within two sigma are left out"
    )
    assert evidence(statistics_of(), 3) == ()
