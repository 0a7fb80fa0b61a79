"""Prometheus remote write 1.0: a protobuf of series, snappy-compressed, to /api/v1/write.

https://prometheus.io/docs/specs/prw/remote_write_spec/ (version 0.1.0 on the wire). Labels, including __name__, are
sorted by name. Times are the sample times of the series, in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agent.schema.errors import ExtraMissingError
from agent.schema.frame import Frame, Layout, check_fits
from exporter.push import protobuf_writer
from exporter.push.delivery import Delivery, HttpDelivery
from exporter.push.points import Points
from exporter.push.target import PushTarget


class RemoteWrite:
    """Encoder of frames as WriteRequests."""

    name = "remote_write"

    def __init__(self, target: PushTarget) -> None:  # noqa: ARG002 - one signature
        """Create the encoder. Raises ExtraMissingError if the compression library is not installed."""
        try:
            import cramjam
        except ImportError:
            raise ExtraMissingError("remote_write.endpoint", "remote-write") from None
        self._compress = cramjam.snappy.compress_raw
        self._points: Points | None = None
        self._series: list[bytes] = []

    def delivery(self, target: PushTarget, wanted: Callable[[str], bool]) -> Delivery[tuple[Layout, Frame]]:
        return HttpDelivery(self, target, lambda item: self.encode(*item, wanted))

    def headers(self) -> Mapping[str, str]:
        return {
            "Content-Type": "application/x-protobuf",
            "Content-Encoding": "snappy",
            "X-Prometheus-Remote-Write-Version": "0.1.0",
            "User-Agent": "gangwatch",
        }

    def encode(self, layout: Layout, frame: Frame, wanted: Callable[[str], bool]) -> bytes:
        check_fits(layout, frame)
        if self._points is None or self._points.layout.layout_id != layout.layout_id:
            self._points = Points(layout, wanted)
            self._series = [
                b"".join(
                    protobuf_writer.block(1, protobuf_writer.text(1, name) + protobuf_writer.text(2, value))
                    for name, value in sorted((("__name__", point.metric.name), *point.labels))
                )
                for point in self._points.points
            ]
        parts: list[bytes] = []
        for at, value, time_ns in self._points.values(frame):
            sample = protobuf_writer.double(1, float(value)) + protobuf_writer.integer(2, time_ns // 1_000_000)
            parts.append(protobuf_writer.block(1, self._series[at] + protobuf_writer.block(2, sample)))
        return bytes(self._compress(b"".join(parts)))

    def again(self, status: int) -> bool:
        return status >= 500 or status in (408, 429)

    def complaint(self, answer: bytes) -> str:  # noqa: ARG002 - a success has no body
        return ""
