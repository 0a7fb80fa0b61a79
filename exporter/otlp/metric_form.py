"""Forms of OTLP metrics: gangwatch's own encoding, or the data objects of opentelemetry-sdk.

`frame_metrics.py` and `sample_metrics.py` decide which points an export has; a form makes its parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

Attributes = TypeVar("Attributes")
Point = TypeVar("Point")
Made = TypeVar("Made")
Request = TypeVar("Request", covariant=True)


@dataclass(frozen=True, slots=True)
class MetricHead:
    """Metric without its points. is_sum: a Counter or, if not `monotonic`, an UpDownCounter; else a Gauge."""

    name: str
    description: str
    unit: str
    is_sum: bool
    monotonic: bool


class MetricForm(Protocol[Attributes, Point, Made, Request]):
    """Maker of the parts of one export."""

    def attributes(self, pairs: Mapping[str, str]) -> Attributes:
        """Return attributes of points, which may be used in many exports."""

    def point(self, attributes: Attributes, start_ns: int | None, time_ns: int, value: float | int) -> Point:
        """Return a point. start_ns: None for a metric that is not a monotonic sum."""

    def metric(self, head: MetricHead, points: list[Point]) -> Made:
        """Return a metric with its points."""

    def request(self, resource: Mapping[str, str], metrics: Iterable[Made]) -> Request:
        """Return the export."""
