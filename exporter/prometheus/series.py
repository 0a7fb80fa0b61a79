"""Families and series of /metrics without their values: names, labels, and the column that provides each value.

A family is one metric with its source columns. Clean families have gangwatch's names, compatibility families the
names of other exporters. Each line has its own render function, so that a column can appear in bytes in one family
and in MiB in another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from agent.schema.catalog import BY_NAME, Metric
from agent.schema.errors import FrameError
from agent.schema.frame import Column, Layout
from agent.schema.pod_label_names import metric_label
from agent.schema.sample import Labels
from exporter.prometheus.derived_values import Derived

Render = Callable[[float], str] | Callable[[int], str]
"""Function that returns a gauge's float or a counter's integer as text. It is never called for absent values."""


# --- numbers ---------------------------------------------------------------------------------------------------------


def decimals_of(metric: Metric) -> int:
    """Return the number of decimal digits of a counter's integer in the metric's unit: 9 if the integer counts
    nanoseconds and the unit is seconds.

    Raises ValueError for a scale that is neither a whole number nor a power of 0.1.
    """
    if metric.scale >= 1 and metric.scale == int(metric.scale):
        return 0
    decimals = round(-math.log10(metric.scale))
    if decimals < 0 or float(f"1e-{decimals}") != metric.scale:
        raise ValueError(f"{metric.name}: scale {metric.scale} is neither a whole number nor 0.1, 0.01, ...")
    return decimals


_encode = msgspec.json.Encoder().encode
"""Encoder of JSON numbers. Its text is the shortest that reads back as the same number (Ryu), at a tenth of the cost of
Python's repr."""


def counter_text(value: int, decimals: int) -> str:
    """Return an integer times 10^-decimals, in decimal notation with all digits."""
    if not decimals:
        return str(value)
    digits = str(value).rjust(decimals + 1, "0")
    return f"{digits[:-decimals]}.{digits[-decimals:]}"


def gauge_text(value: float) -> str:
    """Return the shortest text that reads back as the same number. The value must not be NaN."""
    if value in (math.inf, -math.inf):
        return "+Inf" if value > 0 else "-Inf"
    return _encode(value).decode()


@dataclass(frozen=True, slots=True)
class IntegerText:
    """Render function of a counter: its integer multiplied by `times`, with `decimals` digits after the point.

    The numbers of equal instances can be rendered in one call.
    """

    times: int = 1
    decimals: int = 0

    def __call__(self, value: int) -> str:
        return counter_text(value * self.times, self.decimals)

    def all(self, values: list[int]) -> list[bytes]:
        """Return the text of each value."""
        if self.times != 1:
            return [self(value).encode() for value in values]
        texts = _texts(values)
        if not self.decimals:
            return texts
        least, point = self.decimals + 1, -self.decimals
        return [
            b"%b.%b" % (text[:point], text[point:])
            if len(text) >= least
            else counter_text(int(text), self.decimals).encode()
            for text in texts
        ]


def gauge_texts(values: list[float]) -> list[bytes]:
    """Return the text of each value, as gauge_text does. The values must not be NaN or infinite."""
    return _texts(values)


def _texts(values: Sequence[float | int]) -> list[bytes]:
    return _encode(values)[1:-1].split(b",") if values else []


def render_of(metric: Metric) -> Render:
    """Return the function that prints a value of the metric in the metric's unit."""
    if metric.kind != "counter":
        return gauge_text
    decimals = decimals_of(metric)
    return IntegerText(decimals=decimals) if decimals else IntegerText(int(metric.scale))


# --- columns ---------------------------------------------------------------------------------------------------------


def labels_of(layout: Layout, column: Column) -> list[tuple[str, str]]:
    """Return the published labels of a column's series: its own and the node's, sorted."""
    return sorted((*column.labels, ("node", layout.node)))


def metric_of(column: Column, is_counter: bool) -> Metric:
    """Return the catalogue's metric of a column.

    Raises FrameError if the name is unknown, or if one is a counter and the other a gauge.
    """
    metric = BY_NAME.get(column.metric)
    if metric is None:
        raise FrameError(f"{column.metric} is not in the catalogue")
    if (metric.kind == "counter") is not is_counter:
        raise FrameError(f"{column.metric} is a {metric.kind}, but its column is of another kind")
    return metric


@dataclass(frozen=True, slots=True)
class Series:
    """One series: its column of a layout.

    source: the column's index among all columns (gauges first, then counters).
    """

    metric: Metric
    column: Column
    source: int

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.column.labels)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a family. It has labels in the order of the text, a source index of its value, and a render
    function."""

    labels: Labels
    source: int
    render: Render


@dataclass(slots=True)
class Family:
    """One metric of /metrics with its lines. kind: type in the Prometheus text format ('gauge' for an info metric)."""

    name: str
    kind: str
    help: str
    unit: str = ""
    rows: list[Row] = field(default_factory=list)


class View:
    """The columns of a layout by metric, with the labels of each GPU and its owners. Families are built from it.

    present: returns whether a column has a value now. Owners of GPUs whose column has no value are ignored.
    """

    def __init__(self, layout: Layout, present: Callable[[int], bool] = lambda _: True) -> None:
        """Sort the columns. A column that is not in the catalogue is left out and listed in `unknown`."""
        self.layout = layout
        self.node = layout.node
        self.unknown: list[str] = []
        """For each column that is left out, the reason. Another release, or a bug in a collector, can add such a
        column."""
        self.derived: list[tuple[int, Derived]] = []
        self._sources = len(layout.gauges) + len(layout.counters)
        self._present = present
        self._by_metric: dict[str, list[Series]] = {}
        for index, column in enumerate(layout.gauges):
            self._add(column, False, index)
        for index, column in enumerate(layout.counters, len(layout.gauges)):
            self._add(column, True, index)

    def _add(self, column: Column, is_counter: bool, source: int) -> None:
        try:
            metric = metric_of(column, is_counter)
        except FrameError as error:
            self.unknown.append(str(error))
            return
        self._by_metric.setdefault(metric.name, []).append(Series(metric, column, source))

    def derive(self, derived: Derived) -> int:
        """Add the values that `derived` computes from each frame. Return the source index of the first value."""
        first = self._sources
        self.derived.append((first, derived))
        self._sources += derived.outputs
        return first

    @property
    def sources(self) -> int:
        """Number of columns and derived values."""
        return self._sources

    def metrics(self) -> Iterator[tuple[Metric, list[Series]]]:
        """Yield the metrics of the layout in order of first appearance, each with all of its columns."""
        for series in self._by_metric.values():
            yield series[0].metric, series

    def of(self, name: str) -> list[Series]:
        return self._by_metric.get(name, [])

    @cached_property
    def gpus(self) -> Mapping[str, Mapping[str, str]]:
        """Labels of each GPU's gangwatch_gpu_info series, by GPU UUID."""
        return {series.labels["gpu"]: series.labels for series in self.of("gangwatch_gpu_info")}

    @cached_property
    def owners(self) -> Mapping[tuple[str, str], list[Mapping[str, str]]]:
        """Current users of GPUs and instances: gangwatch_gpu_owner_info by (GPU, MIG instance or '')."""
        found: dict[tuple[str, str], list[Mapping[str, str]]] = {}
        for series in self.of("gangwatch_gpu_owner_info"):
            if self._present(series.source):
                labels = series.labels
                found.setdefault((labels["gpu"], labels.get("mig", "")), []).append(labels)
        return found

    def owner(self, labels: Mapping[str, str]) -> Mapping[str, str]:
        """Return the only owner of the GPU or instance in these labels; empty if there is none or several.

        The values of a shared GPU are assigned to none of its owners. Other metrics contain the share of each
        process.
        """
        owners = self.owners.get((labels.get("gpu", ""), labels.get("mig", "")), [])
        return owners[0] if len(owners) == 1 else {}

    @cached_property
    def _pod_labels(self) -> Mapping[tuple[str, str], Mapping[str, str]]:
        """Labels of metrics from the labels of pods: gangwatch_pod_label_info by (namespace, pod)."""
        found: dict[tuple[str, str], dict[str, str]] = {}
        for series in self.of("gangwatch_pod_label_info"):
            if self._present(series.source):
                labels = series.labels
                pod = labels["namespace"], labels["pod"]
                found.setdefault(pod, {})[metric_label(labels["label"])] = labels["value"]
        return found

    def pod_labels(self, owner: Mapping[str, str]) -> Mapping[str, str]:
        """Return the labels that the pod of this owner adds to series, by label name; empty if there are none."""
        return self._pod_labels.get((owner.get("namespace", ""), owner.get("pod", "")), {})

    def structure(self) -> list[int]:
        """Return the indices of the columns that name owners of GPUs, or labels of pods.

        If one of them gets or loses its value, labels change, and the families must be built again.
        """
        names = ("gangwatch_gpu_owner_info", "gangwatch_pod_label_info")
        return [series.source for name in names for series in self.of(name)]


def clean_families(view: View, owner_labels: bool) -> Iterator[Family]:
    """Yield the catalogue's own families. owner_labels: whether a GPU's series have labels of its owner."""
    for metric, series in view.metrics():
        render = render_of(metric)
        family = Family(metric.name, "gauge" if metric.kind == "info" else metric.kind, metric.help, metric.unit)
        joins = owner_labels and "gpu" in metric.labels and metric.kind != "info"
        for one in series:
            labels = labels_of(view.layout, one.column)
            if joins:
                owner = view.owner(one.labels)
                labels = _with_owner(labels, {**owner, **view.pod_labels(owner)})
            family.rows.append(Row(tuple(labels), one.source, render))
        yield family


def _with_owner(labels: list[tuple[str, str]], owner: Mapping[str, str]) -> list[tuple[str, str]]:
    own = dict(labels)
    return sorted((*labels, *((key, value) for key, value in owner.items() if value and key not in own)))


# --- text ------------------------------------------------------------------------------------------------------------


def label_value(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def prefix(name: str, labels: Iterable[tuple[str, str]]) -> str:
    """Return the part of a sample line before its value: the name and the labels."""
    pairs = ",".join(f'{key}="{label_value(value)}"' for key, value in labels)
    return f"{name}{{{pairs}}} " if pairs else f"{name} "
