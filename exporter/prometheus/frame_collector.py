"""The newest frame of an agent as a prometheus_client Collector, for programs that serve their own /metrics.

A program that embeds the agent registers it next to its own metrics. `gangwatch agent` itself renders frames with
line_cache.py, which takes a fiftieth of the time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import numpy as np
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from agent.schema.frame import Frame, Layout, check_fits
from exporter.prometheus.derived_values import Memory
from exporter.prometheus.exposition import EVERYTHING, Settings, plan_families
from exporter.prometheus.series import Family, View


class FrameCollector(Collector):
    """Collector of the series of the newest frame, with the names, units and labels of an agent's /metrics.

    Register it with ``REGISTRY.register(FrameCollector(node.newest))``. It returns no families before the first frame.
    Thread-safe.
    """

    def __init__(self, newest: Callable[[], tuple[Layout, Frame] | None], settings: Settings = EVERYTHING) -> None:
        """Create the collector.

        newest: returns the newest frame with its layout, as ``Node.newest`` does. settings: selects the series; the
        default is all.
        """
        self._newest, self._settings = newest, settings
        self._memory = Memory()
        self._lock = threading.Lock()
        self._view: View | None = None
        self._families: list[Family] = []
        self._structure = b""
        self._collected: tuple[Frame, list[Metric]] | None = None

    def describe(self) -> Iterable[Metric]:
        """Return no families: they depend on the node's devices, which are not known before the first frame."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Return the families of the newest frame. Raises FrameError if the frame does not fit its layout."""
        newest = self._newest()
        if newest is None:
            return []
        layout, frame = newest
        with self._lock:
            # Rates are computed from frame to frame, so each frame is evaluated once.
            if self._collected is None or self._collected[0] is not frame:
                check_fits(layout, frame)
                self._collected = frame, self._metrics(self._plan(layout, frame), frame)
            return self._collected[1]

    def _plan(self, layout: Layout, frame: Frame) -> View:
        """Return the layout's view, and rebuild it with its families if the layout or an owner of a GPU has changed."""
        view = self._view
        if (
            view is not None
            and view.layout.layout_id == layout.layout_id
            and self._owners(view, frame) == self._structure
        ):
            return view
        view = self._view = View(layout, lambda source: not np.isnan(frame.gauges[source]))
        self._families, _ = plan_families(view, self._settings, self._memory)
        self._structure = self._owners(view, frame)
        return view

    def _owners(self, view: View, frame: Frame) -> bytes:
        return np.isnan(frame.gauges[np.array(view.structure(), np.intp)]).tobytes()

    def _metrics(self, view: View, frame: Frame) -> list[Metric]:
        values: list[float | int | None] = list(frame.gauges.tolist())
        counters = zip(frame.counters.tolist(), frame.counters_valid.tolist(), strict=True)
        values += [count if valid else None for count, valid in counters]
        for _, derived in view.derived:
            values += derived.update(frame)
        return [metric for family in self._families if (metric := _metric(family, values)).samples]


def _metric(family: Family, values: list[float | int | None]) -> Metric:
    """Return the family as a metric of prometheus_client, without the series that have no value.

    values: the value of each column, followed by the derived values.
    """
    name, kind = family.name, family.kind
    if kind == "counter":
        # prometheus_client has no counters without _total, such as DCGM's.
        name, kind = (name.removesuffix("_total"), kind) if name.endswith("_total") else (name, "unknown")
    elif name.endswith("_info"):
        name, kind = name.removesuffix("_info"), "info"
    unit = family.unit if family.unit and name.endswith(f"_{family.unit}") else ""
    metric = Metric(name, family.help, kind, unit)
    for row in family.rows:
        value = values[row.source]
        if value is not None and value == value:  # only NaN differs from itself
            metric.add_sample(family.name, dict(row.labels), float(row.render(value)))  # type: ignore[arg-type]
    return metric
