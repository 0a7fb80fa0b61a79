"""OTLP traces over HTTP: spans as an ExportTraceServiceRequest, gzip-compressed, to /v1/traces.

https://opentelemetry.io/docs/specs/otlp/ and opentelemetry-proto 1.x (trace/v1/trace.proto; its field numbers are in
the docstrings here).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version

from agent.schema.span import Attributes, Link, Span, SpanEvent
from exporter.otlp.otlp_metrics import attributes, compressed, partial_success
from exporter.push import protobuf_writer
from exporter.push.push import LATER

_INTERNAL = 1
"""Number of SPAN_KIND_INTERNAL, the kind of all spans."""

_OK, _ERROR = 1, 2
"""Numbers of STATUS_CODE_OK and STATUS_CODE_ERROR."""


class OtlpSpans:
    """Encoder of spans. resource: attributes of the sending process."""

    name = "otlp_traces"

    def __init__(self, resource: Mapping[str, str]) -> None:
        # ResourceSpans: resource 1, scope_spans 2. ScopeSpans: scope 1, spans 2. Scope: name 1, version 2.
        self._resource = protobuf_writer.block(1, attributes({"service.name": "gangwatch", **resource}, 1))
        self._scope = protobuf_writer.block(
            1, protobuf_writer.text(1, "gangwatch") + protobuf_writer.text(2, version("gangwatch"))
        )

    def headers(self) -> Mapping[str, str]:
        return {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip", "User-Agent": "gangwatch"}

    def encode(self, spans: Sequence[Span]) -> bytes:
        """Return the body of one export request."""
        encoded = b"".join(protobuf_writer.block(2, _span(span)) for span in spans)
        return compressed(protobuf_writer.block(1, self._resource + protobuf_writer.block(2, self._scope + encoded)))

    def again(self, status: int) -> bool:
        return status in LATER

    def complaint(self, answer: bytes) -> str:
        return partial_success(answer, "spans")


def _span(span: Span) -> bytes:
    """Return a Span message.

    Fields: trace_id 1, span_id 2, parent_span_id 4, name 5, kind 6, start 7, end 8, attributes 9, events 11, links 13,
    status 15.
    """
    return b"".join(
        (
            protobuf_writer.block(1, span.trace_id),
            protobuf_writer.block(2, span.span_id),
            protobuf_writer.block(4, span.parent_id) if span.parent_id else b"",
            protobuf_writer.text(5, span.name),
            protobuf_writer.integer(6, _INTERNAL),
            protobuf_writer.fixed64(7, span.start_ns),
            protobuf_writer.fixed64(8, span.end_ns),
            _pairs(span.attributes, 9),
            *(protobuf_writer.block(11, _event(event)) for event in span.events),
            *(protobuf_writer.block(13, _link(link)) for link in span.links),
            protobuf_writer.block(15, _status(span.failed)),
        )
    )


def _event(event: SpanEvent) -> bytes:
    """Return an Event message. Fields: time_unix_nano 1, name 2, attributes 3."""
    return protobuf_writer.fixed64(1, event.wall_ns) + protobuf_writer.text(2, event.name) + _pairs(event.attributes, 3)


def _link(link: Link) -> bytes:
    """Return a Link message. Fields: trace_id 1, span_id 2, attributes 4."""
    return protobuf_writer.block(1, link.trace_id) + protobuf_writer.block(2, link.span_id) + _pairs(link.attributes, 4)


def _status(failed: str) -> bytes:
    """Return a Status message. Fields: message 2, code 3."""
    return (
        protobuf_writer.text(2, failed) + protobuf_writer.integer(3, _ERROR)
        if failed
        else protobuf_writer.integer(3, _OK)
    )


def _pairs(pairs: Attributes, field: int) -> bytes:
    """Return KeyValue messages (key 1, value 2). Fields of AnyValue: string_value 1, int_value 3, double_value 4."""
    encoded = b""
    for name, value in pairs:
        if isinstance(value, str):
            any_value = protobuf_writer.text(1, value)
        else:
            any_value = (
                protobuf_writer.integer(3, value) if isinstance(value, int) else protobuf_writer.double(4, value)
            )
        encoded += protobuf_writer.block(field, protobuf_writer.text(1, name) + protobuf_writer.block(2, any_value))
    return encoded
