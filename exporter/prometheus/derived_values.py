"""Values that stand in no column: worked out of several, or of what they were some minutes ago.

Only compatibility names need such values. What they remember outlives a layout, and is bounded by time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import Protocol

import numpy as np

from agent.schema.frame import Frame

WINDOW_NS = 300_000_000_000
"""dcgm-exporter's own: five minutes, for XIDs and for clock events."""

MOST_POINTS = 1024
"""Of one window: 300 s at one scrape a second, and as many again. Beyond that the oldest points are lost early."""


class Derived(Protocol):
    """Values made of a frame."""

    outputs: int

    def update(self, frame: Frame) -> Sequence[float | int | None]:
        """The values at this frame, None where absent."""


class Memory:
    """What windows remember, by whatever singles a series out."""

    def __init__(self) -> None:
        self._points: dict[Hashable, deque[tuple[int, int]]] = {}
        self._began_ns: int | None = None

    def rise(self, key: Hashable, now_ns: int, value: int) -> int:
        """How much a counter rose within the window. One first seen after the rest began from zero."""
        points = self._points.get(key)
        if points is None:
            points = self._points[key] = deque(maxlen=MOST_POINTS)
            points.append((now_ns, 0 if self._began_ns is not None and now_ns > self._began_ns else value))
        if self._began_ns is None:
            self._began_ns = now_ns
        if value < points[-1][1]:
            points.clear()  # it began anew
            points.append((now_ns, 0))
        if value != points[-1][1]:
            points.append((now_ns, value))
        # The newest point before the window says what it began with.
        while len(points) > 1 and points[1][0] <= now_ns - WINDOW_NS:
            points.popleft()
        began = points[0][1] if points[0][0] <= now_ns - WINDOW_NS or len(points) > 1 else value
        return value - began

    def times(self, key: Hashable, now_ns: int, active: bool) -> int:
        """How often something was seen active within the window."""
        points = self._points.setdefault(key, deque(maxlen=MOST_POINTS))
        if active and (not points or points[-1][0] < now_ns):
            points.append((now_ns, 1))
        while points and points[0][0] <= now_ns - WINDOW_NS:
            points.popleft()
        return len(points)


class Rises:
    """How much each of some counters rose within the window."""

    def __init__(self, memory: Memory, keys: Sequence[Hashable], counters: Sequence[int]) -> None:
        """counters: indices among the counter columns."""
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
    """How often each of some states was seen within the window."""

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
    """Of each group, the value whose time is the newest; 0 for a group none of which has happened."""

    def __init__(self, groups: Sequence[Sequence[tuple[int, int]]]) -> None:
        """groups: for each output, pairs of a gauge column that holds a time and the value that goes with it."""
        self.outputs = len(groups)
        self._groups = [list(group) for group in groups]

    def update(self, frame: Frame) -> list[int | None]:
        newest: list[int | None] = []
        for group in self._groups:
            happened = [(float(frame.gauges[at]), value) for at, value in group if not np.isnan(frame.gauges[at])]
            newest.append(max(happened)[1] if happened else 0)
        return newest


class Sums:
    """Of each pair of gauges the sum; absent where one of them is."""

    def __init__(self, pairs: Sequence[tuple[int, int]]) -> None:
        self.outputs = len(pairs)
        self._pairs = list(pairs)

    def update(self, frame: Frame) -> list[float | None]:
        sums = [float(frame.gauges[one] + frame.gauges[other]) for one, other in self._pairs]
        return [None if np.isnan(value) else value for value in sums]
