"""Conversion of a node's monotonic times to the controller's wall time, even if the node's wall clock is wrong.

A frame contains the times of both clocks of the node. With NTP, the wall clock is accurate to milliseconds, which is
better than any estimate from the receipt of frames. The wall clock is therefore used while it agrees with the time of
receipt within MOST_SKEW_NS. If the difference is larger, the node's wall clock is wrong (or the controller's, and then
all nodes disagree). The time of receipt then replaces the wall clock, corrected by the least delay of the last minutes.
All times of a gang are compared with each other and with "now", so all must be of one clock.
"""

from __future__ import annotations

from dataclasses import dataclass

SAME_CLOCK_NS = 1_000_000_000
"""Limit between an adjustment and a jump of a node's wall clock, relative to its monotonic clock. A larger change means
that the clock was set to a new time or that the node was suspended."""

MOST_SKEW_NS = 2_000_000_000
"""Largest skew of a correct wall clock. Frames are received within a fraction of a second. A busy controller receives
some frames late, but not all frames of ten minutes."""

WINDOW_NS = 300_000_000_000
"""Length of the time windows in which the least delay is measured. The least delay of the current and the previous
window is used. Monotonic clocks
differ by at most 50 ppm: 30 ms in ten minutes."""

_NEVER = 1 << 62


@dataclass(slots=True)
class NodeClock:
    """Clocks of one node: offset from monotonic to wall time, and skew against the controller's wall clock."""

    offset_ns: int = 0
    """Wall time minus monotonic time of the node. It changes only when the wall clock jumps or the node was
    suspended."""
    skew_ns: int = 0
    """Lead of the node's wall clock over the controller's; 0 while they agree. It changes in steps of a second."""
    _least_ns: int = _NEVER
    _least_before_ns: int = _NEVER
    _since_ns: int = 0

    def take(self, wall_ns: int, monotonic_ns: int, received_ns: int, here_ns: int | None) -> bool:
        """Update the offset and skew from one frame's clocks. Returns whether the conversion of the node's times has
        changed.

        received_ns: time of receipt on the controller's monotonic clock. here_ns: the controller's wall time minus its
        monotonic time; None if the receiver's clock is unrelated to wall time.
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
        """Offset that converts the node's monotonic time to the controller's wall time, in nanoseconds."""
        return self.offset_ns - self.skew_ns
