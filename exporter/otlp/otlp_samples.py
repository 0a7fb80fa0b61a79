"""OTLP metrics of the controller, which has samples instead of frames. Metrics have the catalogue's names.

A counter starts with the process and is sent with that start time, so that a receiver detects a reset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version

from agent.schema.catalog import BY_NAME
from exporter.otlp.conventions import SCHEMA_URL, unit_of
from exporter.otlp.otlp_metrics import Group, attributes, compressed, partial_success
from exporter.prometheus.text_format import Sample
from exporter.push import protobuf_writer
from exporter.push.push import LATER


@dataclass(frozen=True, slots=True)
class Scrape:
    """Samples at one point in time."""

    wall_ns: int
    samples: tuple[Sample, ...]


class OtlpSamples:
    """Encoder of samples. resource: attributes of the process. start_ns: start time of its counters."""

    name = "otlp"

    def __init__(self, resource: Mapping[str, str], start_ns: int) -> None:
        self._resource = protobuf_writer.block(1, attributes({"service.name": "gangwatch", **resource}, 1))
        self._scope = protobuf_writer.block(
            1, protobuf_writer.text(1, "gangwatch") + protobuf_writer.text(2, version("gangwatch"))
        )
        self._start = protobuf_writer.fixed64(2, start_ns)

    def headers(self) -> Mapping[str, str]:
        return {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip", "User-Agent": "gangwatch"}

    def encode(self, scrape: Scrape) -> bytes:
        """Return the body of one request. Raises KeyError for a sample that is not in the catalogue, which is a bug."""
        groups: dict[str, Group] = {}
        at = protobuf_writer.fixed64(3, scrape.wall_ns)
        for name, labels, value in scrape.samples:
            metric = BY_NAME[name]
            is_sum = metric.kind == "counter"
            group = groups.get(name)
            if group is None:
                group = groups[name] = Group(name, metric.help, unit_of(metric), is_sum, True)
            # NumberDataPoint: attributes 7, start_time_unix_nano 2, time_unix_nano 3, as_double 4.
            head = attributes(dict(labels), 7) + (self._start if is_sum else b"")
            group.points.append(protobuf_writer.block(1, head + at + protobuf_writer.double(4, value)))
        metrics = b"".join(group.message() for group in groups.values())
        scope = protobuf_writer.block(2, self._scope + metrics + protobuf_writer.text(3, SCHEMA_URL))
        return compressed(protobuf_writer.block(1, self._resource + scope))

    def again(self, status: int) -> bool:
        return status in LATER

    def complaint(self, answer: bytes) -> str:
        return partial_success(answer)


def scrape(wall_ns: int, samples: Iterable[Sample]) -> Scrape:
    return Scrape(wall_ns, tuple(samples))
