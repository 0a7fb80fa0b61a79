"""OTLP metrics of an agent: the points of a frame.

Metrics have the names and attributes of OpenTelemetry's hardware conventions if those define them, else gangwatch's
names.

Drivers and kernels do not report when a counter started. As OpenTelemetry's data model specifies for cumulative streams
with unknown start, the first point of a series uses its own time as start, and later points keep it. Receivers then
compute differences and do not count the first value as an increase. After a counter reset, the time of the previous
point is the new start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple

from agent.schema.frame import Frame, Layout, check_fits
from exporter.otlp.conventions import Convention, attribute_names, convention_of, unit_of
from exporter.otlp.metric_form import Attributes, Made, MetricForm, MetricHead, Point, Request
from exporter.otlp.resource import resource_of_node
from exporter.push import points as published


class FrameMetrics(Generic[Attributes, Point, Made, Request]):
    """Builder of OTLP export requests from frames. resource: replaces gangwatch's own attributes of the same name."""

    def __init__(self, form: MetricForm[Attributes, Point, Made, Request], resource: Mapping[str, str]) -> None:
        self._form, self._own_resource = form, resource
        self._points: published.Points | None = None
        self._groups: list[_Group[Point]] = []
        self._slots: list[_Slot] = []
        self._resource: dict[str, str] = {}

    def request(self, layout: Layout, frame: Frame, wanted: Callable[[str], bool]) -> Request:
        """Return the export of one frame. wanted: whether a metric is published."""
        check_fits(layout, frame)
        if self._points is None or self._points.layout.layout_id != layout.layout_id:
            self._points = published.Points(layout, wanted)
            self._lay_out(layout, self._points.points)
        for group in self._groups:
            group.points.clear()
        make = self._form.point
        for at, value, time_ns in self._points.values(frame):
            slot = self._slots[at]
            start_ns = slot.stream.began(value, time_ns) if slot.stream is not None else None
            if slot.convention is not None:
                value = slot.convention.value(value)
            slot.group.points.append(make(slot.attributes, start_ns, time_ns, value))
        metrics = (self._form.metric(group.head, group.points) for group in self._groups if group.points)
        return self._form.request(self._resource, metrics)

    def _lay_out(self, layout: Layout, points: list[published.Point]) -> None:
        """Sort points into metrics and make all attributes, once per layout."""
        self._resource = {**resource_of_node(layout.node), **self._own_resource}
        groups: dict[tuple[str, bool], _Group[Point]] = {}
        # Series that remain keep their start; removed series are deleted.
        streams = {slot.series: slot.stream for slot in self._slots}
        self._slots = []
        models = {
            dict(point.labels).get("gpu", ""): dict(point.labels)
            for point in points
            if point.metric.name == "gangwatch_gpu_info"
        }
        for point in points:
            labels = {name: value for name, value in point.labels if name != "node"}
            convention = convention_of(point.metric)
            if convention is None:
                metric, is_sum = point.metric, point.metric.kind == "counter"
                head = MetricHead(metric.name, metric.help, unit_of(metric), is_sum, True)
                pairs = attribute_names(labels)
            else:
                is_sum = convention.is_sum
                head = MetricHead(
                    convention.name, convention.description, convention.unit, is_sum, convention.monotonic
                )
                pairs = convention.attributes(labels, models.get(labels.get("gpu", ""), {}))
            group = groups.setdefault((head.name, is_sum), _Group(head, []))
            series = (point.metric.name, point.labels)
            stream = (streams.get(series) or _Stream()) if is_sum and head.monotonic else None
            self._slots.append(_Slot(group, self._form.attributes(pairs), convention, series, stream))
        self._groups = list(groups.values())


class _Group(NamedTuple, Generic[Point]):
    """Metric and its points in the current frame."""

    head: MetricHead
    points: list[Point]


class _Stream:
    """Start time of one counter, which each point of the counter reports."""

    __slots__ = ("_before", "_start_ns", "_time_ns")

    def __init__(self) -> None:
        self._start_ns = self._time_ns = 0
        self._before: float | int = 0

    def began(self, value: float | int, time_ns: int) -> int:
        """Return the start time of a point. time_ns: time of the point. It may be before the previous point's time,
        because the wall clock may be set back."""
        if not self._start_ns or time_ns < self._start_ns:
            self._start_ns = time_ns
        elif value < self._before:
            self._start_ns = min(self._time_ns, time_ns)
        self._before, self._time_ns = value, time_ns
        return self._start_ns


class _Slot(NamedTuple):
    """Metric, attributes and start time of one column's points. stream: start time of a counter; None for a gauge."""

    group: _Group[Any]
    attributes: Any
    convention: Convention | None
    series: tuple[str, tuple[tuple[str, str], ...]]
    stream: _Stream | None
