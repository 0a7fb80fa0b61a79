"""Budget of the CPU time of a thread that serves clients."""

from __future__ import annotations

import time

BUSY_SHARE, BUSY_BURST_SECONDS, SLICE_SECONDS = 0.08, 0.1, 0.0005
"""Limits of the CPU time for all clients: average share of one CPU, burst in seconds (enough for 300 registrations),
and minimum CPU time for which the thread wakes up."""


class ProcessorBudget:
    """Budget of the thread's CPU time. It grows by BUSY_SHARE of elapsed time, up to BUSY_BURST_SECONDS."""

    def __init__(self) -> None:
        self._left = BUSY_BURST_SECONDS
        self._at = time.monotonic()

    def spend(self, seconds: float) -> None:
        now = time.monotonic()
        self._left = min(BUSY_BURST_SECONDS, self._left + (now - self._at) * BUSY_SHARE) - seconds
        self._at = now

    @property
    def used_up(self) -> bool:
        return self._left <= 0.0

    def rest_seconds(self) -> float:
        """Return the seconds to sleep until SLICE_SECONDS of budget are available; 0 if some budget is left."""
        self.spend(0.0)
        return max(0.0, (SLICE_SECONDS - self._left) / BUSY_SHARE) if self._left <= 0.0 else 0.0
