"""Significance test: whether long steps of a job come at a fixed period, with a bounded false-alarm probability.

A job that saves every 50 steps is long at every 50th. A busy host also makes steps long, at random; of a handful of
random steps some are always equally far apart. So a period is reported only where chance does not give it.

**Null hypothesis.** The long steps between two of them are placed at random among the steps between: whatever makes
them long, at whatever rate, does not count steps.

**Test of one pattern.** The first and the newest of m + 1 beats lie D steps apart; between them lie m - 1 beats, N
steps and n long steps, of which k are at beats. Under the null k is hypergeometric, so chance gives as many with
probability ``tail(N, n, m - 1, k)``. Rate and length of the stretch are the observed ones: nothing is estimated from
calmer times.

**Periods tried.** Every earlier long step may be the first beat, and every divisor m of D gives a period. The
probability is multiplied by the number T of such pairs (Bonferroni).

**Times tried.** The test runs once for each long step that has ended. The j-th test may use ``share_of(j)`` of
FALSE_ALARM; the shares of all tests add up to FALSE_ALARM (alpha spending, Lan and DeMets 1983). So the probability
that an attempt, however long it runs, is ever reported to have a period that it does not have is at most FALSE_ALARM.

What it costs, on a job without other long steps: a period of 50 is reported at its fifth beat, one of 5 at its eighth.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np

FALSE_ALARM = 0.001
"""Bound on the probability that an attempt of a job is ever reported to have a period by chance, whatever its length:
one job in a thousand on hosts that are busy all the time, none on quiet ones. Derived above. Periods below five
(``beats_needed``) have as much again."""

LEAST_PERIOD = 5
"""Shorter periods are for ``beats_needed``: there half of the steps may be long."""

LEAST_BEATS = 4
KEPT_RUNS = 64
"""Long steps that are looked back over. Of a host that makes one step in twelve long they are 770 steps: fifteen beats
of a period of 50."""


@dataclass(slots=True)
class Run:
    """Long steps in a row. number: the job's own number of the first; taken: how many steps of the attempt came before
    it; steps: how many; lost_seconds: of all of them, over usual ones."""

    number: int
    taken: int
    steps: int
    lost_seconds: float


@dataclass(slots=True)
class Period:
    """A period that chance does not give. newest: the number of its newest beat; beats: how many were long.

    steps_each: long steps of the shortest beat. lost_seconds: of all beats. chance: probability of such a pattern under
    the null, times the number of patterns tried.
    """

    steps: int
    newest: int
    beats: int
    missed: int
    steps_each: int
    lost_seconds: float
    chance: float

    @property
    def lost_seconds_a_step(self) -> float:
        """Mean loss over all steps from one beat to the next."""
        return self.lost_seconds / max((self.beats + self.missed) * self.steps, 1)


@dataclass(slots=True)
class LongSteps:
    """The newest long steps of one attempt, and their period; None where chance explains them."""

    runs: deque[Run] = field(default_factory=lambda: deque(maxlen=KEPT_RUNS))
    tests: int = 0
    period: Period | None = None
    _taken: int = 0
    _newest: int = -1
    _open: bool = False

    def take(self, number: int, lost_seconds: float | None) -> None:
        """One more step of the job. lost_seconds: by how much it is longer than usual where it is long, else None."""
        if number <= self._newest:  # the job went back to a checkpoint: its numbers mean other steps now
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
            apart, beside = divmod(run.number - period.newest, period.steps)
            if not beside and apart:
                period.newest, period.beats, period.missed = run.number, period.beats + 1, period.missed + apart - 1
                period.lost_seconds += run.lost_seconds
                period.steps_each = min(period.steps_each, run.steps)
        if len(self.runs) < LEAST_BEATS:
            return
        self.tests += 1
        if self.period is None:
            self.period = self._found()

    def _found(self) -> Period | None:
        """The likeliest period that ends at the newest run; None where chance gives one as good."""
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
    """What the test of this number, from 1 on, may use of FALSE_ALARM: those of all tests add up to it."""
    return FALSE_ALARM * 6 / (math.pi * test) ** 2


def tail(steps: int, long: int, beats: int, hits: int) -> float:
    """Probability that of `long` steps, placed at random among `steps`, at least `hits` fall on `beats` given ones."""
    if hits <= 0:
        return 1.0
    if steps < max(long, beats):
        return 1.0
    ways = sum(math.comb(beats, k) * math.comb(steps - beats, long - k) for k in range(hits, min(beats, long) + 1))
    return ways / math.comb(steps, long)


def beats_needed(period: int, test: int) -> int:
    """Beats after which the longest steps of so many all stand at one place of a period of two to four.

    Of beats x period steps in random order the longest all do so with probability period / C(beats x period, beats).
    test: how many such patterns have been tried in the attempt, this one included; each has its share as above.
    """
    beats = 2
    while period / math.comb(beats * period, beats) > share_of(test):
        beats += 1
    return beats
