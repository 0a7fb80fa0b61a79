"""Rates as a reader of frames computes them: each column's difference between two samples of its tier."""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from agent.schema.catalog import BY_NAME
from agent.schema.frame import Frame, Layout
from agent.schema.rates import difference, exact, rates

GAP_NS = 60_000_000_000

_Number = TypeVar("_Number", bound=np.generic)


ROOM = 2048


def _roomy(values: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
    """The values in an array of whole ROOMs, absent beyond.

    numpy keeps the freed memory of seven arrays of every size below a kilobyte (alloc.c, NBUCKETS): a reader whose
    arrays are of another size with every layout gathers megabytes of it in a soak, and they would be taken for the
    agent's.
    """
    room = np.zeros(-(-len(values) // ROOM) * ROOM, values.dtype)
    room[: len(values)] = values
    return room


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
        tiers = [layout.counters[index].tier for index in columns]
        elapsed_ns = _roomy(frame.tier_ns[tiers] - old.tier_ns[tiers])
        advance, change = difference(
            _roomy(old.counters[columns]),
            _roomy(old.counters_valid[columns]),
            _roomy(frame.counters[columns]),
            _roomy(frame.counters_valid[columns]),
            _roomy(np.array([layout.counters[index].width for index in columns], np.uint8)),
            elapsed_ns,
            same_source=(old.boot_id, old.agent_id) == (frame.boot_id, frame.agent_id),
            gap_ns=GAP_NS,
        )
        scale = _roomy(np.array([BY_NAME[layout.counters[index].metric].scale for index in columns]))
        found = rates(advance, change, elapsed_ns) * scale
        usable = exact(change)
        self.count += int(usable.sum())
        if usable.any():
            self.least = min(self.least, float(found[usable].min()))
            most = int(np.nanargmax(np.where(usable, found, -math.inf)))
            if found[most] > self.most:
                self.most = float(found[most])
                self.worst = str(layout.counters[columns[most]])
