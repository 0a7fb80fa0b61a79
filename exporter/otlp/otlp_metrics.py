"""OTLP metrics over HTTP: one gzip-compressed ExportMetricsServiceRequest per frame, to /v1/metrics.

Metrics have the names and attributes of OpenTelemetry's hardware conventions if those define them, else gangwatch's
names. https://opentelemetry.io/docs/specs/otlp/ and opentelemetry-proto 1.x (metrics/v1/metrics.proto; its field
numbers are in the comments here).

Drivers and kernels do not report when a counter started. As OpenTelemetry's data model specifies for cumulative streams
with unknown start, the first point of a series uses its own time as start, and later points keep it. Receivers then
compute differences and do not count the first value as an increase. After a counter reset, the time of the previous
point is the new start.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import NamedTuple

from agent.schema.frame import Frame, Layout, check_fits
from exporter.otlp.conventions import SCHEMA_URL, Convention, convention_of, unit_of
from exporter.push import protobuf_writer
from exporter.push.points import Point, Points
from exporter.push.push import LATER

_CUMULATIVE = 2
"""Number of AGGREGATION_TEMPORALITY_CUMULATIVE, the temporality of all sums."""


def attributes(pairs: Mapping[str, str], field: int) -> bytes:
    """Return the pairs as KeyValue messages (key 1, value 2) of strings (AnyValue's string_value 1)."""
    return b"".join(
        protobuf_writer.block(
            field, protobuf_writer.text(1, name) + protobuf_writer.block(2, protobuf_writer.text(1, value))
        )
        for name, value in pairs.items()
    )


class Otlp:
    """Encoder of frames as ExportMetricsServiceRequests."""

    name = "otlp"

    def __init__(self) -> None:
        self._scope = protobuf_writer.block(
            1, protobuf_writer.text(1, "gangwatch") + protobuf_writer.text(2, version("gangwatch"))
        )
        self._points: Points | None = None
        self._groups: list[Group] = []
        self._slots: list[_Slot] = []
        self._resource = b""

    def headers(self) -> Mapping[str, str]:
        return {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip", "User-Agent": "gangwatch"}

    def encode(self, layout: Layout, frame: Frame, wanted: Callable[[str], bool]) -> bytes:
        check_fits(layout, frame)
        if self._points is None or self._points.layout.layout_id != layout.layout_id:
            self._points = Points(layout, wanted)
            self._lay_out(layout, self._points.points)
        for group in self._groups:
            group.points.clear()
        for at, value, time_ns in self._points.values(frame):
            slot = self._slots[at]
            # NumberDataPoint: attributes 7 (rendered once), start_time_unix_nano 2, time_unix_nano 3, as_double 4 or
            # as_int 6.
            head = slot.attributes
            if slot.stream is not None:
                head += protobuf_writer.fixed64(2, slot.stream.began(value, time_ns))
            if slot.convention is not None:
                value = slot.convention.value(value)
            number = (
                protobuf_writer.sfixed64(6, value)
                if isinstance(value, int) and value < 2**63
                else protobuf_writer.double(4, value)
            )
            slot.group.points.append(protobuf_writer.block(1, head + protobuf_writer.fixed64(3, time_ns) + number))
        # ScopeMetrics: scope 1, metrics 2, schema_url 3. ResourceMetrics: resource 1, scope_metrics 2.
        metrics = b"".join(group.message() for group in self._groups if group.points)
        scope = protobuf_writer.block(2, self._scope + metrics + protobuf_writer.text(3, SCHEMA_URL))
        return compressed(protobuf_writer.block(1, self._resource + scope))

    def again(self, status: int) -> bool:
        return status in LATER

    def complaint(self, answer: bytes) -> str:
        return partial_success(answer)

    def _lay_out(self, layout: Layout, points: list[Point]) -> None:
        """Sort points into metrics and render all attributes, once per layout."""
        self._resource = protobuf_writer.block(
            1, attributes({"service.name": "gangwatch", "host.name": layout.node}, 1)
        )
        groups: dict[tuple[str, bool], Group] = {}
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
                is_sum = point.metric.kind == "counter"
                name, unit, pairs = point.metric.name, unit_of(point.metric), labels
                about, monotonic = point.metric.help, True
            else:
                is_sum, monotonic = convention.is_sum, convention.monotonic
                name, unit, about = convention.name, convention.unit, convention.description
                pairs = convention.attributes(labels, models.get(labels.get("gpu", ""), {}))
            group = groups.setdefault((name, is_sum), Group(name, about, unit, is_sum, monotonic))
            series = (point.metric.name, point.labels)
            stream = (streams.get(series) or _Stream()) if is_sum and monotonic else None
            self._slots.append(_Slot(group, attributes(pairs, 7), convention, series, stream))
        self._groups = list(groups.values())


class _Stream:
    """Start time of the points of one counter."""

    __slots__ = ("_before", "_start_ns", "_time_ns")

    def __init__(self) -> None:
        self._start_ns = self._time_ns = 0
        self._before: float | int = 0

    def began(self, value: float | int, time_ns: int) -> int:
        """Return the start time of a point. time_ns: the point's time; the wall clock may have been set back."""
        if not self._start_ns or time_ns < self._start_ns:
            self._start_ns = time_ns
        elif value < self._before:
            self._start_ns = min(self._time_ns, time_ns)
        self._before, self._time_ns = value, time_ns
        return self._start_ns


class _Slot(NamedTuple):
    """Destination of one column's points. stream: start times of a counter; None for a gauge."""

    group: Group
    attributes: bytes
    convention: Convention | None
    series: tuple[str, tuple[tuple[str, str], ...]]
    stream: _Stream | None


class Group:
    """One Metric message with its points. Fields: name 1, description 2, unit 3, and gauge 5 or sum 7."""

    __slots__ = ("_field", "_head", "_tail", "points")

    def __init__(self, name: str, about: str, unit: str, is_sum: bool, monotonic: bool) -> None:
        self._head = protobuf_writer.text(1, name) + protobuf_writer.text(2, about) + protobuf_writer.text(3, unit)
        self._field = 7 if is_sum else 5
        # Sum: data_points 1, aggregation_temporality 2, is_monotonic 3.
        self._tail = (
            protobuf_writer.integer(2, _CUMULATIVE) + protobuf_writer.integer(3, int(monotonic)) if is_sum else b""
        )
        self.points: list[bytes] = []

    def message(self) -> bytes:
        return protobuf_writer.block(
            2, self._head + protobuf_writer.block(self._field, b"".join(self.points) + self._tail)
        )


def compressed(request: bytes) -> bytes:
    """Return the request as gzip, at the fastest level."""
    packer = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    return packer.compress(request) + packer.flush()


def partial_success(answer: bytes, what: str = "points") -> str:
    """Return a text about the items that the receiver refused, '' if it refused none.

    The response for metrics or traces contains partial_success 1 {rejected 1, error_message 2}. If the body is
    malformed, return '': the HTTP status reported success.
    """
    try:
        inner = _fields(answer).get(1)
        partial = _fields(inner) if isinstance(inner, bytes) else {}
    except ValueError:
        return ""
    rejected, message = partial.get(1, 0), partial.get(2, b"")
    if not isinstance(rejected, int) or not isinstance(message, bytes) or not (rejected or message):
        return ""
    return f"{rejected} {what} refused: {message.decode('utf-8', 'replace')}"


def _fields(data: bytes) -> dict[int, int | bytes]:
    """Return the fields of a message by number, the last field of each number. Raises ValueError if it is malformed."""
    found: dict[int, int | bytes] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            if at >= len(data) or shift > 63:
                raise ValueError("cut short")
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        tag = varint()
        match tag & 7:
            case 0:
                found[tag >> 3] = varint()
            case 2:
                length = varint()
                if at + length > len(data):
                    raise ValueError("cut short")
                found[tag >> 3] = data[at : at + length]
                at += length
            case 1:
                at += 8
            case 5:
                at += 4
            case other:
                raise ValueError(f"wire type {other}")
    return found
