"""Limit of the CPU time of a thread that serves clients."""

from __future__ import annotations

import time

BUSY_SHARE, BUSY_BURST_SECONDS, SLICE_SECONDS = 0.08, 0.1, 0.0005
"""Limits of the CPU time for all clients. BUSY_SHARE: average share of one CPU. BUSY_BURST_SECONDS: CPU seconds that
may be used at once, enough for 300 registrations. SLICE_SECONDS: CPU seconds that must be available before the thread
continues after a pause."""


class ProcessorBudget:
    """CPU time that the thread may use. It grows by BUSY_SHARE of the elapsed time, up to BUSY_BURST_SECONDS."""

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
        """Return how long the thread must sleep to be allowed SLICE_SECONDS of CPU time; 0 if it may continue now."""
        self.spend(0.0)
        return max(0.0, (SLICE_SECONDS - self._left) / BUSY_SHARE) if self._left <= 0.0 else 0.0
