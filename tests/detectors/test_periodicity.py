"""Periodic long steps are reported, and cleared when they end; long steps by chance on a busy host are not."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest

from scheduler_feedback.core.telemetry.telemetry import JobTelemetry, Shape, StepTable, Telemetry, no_counters
from scheduler_feedback.core.verdict import Cause, Cleared, Finding, Kind, Verdict
from scheduler_feedback.detectors.stats.periodicity import FALSE_ALARM, LongSteps, Period, beats_needed, share_of, tail
from scheduler_feedback.detectors.workload.workload import WorkloadDetector
from tests.detectors.alone import alone

NS = 1_000_000_000
START = 1_700_000_000 * NS

Steps = np.ndarray


def found_in(seconds: Steps, random: np.random.Generator, ranks: int = 4) -> list[tuple[int, Finding]]:
    """Return (step, result) of the detector. seconds: compute time of all ranks, [steps]."""
    index = np.arange(ranks)
    shape = Shape("j", 1, index, tuple(f"n{rank // 2}" for rank in index.tolist()))
    detector, found, end_ns = alone(WorkloadDetector()), [], START
    for first in range(0, len(seconds), 4):
        own = seconds[first : first + 4, None] * random.normal(1.0, 0.01, (len(seconds[first : first + 4]), ranks))
        whole = own.max(axis=1, keepdims=True) + 0.002
        ends = np.repeat(end_ns + np.cumsum(whole * NS).astype(np.int64)[:, None], ranks, axis=1)
        end_ns = int(ends[-1, 0])
        table = StepTable(np.arange(first, first + len(own)), ends, np.repeat(whole, ranks, axis=1), whole - own)
        telemetry = Telemetry(end_ns, (JobTelemetry(shape, table),), no_counters(ranks), (), {})
        found += [(first + len(own), one) for one in detector.tick(telemetry)]
    return found


def period_verdicts(found: list[tuple[int, Finding]]) -> list[tuple[int, Verdict]]:
    causes = (Cause.CHECKPOINT, Cause.EVALUATION)
    return [(at, one) for at, one in found if isinstance(one, Verdict) and one.cause in causes]


def spikes(share: float) -> Callable[[np.random.Generator, int], Steps]:
    def made(random: np.random.Generator, count: int) -> Steps:
        return np.where(random.random(count) < share, random.uniform(1.6, 5.0, count), 1.0)

    return made


def bursts(random: np.random.Generator, count: int) -> Steps:
    """Return steps on a host that is busy for a hundred steps at a time, with idle times of all lengths."""
    share = np.repeat(np.where(random.random(count // 100 + 1) < 0.2, 0.3, 0.01), 100)[:count]
    long: Steps = np.where(random.random(count) < share, 1.3 + random.pareto(1.2, count), 1.0)
    return long


BUSY: dict[str, Callable[[np.random.Generator, int], Steps]] = {
    "one step in twenty": spikes(0.05),
    "one step in five": spikes(0.2),
    "heavy tails": lambda random, count: 1.0 + 0.15 * random.pareto(1.5, count),
    "log-normal": lambda random, count: random.lognormal(0.0, 0.35, count),
    "bursts": bursts,
}


@pytest.mark.parametrize("kind", BUSY)
@pytest.mark.parametrize("seed", range(3))
def test_a_job_on_a_busy_host_has_no_period(kind: str, seed: int) -> None:
    random = np.random.default_rng([seed, len(kind)])
    assert not period_verdicts(found_in(0.05 * BUSY[kind](random, 1500), random))


@pytest.mark.parametrize("share", [0.02, 0.1, 0.3])
def test_the_false_alarm_rate_is_as_documented(share: float) -> None:
    """In 150 attempts of 4,000 steps with random long ones, the documented bound allows 0.15 false alarms.

    The check does not use the bound's derivation, only steps.
    """
    random = np.random.default_rng(round(1000 * share))
    alarms = 0
    for _ in range(150):
        long = LongSteps()
        reported = False
        for number, is_long in enumerate((random.random(4000) < share).tolist()):
            long.take(number, 1.0 if is_long else None)
            reported = reported or long.period is not None
        alarms += reported
    assert alarms <= 1, "two at a thousandth each have a chance of one in a hundred"


def test_the_terms_equal_their_definitions() -> None:
    """Compare the probability with a count of all placements, and the sum of all tests' shares with the rate."""
    steps, long, beats = 9, 4, 3
    placed = [sum(place < beats for place in places) for places in combinations(range(steps), long)]
    for hits in range(5):
        assert tail(steps, long, beats, hits) == pytest.approx(np.mean([one >= hits for one in placed]))
    assert sum(share_of(test) for test in range(1, 100_000)) == pytest.approx(FALSE_ALARM, rel=1e-4)
    assert sum(share_of(test) for test in range(1, 100_000)) < FALSE_ALARM
    assert [beats_needed(period, 1) for period in (2, 3, 4)] == [7, 6, 5]
    period = Period(steps=50, newest=500, beats=8, missed=2, steps_each=1, lost_seconds=25.0, chance=0.0)
    assert period.lost_seconds_a_step == pytest.approx(25.0 / 500), "missed saves cost nothing"


def test_a_period_is_reported_once_chance_is_excluded() -> None:
    long, found = LongSteps(), []
    for number in range(260):
        long.take(number, 1.0 if number % 50 == 0 else None)
        found.append(long.period is not None)
    assert found.index(True) == 201, "with four beats and sixteen patterns, chance produces it too often"
    again = LongSteps()
    for number in range(202):
        again.take(number, 1.0 if number % 50 == 0 else None)
    assert again.period is not None and (again.period.steps, again.period.beats, again.period.newest) == (50, 5, 200)
    # Equal parts of five steps and more: from 0 on there are eight ways, from 50 on eight, then five and three.
    assert again.period.chance == pytest.approx(24 / math.comb(199, 3))


@pytest.mark.parametrize(("period", "beats"), [(50, 5), (20, 6), (7, 7), (5, 8)])
def test_a_job_that_saves_is_found_after_a_few_saves(period: int, beats: int) -> None:
    """The module documents how many saves suffice if the other steps vary by less than a half."""
    random = np.random.default_rng(period)
    steps = np.arange(30 + (beats + 3) * period)
    saves = (steps % period == 0) & (steps > 30)
    (reported,) = period_verdicts(found_in(np.where(saves, 0.2, 0.05), random))
    at, verdict = reported
    assert (verdict.kind, verdict.cause) == (Kind.WORKLOAD, Cause.CHECKPOINT)
    assert {one.measure: one.value for one in verdict.evidence}["rhythm"] == period
    assert saves[:at].sum() <= beats + 1
    assert saves[:at].sum() >= 4, "three saves are no evidence"


def test_a_job_that_saves_on_a_busy_host_is_found() -> None:
    """One step in twenty is also long by chance, and one save in ten is too short to show."""
    random = np.random.default_rng(4)
    steps = np.arange(2000)
    saves = (steps % 50 == 0) & (random.random(2000) > 0.1)
    seconds = np.where(saves | (random.random(2000) < 0.05), 0.25, 0.05)
    reported = period_verdicts(found_in(seconds, random))
    assert reported
    assert {one.measure: one.value for one in reported[0][1].evidence}["rhythm"] == 50.0
    assert reported[0][0] <= 1000


def test_a_period_is_cleared_after_two_missing_saves_and_reported_again() -> None:
    random = np.random.default_rng(1)
    steps = np.arange(2400)
    saves = (steps % 40 == 0) & (steps > 40) & ((steps < 800) | (steps >= 1600))
    found = found_in(np.where(saves, 0.2, 0.05), random)
    kinds = [(at, type(one), getattr(one, "reason", "")) for at, one in found]
    assert [kind for _, kind, _ in kinds] == [Verdict, Cleared, Verdict]
    assert 760 + 80 <= kinds[1][0] <= 760 + 80 + 8, "the third save in a row is missing, at step 840"
    assert "long steps in a row did not occur" in kinds[1][2]


def test_an_evaluation_of_several_steps_is_reported_as_one() -> None:
    random = np.random.default_rng(2)
    steps = np.arange(700)
    evaluates = (steps % 60 < 3) & (steps >= 60)
    ((_, verdict),) = period_verdicts(found_in(np.where(evaluates, 0.2, 0.05), random))
    assert verdict.cause is Cause.EVALUATION


def test_a_return_to_a_checkpoint_resets_the_test() -> None:
    long = LongSteps()
    for number in range(40):
        long.take(number, 1.0 if number % 10 == 0 else None)
    for number in (35, 36):
        long.take(number, None)
    assert long.period is None
    assert not long.runs
