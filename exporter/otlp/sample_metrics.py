"""OTLP metrics of the controller, which has samples instead of frames. Metrics have the catalogue's names.

A counter starts with the process and is sent with that start time, so that a receiver detects a reset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic

from agent.schema.catalog import BY_NAME
from agent.schema.sample import Sample
from exporter.otlp.conventions import attribute_names, unit_of
from exporter.otlp.metric_form import Attributes, Made, MetricForm, MetricHead, Point, Request


@dataclass(frozen=True, slots=True)
class Scrape:
    """Samples of metrics at one point in time."""

    wall_ns: int
    samples: tuple[Sample, ...]


def scrape(wall_ns: int, samples: Iterable[Sample]) -> Scrape:
    return Scrape(wall_ns, tuple(samples))


class SampleMetrics(Generic[Attributes, Point, Made, Request]):
    """Builder of OTLP export requests from the controller's samples.

    resource: attributes of the process. start_ns: wall time at which its counters started, in nanoseconds since 1970.
    """

    def __init__(
        self, form: MetricForm[Attributes, Point, Made, Request], resource: Mapping[str, str], start_ns: int
    ) -> None:
        self._form, self._resource, self._start_ns = form, resource, start_ns

    def request(self, scrape: Scrape) -> Request:
        """Return one export. Raises KeyError for a sample that is not in the catalogue, which is a bug."""
        groups: dict[str, tuple[MetricHead, list[Point]]] = {}
        for name, labels, value in scrape.samples:
            metric = BY_NAME[name]
            group = groups.get(name)
            if group is None:
                head = MetricHead(name, metric.help, unit_of(metric), metric.kind == "counter", True)
                group = groups[name] = (head, [])
            head, points = group
            attributes = self._form.attributes(attribute_names(dict(labels)))
            start_ns = self._start_ns if head.is_sum else None
            points.append(self._form.point(attributes, start_ns, scrape.wall_ns, float(value)))
        return self._form.request(self._resource, (self._form.metric(*group) for group in groups.values()))
