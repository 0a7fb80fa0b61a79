"""The metrics of the state, computed for a limited share of the time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agent.schema.clock import Clock
from scheduler_feedback.core.state import State
from scheduler_feedback.core.telemetry.fleet import Sample

PAUSE = 20
"""Least pause between two computations of the metrics, as a multiple of the time that one computation takes."""


class StateSamples:
    """Newest metric samples of the state. compute: returns them. failed: called if `compute` raises an exception."""

    def __init__(
        self, compute: Callable[[State], Sequence[Sample]], failed: Callable[[str, Exception], None], clock: Clock
    ) -> None:
        self._compute, self._failed, self._clock = compute, failed, clock
        self._due_ns = 0
        self.newest: tuple[Sample, ...] = ()

    def update(self, state: State) -> None:
        """Compute the metrics again unless the last computation was too recent.

        They take at most a twentieth of the time.
        """
        began_ns = self._clock.monotonic_ns()
        if began_ns < self._due_ns:
            return
        try:
            self.newest = tuple(self._compute(state))
        except Exception as error:
            self.newest = ()  # no metrics instead of old ones
            self._failed("metrics", error)
        ended_ns = self._clock.monotonic_ns()
        self._due_ns = ended_ns + (ended_ns - began_ns) * PAUSE
