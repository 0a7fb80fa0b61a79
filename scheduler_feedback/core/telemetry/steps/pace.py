"""Pace: recent step times of each rank of each gang, for display. No detector reads it.

A row is one second in which steps were completed. Detectors have their own, shorter history.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from scheduler_feedback.core.telemetry.steps.gang_attempts import IntArray
from scheduler_feedback.core.telemetry.telemetry import (
    Float32Array,
    IndexArray,
    JobTelemetry,
    Shape,
    StepTable,
    Telemetry,
)

ROW_NS = 1_000_000_000
"""Each row of a gang's history covers one second in which steps were completed, because frames arrive once a second."""

MOST_ROWS = 600
"""Maximum number of rows in a gang's history, one per second in which steps were completed: ten minutes of steps
shorter than a second, or 600 longer steps. A screen has fewer columns."""

LEAST_ROWS = 32

MOST_GONE = 32
"""Maximum number of gangs that are kept although they are no longer in the telemetry; the newest are kept."""

MOST_CELLS = 1 << 22
"""Maximum number of rows x ranks of all gangs (two numbers each, 32 MiB). Below this limit, each gang has MOST_ROWS
rows; at the limit, gangs have fewer rows."""

SPARE = 1.25
"""A history is shortened only if it is longer than this many times its limit. Shortening is then rare when gangs start
one by one."""

NEWEST_ROWS = 4
"""The current step time is the median of this many newest rows (seconds in which steps were completed). One long step
among them (a checkpoint, a stop) does not change it."""

LEAST_USUAL_ROWS = 12
"""A usual step time is computed only from at least this many rows (seconds in which steps were completed): three times
NEWEST_ROWS."""

SLOW = 1.15
"""Ratio of the current to the usual step time from which a job is slow. The step times of healthy workers vary by a
tenth for a few steps (PAI job 1). The straggler detector requires the same ratio after few steps (FIRST_SLOWDOWN in
detectors/straggler/alarm_checks.py)."""

SLOW_SPREADS = 3.0
"""Minimum distance of a slow step time from the usual one, in spreads. The usual step time is the 25 % quantile of the
rows' means; the spread is its distance from their 5 % quantile. The spread is about one standard deviation, and slow
rows do not increase it until they are the majority."""

SURELY_SLOW = 1.5
"""Ratio of the current to the usual step time from which a job is slow even if its steps vary much. The detectors also
treat 1.5 as a spike (detectors/workload/attempt_history.py, SPIKE)."""

GAP_SECONDS, GAP_STEPS = 3.0, 3.0
"""A gap is a time without a step that is longer than GAP_SECONDS and longer than GAP_STEPS usual step times. Frames
arrive once a second, so one row may be empty by chance, and two rows if a frame is late."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Current step time of an attempt, compared with its usual step time."""

    attempt: int
    """Number of the attempt."""
    seconds: float
    """Current step time: the median of the mean step times of the newest NEWEST_ROWS rows."""
    usual_seconds: float
    """Usual step time: the lower quartile of the mean step times of all rows. A fault changes it only after three
    quarters of the rows. NaN with fewer than LEAST_USUAL_ROWS rows."""
    slow_seconds: float
    """Step time from which the attempt is slow; infinite while the usual step time is unknown."""
    newest: int
    """Number of the last step."""
    end_ns: int
    """Wall time at which the last step ended."""

    @property
    def slow(self) -> bool:
        """Whether steps now take significantly longer than usual."""
        return self.seconds >= self.slow_seconds

    @property
    def gap_seconds(self) -> float:
        """Longest time without a step that is still normal; a longer time is a gap."""
        usual = self.seconds if math.isnan(self.usual_seconds) else self.usual_seconds
        return max(GAP_SECONDS, GAP_STEPS * usual)


@dataclass(frozen=True, slots=True, eq=False)
class Pace:
    """The newest k rows of an attempt with n ranks, in the order of the rank numbers."""

    gang: str
    """Job id."""
    attempt: int
    """Number of the attempt."""
    ranks: IntArray
    """Rank numbers: int64 [n]."""
    nodes: tuple[str, ...]
    """Node of each rank, in the order of `ranks`."""
    roles: IndexArray
    """int [n]: number of each rank's role. Ranks of one role do the same work and are peers."""
    sequence: IntArray
    """int64 [k]: increases by one per row and is never reused."""
    at_ns: IntArray
    """int64 [k]: wall time at which the row's second began."""
    steps: IntArray
    """int64 [k]: number of steps in the row."""
    newest: IntArray
    """int64 [k]: number of the last step in the row."""
    seconds: Float32Array
    """float32 [k]: mean step time of the row."""
    slowest_seconds: Float32Array
    """float32 [k]: longest step time in the row."""
    own_seconds: Float32Array
    """float32 [k, n]: mean over the row's steps of each rank's own time, without waits for other ranks; all of its time
    if waits are not reported."""
    slowest_own_seconds: Float32Array
    """float32 [k, n]: maximum over the row's steps of each rank's own time."""
    speed: Speed
    """Speed of the attempt, from all rows that are kept."""

    def ratios(self) -> Float32Array:
        """Return float32 [k rows, n ranks]: each rank's own time divided by the median of its role's ranks in that
        row. 1 is normal speed.
        """
        result = np.ones_like(self.own_seconds)
        for role in np.unique(self.roles):
            members = np.flatnonzero(self.roles == role)
            block = self.own_seconds[:, members]
            usual = np.median(block, axis=1, keepdims=True) if len(members) else block
            np.divide(block, usual, out=block, where=usual > 0)
            result[:, members] = block
        return result


class _Ring:
    """Ring of the newest rows of one attempt. A row has the step times of one second.

    count: number of rows so far, including overwritten rows. New steps may still be added to the newest row.
    end_ns: end of the last step. quantiles: the 5 % and 25 % quantiles of the rows' mean step
    times, computed when there were `quantiles_of` rows.
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
        """Add completed steps to the rows of their seconds."""
        own = np.where(np.isfinite(table.wait_seconds), table.seconds - table.wait_seconds, table.seconds)
        np.maximum(own, 0.0, out=own)
        mean = table.seconds.mean(axis=1)
        if len(own) == 1:  # the usual case with long steps
            end = int(table.end_ns.max())
            row = self._row_of(end // ROW_NS * ROW_NS)
            self.steps[row] += 1
            self.newest[row] = table.number[0]
            self.seconds[row] += mean[0]
            self.slowest_seconds[row] = np.fmax(self.slowest_seconds[row], mean[0])
            self.own_seconds[row] += own[0]
            slowest = self.slowest_own_seconds[row]
            np.fmax(slowest, own[0], out=slowest, casting="same_kind")
            self.end_ns = max(self.end_ns, end)
            return
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
        """Return the index of the row for the second that begins at `at_ns`: the newest row or a new one."""
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
        """Keep only this many of the newest rows."""
        newest = np.arange(max(0, self.count - rows), self.count)
        old, new = newest % len(self.at_ns), newest % rows
        for name in ("at_ns", "newest", *_SUMMED):
            array = getattr(self, name)
            shorter = np.zeros((rows, *array.shape[1:]), array.dtype)
            shorter[new] = array[old]
            setattr(self, name, shorter)

    def since(self, sequence: int, most: int) -> Pace:
        """Return a copy of the rows after this sequence number, at most `most`."""
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
        """Return the current and the usual step time, as of the newest row."""
        low, usual = self._quantiles()
        slow = math.inf if math.isnan(usual) else _slow_seconds(low, usual)
        now = sorted(self._mean(row) for row in range(max(0, self.count - NEWEST_ROWS), self.count))
        middle = (now[(len(now) - 1) // 2] + now[len(now) // 2]) / 2
        newest = int(self.newest[(self.count - 1) % len(self.at_ns)])
        return Speed(self.shape.attempt, middle, usual, slow, newest, self.end_ns)

    def _quantiles(self) -> tuple[float, float]:
        """Return the 5 % and 25 % quantile of the rows' mean step times.

        The quantiles are computed again only after an eighth more rows, because an open page requests every gang's
        speed each second.
        """
        kept = min(self.count, len(self.at_ns))
        if kept < LEAST_USUAL_ROWS:
            return math.nan, math.nan
        if self.quantiles_of < 0 or self.count - self.quantiles_of > kept // 8:
            low, usual = np.nanpercentile(self.seconds[:kept] / np.maximum(self.steps[:kept], 1), (5, 25)).tolist()
            self.quantiles, self.quantiles_of = (low, usual), self.count
        return self.quantiles

    def _mean(self, number: int) -> float:
        """Return the mean step time of the row with that number."""
        row = number % len(self.at_ns)
        return float(self.seconds[row] / max(int(self.steps[row]), 1))


def _slow_seconds(low: float, usual: float) -> float:
    """Return the step time from which a job is slow. low, usual: 5 % and 25 % quantile of the rows' mean step times."""
    return min(max(SLOW * usual, usual + SLOW_SPREADS * (usual - low)), SURELY_SLOW * usual)


_SUMMED = ("steps", "seconds", "slowest_seconds", "own_seconds", "slowest_own_seconds")
"""Names of the arrays of a ring that are set to 0 when a new row begins."""


class Paces:
    """Pace of every gang in the telemetry, and of the MOST_GONE gangs that left it last, for jobs that have just ended.

    Owned by one thread; not locked.
    """

    def __init__(self) -> None:
        self._rings: dict[str, _Ring] = {}
        self._present: set[str] = set()

    @property
    def gangs(self) -> Collection[str]:
        """Names of the gangs whose steps are kept, oldest first."""
        return self._rings.keys()

    def take(self, telemetry: Telemetry) -> None:
        """Add the new steps of all jobs."""
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
        """Return a copy of the gang's rows after this sequence number, at most `most`; None if no steps are known."""
        ring = self._rings.get(gang)
        return None if ring is None or not ring.count else ring.since(sequence, most)

    def speeds(self) -> dict[str, Speed]:
        """Return the speed of each gang in the telemetry whose steps are known."""
        return {gang: self._rings[gang].speed() for gang in self._present & self._rings.keys()}
