"""A recorded trace: one job's steps, as every reader gives them, and how they are shown to the detectors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from agent.schema.errors import TraceError
from scheduler_feedback.core.telemetry.gang_attempts import FloatArray, IntArray
from scheduler_feedback.core.telemetry.telemetry import JobTelemetry, Shape, StepTable, Telemetry, no_counters
from scheduler_feedback.step_traces.operation_replay import Operations

START_NS = 1_000_000_000_000_000_000
"""Traces say how long steps took and not when they were: they are laid one behind the other from here on."""

SHORTEST, LONGEST = 1e-30, 1e30
"""Whatever the unit, what is beyond was never measured; and its square still fits a double."""

MOST_RANKS = 1 << 17
MOST_CELLS = 1 << 28
"""A trace of more cells (steps x ranks) than this would not fit in memory; it is refused before it is laid out."""


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One job of a trace, k steps of n ranks.

    worker: whether the trace calls its members workers (PAI) and not ranks. operations: what the steps were made of,
    where that was traced. notes: what was passed over in reading.
    """

    name: str
    shape: Shape
    steps: StepTable
    worker: bool = False
    operations: Operations | None = None
    notes: tuple[str, ...] = field(default=())

    def stream(self) -> Iterator[Telemetry]:
        """The steps one by one, in the order of their numbers."""
        none = no_counters(len(self.shape))
        for k in range(len(self.steps)):
            rows = slice(k, k + 1)
            one = StepTable(*(None if a is None else a[rows] for a in _arrays(self.steps)))  # type: ignore[arg-type]
            ends = self.steps.end_ns[k]
            yield Telemetry(int(ends.max()), (JobTelemetry(self.shape, one),), none)


def _arrays(steps: StepTable) -> list[npt.NDArray[np.generic] | None]:
    return [getattr(steps, name) for name in StepTable.__slots__]


def ends_of(seconds: FloatArray) -> IntArray:
    """int64 [k, n]: ends of steps of these lengths [k, n], all ranks ending together, laid one behind the other."""
    known = np.isfinite(seconds)
    longest = np.where(known, seconds, 0.0).max(axis=1, initial=0.0)
    scale = max(float(longest.max(initial=0.0)), 1e-12)
    unit = 1.0 if scale < 1e6 else 1e6 / scale  # a trace in nanoseconds must not run past the end of time
    ends = START_NS + np.cumsum(np.rint(longest * unit * 1e9).astype(np.int64))
    return np.repeat(ends[:, None], seconds.shape[1], axis=1)


def number_of(value: object, where: str, least: int = 0) -> int:
    """A whole number. Raises TraceError naming `where` for anything else or one below `least`."""
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            raise TraceError(f"{where}: {value!r} is no whole number") from None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TraceError(f"{where}: {value!r} is no whole number")
    if not least <= value < 1 << 62:
        raise TraceError(f"{where}: {value} is out of range, at least {least} is expected")
    return value


def seconds_of(value: object, where: str, *, zero: bool = False) -> float:
    """A length of time. Raises TraceError naming `where` for what is none: text, NaN, infinity, negative, zero."""
    try:
        found = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise TraceError(f"{where}: {value!r} is no number") from None
    if isinstance(value, bool) or not math.isfinite(found):
        raise TraceError(f"{where}: {value!r} is no finite number")
    if found < 0 or (found == 0 and not zero):
        raise TraceError(f"{where}: {found:g} is no length of time")
    if found and not SHORTEST <= found <= LONGEST:
        raise TraceError(f"{where}: {found:g} is out of range, {SHORTEST:g} to {LONGEST:g}")
    return found


def unique_columns(names: Sequence[str], required: Sequence[str], where: str) -> None:
    """Raises TraceError where a required column is missing, or any that is read stands twice."""
    for name in required:
        if name not in names:
            raise TraceError(f"{where}: column '{name}' is missing; it has {', '.join(map(repr, names)) or 'none'}")
    for name in dict.fromkeys(names):
        if name and list(names).count(name) > 1:
            raise TraceError(f"{where}: column '{name}' stands {list(names).count(name)} times")


def check_size(steps: int, ranks: int, where: str) -> None:
    """Raises TraceError for a trace without steps or ranks, or one too large to lay out."""
    if not steps or not ranks:
        raise TraceError(f"{where}: no steps in it")
    if ranks > MOST_RANKS or steps * ranks > MOST_CELLS:
        raise TraceError(f"{where}: {steps} steps of {ranks} ranks are more than can be laid out")
