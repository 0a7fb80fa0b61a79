"""Time shifts of gangs on lease: what the controller has ordered for this node, until when.

The thread of the frames' server replaces the orders, the step collector passes them to the reporters of each gang. An
order that is not renewed ends after LEASE_SECONDS, as in the reporters (gangwatch/reporting/time_shift.py).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import NamedTuple

from agent.schema.clock import Clock, SystemClock

LEASE_SECONDS = 60.0
"""Time after the newest order after which it ends. The controller repeats its orders every 15 s."""

MOST_GANGS = 64
"""Maximum number of gangs in one order."""


class Shift(NamedTuple):
    """Grid of times at which the steps of a gang begin: offset + k * period, in nanoseconds since 1970."""

    period_ns: int
    offset_ns: int


class ShiftOrders:
    """Newest order of the controller, by gang as the agent names it. Thread-safe."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._shifts: dict[str, Shift] = {}
        self._ends_ns = 0
        self._number = 0

    def order(self, shifts: Mapping[str, tuple[int, int]]) -> None:
        """Take an order of the controller. The shifts of gangs that are not in it end now."""
        with self._lock:
            self._shifts = {gang: Shift(*shift) for gang, shift in list(shifts.items())[:MOST_GANGS]}
            self._ends_ns = self._clock.monotonic_ns() + round(LEASE_SECONDS * 1e9)
            self._number += 1

    def newest(self) -> tuple[int, Mapping[str, Shift]]:
        """Return the number of the newest order, which grows with each renewal, and its shifts; none after its end."""
        with self._lock:
            if self._shifts and self._clock.monotonic_ns() >= self._ends_ns:
                self._shifts = {}
                self._number += 1
            return self._number, self._shifts
