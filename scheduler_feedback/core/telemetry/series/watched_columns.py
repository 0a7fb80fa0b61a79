"""Last values of the monitored series of many nodes, to find in one array operation the nodes on which one changed.

Device events are rare, and each frame of each node has to be compared with the one before. Nodes whose layouts have
the monitored series in the same columns share one set of arrays.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.telemetry.series.frame_batch import Batch
from scheduler_feedback.core.telemetry.telemetry import IndexArray


class WatchedColumns:
    """Columns of g gauges and c counters, and their last values on each node; one row per node.

    key: identifies the columns and the lengths of the frames' arrays.
    """

    def __init__(self, key: bytes, gauge: IndexArray, counter: IndexArray) -> None:
        self.key = key
        self._gauge, self._counter = gauge, counter
        self._rows = 0
        self._free: list[int] = []
        self._gauges: npt.NDArray[np.int64] = np.zeros((0, len(gauge)), np.int64)
        self._counters: npt.NDArray[np.uint64] = np.zeros((0, len(counter)), np.uint64)
        self._fresh = np.zeros(0, np.bool_)

    def add(self) -> int:
        """Reserve a row for a node, and return its index. The first frame of a row counts as a change."""
        row = self._free.pop() if self._free else self._rows
        self._rows = max(self._rows, row + 1)
        if row >= len(self._fresh):
            add = max(8, len(self._fresh) // 4)
            self._gauges = np.concatenate((self._gauges, np.zeros((add, len(self._gauge)), np.int64)))
            self._counters = np.concatenate((self._counters, np.zeros((add, len(self._counter)), np.uint64)))
            self._fresh = np.concatenate((self._fresh, np.zeros(add, np.bool_)))
        self._fresh[row] = True
        return row

    def drop(self, row: int) -> None:
        """Free the row of a node."""
        self._free.append(row)

    @property
    def empty(self) -> bool:
        """Whether no node has a row."""
        return len(self._free) == self._rows

    def take(self, rows: Sequence[int], batch: Batch) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Keep the values of one frame for each of k different rows. Return two arrays, bool [k]: whether a gauge has
        changed, and whether a counter has. An unknown gauge (NaN) equals an unknown gauge."""
        at = np.array(rows, np.intp)
        gauges = batch.gauges.take(self._gauge, axis=1).view(np.int64)
        counters = batch.counters.take(self._counter, axis=1)
        fresh = self._fresh[at]
        changed = fresh | (gauges != self._gauges[at]).any(axis=1), fresh | (counters != self._counters[at]).any(axis=1)
        self._gauges[at], self._counters[at], self._fresh[at] = gauges, counters, False
        return changed
