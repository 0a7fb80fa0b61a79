"""Spans: what took how long, and what led to it, in the words of OpenTelemetry's data model.

https://opentelemetry.io/docs/specs/otel/trace/api/: a trace is a tree of spans; a link points into another trace.
"""

from __future__ import annotations

from dataclasses import dataclass

Attributes = tuple[tuple[str, str | int | float], ...]


@dataclass(frozen=True, slots=True)
class Link:
    """Another trace's span that this one waited for, or follows from. trace_id: 16 bytes; span_id: 8."""

    trace_id: bytes
    span_id: bytes
    attributes: Attributes = ()


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened at one instant of a span."""

    wall_ns: int
    name: str
    attributes: Attributes = ()


@dataclass(frozen=True, slots=True)
class Span:
    """A span that has ended. parent_id: b'' for a trace's root. failed: in words, '' where it did not fail."""

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
