"""Values of compatibility families that are computed from several columns or from earlier frames.

Earlier values are kept for five minutes (WINDOW_NS), even if the layout of the frames changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import Protocol

import numpy as np

from agent.schema.frame import Frame

WINDOW_NS = 300_000_000_000
"""Time in ns over which XID errors and clock events are counted: five minutes, as in dcgm-exporter."""

MOST_POINTS = 1024
"""Maximum number of earlier values that are kept per series. The window of 300 s needs 300 at one scrape per second. If
there are more than the maximum, the oldest are dropped."""


class Derived(Protocol):
    """Interface of an object that computes values from each frame. outputs: number of values per frame."""

    outputs: int

    def update(self, frame: Frame) -> Sequence[float | int | None]:
        """Return the values for this frame. A value is None if it is absent."""


class Memory:
    """Samples of the last five minutes (WINDOW_NS) of each series, by a key that the caller chooses."""

    def __init__(self) -> None:
        self._points: dict[Hashable, deque[tuple[int, int]]] = {}
        self._began_ns: int | None = None

    def rise(self, key: Hashable, now_ns: int, value: int) -> int:
        """Add a counter's value and return its increase within the window.

        A counter that appears after the first frame is assumed to start from zero.
        """
        points = self._points.get(key)
        if points is None:
            points = self._points[key] = deque(maxlen=MOST_POINTS)
            points.append((now_ns, 0 if self._began_ns is not None and now_ns > self._began_ns else value))
        if self._began_ns is None:
            self._began_ns = now_ns
        if value < points[-1][1]:
            points.clear()  # counter reset
            points.append((now_ns, 0))
        if value != points[-1][1]:
            points.append((now_ns, value))
        # The latest point before the window is the start value.
        while len(points) > 1 and points[1][0] <= now_ns - WINDOW_NS:
            points.popleft()
        began = points[0][1] if points[0][0] <= now_ns - WINDOW_NS or len(points) > 1 else value
        return value - began

    def times(self, key: Hashable, now_ns: int, active: bool) -> int:
        """Add whether a state is active. Return the number of frames within the window in which it was active."""
        points = self._points.setdefault(key, deque(maxlen=MOST_POINTS))
        if active and (not points or points[-1][0] < now_ns):
            points.append((now_ns, 1))
        while points and points[0][0] <= now_ns - WINDOW_NS:
            points.popleft()
        return len(points)


class Rises:
    """Increase of each counter within the window."""

    def __init__(self, memory: Memory, keys: Sequence[Hashable], counters: Sequence[int]) -> None:
        """Select the counters. keys: one key for each series. counters: indices of the series among the counter
        columns."""
        self.outputs = len(keys)
        self._memory, self._keys, self._counters = memory, list(keys), list(counters)

    def update(self, frame: Frame) -> list[int | None]:
        return [
            self._memory.rise(key, frame.monotonic_ns, int(frame.counters[index]))
            if frame.counters_valid[index]
            else None
            for key, index in zip(self._keys, self._counters, strict=True)
        ]


class Times:
    """For each gauge of a state, the number of frames within the window in which the state was active."""

    def __init__(self, memory: Memory, keys: Sequence[Hashable], gauges: Sequence[int]) -> None:
        self.outputs = len(keys)
        self._memory, self._keys, self._gauges = memory, list(keys), list(gauges)

    def update(self, frame: Frame) -> list[int | None]:
        return [
            None
            if np.isnan(frame.gauges[index])
            else self._memory.times(key, frame.monotonic_ns, bool(frame.gauges[index] > 0))
            for key, index in zip(self._keys, self._gauges, strict=True)
        ]


class Newest:
    """Value of the latest event of each group of events, for example the code of a GPU's latest XID error.

    The gauge of an event contains the time of its last occurrence. The value is 0 if no event of the group has
    occurred.
    """

    def __init__(self, groups: Sequence[Sequence[tuple[int, int]]]) -> None:
        """Select the groups. groups: for each group, pairs of the index of an event's gauge and the event's value."""
        self.outputs = len(groups)
        self._groups = [list(group) for group in groups]

    def update(self, frame: Frame) -> list[int | None]:
        newest: list[int | None] = []
        for group in self._groups:
            happened = [(float(frame.gauges[at]), value) for at, value in group if not np.isnan(frame.gauges[at])]
            newest.append(max(happened)[1] if happened else 0)
        return newest


class Sums:
    """Sums of pairs of gauges. A sum is absent if one of its two gauges is absent."""

    def __init__(self, pairs: Sequence[tuple[int, int]]) -> None:
        self.outputs = len(pairs)
        self._pairs = list(pairs)

    def update(self, frame: Frame) -> list[float | None]:
        sums = [float(frame.gauges[one] + frame.gauges[other]) for one, other in self._pairs]
        return [None if np.isnan(value) else value for value in sums]


class Masks:
    """Bit masks of the states that are active. A mask is absent if no state of its group has a value."""

    def __init__(self, groups: Sequence[Sequence[tuple[int, int]]]) -> None:
        """Select the gauges. groups: for each mask, pairs of the index of a state's gauge (0 or 1) and the state's
        bit."""
        self.outputs = len(groups)
        self._groups = [list(group) for group in groups]

    def update(self, frame: Frame) -> list[int | None]:
        masks: list[int | None] = []
        for group in self._groups:
            known = [(float(frame.gauges[at]), bit) for at, bit in group if not np.isnan(frame.gauges[at])]
            masks.append(sum(bit for state, bit in known if state > 0) if known else None)
        return masks
