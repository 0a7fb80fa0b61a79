"""Significance test: whether long steps of a job occur at a fixed period, with a bounded false-alarm probability.

A job that saves every 50 steps has a long step every 50 steps. A busy host also causes long steps, at random; among a
handful of random steps, some are always equally far apart. A period is therefore reported only if chance does not
explain it.

**Null hypothesis.** The long steps between two of them are placed at random among the steps between. Their cause, and
its rate, are independent of step numbers.

**Test of one pattern.** The first and the newest of m + 1 beats are D steps apart; between them are m - 1 beats, N
steps and n long steps, of which k are at beats. Under the null k is hypergeometric, so chance gives as many with
probability ``tail(N, n, m - 1, k)``. Rate and length are the observed ones: nothing is estimated from calmer times.

**Periods tried.** Every earlier long step may be the first beat, and every divisor m of D gives a period. The
probability is multiplied by the number T of such pairs (Bonferroni).

**Times tried.** The test runs once for each long step that has ended. The j-th test may use ``share_of(j)`` of
FALSE_ALARM; the shares of all tests add up to FALSE_ALARM (alpha spending, Lan and DeMets 1983). So the probability
that an attempt, whatever its length, is ever reported with a period that it does not have is at most FALSE_ALARM.

Delay, for a job without other long steps: a period of 50 is reported at its fifth beat, a period of 5 at its eighth.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np

FALSE_ALARM = 0.001
"""Bound on the probability that an attempt of a job is ever reported with a period by chance, whatever its length: one
job in a thousand on hosts that are always busy, none on idle hosts. Derived above. Periods below five
(``beats_needed``) have the same bound in addition."""

LEAST_PERIOD = 5
"""Shorter periods are handled by ``beats_needed``: there, half of the steps may be long."""

LEAST_BEATS = 4
KEPT_RUNS = 64
"""Number of runs of long steps that are kept. On a host that makes one step in twelve long they cover 770 steps:
fifteen beats of a period of 50."""


@dataclass(slots=True)
class Run:
    """Consecutive long steps."""

    number: int
    """The job's number of the first step."""
    taken: int
    """Number of steps of the attempt before the first step of the run."""
    steps: int
    """Number of steps in the run."""
    lost_seconds: float
    """Time by which these steps exceed usual steps."""


@dataclass(slots=True)
class Period:
    """A period that is not explained by chance."""

    steps: int
    newest: int
    """Step number of the newest beat."""
    beats: int
    """Number of beats that were long."""
    missed: int
    steps_each: int
    """Number of long steps of the shortest beat."""
    lost_seconds: float
    """Time lost in all long beats."""
    chance: float
    """Probability of such a pattern under the null hypothesis, times the number of patterns tried."""

    @property
    def lost_seconds_a_step(self) -> float:
        """Mean time lost per step, over all steps from one beat to the next, in seconds."""
        return self.lost_seconds / max((self.beats + self.missed) * self.steps, 1)


@dataclass(slots=True)
class LongSteps:
    """Newest long steps of one attempt, and their period; None if chance explains them."""

    runs: deque[Run] = field(default_factory=lambda: deque(maxlen=KEPT_RUNS))
    tests: int = 0
    period: Period | None = None
    _taken: int = 0
    _newest: int = -1
    _open: bool = False

    def take(self, number: int, lost_seconds: float | None) -> None:
        """Add one step. lost_seconds: its excess over a usual step if it is long, else None."""
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
        """Return the most likely period that ends at the newest run; None if chance can explain it."""
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
    """Return the share of FALSE_ALARM for the test of this number, from 1 on. The shares of all tests add up to
    FALSE_ALARM."""
    return FALSE_ALARM * 6 / (math.pi * test) ** 2


def tail(steps: int, long: int, beats: int, hits: int) -> float:
    """Return the probability that of `long` steps, placed at random among `steps`, at least `hits` fall on `beats`
    given ones."""
    if hits <= 0:
        return 1.0
    if steps < max(long, beats):
        return 1.0
    ways = sum(math.comb(beats, k) * math.comb(steps - beats, long - k) for k in range(hits, min(beats, long) + 1))
    return ways / math.comb(steps, long)


def beats_needed(period: int, test: int) -> int:
    """Return the number of beats after which chance does not place the longest steps at one phase of a period of 2 to
    4.

    In beats x period steps in random order, the longest are all at one phase with probability period / C(beats x
    period, beats). test: number of such patterns tried in the attempt, including this one; each has its share as above.
    """
    beats = 2
    while period / math.comb(beats * period, beats) > share_of(test):
        beats += 1
    return beats
