"""OTLP metrics and spans as data objects of opentelemetry-sdk, for its exporters.

The objects are made directly. One instrument per series, read by callbacks, would cost a call per series and export.
Spans of jobs have times and ids of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags

from agent.schema import span as ours
from exporter.otlp.conventions import SCHEMA_URL
from exporter.otlp.metric_form import MetricHead

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)

_NO_EXEMPLARS: list[object] = []
"""Shared by all points, which have none: a list for each would cost memory."""


class SdkForm:
    """Maker of MetricsData."""

    def __init__(self) -> None:
        self._scope = InstrumentationScope("gangwatch", version("gangwatch"), SCHEMA_URL)

    def attributes(self, pairs: Mapping[str, str]) -> dict[str, str]:
        return _encodable(pairs)

    def point(
        self, attributes: dict[str, str], start_ns: int | None, time_ns: int, value: float | int
    ) -> NumberDataPoint:
        if isinstance(value, int) and value >= 2**63:
            value = float(value)  # OTLP's integers are signed
        return NumberDataPoint(attributes, start_ns, time_ns, value, _NO_EXEMPLARS)

    def metric(self, head: MetricHead, points: list[NumberDataPoint]) -> Metric:
        data = Sum(points, AggregationTemporality.CUMULATIVE, head.monotonic) if head.is_sum else Gauge(points)
        return Metric(head.name, head.description, head.unit, data)

    def request(self, resource: Mapping[str, str], metrics: Iterable[Metric]) -> MetricsData:
        scoped = ScopeMetrics(self._scope, list(metrics), SCHEMA_URL)
        return MetricsData([ResourceMetrics(Resource(_encodable(resource)), [scoped], "")])


class SdkSpans:
    """Maker of spans of the SDK. resource: attributes of the sending process."""

    def __init__(self, resource: Mapping[str, str]) -> None:
        self._resource = Resource(_encodable(resource))
        self._scope = InstrumentationScope("gangwatch", version("gangwatch"))

    def request(self, spans: Sequence[ours.Span]) -> list[ReadableSpan]:
        return [self._span(span) for span in spans]

    def _span(self, span: ours.Span) -> ReadableSpan:
        return ReadableSpan(
            _text(span.name),
            _context(span.trace_id, span.span_id),
            _context(span.trace_id, span.parent_id) if span.parent_id else None,
            self._resource,
            _values(span.attributes),
            [Event(_text(event.name), _values(event.attributes), event.wall_ns) for event in span.events],
            [Link(_context(link.trace_id, link.span_id), _values(link.attributes)) for link in span.links],
            status=Status(StatusCode.ERROR, _text(span.failed)) if span.failed else Status(StatusCode.OK),
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )


def _context(trace_id: bytes, span_id: bytes) -> SpanContext:
    return SpanContext(int.from_bytes(trace_id, "big"), int.from_bytes(span_id, "big"), False, _SAMPLED)


def _values(pairs: ours.Attributes) -> dict[str, str | int | float]:
    return {_text(name): _text(value) if isinstance(value, str) else value for name, value in pairs}


def _encodable(pairs: Mapping[str, str]) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in pairs.items()}


def _text(text: str) -> str:
    """Return the text with characters replaced that UTF-8 can't represent, because protobuf refuses them."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
