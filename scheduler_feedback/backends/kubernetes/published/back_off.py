"""Pauses of writes that the API server refuses, in a namespace that is being deleted or without a right. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection
from time import monotonic

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 60.0


class BackOff:
    """Keys of refused writes, and when each may be tried again: after 1 s, and twice as long after each refusal.

    clock: returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._paused: dict[str, tuple[float, float]] = {}  # by key: (end of the pause, its length in seconds)

    def pauses(self, key: str) -> bool:
        """Return whether the write of this key must wait."""
        until, _ = self._paused.get(key, (0.0, 0.0))
        return self._clock() < until

    def refused(self, key: str) -> float:
        """Begin a pause, and return its length in seconds."""
        _, before = self._paused.get(key, (0.0, 0.0))
        seconds = min(2 * before, LONGEST_SECONDS) if before else FIRST_SECONDS
        self._paused[key] = self._clock() + seconds, seconds
        return seconds

    def accepted(self, key: str) -> None:
        """Forget the refusals of this key."""
        self._paused.pop(key, None)

    def keep(self, keys: Collection[str]) -> None:
        """Forget all keys except these."""
        for key in [key for key in self._paused if key not in keys]:
            del self._paused[key]
