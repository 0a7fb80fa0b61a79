"""Speed of jobs, measured by their steps and, for jobs that counters judge, by the traffic of an iteration."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from scheduler_feedback.core.telemetry.telemetry import Telemetry
from scheduler_feedback.detectors.counters.counter_statistics import ABSENT_NS
from scheduler_feedback.detectors.iteration.job_slowdown import SlowdownTest
from scheduler_feedback.detectors.stats.medians import middle

BEST_STEPS = 16
"""Maximum number of newest steps whose duration is kept for each job. Their median can become the best step time."""

NEWEST_SECONDS = 4.0
"""The current speed of a job is taken from its newest steps: those of about this number of seconds, if the job runs at
its best speed."""

LEAST_NEWEST, MOST_NEWEST = 2, 8
"""Limits of the number of newest steps from which the current speed is taken. The speed is their median, so that a
single long step, such as a checkpoint, does not count. Of two steps the shorter one is used."""

EVALUATIONS_A_TICK = 4
"""Maximum number of jobs without step reports whose iteration time is estimated in one tick. Jobs that have waited
longest are first. An estimate takes milliseconds, and there may be hundreds of jobs."""

SHORT_ITERATION_SECONDS = 6.0
"""Iterations of jobs without step reports that are shorter than this need every frame: with each second frame, a sample
takes two seconds, and a period is known from at least two samples. One more keeps clear of that limit."""

Bests = tuple[float, dict[str, float]]
"""Shortest step time of a job in seconds (infinite without step reports), and the best rate of each traffic counter."""

NO_BEST: Bests = (float("inf"), {})


@dataclass(slots=True)
class Speed:
    """Speed of a job that reports steps."""

    newest: deque[float] = field(default_factory=lambda: deque(maxlen=BEST_STEPS))
    """Durations of the newest steps, in seconds."""
    best: float = float("inf")
    """Lowest median of the newest steps so far, in seconds."""
    finished_ns: int = 0
    """Time in ns at which the newest step ended."""
    step: int = -1

    @property
    def usual(self) -> float:
        """Median of the newest steps in seconds; NaN if there are no steps."""
        return middle(list(self.newest)) if self.newest else float("nan")

    @property
    def slower(self) -> float:
        """Ratio of the current step time to the best step time; 1 if unknown."""
        if not math.isfinite(self.best):
            return 1.0
        count = min(max(math.ceil(NEWEST_SECONDS / max(self.best, 1e-9)), LEAST_NEWEST), MOST_NEWEST)
        newest = list(self.newest)[-count:]
        return (min(newest) if count == LEAST_NEWEST else middle(newest)) / self.best


class Speeds:
    """Speed of all jobs.

    of: jobs that report steps. slowdown_tests: jobs that counters judge, because they report no steps or no waits.
    """

    def __init__(self) -> None:
        self.of: dict[str, Speed] = {}
        self.slowdown_tests: dict[str, SlowdownTest] = {}
        self._bests: dict[str, Bests] = {}
        self._bests_until_ns = 0

    def take(self, telemetry: Telemetry, by_counters: frozenset[str] = frozenset()) -> None:
        """Update the speed of all jobs with new telemetry.

        by_counters: names of the jobs that report steps and are judged by counters too.
        """
        if self._bests:
            self._bests_until_ns = self._bests_until_ns or telemetry.now_ns + ABSENT_NS
            if telemetry.now_ns > self._bests_until_ns:
                self._bests.clear()
        self._steps(telemetry)
        self._counters(telemetry, by_counters)
        present = {job.shape.job for job in telemetry.jobs}
        for gone in self.of.keys() - present:
            del self.of[gone]
        for gone in self.slowdown_tests.keys() - present:
            del self.slowdown_tests[gone]

    def slower(self, job: str) -> float:
        """Return the job's slowdown relative to its best speed; 1 if unknown."""
        if (speed := self.of.get(job)) is not None:
            return speed.slower
        test = self.slowdown_tests.get(job)
        return 1.0 if test is None else test.slower()

    def periods(self) -> dict[str, float]:
        """Return the iteration time in seconds of each job without step reports whose traffic has a reliable period."""
        return {
            name: test.period_seconds for name, test in self.slowdown_tests.items() if test.period_seconds is not None
        }

    def needing_every_sample(self) -> Iterator[str]:
        """Yield the jobs without step reports whose iteration time is short, or not known yet."""
        for name, test in self.slowdown_tests.items():
            if name not in self.of and (test.period_seconds or 0.0) < SHORT_ITERATION_SECONDS:
                yield name

    def dump(self) -> dict[str, Bests]:
        """Return the best speed of each job, for a snapshot."""
        bests: dict[str, Bests] = {name: (float(speed.best), {}) for name, speed in self.of.items()}
        bests |= {name: (float("inf"), test.best) for name, test in self.slowdown_tests.items()}
        return {**self._bests, **bests}

    def load(self, bests: dict[str, Bests]) -> None:
        """Restore the best speed of each job from a snapshot."""
        self._bests = bests

    def _steps(self, telemetry: Telemetry) -> None:
        for job in telemetry.jobs:
            if job.steps is None or not len(job.steps):
                continue
            name = job.shape.job
            speed = self.of.get(name)
            if speed is None:
                speed = self.of[name] = Speed(best=self._bests.pop(name, NO_BEST)[0])
            seconds = np.where(np.isfinite(job.steps.seconds), job.steps.seconds, 0.0).max(axis=1)
            for one in seconds.tolist():
                speed.newest.append(one)
                if len(speed.newest) == BEST_STEPS:
                    speed.best = min(speed.best, speed.usual)
            speed.finished_ns, speed.step = int(job.steps.end_ns.max()), int(job.steps.number[-1])

    def _counters(self, telemetry: Telemetry, by_counters: frozenset[str]) -> None:
        values = telemetry.counters.values
        judged = [job.steps is None or job.shape.job in by_counters for job in telemetry.jobs]
        if not any(judged):
            self.slowdown_tests.clear()
            return
        for job, columns, is_judged in zip(telemetry.jobs, telemetry.columns(), judged, strict=True):
            name = job.shape.job
            if not is_judged:
                self.slowdown_tests.pop(name, None)
                continue
            test = self.slowdown_tests.get(name)
            if test is None:
                test = self.slowdown_tests[name] = SlowdownTest(best=dict(self._bests.pop(name, NO_BEST)[1]))
            test.of(job.shape)
            lags = telemetry.counters.lag_seconds
            for window in range(values.shape[1]):
                lag = None if lags is None else lags[columns]
                test.take(values[:, window, columns], telemetry.counters.seconds, lag)
        due = [test for test in self.slowdown_tests.values() if test.due >= 0]
        for test in sorted(due, key=lambda one: -one.due)[:EVALUATIONS_A_TICK]:
            test.evaluate()
