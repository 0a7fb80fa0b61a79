"""Rates as a reader of frames computes them, from the difference of a counter between two samples."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from agent.schema.catalog import BY_NAME
from agent.schema.frame import Frame, Layout
from agent.schema.rates import difference, exact, rates

GAP_NS = 60_000_000_000


class _Counters(NamedTuple):
    """Counters of one layout, with the tier, the width in bits and the scale of each."""

    layout_id: str
    columns: npt.NDArray[np.intp]
    tiers: npt.NDArray[np.intp]
    widths: npt.NDArray[np.uint8]
    scale: npt.NDArray[np.float64]


class Rates:
    """Lowest and highest rate of each requested counter over the frames added so far."""

    def __init__(self, metrics: tuple[str, ...] | None = None) -> None:
        self._metrics = metrics
        self._before: tuple[Layout, Frame] | None = None
        self._counters: _Counters | None = None
        self.least = math.inf
        self.most = -math.inf
        self.worst = ""
        self.count = 0

    def add(self, layout: Layout, frame: Frame) -> None:
        before, self._before = self._before, (layout, frame)
        if before is None or before[0].layout_id != layout.layout_id:
            # A new layout: a reader starts again.
            return
        counters = self._of(layout)
        if not len(counters.columns):
            return
        old = before[1]
        elapsed_ns = frame.tier_ns[counters.tiers] - old.tier_ns[counters.tiers]
        advance, change = difference(
            old.counters[counters.columns],
            old.counters_valid[counters.columns],
            frame.counters[counters.columns],
            frame.counters_valid[counters.columns],
            counters.widths,
            elapsed_ns,
            same_source=(old.boot_id, old.agent_id) == (frame.boot_id, frame.agent_id),
            gap_ns=GAP_NS,
        )
        found = rates(advance, change, elapsed_ns) * counters.scale
        usable = exact(change)
        self.count += int(usable.sum())
        if usable.any():
            self.least = min(self.least, float(found[usable].min()))
            most = int(np.nanargmax(np.where(usable, found, -math.inf)))
            if found[most] > self.most:
                self.most = float(found[most])
                self.worst = str(layout.counters[int(counters.columns[most])])

    def _of(self, layout: Layout) -> _Counters:
        if self._counters is None or self._counters.layout_id != layout.layout_id:
            chosen = [
                (index, column)
                for index, column in enumerate(layout.counters)
                if self._metrics is None or column.metric in self._metrics
            ]
            self._counters = _Counters(
                layout.layout_id,
                np.array([index for index, _ in chosen], np.intp),
                np.array([column.tier for _, column in chosen], np.intp),
                np.array([column.width for _, column in chosen], np.uint8),
                np.array([BY_NAME[column.metric].scale for _, column in chosen]),
            )
        return self._counters
