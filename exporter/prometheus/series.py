"""Families and series as an exposition plans them, before any number: names, labels, and where values come from.

A family is one metric with the columns that feed it. Clean families are the catalogue's own; compatibility families
are made from them under names that dashboards already have. Values are rendered by a function a row, so that one
column can stand as bytes here and as MiB there, and no collector knows of either.
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
from exporter.prometheus.derived_values import Derived

Labels = tuple[tuple[str, str], ...]
Render = Callable[[float], str] | Callable[[int], str]
"""A gauge's float or a counter's integer as text; never asked about what is absent."""


# --- numbers ---------------------------------------------------------------------------------------------------------


def decimals_of(metric: Metric) -> int:
    """Decimal digits that take the metric's integers to its unit: 9 for nanoseconds to seconds, 0 where they are one.

    Raises ValueError for a scale that is neither a whole number nor 0.1, 0.01, ...: it could not be printed without
    loss.
    """
    if metric.scale >= 1 and metric.scale == int(metric.scale):
        return 0
    decimals = round(-math.log10(metric.scale))
    if decimals < 0 or float(f"1e-{decimals}") != metric.scale:
        raise ValueError(f"{metric.name}: scale {metric.scale} is no whole number and not 0.1, 0.01, ...")
    return decimals


_encode = msgspec.json.Encoder().encode
"""A number as JSON is the shortest that reads back as the same (Ryu), and costs a tenth of what Python's repr does."""


def counter_text(value: int, decimals: int) -> str:
    """An integer times 10^-decimals, in decimal notation with every digit."""
    if not decimals:
        return str(value)
    digits = str(value).rjust(decimals + 1, "0")
    return f"{digits[:-decimals]}.{digits[-decimals:]}"


def gauge_text(value: float) -> str:
    """The shortest text that reads back as the same number. Not for NaN: absent values are not printed."""
    if value in (math.inf, -math.inf):
        return "+Inf" if value > 0 else "-Inf"
    return _encode(value).decode()


@dataclass(frozen=True, slots=True)
class IntegerText:
    """Writes a counter's integer in the metric's unit: `times` as much, with the point `decimals` digits from the end.

    Equal ones write alike, so that many numbers can be written at once.
    """

    times: int = 1
    decimals: int = 0

    def __call__(self, value: int) -> str:
        return counter_text(value * self.times, self.decimals)

    def all(self, values: list[int]) -> list[bytes]:
        """The text of each."""
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
    """The text of each, as gauge_text writes it. Not for NaN and the infinities."""
    return _texts(values)


def _texts(values: Sequence[float | int]) -> list[bytes]:
    return _encode(values)[1:-1].split(b",") if values else []


def render_of(metric: Metric) -> Render:
    """How the metric's own values are written."""
    if metric.kind != "counter":
        return gauge_text
    decimals = decimals_of(metric)
    return IntegerText(decimals=decimals) if decimals else IntegerText(int(metric.scale))


# --- columns ---------------------------------------------------------------------------------------------------------


def labels_of(layout: Layout, column: Column) -> list[tuple[str, str]]:
    """The labels of a column's series as they are published: its own and the node's, sorted."""
    return sorted((*column.labels, ("node", layout.node)))


def metric_of(column: Column, is_counter: bool) -> Metric:
    """The catalogue's row of a column. Raises FrameError for a name or kind that is not there."""
    metric = BY_NAME.get(column.metric)
    if metric is None:
        raise FrameError(f"{column.metric} is not in the catalogue")
    if (metric.kind == "counter") is not is_counter:
        raise FrameError(f"{column.metric} is a {metric.kind}, and stands among the other columns")
    return metric


@dataclass(frozen=True, slots=True)
class Series:
    """One column of a layout. source: its index among all columns, gauges first, then counters."""

    metric: Metric
    column: Column
    source: int

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.column.labels)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of an exposition: its labels, sorted as they are printed, the column that feeds it, and how."""

    labels: Labels
    source: int
    render: Render


@dataclass(slots=True)
class Family:
    """One metric of an exposition. kind: as Prometheus text says it, info being a gauge there."""

    name: str
    kind: str
    help: str
    unit: str = ""
    rows: list[Row] = field(default_factory=list)


class View:
    """A layout as families are made from it: its columns by metric, and what its `_info` columns say of devices.

    present: whether a column has a value now; an owner that is absent owns nothing.
    """

    def __init__(self, layout: Layout, present: Callable[[int], bool] = lambda _: True) -> None:
        """Raises FrameError for a column that is not the catalogue's."""
        self.layout = layout
        self.node = layout.node
        self.derived: list[tuple[int, Derived]] = []
        self._sources = len(layout.gauges) + len(layout.counters)
        self._present = present
        self._by_metric: dict[str, list[Series]] = {}
        for index, column in enumerate(layout.gauges):
            self._add(Series(metric_of(column, False), column, index))
        for index, column in enumerate(layout.counters, len(layout.gauges)):
            self._add(Series(metric_of(column, True), column, index))

    def _add(self, series: Series) -> None:
        self._by_metric.setdefault(series.metric.name, []).append(series)

    def derive(self, derived: Derived) -> int:
        """Take values that stand in no column; the source of the first of them."""
        first = self._sources
        self.derived.append((first, derived))
        self._sources += derived.outputs
        return first

    @property
    def sources(self) -> int:
        """Columns and derived values together."""
        return self._sources

    def metrics(self) -> Iterator[tuple[Metric, list[Series]]]:
        """Every metric of the layout in order of first appearance; columns of one may stand anywhere."""
        for series in self._by_metric.values():
            yield series[0].metric, series

    def of(self, name: str) -> list[Series]:
        return self._by_metric.get(name, [])

    @cached_property
    def gpus(self) -> Mapping[str, Mapping[str, str]]:
        """What gangwatch_gpu_info says, by the GPU's UUID."""
        return {series.labels["gpu"]: series.labels for series in self.of("gangwatch_gpu_info")}

    @cached_property
    def owners(self) -> Mapping[tuple[str, str], list[Mapping[str, str]]]:
        """Who uses a GPU, or an instance of one, now: gangwatch_gpu_owner_info by (GPU, MIG instance or '')."""
        found: dict[tuple[str, str], list[Mapping[str, str]]] = {}
        for series in self.of("gangwatch_gpu_owner_info"):
            if self._present(series.source):
                labels = series.labels
                found.setdefault((labels["gpu"], labels.get("mig", "")), []).append(labels)
        return found

    def owner(self, labels: Mapping[str, str]) -> Mapping[str, str]:
        """The one owner of the GPU or instance that these labels name; empty where it has none, or several.

        Several processes that share a GPU each have a share of their own elsewhere; none of them is given the whole's.
        """
        owners = self.owners.get((labels.get("gpu", ""), labels.get("mig", "")), [])
        return owners[0] if len(owners) == 1 else {}

    def structure(self) -> list[int]:
        """Columns whose presence decides on labels: where one comes or goes, the families are made anew."""
        return [series.source for series in self.of("gangwatch_gpu_owner_info")]


def clean_families(view: View, owner_labels: bool) -> Iterator[Family]:
    """The catalogue's own families. owner_labels: whether a GPU's series carry who uses it."""
    for metric, series in view.metrics():
        render = render_of(metric)
        family = Family(metric.name, "gauge" if metric.kind == "info" else metric.kind, metric.help, metric.unit)
        joins = owner_labels and "gpu" in metric.labels and metric.kind != "info"
        for one in series:
            labels = labels_of(view.layout, one.column)
            if joins:
                labels = _with_owner(labels, view.owner(one.labels))
            family.rows.append(Row(tuple(labels), one.source, render))
        yield family


def _with_owner(labels: list[tuple[str, str]], owner: Mapping[str, str]) -> list[tuple[str, str]]:
    own = dict(labels)
    return sorted((*labels, *((key, value) for key, value in owner.items() if value and key not in own)))


# --- text ------------------------------------------------------------------------------------------------------------


def label_value(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def prefix(name: str, labels: Iterable[tuple[str, str]]) -> str:
    """A sample line up to its value."""
    pairs = ",".join(f'{key}="{label_value(value)}"' for key, value in labels)
    return f"{name}{{{pairs}}} " if pairs else f"{name} "
