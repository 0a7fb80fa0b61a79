"""Values derived from several columns or from earlier values, for compatibility names.

Their history outlives a layout and is limited in time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import Protocol

import numpy as np

from agent.schema.frame import Frame

WINDOW_NS = 300_000_000_000
"""dcgm-exporter's window of five minutes, for XIDs and clock events."""

MOST_POINTS = 1024
"""Maximum number of points per window: 300 s at one scrape per second, with reserve. If there are more, the oldest are
dropped early."""


class Derived(Protocol):
    """Values derived from a frame."""

    outputs: int

    def update(self, frame: Frame) -> Sequence[float | int | None]:
        """Return the values at this frame; None if absent."""


class Memory:
    """Recent points of each series in its window, by a key that identifies the series."""

    def __init__(self) -> None:
        self._points: dict[Hashable, deque[tuple[int, int]]] = {}
        self._began_ns: int | None = None

    def rise(self, key: Hashable, now_ns: int, value: int) -> int:
        """Return the increase of a counter within the window.

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
        """Return the number of frames within the window in which a state was active."""
        points = self._points.setdefault(key, deque(maxlen=MOST_POINTS))
        if active and (not points or points[-1][0] < now_ns):
            points.append((now_ns, 1))
        while points and points[0][0] <= now_ns - WINDOW_NS:
            points.popleft()
        return len(points)


class Rises:
    """Increases of counters within the window."""

    def __init__(self, memory: Memory, keys: Sequence[Hashable], counters: Sequence[int]) -> None:
        """Create it. keys: one for each series. counters: indices of the series among the counter columns."""
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
    """Counts of active states within the window."""

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
    """Newest value of each group; 0 if no gauge of the group has a time."""

    def __init__(self, groups: Sequence[Sequence[tuple[int, int]]]) -> None:
        """Create it.

        groups: for each output, pairs of a gauge column that contains a time, and the value for that time.
        """
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
