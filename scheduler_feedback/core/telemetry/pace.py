"""Pace: how fast each rank of each gang has gone lately, for people to look at. No detector reads it.

A row is one second in which steps were completed; what a detector keeps of the past is its own, and shorter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from scheduler_feedback.core.telemetry.gang_attempts import IntArray
from scheduler_feedback.core.telemetry.telemetry import (
    Float32Array,
    IndexArray,
    JobTelemetry,
    Shape,
    StepTable,
    Telemetry,
)

ROW_NS = 1_000_000_000
"""Frames come once a second."""

MOST_ROWS = 600
"""Ten minutes of steps shorter than a second, and the newest 600 of longer ones: more than a screen has columns for."""

LEAST_ROWS = 32

MOST_GONE = 32
"""Gangs whose pace is kept although nothing is heard of them any more, the newest."""

MOST_CELLS = 1 << 22
"""Rows x ranks over all gangs (two numbers each, 32 MiB). Each gang has MOST_ROWS below it; above it all have fewer."""

SPARE = 1.25
"""Gangs that come one by one shorten the others' histories each time that these are a quarter longer than they may be:
a few times each, not each time."""

NEWEST_ROWS = 4
"""Rows that the speed now is the median of: one long step among them (a checkpoint, a stop) does not move it."""

LEAST_USUAL_ROWS = 12
"""Rows from which a usual step time is known: three times those that the speed now is taken from."""

SLOW = 1.15
"""Step time now over the usual one from which a job runs slowly. Healthy workers wander by a tenth for a few steps (PAI
job 1); the straggler detector asks for as much while it has seen few steps (FIRST_SLOWDOWN in
detectors/straggler/alarm_checks.py)."""

SLOW_SPREADS = 3.0
"""And so many times the distance between the 5 % and the 25 % quantile of the rows above the latter. That distance is
about one standard deviation, and slow rows do not widen it until they are most of all rows."""

SURELY_SLOW = 1.5
"""From this ratio a job runs slowly however much its steps vary: half as long again is a spike to the detectors too
(detectors/workload/attempt_history.py, SPIKE), and no person calls it normal."""

GAP_SECONDS, GAP_STEPS = 3.0, 3.0
"""No step for longer than both (seconds; usual step times): a gap. Frames come once a second, so that a row may be
empty by chance, and two by a frame that came late."""


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast an attempt runs now, against its usual speed.

    seconds: time of a step now, the median of the newest NEWEST_ROWS rows' means. usual_seconds: the lower quartile of
    all rows' means, so that a fault becomes usual only after three quarters of them; NaN while there are fewer than
    LEAST_USUAL_ROWS. slow_seconds: step time from which it runs slowly; infinite while the usual one is not known.
    newest: number of the last step. end_ns: wall time at which that ended.
    """

    attempt: int
    seconds: float
    usual_seconds: float
    slow_seconds: float
    newest: int
    end_ns: int

    @property
    def slow(self) -> bool:
        """Whether steps now take longer than usual by more than chance."""
        return self.seconds >= self.slow_seconds

    @property
    def gap_seconds(self) -> float:
        """How long there may be no step before that is a gap."""
        usual = self.seconds if math.isnan(self.usual_seconds) else self.usual_seconds
        return max(GAP_SECONDS, GAP_STEPS * usual)


@dataclass(frozen=True, slots=True, eq=False)
class Pace:
    """The newest k rows of an attempt of n ranks, by rising rank.

    ranks: int64 [n]. nodes: of each. roles: [n], ranks of one role do the same work and are peers.
    sequence: int64 [k], rises by one a row and is never reused. at_ns: int64 [k], wall time at which the row's second
    began. steps, newest: int64 [k], how many steps it holds and the number of the last. seconds, slowest_seconds:
    float32 [k], the mean and the longest time of a step. own_seconds, slowest_own_seconds: float32 [k, n], mean and
    maximum over the row's steps of each rank's own time, without its waits for others; all of its time where its waits
    are not reported.
    speed: of the attempt, from all rows that are kept.
    """

    gang: str
    attempt: int
    ranks: IntArray
    nodes: tuple[str, ...]
    roles: IndexArray
    sequence: IntArray
    at_ns: IntArray
    steps: IntArray
    newest: IntArray
    seconds: Float32Array
    slowest_seconds: Float32Array
    own_seconds: Float32Array
    slowest_own_seconds: Float32Array
    speed: Speed

    def ratios(self) -> Float32Array:
        """float32 [k, n]: each rank's own time over the median of its role's in that row: 1 keeps pace."""
        result = np.ones_like(self.own_seconds)
        for role in np.unique(self.roles):
            members = np.flatnonzero(self.roles == role)
            block = self.own_seconds[:, members]
            usual = np.median(block, axis=1, keepdims=True) if len(members) else block
            np.divide(block, usual, out=block, where=usual > 0)
            result[:, members] = block
        return result


class _Ring:
    """The rows of one attempt. count: of all rows there ever were; the newest may still grow. end_ns: of the last step.

    quantiles: (5 %, 25 %) of the rows' mean step times as of row number `quantiles_of`.
    """

    __slots__ = (
        "at_ns",
        "count",
        "end_ns",
        "newest",
        "own_seconds",
        "quantiles",
        "quantiles_of",
        "seconds",
        "shape",
        "slowest_own_seconds",
        "slowest_seconds",
        "steps",
    )

    def __init__(self, shape: Shape, rows: int) -> None:
        self.shape = shape
        self.count = 0
        self.end_ns = 0
        self.quantiles = math.nan, math.nan
        self.quantiles_of = -1
        self.at_ns = np.zeros(rows, np.int64)
        self.steps = np.zeros(rows, np.int64)
        self.newest = np.zeros(rows, np.int64)
        self.seconds = np.zeros(rows, np.float64)
        self.slowest_seconds = np.zeros(rows, np.float64)
        self.own_seconds = np.zeros((rows, len(shape)), np.float32)
        self.slowest_own_seconds = np.zeros((rows, len(shape)), np.float32)

    def add(self, table: StepTable) -> None:
        """Take in completed steps; sums until they are read, so that a row may grow."""
        own = np.where(np.isfinite(table.wait_seconds), table.seconds - table.wait_seconds, table.seconds)
        np.maximum(own, 0.0, out=own)
        mean = table.seconds.mean(axis=1)
        end_ns = np.maximum.accumulate(table.end_ns.max(axis=1))
        second = end_ns // ROW_NS * ROW_NS
        starts = np.flatnonzero(np.diff(second, prepend=-1))
        for first, last in zip(starts.tolist(), [*starts[1:].tolist(), len(second)], strict=True):
            row = self._row_of(int(second[first]))
            self.steps[row] += last - first
            self.newest[row] = table.number[last - 1]
            self.seconds[row] += mean[first:last].sum()
            self.slowest_seconds[row] = np.fmax(self.slowest_seconds[row], np.fmax.reduce(mean[first:last]))
            self.own_seconds[row] += own[first:last].sum(axis=0)
            slowest = self.slowest_own_seconds[row]
            np.fmax(slowest, np.fmax.reduce(own[first:last], axis=0), out=slowest, casting="same_kind")
        self.end_ns = max(self.end_ns, int(end_ns[-1]))

    def _row_of(self, at_ns: int) -> int:
        """The row of that second: the newest one, or one more."""
        rows = len(self.at_ns)
        row = (self.count - 1) % rows
        if not self.count or at_ns > self.at_ns[row]:
            self.count += 1
            row = (self.count - 1) % rows
            self.at_ns[row] = at_ns
            for name in _SUMMED:
                getattr(self, name)[row] = 0
        return row

    def shorten(self, rows: int) -> None:
        """Keep so many of the newest rows."""
        newest = np.arange(max(0, self.count - rows), self.count)
        old, new = newest % len(self.at_ns), newest % rows
        for name in ("at_ns", "newest", *_SUMMED):
            array = getattr(self, name)
            shorter = np.zeros((rows, *array.shape[1:]), array.dtype)
            shorter[new] = array[old]
            setattr(self, name, shorter)

    def since(self, sequence: int, most: int) -> Pace:
        rows = len(self.at_ns)
        wanted = np.arange(max(sequence + 1, self.count - min(rows, most), 0), self.count)
        at = wanted % rows
        steps = np.maximum(self.steps[at], 1)
        return Pace(
            self.shape.job,
            self.shape.attempt,
            self.shape.ranks,
            self.shape.nodes,
            self.shape.roles,
            wanted,
            self.at_ns[at],
            self.steps[at],
            self.newest[at],
            (self.seconds[at] / steps).astype(np.float32),
            self.slowest_seconds[at].astype(np.float32),
            (self.own_seconds[at] / steps[:, None]).astype(np.float32),
            self.slowest_own_seconds[at],
            self.speed(),
        )

    def speed(self) -> Speed:
        """As of the newest row."""
        low, usual = self._quantiles()
        slow = math.inf if math.isnan(usual) else _slow_seconds(low, usual)
        now = sorted(self._mean(row) for row in range(max(0, self.count - NEWEST_ROWS), self.count))
        middle = (now[(len(now) - 1) // 2] + now[len(now) // 2]) / 2
        newest = int(self.newest[(self.count - 1) % len(self.at_ns)])
        return Speed(self.shape.attempt, middle, usual, slow, newest, self.end_ns)

    def _quantiles(self) -> tuple[float, float]:
        """5 % and 25 % of the rows' mean step times. Computed again once there is an eighth more rows: every gang is
        asked for it once a second while somebody looks at the page."""
        kept = min(self.count, len(self.at_ns))
        if kept < LEAST_USUAL_ROWS:
            return math.nan, math.nan
        if self.quantiles_of < 0 or self.count - self.quantiles_of > kept // 8:
            low, usual = np.nanpercentile(self.seconds[:kept] / np.maximum(self.steps[:kept], 1), (5, 25)).tolist()
            self.quantiles, self.quantiles_of = (low, usual), self.count
        return self.quantiles

    def _mean(self, number: int) -> float:
        """Mean time of a step in the row of that number."""
        row = number % len(self.at_ns)
        return float(self.seconds[row] / max(int(self.steps[row]), 1))


def _slow_seconds(low: float, usual: float) -> float:
    """Step time from which a job runs slowly. low: the 5 % quantile of its rows."""
    return min(max(SLOW * usual, usual + SLOW_SPREADS * (usual - low)), SURELY_SLOW * usual)


_SUMMED = ("steps", "seconds", "slowest_seconds", "own_seconds", "slowest_own_seconds")
"""Arrays of a ring that begin at 0 in each row."""


class Paces:
    """The pace of every gang that telemetry tells of, and of MOST_GONE that it no longer does: a job that has just
    ended is looked at, too. Owned by one thread; not locked."""

    def __init__(self) -> None:
        self._rings: dict[str, _Ring] = {}
        self._present: set[str] = set()

    def take(self, telemetry: Telemetry) -> None:
        """Fold in what is new."""
        self._present = {job.shape.job for job in telemetry.jobs}
        for job in telemetry.jobs:
            if job.steps is not None and len(job.steps.number):
                self._ring_of(job).add(job.steps)
        if len(self._rings) > len(self._present) + MOST_GONE:
            gone = [gang for gang in self._rings if gang not in self._present]
            for gang in gone[: len(gone) - MOST_GONE]:
                del self._rings[gang]

    def _ring_of(self, job: JobTelemetry) -> _Ring:
        shape = job.shape
        ring = self._rings.get(shape.job)
        if ring is None or ring.shape.attempt != shape.attempt or len(ring.shape) != len(shape):
            self._rings.pop(shape.job, None)
            ranks = len(shape) + sum(len(other.shape) for other in self._rings.values())
            rows = max(LEAST_ROWS, min(MOST_ROWS, MOST_CELLS // ranks))
            for other in self._rings.values():
                if len(other.at_ns) > SPARE * rows:
                    other.shorten(rows)
            ring = self._rings[shape.job] = _Ring(shape, rows)
        ring.shape = shape
        return ring

    def since(self, gang: str, sequence: int = -1, most: int = MOST_ROWS) -> Pace | None:
        """The gang's rows after the one of this sequence, at most so many, as a copy; None where none of its steps are
        known."""
        ring = self._rings.get(gang)
        return None if ring is None or not ring.count else ring.since(sequence, most)

    def speeds(self) -> dict[str, Speed]:
        """How fast each gang runs whose telemetry is received, by gang; none of one whose steps are not known."""
        return {gang: self._rings[gang].speed() for gang in self._present & self._rings.keys()}
