"""Two clocks, named apart: monotonic for rates and ages, wall for labels and plans.

Code that decides takes instants as arguments; code at the edge takes a ``Clock``, so that tests and simulation bring
their own.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of both times, in integer nanoseconds."""

    def monotonic_ns(self) -> int:
        """Nanoseconds since an arbitrary start of this boot; never falls. Same clock for every process of a host."""
        ...

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch; may step either way."""
        ...


class SystemClock:
    """The machine's own clocks (CLOCK_MONOTONIC and CLOCK_REALTIME, clock_gettime(2))."""

    __slots__ = ()

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        return time.time_ns()


class ManualClock:
    """A clock that moves only when told to; both times start where the caller says."""

    __slots__ = ("_monotonic_ns", "_wall_ns")

    def __init__(self, monotonic_ns: int = 0, wall_ns: int = 1_700_000_000_000_000_000) -> None:
        self._monotonic_ns = monotonic_ns
        self._wall_ns = wall_ns

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def wall_ns(self) -> int:
        return self._wall_ns

    def advance(self, seconds: float) -> None:
        """Move both times forward. Raises ValueError for a negative distance."""
        if seconds < 0:
            raise ValueError(f"a clock is not moved back: {seconds} s")
        self._monotonic_ns += round(seconds * 1e9)
        self._wall_ns += round(seconds * 1e9)
