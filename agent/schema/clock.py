"""Monotonic clock for rates and ages, and wall clock for labels and schedules.

Decision code takes times as arguments. Other code takes a ``Clock`` object. Tests and the simulation pass their
own clock.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Source of monotonic and wall time, in integer nanoseconds."""

    def monotonic_ns(self) -> int:
        """Return nanoseconds since an arbitrary time of this boot.

        The clock never goes back and is the same for all processes of a host.
        """
        ...

    def wall_ns(self) -> int:
        """Return nanoseconds since the Unix epoch. The value may jump forward or back."""
        ...


class SystemClock:
    """The machine's clocks (CLOCK_MONOTONIC and CLOCK_REALTIME, clock_gettime(2))."""

    __slots__ = ()

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        return time.time_ns()


class ManualClock:
    """Clock that advances only when ``advance`` is called. The monotonic and wall start times are parameters."""

    __slots__ = ("_monotonic_ns", "_wall_ns")

    def __init__(self, monotonic_ns: int = 0, wall_ns: int = 1_700_000_000_000_000_000) -> None:
        self._monotonic_ns = monotonic_ns
        self._wall_ns = wall_ns

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def wall_ns(self) -> int:
        return self._wall_ns

    def advance(self, seconds: float) -> None:
        """Move the monotonic and the wall time forward. Raise ValueError for a negative duration."""
        if seconds < 0:
            raise ValueError(f"cannot move a clock back: {seconds} s")
        self._monotonic_ns += round(seconds * 1e9)
        self._wall_ns += round(seconds * 1e9)
