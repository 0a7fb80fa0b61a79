"""Time shift of this process's steps: a wait before each step, so that gangs on one uplink communicate in turn.

The controller gives each gang a grid of times, ``offset + k * period`` in ns since 1970, at which its steps begin
(CASSINI). The node's agent sends it to ``gangwatch.steps``, which calls ``begin`` before each step. A process that is
early waits for the next time of the grid; one that is a little late begins at once, and catches up. Standard library
only, Python 3.8 or newer.

All waits together are at most a quarter of the process's own steps, and one wait is at most as long as one of its
newest steps. So a wrong order slows the training by a quarter at most. (Two gangs that communicate at the same time,
and could only wait for a quarter of a step each, would stay together.) An order is a lease: without renewal it ends
after LEASE_NS, and at once with the connection to the agent. If the clocks of two nodes differ, their ranks begin that
much apart, and the earlier ones wait for the later ones in the next collective.
"""

from __future__ import annotations

from time import monotonic_ns, sleep, time_ns
from typing import Any, Optional, Tuple  # noqa: UP035 (Python 3.8)

LEASE_NS = 60_000_000_000
"""Time in ns after which an order ends that is not renewed. The controller renews it every 15 s."""

WAIT_PART = 4
"""Each step adds this part of its length (a quarter) to what the process may wait, up to the shorter one of its two
newest steps."""

LATE_PART = 10
"""A process that is late by up to this part (a tenth) of the period begins at once."""

LEAST_PERIOD_NS, MOST_PERIOD_NS = 1_000_000, 600_000_000_000
"""Shortest and longest period of an order in ns: a millisecond and ten minutes."""


class TimeShift:
    """Order of the controller, and the times of the newest steps. ``begin`` is for the training's thread, the other
    methods are for the thread of the connection."""

    __slots__ = ("_before_ns", "_begun_ns", "_credit_ns", "_order")

    def __init__(self) -> None:
        self._order: Optional[Tuple[int, int, int]] = None  # noqa: UP006, UP045
        self._begun_ns = 0
        self._before_ns = 0
        self._credit_ns = MOST_PERIOD_NS

    def take(self, order: Any) -> None:
        """Take an order of the agent: ``{"period_ns", "offset_ns"}``, or None to end the present one.

        An invalid order ends the present one, too.
        """
        self._order = None
        if not isinstance(order, dict):
            return
        period_ns, offset_ns = order.get("period_ns"), order.get("offset_ns")
        if type(period_ns) is int and type(offset_ns) is int and LEAST_PERIOD_NS <= period_ns <= MOST_PERIOD_NS:
            self._order = period_ns, offset_ns % period_ns, monotonic_ns() + LEASE_NS

    def end(self) -> None:
        """End the present order."""
        self._order = None

    def begin(self) -> int:
        """Wait until the next step may begin, and return the duration of the wait in ns."""
        now_ns = monotonic_ns()
        took_ns = now_ns - self._begun_ns if self._begun_ns else 0
        usual_ns, self._before_ns = min(took_ns, self._before_ns), took_ns
        self._begun_ns = now_ns
        self._credit_ns = min(self._credit_ns + usual_ns // WAIT_PART, usual_ns) if usual_ns else self._credit_ns
        order = self._order
        if order is None:
            return 0
        if now_ns >= order[2]:
            self._order = None
            return 0
        wait_ns = min(wait_of(order[0], order[1], time_ns()), self._credit_ns, usual_ns)
        if wait_ns <= 0:
            return 0
        self._credit_ns -= wait_ns
        sleep(wait_ns / 1e9)
        self._begun_ns = monotonic_ns()
        return self._begun_ns - now_ns


def wait_of(period_ns: int, offset_ns: int, now_ns: int) -> int:
    """Return the time in ns until the next time of the grid; 0 if the newest one is just over.

    now_ns: time in ns since 1970.
    """
    late_ns = (now_ns - offset_ns) % period_ns
    return 0 if late_ns <= period_ns // LATE_PART else period_ns - late_ns
