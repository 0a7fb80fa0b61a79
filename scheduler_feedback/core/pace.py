"""Pace: how fast each rank of each gang has gone lately, for people to look at. No detector reads it.

A row is one second in which steps were completed; what a detector keeps of the past is its own, and shorter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler_feedback.core.gangs import IntArray
from scheduler_feedback.core.telemetry import Float32Array, IndexArray, JobTelemetry, Shape, StepTable, Telemetry

ROW_NS = 1_000_000_000
"""Frames come once a second."""

MOST_ROWS = 600
"""Ten minutes of steps shorter than a second, and the newest 600 of longer ones: more than a screen has columns for."""

LEAST_ROWS = 32

MOST_GONE = 32
"""Gangs whose pace is kept although nothing is heard of them any more, the newest."""

MOST_CELLS = 1 << 22
"""Rows x ranks over all gangs (16 MiB), below which each has MOST_ROWS; where there are more, all have fewer."""

SPARE = 1.25
"""Gangs that come one by one shorten the others' histories each time that these are a quarter longer than they may be:
a few times each, not each time."""


@dataclass(frozen=True, slots=True, eq=False)
class Pace:
    """The newest k rows of an attempt of n ranks, by rising rank.

    ranks: int64 [n]. nodes: of each. roles: [n], ranks of one role do the same work and are peers.
    sequence: int64 [k], rises by one a row and is never reused. at_ns: int64 [k], wall time at which the row's second
    began. steps, newest: int64 [k], how many steps it holds and the number of the last. seconds: float32 [k], mean time
    of a step. own_seconds: float32 [k, n], each rank's own mean time a step, waiting for others left out; all of its
    time where it does not say how long it waited. usual_seconds: the lower quartile of a step's mean time over all rows
    that are kept, also those that are not handed out: a fault that lasts for most of them is not usual yet.
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
    own_seconds: Float32Array
    usual_seconds: float

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
    """The rows of one attempt. count: of all rows there ever were; the newest is still being added to."""

    __slots__ = ("at_ns", "count", "newest", "own_seconds", "seconds", "shape", "steps")

    def __init__(self, shape: Shape, rows: int) -> None:
        self.shape = shape
        self.count = 0
        self.at_ns = np.zeros(rows, np.int64)
        self.steps = np.zeros(rows, np.int64)
        self.newest = np.zeros(rows, np.int64)
        self.seconds = np.zeros(rows, np.float64)
        self.own_seconds = np.zeros((rows, len(shape)), np.float32)

    def add(self, table: StepTable) -> None:
        """Take in completed steps; sums until they are read, so that a row may grow."""
        own = np.where(np.isfinite(table.wait_seconds), table.seconds - table.wait_seconds, table.seconds)
        second = np.maximum.accumulate(table.end_ns.max(axis=1)) // ROW_NS * ROW_NS
        starts = np.flatnonzero(np.diff(second, prepend=-1))
        for first, last in zip(starts.tolist(), [*starts[1:].tolist(), len(second)], strict=True):
            row = self._row_of(int(second[first]))
            self.steps[row] += last - first
            self.newest[row] = table.number[last - 1]
            self.seconds[row] += table.seconds[first:last].mean(axis=1).sum()
            self.own_seconds[row] += np.maximum(own[first:last], 0).sum(axis=0)

    def _row_of(self, at_ns: int) -> int:
        """The row of that second: the newest one, or one more."""
        rows = len(self.at_ns)
        row = (self.count - 1) % rows
        if not self.count or at_ns > self.at_ns[row]:
            self.count += 1
            row = (self.count - 1) % rows
            self.at_ns[row], self.steps[row], self.seconds[row], self.own_seconds[row] = at_ns, 0, 0.0, 0.0
        return row

    def shorten(self, rows: int) -> None:
        """Keep so many of the newest rows."""
        newest = np.arange(max(0, self.count - rows), self.count)
        old, new = newest % len(self.at_ns), newest % rows
        for name in ("at_ns", "steps", "newest", "seconds", "own_seconds"):
            array = getattr(self, name)
            shorter = np.zeros((rows, *array.shape[1:]), array.dtype)
            shorter[new] = array[old]
            setattr(self, name, shorter)

    def since(self, sequence: int, most: int) -> Pace:
        rows = len(self.at_ns)
        wanted = np.arange(max(sequence + 1, self.count - min(rows, most), 0), self.count)
        at = wanted % rows
        kept = slice(0, min(rows, self.count))
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
            (self.own_seconds[at] / steps[:, None]).astype(np.float32),
            float(np.percentile(self.seconds[kept] / np.maximum(self.steps[kept], 1), 25)),
        )

    def newest_seconds(self) -> float:
        """Mean time of a step in the newest row that is whole, else in the newest."""
        row = (self.count - (2 if self.count > 1 else 1)) % len(self.at_ns)
        return float(self.seconds[row] / max(int(self.steps[row]), 1))


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

    def newest_seconds(self) -> dict[str, float]:
        """Mean time of a step lately, by gang that telemetry tells of."""
        return {gang: self._rings[gang].newest_seconds() for gang in self._present & self._rings.keys()}
