"""Push of metrics by OTLP: one export per frame or scrape, by the SDK's exporter or in gangwatch's own encoding."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agent.schema.frame import Frame, Layout
from exporter.otlp.choice import uses_sdk
from exporter.otlp.frame_metrics import FrameMetrics
from exporter.otlp.http_protocol import OtlpHttp, compressed
from exporter.otlp.protobuf_form import ProtobufForm
from exporter.otlp.sample_metrics import SampleMetrics, Scrape
from exporter.otlp.signals import METRICS
from exporter.push.delivery import Delivery, HttpDelivery
from exporter.push.target import PushTarget


class Otlp(OtlpHttp):
    """Encoder of frames as compressed requests."""

    name = "otlp"

    def __init__(self, target: PushTarget) -> None:
        super().__init__(self.name, "points", target.compression)
        self._metrics = FrameMetrics(ProtobufForm(), target.resource)

    def delivery(self, target: PushTarget, wanted: Callable[[str], bool]) -> Delivery[tuple[Layout, Frame]]:
        """Return the delivery of frames by the SDK's exporter if that is chosen, else in gangwatch's encoding.

        Agents send frames. There 'auto' is gangwatch's encoding, because the SDK exceeds the memory budget (ADR 56).
        """
        if not uses_sdk(target, automatic=False):
            return HttpDelivery(self, target, lambda item: self.encode(*item, wanted))
        from exporter.otlp.sdk_delivery import SdkDelivery
        from exporter.otlp.sdk_form import SdkForm

        metrics = FrameMetrics(SdkForm(), target.resource)
        return SdkDelivery(self.name, target, METRICS, lambda item: metrics.request(*item, wanted))

    def encode(self, layout: Layout, frame: Frame, wanted: Callable[[str], bool]) -> bytes:
        return compressed(self._metrics.request(layout, frame, wanted), self._compression)


class OtlpSamples(OtlpHttp):
    """Encoder of samples as compressed requests. See SampleMetrics for the arguments."""

    name = "otlp"

    def __init__(self, resource: Mapping[str, str], start_ns: int, compression: str = "gzip") -> None:
        super().__init__(self.name, "points", compression)
        self._resource, self._start_ns = resource, start_ns
        self._metrics = SampleMetrics(ProtobufForm(), resource, start_ns)

    def delivery(self, target: PushTarget) -> Delivery[Scrape]:
        """Return the delivery of samples by the SDK's exporter if that is chosen, else in gangwatch's encoding."""
        if not uses_sdk(target):
            return HttpDelivery(self, target, self.encode)
        from exporter.otlp.sdk_delivery import SdkDelivery
        from exporter.otlp.sdk_form import SdkForm

        metrics = SampleMetrics(SdkForm(), self._resource, self._start_ns)
        return SdkDelivery(self.name, target, METRICS, metrics.request)

    def encode(self, scrape: Scrape) -> bytes:
        """Return the body of one request. Raises KeyError for a sample that is not in the catalogue, which is a bug."""
        return compressed(self._metrics.request(scrape), self._compression)
