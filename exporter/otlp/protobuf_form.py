"""OTLP metrics in gangwatch's own encoding.

opentelemetry-proto 1.x (metrics/v1/metrics.proto; its field numbers are in the comments here).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import version

from exporter.otlp.conventions import SCHEMA_URL
from exporter.otlp.metric_form import MetricHead
from exporter.push import protobuf_writer

_CUMULATIVE = 2
"""Number of AGGREGATION_TEMPORALITY_CUMULATIVE, the temporality of all sums."""


def attributes(pairs: Mapping[str, str], field: int) -> bytes:
    """Return the pairs as KeyValue messages with string values. Field numbers: key 1, value 2, AnyValue.string_value
    1."""
    return b"".join(
        protobuf_writer.block(
            field, protobuf_writer.text(1, name) + protobuf_writer.block(2, protobuf_writer.text(1, value))
        )
        for name, value in pairs.items()
    )


def scope() -> bytes:
    """Return the InstrumentationScope of gangwatch. Field numbers: name 1, version 2."""
    return protobuf_writer.block(
        1, protobuf_writer.text(1, "gangwatch") + protobuf_writer.text(2, version("gangwatch"))
    )


class ProtobufForm:
    """Maker of an ExportMetricsServiceRequest as bytes."""

    def __init__(self) -> None:
        self._scope = scope()

    def attributes(self, pairs: Mapping[str, str]) -> bytes:
        return attributes(pairs, 7)

    def point(self, attributes: bytes, start_ns: int | None, time_ns: int, value: float | int) -> bytes:
        # NumberDataPoint: attributes 7, start_time_unix_nano 2, time_unix_nano 3, as_double 4 or as_int 6.
        head = attributes if start_ns is None else attributes + protobuf_writer.fixed64(2, start_ns)
        number = (
            protobuf_writer.sfixed64(6, value)
            if isinstance(value, int) and value < 2**63
            else protobuf_writer.double(4, value)
        )
        return protobuf_writer.block(1, head + protobuf_writer.fixed64(3, time_ns) + number)

    def metric(self, head: MetricHead, points: list[bytes]) -> bytes:
        # Metric: name 1, description 2, unit 3, gauge 5 or sum 7. Sum: data_points 1, aggregation_temporality 2,
        # is_monotonic 3.
        about = (
            protobuf_writer.text(1, head.name)
            + protobuf_writer.text(2, head.description)
            + protobuf_writer.text(3, head.unit)
        )
        data = b"".join(points)
        if head.is_sum:
            data += protobuf_writer.integer(2, _CUMULATIVE) + protobuf_writer.integer(3, int(head.monotonic))
        return protobuf_writer.block(2, about + protobuf_writer.block(7 if head.is_sum else 5, data))

    def request(self, resource: Mapping[str, str], metrics: Iterable[bytes]) -> bytes:
        # ScopeMetrics: scope 1, metrics 2, schema_url 3. ResourceMetrics: resource 1, scope_metrics 2.
        encoded = protobuf_writer.block(1, attributes(resource, 1))
        scoped = self._scope + b"".join(metrics) + protobuf_writer.text(3, SCHEMA_URL)
        return protobuf_writer.block(1, encoded + protobuf_writer.block(2, scoped))
