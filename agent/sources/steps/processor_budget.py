"""Budget of the CPU time of a thread that serves clients."""

from __future__ import annotations

import time

BUSY_SHARE, BUSY_BURST_SECONDS, SLICE_SECONDS = 0.08, 0.1, 0.0005
"""CPU time for all clients: average share, burst (300 registrations), and minimum that is worth a wake-up."""


class ProcessorBudget:
    """Budget of the thread's CPU time: BUSY_SHARE of elapsed time, up to a burst."""

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
        """Return the time to sleep until a slice is available; 0 if some budget is left."""
        self.spend(0.0)
        return max(0.0, (SLICE_SECONDS - self._left) / BUSY_SHARE) if self._left <= 0.0 else 0.0
