"""The metrics of the state, computed for a limited share of the time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from agent.schema.clock import Clock
from agent.schema.sample import AnySample
from scheduler_feedback.core.state import State

PAUSE = 100
"""Pause between two computations of the metrics, as a multiple of the CPU time that one computation takes."""

LONGEST_PAUSE_SECONDS = 15.0
"""Longest pause between two computations: the scrape interval of the chart, so that each scrape finds new values."""


class StateSamples:
    """Newest metric samples of the state."""

    def __init__(
        self,
        compute: Callable[[State], Sequence[AnySample]],
        failed: Callable[[str, Exception], None],
        clock: Clock,
        cpu_time_ns: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        """Create samples that are empty until the first update.

        compute: returns the samples of a state. failed: called if `compute` raises an exception. cpu_time_ns: returns
        the CPU time of the calling thread in nanoseconds. Elapsed time would not do: on a busy machine one computation
        can take seconds, and a hundred times that would leave old values for minutes.
        """
        self._compute, self._failed, self._clock, self._cpu_time_ns = compute, failed, clock, cpu_time_ns
        self._due_ns = 0
        self.newest: tuple[AnySample, ...] = ()

    def update(self, state: State) -> None:
        """Compute the metrics again unless the last computation was too recent.

        They take at most a hundredth of a core, or one computation in LONGEST_PAUSE_SECONDS.
        """
        if self._clock.monotonic_ns() < self._due_ns:
            return
        began_ns = self._cpu_time_ns()
        try:
            self.newest = tuple(self._compute(state))
        except Exception as error:
            self.newest = ()  # no metrics instead of old ones
            self._failed("metrics", error)
        pause_ns = min((self._cpu_time_ns() - began_ns) * PAUSE, round(LONGEST_PAUSE_SECONDS * 1e9))
        self._due_ns = self._clock.monotonic_ns() + pause_ns
