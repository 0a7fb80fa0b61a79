"""Delivery by the OTLP exporters of opentelemetry-sdk.

The queue (exporter/push/push.py) retries, because it counts what it sends and drops. Therefore the SDK's exporters make
one attempt for each call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from exporter.otlp.http_protocol import OtlpHttp
from exporter.otlp.signals import METRICS, Signal
from exporter.push.delivery import Outcome
from exporter.push.sender import address_of
from exporter.push.target import PushTarget
from exporter.push.target_files import TargetFiles

T = TypeVar("T")


class SdkExporter(Protocol):
    """Exporter of the SDK, with the outcome of each attempt."""

    def export(self, data: Any) -> Outcome: ...

    def close(self) -> None: ...


class SdkDelivery(Generic[T]):
    """Delivery of items by the SDK's exporter of a signal.

    name: name of the sink. build: returns the data objects of one item. key: configuration key of the endpoint.
    """

    def __init__(
        self,
        name: str,
        target: PushTarget,
        signal: Signal,
        build: Callable[[T], Any],
        key: str = "endpoint",
    ) -> None:
        """Read the files and open the exporter. Raises ConfigError if a file or the endpoint can't be used."""
        address_of(target, "otlp", key)
        self.name, self._target, self._signal, self._build = name, target, signal, build
        self._language = OtlpHttp(name, "points" if signal == METRICS else "spans", target.compression)
        given: Mapping[str, str] = self._language.headers() if target.protocol != "grpc" else {}
        self._files = TargetFiles(target, given, "otlp")
        self._last_log = _LastLog()
        self._exporter = self._open()

    def deliver(self, item: T) -> Outcome:
        if self._files.reread_certificates():
            self._exporter.close()
            self._exporter = self._open()
        return self._exporter.export(self._build(item))

    def close(self) -> None:
        self._exporter.close()

    def _open(self) -> SdkExporter:
        if self._target.protocol == "grpc":
            from exporter.otlp.sdk_grpc import GrpcExporter

            return GrpcExporter(self._target, self._signal, self._files, self._last_log.text)
        from exporter.otlp.sdk_http import HttpExporter

        return HttpExporter(self._target, self._signal, self._files, self._language, self._last_log.text)


class _LastLog(logging.Handler):
    """Last message of the SDK's exporters. The queue logs failures itself, each reason once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._message = ""
        logger = logging.getLogger("opentelemetry.exporter")
        logger.addHandler(self)
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self._message = record.getMessage()

    def text(self) -> str:
        return self._message
