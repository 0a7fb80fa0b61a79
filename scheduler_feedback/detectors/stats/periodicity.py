"""Significance test: do long steps of a job occur at a fixed period? The false-alarm probability is bounded.

A job that saves every 50 steps has a long step every 50 steps. A busy host also causes long steps, at random, and some
of these are always equally far apart. A period is therefore reported only if chance does not explain it. A *beat* is a
step at which the period places a long step.

**Null hypothesis.** The long steps between the first and the newest beat are placed at random among the steps there.

**Test of one pattern.** The first and the newest of m + 1 beats are D steps apart. Between them there are N steps: m -
1 of them are beats, n of them are long, and k of the beats are long. By chance at least k beats are long with
probability ``tail(N, n, m - 1, k)`` (hypergeometric distribution). The rate and length of long steps are the observed
ones; nothing is estimated from calmer times.

**Periods tried.** Every earlier long step may be the first beat, and every divisor m of D gives a period. The
probability is multiplied by the number of such pairs (Bonferroni correction).

**Times tried.** The test runs once for each long step that has ended. The j-th test may use ``share_of(j)`` of
FALSE_ALARM, and the shares of all tests add up to FALSE_ALARM (alpha spending, Lan and DeMets 1983). So the probability
that an attempt of any length is ever reported with a wrong period is at most FALSE_ALARM.

Delay for a job without other long steps: a period of 50 steps is reported at its fifth beat, one of 5 steps at its
eighth.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

FALSE_ALARM = 0.001
"""Maximum probability that an attempt of a job, however long it runs, is reported with a period by chance. Periods
below five steps (``beats_needed``) have a separate limit of the same size."""

LEAST_PERIOD = 5
"""Minimum period, in steps, that ``LongSteps`` tests. At shorter periods up to half of the steps may be long:
``beats_needed`` handles these."""

LEAST_BEATS = 4
"""A period is reported only if at least this many long steps show it."""

KEPT_RUNS = 64
"""Maximum number of runs of long steps that are kept. If one step in twelve is long, they cover 770 steps."""


@dataclass(slots=True)
class Run:
    """One or more consecutive long steps."""

    number: int
    """Number of the run's first step, as the job counts its steps."""
    taken: int
    """Number of steps of the attempt before the first step of the run."""
    steps: int
    """Number of steps in the run."""
    lost_seconds: float
    """Time by which the steps of the run exceed usual steps, in seconds."""


@dataclass(slots=True)
class Period:
    """A period of long steps that chance does not explain."""

    steps: int
    newest: int
    """Number of the newest step at which the period places a long step."""
    beats: int
    """Number of long steps (or runs of long steps) that occurred where the period places them."""
    missed: int
    steps_each: int
    """Number of consecutive long steps in the shortest run of the period."""
    lost_seconds: float
    """Time lost in all long steps of the period, in seconds."""
    chance: float
    """Probability that chance places the long steps like this, times the number of patterns tried."""

    @property
    def lost_seconds_a_step(self) -> float:
        """Return the mean time in seconds that the long steps of the period cost each step of the job."""
        return self.lost_seconds / max((self.beats + self.missed) * self.steps, 1)


@dataclass(slots=True)
class LongSteps:
    """Newest long steps of one attempt, and the period of these steps; None if chance explains them."""

    runs: deque[Run] = field(default_factory=lambda: deque(maxlen=KEPT_RUNS))
    tests: int = 0
    period: Period | None = None
    _taken: int = 0
    _newest: int = -1
    _open: bool = False

    def take(self, number: int, lost_seconds: float | None) -> None:
        """Add one step of the job.

        lost_seconds: excess of the step over a usual step if the step is long; else None.
        """
        if number <= self._newest:  # the job returned to a checkpoint: numbers are reused
            self.runs.clear()
            self.period, self._open = None, False
        self._newest = number
        self._taken += 1
        if lost_seconds is not None:
            if self._open:
                self.runs[-1].steps += 1
                self.runs[-1].lost_seconds += lost_seconds
            else:
                self.runs.append(Run(number, self._taken, 1, lost_seconds))
            self._open = True
            return
        if self._open:
            self._open = False
            self._ended(self.runs[-1])
        elif (period := self.period) is not None and number - period.newest > 2 * period.steps:
            self.period = None  # two beats in a row without a long step

    def _ended(self, run: Run) -> None:
        if (period := self.period) is not None:
            apart, remainder = divmod(run.number - period.newest, period.steps)
            if not remainder and apart:
                period.newest, period.beats, period.missed = run.number, period.beats + 1, period.missed + apart - 1
                period.lost_seconds += run.lost_seconds
                period.steps_each = min(period.steps_each, run.steps)
        if len(self.runs) < LEAST_BEATS:
            return
        self.tests += 1
        if self.period is None:
            self.period = self._found()

    def _found(self) -> Period | None:
        """Return the most likely period that explains the newest run of long steps; None if chance can explain it."""
        runs = list(self.runs)
        newest = runs[-1]
        at = {run.number: index for index, run in enumerate(runs)}
        apart = np.array([newest.number - run.number for run in runs[:-1]])
        taken = np.array([newest.taken - run.taken for run in runs[:-1]])
        tails = np.cumsum([run.steps - 1 for run in runs[::-1]])[::-1].tolist()
        parts = np.arange(2, int(taken.max()) // LEAST_PERIOD + 1)
        tried = int(np.sum((apart[:, None] % parts == 0) & (taken[:, None] >= LEAST_PERIOD * parts)))
        best: Period | None = None
        for length in sorted({*apart.tolist(), *(apart[apart % 2 == 0] // 2).tolist()}):
            number, hits, beats = newest.number, 0, 0
            while (step := 1 if number - length in at else 2 if number - 2 * length in at else 0) != 0:
                number, hits, beats = number - step * length, hits + 1, beats + step
                first = at[number]
                between = newest.taken - runs[first].taken - 1
                if hits < LEAST_BEATS - 1 or between + 1 < LEAST_PERIOD * beats:
                    continue
                steps, long = between - (tails[first] - tails[-1]), len(runs) - first - 2
                chance = tried * tail(steps, long, beats - 1, hits - 1)
                if best is None or chance < best.chance:
                    of_it = [runs[at[beat]] for beat in range(number, newest.number + 1, length) if beat in at]
                    best = Period(
                        length, newest.number, hits + 1, beats - hits, min(run.steps for run in of_it),
                        sum(run.lost_seconds for run in of_it), chance,
                    )  # fmt: skip
        return best if best is not None and best.chance <= share_of(self.tests) else None


def share_of(test: int) -> float:
    """Return the share of FALSE_ALARM that the test with this number may use, counted from 1. All shares add up to
    FALSE_ALARM."""
    return FALSE_ALARM * 6 / (math.pi * test) ** 2


def tail(steps: int, long: int, beats: int, hits: int) -> float:
    """Return the probability that at least `hits` of some chosen steps are long, if chance places the long steps.

    steps: number of all steps. long: number of long steps. beats: number of chosen steps.
    """
    if hits <= 0:
        return 1.0
    if steps < max(long, beats):
        return 1.0
    ways = sum(math.comb(beats, k) * math.comb(steps - beats, long - k) for k in range(hits, min(beats, long) + 1))
    return ways / math.comb(steps, long)


@lru_cache(1024)
def beats_needed(period: int, test: int) -> int:
    """Return how many long steps, each `period` steps (2 to 4) after the last, are needed to exclude chance.

    By chance, all of the `beats` longest of beats x period steps have the same place in the period with probability
    period / C(beats x period, beats). test: number of such patterns tried in the attempt, including this one; it sets
    the limit of the probability (``share_of``).
    """
    beats = 2
    while period / math.comb(beats * period, beats) > share_of(test):
        beats += 1
    return beats
