"""Recorded traces: the steps of one job in the form that every reader returns, and their conversion to telemetry."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from agent.schema.errors import TraceError
from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray, IntArray
from scheduler_feedback.core.telemetry.telemetry import JobTelemetry, Shape, StepTable, Telemetry, no_counters
from scheduler_feedback.step_traces.operation_replay import Operations

if TYPE_CHECKING:
    from scheduler_feedback.step_traces.counter_lines import CounterTable

START_NS = 1_000_000_000_000_000_000
"""Start time of replayed traces, in nanoseconds. A trace contains durations but no times, so its first step starts at
this time and the others follow."""

TICK_NS = 500_000_000
"""Interval in ns at which the detectors run over a recording with real times, as in the controller: twice a second."""

SHORTEST, LONGEST = 1e-30, 1e30
"""Shortest and longest duration that a trace may contain, in the unit of the trace. A double can still hold their
squares."""

MOST_RANKS = 1 << 17
MOST_NUMBER = 1 << 62
"""All whole numbers of a trace are smaller, so that int64 can hold their sums."""

MOST_CELLS = 1 << 28
"""Maximum number of values (steps x ranks) in a trace. A larger trace would not fit in memory and is refused before it
is loaded."""


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One job of a trace: k steps of n ranks."""

    name: str
    """Name of the job."""
    shape: Shape
    """Ranks of the job, with their nodes and roles."""
    steps: StepTable
    """Times of each step on each rank."""
    worker: bool = False
    """Whether the trace calls its members workers (PAI) instead of ranks."""
    operations: Operations | None = None
    """Operations of which the steps consist; None if the trace does not contain them."""
    notes: tuple[str, ...] = field(default=())
    """Remarks of the reader about data that it ignored."""
    counters: CounterTable | None = None
    """Counters of the ranks; None if the trace has none. With counters, the times of the trace are real seconds."""
    counters_start_ns: int = START_NS
    """Time in ns at which the first window of the counters begins."""

    def stream(self) -> Iterator[Telemetry]:
        """Yield the steps as telemetry: with counters at each tick of a clock, otherwise one by one in the order of
        their numbers."""
        if self.counters is not None:
            yield from self._ticks(self.counters)
            return
        none = no_counters(len(self.shape))
        for k in range(len(self.steps)):
            rows = slice(k, k + 1)
            one = StepTable(*(None if a is None else a[rows] for a in _arrays(self.steps)))  # type: ignore[arg-type]
            ends = self.steps.end_ns[k]
            yield Telemetry(int(ends.max()), (JobTelemetry(self.shape, one),), none)

    def _ticks(self, counters: CounterTable) -> Iterator[Telemetry]:
        """Yield at each tick the steps that all ranks have ended, and the windows that have closed, since the last."""
        order = np.argsort(self.steps.end_ns.max(axis=1), kind="stable")
        ends = self.steps.end_ns.max(axis=1)[order]
        closes = self.counters_start_ns + np.rint(np.arange(1, counters.windows + 1) * counters.seconds * 1e9).astype(
            np.int64
        )
        now_ns, step, window = int(min(ends[0], closes[0])), 0, 0
        last_ns = int(max(ends[-1], closes[-1])) + TICK_NS
        while now_ns <= last_ns:
            ended = int(np.searchsorted(ends, now_ns, side="right"))
            closed = int(np.searchsorted(closes, now_ns, side="right"))
            rows = order[step:ended]
            new = StepTable(*(None if a is None else a[rows] for a in _arrays(self.steps)))  # type: ignore[arg-type]
            windows = counters.between(window, closed, self.counters_start_ns)
            yield Telemetry(now_ns, (JobTelemetry(self.shape, new),), windows)
            step, window, now_ns = ended, closed, now_ns + TICK_NS


def _arrays(steps: StepTable) -> list[npt.NDArray[np.generic] | None]:
    return [getattr(steps, name) for name in StepTable.__slots__]


def ends_of(seconds: FloatArray) -> IntArray:
    """Return the end of each step on each rank, if steps with these durations follow each other: int64 [k steps, n
    ranks], in ns.

    All ranks end a step together.
    """
    known = np.isfinite(seconds)
    longest = np.where(known, seconds, 0.0).max(axis=1, initial=0.0)
    scale = max(float(longest.max(initial=0.0)), 1e-12)
    unit = 1.0 if scale < 1e6 else 1e6 / scale  # the sum of a trace in nanoseconds must not overflow
    ends = START_NS + np.cumsum(np.rint(longest * unit * 1e9).astype(np.int64))
    return np.repeat(ends[:, None], seconds.shape[1], axis=1)


def number_of(value: object, where: str, least: int = 0) -> int:
    """Return the value as an integer of at least `least`. Raises TraceError for anything else, with `where` in its
    text."""
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            raise TraceError(f"{where}: {value!r} is not a whole number") from None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TraceError(f"{where}: {value!r} is not a whole number")
    if not least <= value < MOST_NUMBER:
        raise TraceError(f"{where}: {value} is out of range, at least {least} is expected")
    return value


def seconds_of(value: object, where: str, *, zero: bool = False) -> float:
    """Return the value as a duration in seconds. Raises TraceError for text, NaN, infinity, negative values and zero.

    zero: whether zero is allowed. where: place in the file, for the error.
    """
    try:
        found = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise TraceError(f"{where}: {value!r} is not a number") from None
    if isinstance(value, bool) or not math.isfinite(found):
        raise TraceError(f"{where}: {value!r} is not a finite number")
    if found < 0 or (found == 0 and not zero):
        raise TraceError(f"{where}: {found:g} is not a valid duration")
    if found and not SHORTEST <= found <= LONGEST:
        raise TraceError(f"{where}: {found:g} is out of range, {SHORTEST:g} to {LONGEST:g}")
    return found


def unique_columns(names: Sequence[str], required: Sequence[str], where: str) -> None:
    """Check the columns of a file. Raises TraceError if a required column is missing or a name occurs twice."""
    for name in required:
        if name not in names:
            raise TraceError(f"{where}: column '{name}' is missing; it has {', '.join(map(repr, names)) or 'none'}")
    for name in dict.fromkeys(names):
        if name and list(names).count(name) > 1:
            raise TraceError(f"{where}: column '{name}' appears {list(names).count(name)} times")


def check_size(steps: int, ranks: int, where: str) -> None:
    """Check the size of a trace. Raises TraceError if it has no steps or ranks, or is too large."""
    if not steps or not ranks:
        raise TraceError(f"{where}: the file contains no steps")
    if ranks > MOST_RANKS or steps * ranks > MOST_CELLS:
        raise TraceError(f"{where}: {steps} steps of {ranks} ranks are more than fit in memory")
