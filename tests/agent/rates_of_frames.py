"""Rates as a reader of frames computes them: each column's difference between two samples of its tier."""

from __future__ import annotations

import math

import numpy as np

from agent.schema.catalog import BY_NAME
from agent.schema.frame import Frame, Layout
from agent.schema.rates import difference, exact, rates

GAP_NS = 60_000_000_000


class Rates:
    """Takes frames in their order; keeps the least and the most of all rates that there were."""

    def __init__(self, metrics: tuple[str, ...] | None = None) -> None:
        self._metrics = metrics
        self._before: tuple[Layout, Frame] | None = None
        self.least = math.inf
        self.most = -math.inf
        self.worst = ""
        self.count = 0

    def add(self, layout: Layout, frame: Frame) -> None:
        before, self._before = self._before, (layout, frame)
        if before is None or before[0].layout_id != layout.layout_id:
            # Another layout: a reader begins anew.
            return
        columns = [
            index
            for index, column in enumerate(layout.counters)
            if self._metrics is None or column.metric in self._metrics
        ]
        if not columns:
            return
        old = before[1]
        tiers = np.array([layout.counters[index].tier for index in columns])
        elapsed_ns = frame.tier_ns[tiers] - old.tier_ns[tiers]
        advance, change = difference(
            old.counters[columns],
            old.counters_valid[columns],
            frame.counters[columns],
            frame.counters_valid[columns],
            np.array([layout.counters[index].width for index in columns], np.uint8),
            elapsed_ns,
            same_source=(old.boot_id, old.agent_id) == (frame.boot_id, frame.agent_id),
            gap_ns=GAP_NS,
        )
        scale = np.array([BY_NAME[layout.counters[index].metric].scale for index in columns])
        found = rates(advance, change, elapsed_ns) * scale
        usable = exact(change)
        self.count += int(usable.sum())
        if usable.any():
            self.least = min(self.least, float(found[usable].min()))
            most = int(np.nanargmax(np.where(usable, found, -math.inf)))
            if found[most] > self.most:
                self.most = float(found[most])
                self.worst = str(layout.counters[columns[most]])
