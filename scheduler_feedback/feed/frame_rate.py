"""Rate at which the controller asks agents for frames: every frame, or only every second one while the feed's thread
has too little time. Pure.

A controller that cannot keep up would otherwise use older and older frames. Records of steps come with the next frame,
so none is left out (exporter/server.py). docs/adr/0133 has the measurements.
"""

from __future__ import annotations

MOST_EVERY = 2
"""With each fourth frame, 3 of 12 jobs whose rank 0 saves were accused with .98, because the counters of four seconds
do not show which step waited for the disk. With each second one, none was (``benchmarks.straggler --every 4``)."""

LEAST_SECONDS, CALM_SECONDS = 5.0, 30.0
"""Time in seconds over which the thread's time is measured: before frames are requested less often, and before
they are requested more often again."""

BUSY_MOST, BUSY_LEAST = 0.7, 0.3
"""Shares of the time between ticks of detection in which the feed's thread reads frames. Above the first, frames are
requested half as often; below the second, twice as often. Twice the second is below the first, so that the rate does
not change to and fro. Development values."""

LONGEST_SECONDS = 5.0
"""Longest time in seconds between two frames that the controller asks for. A stream without frames for 10 s counts as
silent."""


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
            if self._calm * LEAST_SECONDS >= CALM_SECONDS:
                self.every, self._calm = self.every // 2, 0
        return self.every


def every_of(every: int, interval_seconds: float) -> int:
    """Return `every` for one agent. It is lowered if the agent's interval is so long that its stream would seem
    silent."""
    return max(1, min(every, int(LONGEST_SECONDS / max(interval_seconds, 0.001))))
