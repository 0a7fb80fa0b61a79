"""Rate at which the controller asks agents for messages while the feed's thread has too little time. Pure.

A controller that cannot keep up would otherwise use older and older frames. At `every` N, an agent sends one message
for N frames. It has the values of every second frame, or only of the newest one if the agent is of an earlier release,
and the records of all of them, so none is left out (exporter/server.py). docs/adr/0133 and 0162 have the measurements.
"""

from __future__ import annotations

MOST_EVERY = 8
"""Maximum number of frames for which an agent sends one message."""

MOST_APART = 2
"""Maximum number of frames for which an agent sends one sample. With each fourth frame, 3 of 12 jobs whose rank 0 saves
were accused with .98, because the counters of four seconds do not show which step waited for the disk. With each second
one, none was (``benchmarks.straggler --every 4``), nor with four samples in one message (``--every 8 --samples 4``)."""

LEAST_SECONDS, CALM_SECONDS = 5.0, 30.0
"""Time in seconds over which the thread's time is measured: before frames are requested less often, and before
they are requested more often again."""

BUSY_MOST, BUSY_LEAST = 0.7, 0.3
"""Shares of the time between ticks of detection in which the feed's thread reads frames. Above the first, frames are
requested half as often; below the second, twice as often. Twice the second is below the first, so that the rate does
not change to and fro. Development values."""

CALM_LATE_SECONDS = 10.0
"""CALM_SECONDS while agents send more than one sample at a time, which are then up to eight seconds old."""

LONGEST_SECONDS = 8.0
"""Longest time in seconds between two messages that the controller asks for."""


class FrameRate:
    """Decides how many frames agents leave out. every: 1 for all frames, N for each N-th frame."""

    __slots__ = ("_before", "_calm", "every")

    def __init__(self) -> None:
        self.every = 1
        self._before: tuple[int, int, int] | None = None
        self._calm = 0

    def take(self, now_ns: int, idle_ns: int, ticks_ns: int) -> int:
        """Return `every` as of this time.

        now_ns: monotonic time. idle_ns, ticks_ns: total time in nanoseconds in which the thread waited, and ran ticks.
        """
        if self._before is None:
            self._before = now_ns, idle_ns, ticks_ns
        passed_ns, idle, ticks = (
            now - before for now, before in zip((now_ns, idle_ns, ticks_ns), self._before, strict=True)
        )
        if passed_ns < LEAST_SECONDS * 1e9:
            return self.every
        share = 1.0 - idle / max(1, passed_ns - ticks)
        self._before = now_ns, idle_ns, ticks_ns
        if share > BUSY_MOST:
            self.every, self._calm = min(MOST_EVERY, 2 * self.every), 0
        elif share >= BUSY_LEAST or self.every == 1:
            self._calm = 0
        else:
            self._calm += 1
            calm_seconds = CALM_SECONDS if self.every <= MOST_APART else CALM_LATE_SECONDS
            if self._calm * LEAST_SECONDS >= calm_seconds:
                self.every, self._calm = self.every // 2, 0
        return self.every


def every_of(every: int, interval_seconds: float, most_samples: int = 1) -> int:
    """Return `every` for one agent. It is lowered for long intervals, and for agents that cannot send so many samples.

    interval_seconds: interval of the agent's frames. most_samples: the largest number of samples in its messages.
    """
    every = min(every, MOST_APART * most_samples)
    while every > 1 and every * interval_seconds > LONGEST_SECONDS:
        every //= 2
    return every


def samples_of(every: int) -> int:
    """Return the number of samples in a message for `every` frames."""
    return max(1, every // MOST_APART)
