"""A node's clock beside the controller's: its monotonic times in wall time, also where its own is minutes wrong.

A frame says what the node's two clocks show. A wall clock that is kept by NTP is right to milliseconds, and better than
anything that a frame's receipt could tell; so it is taken at its word while it agrees with that receipt within
MOST_SKEW_NS. Beyond it the node's wall clock is wrong (or ours is, and then all nodes' are): the frame's receipt
stands for it, by the least delay of the last minutes. All times of a gang are compared with one another and with "now",
so what matters is that they are of one clock.
"""

from __future__ import annotations

from dataclasses import dataclass

SAME_CLOCK_NS = 1_000_000_000
"""A node's wall clock that moved against its monotonic one by less than this was adjusted; by more, it was set anew, or
the node was suspended."""

MOST_SKEW_NS = 2_000_000_000
"""A wall clock that is further off is wrong. Frames are a fraction of a second old when they come; a busy controller
receives some late, but hardly all of ten minutes."""

WINDOW_NS = 300_000_000_000
"""The least delay is of the present and the last window of so long: monotonic clocks differ by 50 ppm and less, 30 ms
in ten minutes."""

_NEVER = 1 << 62


@dataclass(slots=True)
class NodeClock:
    """offset_ns: the node's wall time less its monotonic one, as it was when either was last set anew. skew_ns: what
    its wall clock is ahead of the controller's; 0 while they agree. It follows in steps of a second."""

    offset_ns: int = 0
    skew_ns: int = 0
    _least_ns: int = _NEVER
    _least_before_ns: int = _NEVER
    _since_ns: int = 0

    def take(self, wall_ns: int, monotonic_ns: int, received_ns: int, here_ns: int | None) -> bool:
        """Take in one frame's clocks; whether the node's times are to be read otherwise from now on.

        received_ns: on the controller's monotonic clock; here_ns: the controller's wall time less its monotonic one,
        None where the receiver's clock says nothing of wall time.
        """
        changed = False
        offset_ns, delay_ns = wall_ns - monotonic_ns, received_ns - monotonic_ns
        if abs(offset_ns - self.offset_ns) > SAME_CLOCK_NS:
            self.offset_ns, changed = offset_ns, True
            self._least_ns = self._least_before_ns = delay_ns
            self._since_ns = received_ns
        elif received_ns - self._since_ns > WINDOW_NS:
            self._least_before_ns, self._least_ns, self._since_ns = self._least_ns, delay_ns, received_ns
        elif delay_ns < self._least_ns:
            self._least_ns = delay_ns
        if here_ns is None:
            return changed
        skew_ns = self.offset_ns - here_ns - min(self._least_ns, self._least_before_ns)
        if abs(skew_ns) <= MOST_SKEW_NS:
            skew_ns = 0
        if abs(skew_ns - self.skew_ns) > SAME_CLOCK_NS:
            self.skew_ns, changed = skew_ns, True
        return changed

    @property
    def to_wall_ns(self) -> int:
        """What is added to a time of the node's monotonic clock to have it in the controller's wall time."""
        return self.offset_ns - self.skew_ns
