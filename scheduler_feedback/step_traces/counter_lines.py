"""Counters in step traces of JSON lines: lines with the key `at` instead of `step`, one for a rank and a time.

Required keys: at (seconds, on the clock of the key `end` of steps), rank. Optional: job, and the counters by the names
of ``telemetry.FEATURES``: gauges as read, and rates as the mean since the rank's previous line. Other keys are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from agent.schema.errors import TraceError
from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray, IntArray
from scheduler_feedback.core.telemetry.telemetry import FEATURES, Counters, Float32Array, no_counters
from scheduler_feedback.step_traces.step_trace import MOST_CELLS, MOST_RANKS, number_of, seconds_of

MARK = b'"at"'
"""A line that contains this may be a line of counters."""

NAMES = tuple(feature.name for feature in FEATURES)
MOST_SECONDS = 1e11
"""Largest time: a wall time in seconds has ten digits, and one in milliseconds is refused."""

MOST_VALUE = 1e18
"""Largest absolute value of a counter. It is far above the bytes per second of any device."""

LEAST_INTERVAL = 0.1
"""Shortest length of a window in seconds. Agents sample at most ten times a second."""

CounterRow: Any = msgspec.defstruct(
    "CounterRow",
    [
        ("at", float),
        ("rank", int),
        ("job", str | None, None),
        *((name, float | None, None) for name in NAMES),
    ],
    gc=False,
)
"""One line of counters."""


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """m lines of counters of one job."""

    at: FloatArray
    """Time of each line in seconds: float64 [m]."""
    rank: IntArray
    """Rank of each line: int64 [m]."""
    values: Float32Array
    """Counters of each line, in the order of FEATURES: float32 [m, features], NaN if a line lacks one."""


def samples(rows: Sequence[Any]) -> Samples:
    """Return lines of one job as columns. Raises ValueError or OverflowError if a value is invalid."""
    columns = list(zip(*map(msgspec.structs.astuple, rows), strict=True))
    at, rank = np.array(columns[0], np.float64), np.array(columns[1], np.int64)
    values = np.array(columns[3:], np.float64).T  # None becomes NaN
    if (
        not ((at >= 0) & (at <= MOST_SECONDS)).all()
        or rank.min() < 0
        or rank.max() >= MOST_RANKS
        or bool((np.abs(values) > MOST_VALUE).any())
    ):
        raise ValueError
    return Samples(at, rank, values.astype(np.float32))


def checked_row(row: Mapping[str, Any], where: str) -> Any:
    """Return the values of one line. Raises TraceError if one is invalid.

    where: place in the file, for the error.
    """
    at = seconds_of(row["at"], f"{where}, key 'at'", zero=True)
    if at > MOST_SECONDS:
        raise TraceError(f"{where}, key 'at': {at:g} is out of range, seconds are expected")
    if row.get("rank") is None:
        raise TraceError(f"{where}: key 'rank' is missing")
    rank = number_of(row["rank"], f"{where}, key 'rank'")
    if rank >= MOST_RANKS:
        raise TraceError(f"{where}, key 'rank': {rank} is not a rank number below {MOST_RANKS}")
    job = row.get("job")
    if job is not None and not isinstance(job, str):
        raise TraceError(f"{where}, key 'job': {job!r} is not a string")
    values = {name: _value(row[name], f"{where}, key '{name}'") for name in NAMES if row.get(name) is not None}
    return CounterRow(at=at, rank=rank, job=job, **values)


def _value(value: object, where: str) -> float:
    try:
        found = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise TraceError(f"{where}: {value!r} is not a number") from None
    if isinstance(value, bool) or not math.isfinite(found):
        raise TraceError(f"{where}: {value!r} is not a finite number")
    if abs(found) > MOST_VALUE:
        raise TraceError(f"{where}: {found:g} is out of range")
    return found


class CounterTable:
    """Counters of one job with n ranks, in windows of equal length.

    A window has each rank's newest value of a counter in it, and NaN if it has none.
    """

    def __init__(self, parts: Sequence[Samples], ranks: IntArray, where: str) -> None:
        """Sort the lines into windows. Raises TraceError if a rank has no steps, or the windows do not fit in memory.

        ranks: the ranks of the job, increasing: int64 [n].
        """
        rank = np.concatenate([part.rank for part in parts])
        strange = ~np.isin(rank, ranks)
        if strange.any():
            raise TraceError(f"{where}: rank {int(rank[strange.argmax()])} has counters but no steps")
        at = np.concatenate([part.at for part in parts])
        values = np.concatenate([part.values for part in parts])
        used = np.flatnonzero(np.isfinite(values).any(axis=0))
        order = np.lexsort((at, rank))
        self.seconds = _interval(at[order], rank[order])
        """Length of a window in seconds."""
        self.first = float(at.min())
        """Begin of the first window, in seconds on the clock of the file."""
        window = np.floor((at - self.first) / self.seconds + 1e-6).astype(np.int64)
        self.windows = int(window.max()) + 1
        """Number of windows."""
        if self.windows > MOST_CELLS:
            raise TraceError(f"{where}: the times 'at' span {at.max() - self.first:g} s, in {self.windows} windows")
        order = np.lexsort((at, window))
        self._window, self._column = window[order], np.searchsorted(ranks, rank[order])
        self._values, self._used = values[np.ix_(order, used)], used
        self._ranks = len(ranks)

    def between(self, first: int, after: int, start_ns: int) -> Counters:
        """Return the windows `first` to `after` - 1.

        start_ns: time in ns at which the first window of the table begins.
        """
        if first >= after:
            return no_counters(self._ranks)
        values = np.full((len(FEATURES), after - first, self._ranks), np.nan, np.float32)
        begin, end = np.searchsorted(self._window, [first, after])
        window, column, found = self._window[begin:end] - first, self._column[begin:end], self._values[begin:end]
        for index, feature in enumerate(self._used.tolist()):
            known = np.isfinite(found[:, index])
            values[feature, window[known], column[known]] = found[known, index]
        at_ns = start_ns + np.rint(np.arange(first + 1, after + 1) * self.seconds * 1e9).astype(np.int64)
        return Counters(at_ns, self.seconds, values)


def _interval(at: FloatArray, rank: IntArray) -> float:
    """Return the usual time between two lines of a rank in seconds; whole seconds if it is close to them.

    at, rank: sorted by rank, then by time.
    """
    apart = np.diff(at)[np.diff(rank) == 0]
    apart = apart[apart > 0]
    if not len(apart):
        return 1.0
    usual = max(float(np.median(apart)), LEAST_INTERVAL)
    return float(round(usual)) if abs(usual - round(usual)) <= 0.1 * usual and usual >= 0.9 else usual
