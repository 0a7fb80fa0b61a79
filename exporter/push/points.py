"""Points (labels, value and time) of the published columns, as input of all push formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from agent.schema.catalog import Metric
from agent.schema.errors import FrameError
from agent.schema.frame import Column, Frame, Layout
from exporter.prometheus.series import labels_of, metric_of


@dataclass(frozen=True, slots=True)
class Point:
    """One published column of a layout.

    source: its index among gauges or counters. labels: as published, including ``node``.
    """

    metric: Metric
    column: Column
    labels: tuple[tuple[str, str], ...]
    source: int


class Points:
    """The columns of a layout with a wanted metric: gauges first, then counters."""

    def __init__(self, layout: Layout, wanted: Callable[[str], bool]) -> None:
        """Select the columns. A column that is not in the catalogue is left out; a counter in /metrics shows how
        many."""
        self.layout = layout
        self.points: list[Point] = []
        for is_counter, columns in ((False, layout.gauges), (True, layout.counters)):
            for index, column in enumerate(columns):
                if not wanted(column.metric):
                    continue
                try:
                    metric = metric_of(column, is_counter)
                except FrameError:
                    continue
                self.points.append(Point(metric, column, tuple(labels_of(layout, column)), index))

    def values(self, frame: Frame) -> Iterator[tuple[int, float | int, int]]:
        """Yield (index in `points`, value in the metric's unit, wall time of the sample in ns) of each present value.

        Counters are integers if no digit is lost.
        """
        offsets = frame.wall_ns - frame.monotonic_ns
        times = [int(sampled_ns) + offsets if sampled_ns else frame.wall_ns for sampled_ns in frame.tier_ns.tolist()]
        gauges, counters = frame.gauges, frame.counters.tolist()
        absent, valid = np.isnan(gauges).tolist(), frame.counters_valid.tolist()
        numbers = gauges.tolist()
        for at, point in enumerate(self.points):
            source, time_ns = point.source, times[point.column.tier] if times else frame.wall_ns
            if point.metric.kind != "counter":
                if not absent[source]:
                    yield at, numbers[source], time_ns
            elif valid[source]:
                scale = point.metric.scale
                yield at, counters[source] * (int(scale) if scale >= 1 else scale), time_ns
