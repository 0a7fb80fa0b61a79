"""Push of spans by OTLP, by the SDK's exporter or in gangwatch's own encoding: an ExportTraceServiceRequest, over HTTP.

https://opentelemetry.io/docs/specs/otlp/ and opentelemetry-proto 1.x (trace/v1/trace.proto; its field numbers are in
the docstrings here).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.schema.span import Attributes, Link, Span, SpanEvent
from exporter.otlp.choice import uses_sdk
from exporter.otlp.http_protocol import OtlpHttp, compressed
from exporter.otlp.protobuf_form import attributes, scope
from exporter.otlp.signals import TRACES
from exporter.push import protobuf_writer
from exporter.push.delivery import Delivery, HttpDelivery
from exporter.push.target import PushTarget

_INTERNAL = 1
"""Number of SPAN_KIND_INTERNAL, the kind of all spans."""

_OK, _ERROR = 1, 2
"""Numbers of STATUS_CODE_OK and STATUS_CODE_ERROR."""


class OtlpSpans(OtlpHttp):
    """Encoder of spans. resource: attributes of the sending process. compression: 'gzip' or 'none'."""

    name = "otlp_traces"

    def __init__(self, resource: Mapping[str, str], compression: str = "gzip") -> None:
        super().__init__(self.name, "spans", compression)
        # ResourceSpans: resource 1, scope_spans 2. ScopeSpans: scope 1, spans 2.
        self._attributes, self._resource = resource, protobuf_writer.block(1, attributes(resource, 1))
        self._scope = scope()

    def delivery(self, target: PushTarget) -> Delivery[Sequence[Span]]:
        """Return the delivery of spans by the SDK's exporter if that is chosen, else in gangwatch's encoding."""
        if not uses_sdk(target):
            return HttpDelivery(self, target, self.encode, "otlp", "traces_endpoint")
        from exporter.otlp.sdk_delivery import SdkDelivery
        from exporter.otlp.sdk_form import SdkSpans

        return SdkDelivery(self.name, target, TRACES, SdkSpans(self._attributes).request, "traces_endpoint")

    def encode(self, spans: Sequence[Span]) -> bytes:
        """Return the body of one export request."""
        encoded = b"".join(protobuf_writer.block(2, _span(span)) for span in spans)
        request = protobuf_writer.block(1, self._resource + protobuf_writer.block(2, self._scope + encoded))
        return compressed(request, self._compression)


def _span(span: Span) -> bytes:
    """Return a Span message.

    Field numbers: trace_id 1, span_id 2, parent_span_id 4, name 5, kind 6, start 7, end 8, attributes 9, events 11,
    links 13, status 15.
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
    """Return an Event message. Field numbers: time_unix_nano 1, name 2, attributes 3."""
    return protobuf_writer.fixed64(1, event.wall_ns) + protobuf_writer.text(2, event.name) + _pairs(event.attributes, 3)


def _link(link: Link) -> bytes:
    """Return a Link message. Field numbers: trace_id 1, span_id 2, attributes 4."""
    return protobuf_writer.block(1, link.trace_id) + protobuf_writer.block(2, link.span_id) + _pairs(link.attributes, 4)


def _status(failed: str) -> bytes:
    """Return a Status message. Field numbers: message 2, code 3."""
    return (
        protobuf_writer.text(2, failed) + protobuf_writer.integer(3, _ERROR)
        if failed
        else protobuf_writer.integer(3, _OK)
    )


def _pairs(pairs: Attributes, field: int) -> bytes:
    """Return the pairs as KeyValue messages. Field numbers: key 1, value 2; in AnyValue: string_value 1, int_value 3,
    double_value 4."""
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
