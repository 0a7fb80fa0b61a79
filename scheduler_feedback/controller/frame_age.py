"""Age of the frames that detection uses, from their creation by the agents to the end of a tick.

A controller that is too slow leaves frames in its sockets. Their time of receipt then does not show how old they are,
so the age is measured by the wall clocks of the nodes. The median over the frames of a tick does not depend on a few
nodes whose clocks are wrong.
"""

from __future__ import annotations

from statistics import median_low

LATE_SECONDS = 5.0
"""Detection is late if the median age is above this limit. Normally a frame waits for at most one tick."""


class FrameAge:
    """Median age of the frames of the newest tick. Written by one thread; read by any thread.

    seconds: None before the first frame.
    """

    def __init__(self) -> None:
        self._made_ns: list[int] = []
        self.seconds: float | None = None

    def add(self, wall_ns: int) -> None:
        """Add a frame that the next tick uses. wall_ns: wall time at which the agent made the frame."""
        self._made_ns.append(wall_ns)

    def tick_ended(self, wall_ns: int) -> None:
        """Compute the age at the end of a tick. Without new frames, the last age remains."""
        if self._made_ns:
            self.seconds = max(0.0, (wall_ns - median_low(self._made_ns)) / 1e9)
            self._made_ns.clear()

    def late(self) -> str:
        """Return a sentence for users if detection is late; otherwise ''."""
        if self.seconds is None or self.seconds <= LATE_SECONDS:
            return ""
        return (
            f"Detection is late: it uses telemetry that is {self.seconds:.0f} s old, so verdicts come later than usual."
            " The controller has too little processor time, or its clock is wrong."
        )
