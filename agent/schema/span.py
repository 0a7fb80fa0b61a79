"""Spans of traces, in the terms of OpenTelemetry's data model.

https://opentelemetry.io/docs/specs/otel/trace/api/: a trace is a tree of spans. A link refers to a
span of another trace.
"""

from __future__ import annotations

from dataclasses import dataclass

Attributes = tuple[tuple[str, str | int | float], ...]


@dataclass(frozen=True, slots=True)
class Link:
    """Reference to a span of another trace that caused this span. trace_id: 16 bytes; span_id: 8 bytes."""

    trace_id: bytes
    span_id: bytes
    attributes: Attributes = ()


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Event that happened at one time during a span."""

    wall_ns: int
    name: str
    attributes: Attributes = ()


@dataclass(frozen=True, slots=True)
class Span:
    """Span that has ended. parent_id: b'' for the root of a trace. failed: error text, '' on success."""

    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    name: str
    start_ns: int
    end_ns: int
    attributes: Attributes = ()
    events: tuple[SpanEvent, ...] = ()
    links: tuple[Link, ...] = ()
    failed: str = ""
