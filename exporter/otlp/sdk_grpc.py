"""OTLP over gRPC by the exporters of opentelemetry-sdk."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from google.rpc.error_details_pb2 import RetryInfo
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

from exporter.otlp.signals import METRICS, Signal
from exporter.push.delivery import Outcome
from exporter.push.sender import MOST_RETRY_AFTER_SECONDS
from exporter.push.target import PushTarget
from exporter.push.target_files import TargetFiles

MOST_POINTS = 8192
"""Maximum number of points in a request: receivers refuse a message above 4 MiB, gRPC's default."""

_LATER = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
"""Status codes that cause a retry, as in OTLP's specification."""

_ONCE = (grpc.StatusCode.OK,)
"""Codes after which the SDK sends again itself: none of an error. An empty value means the SDK's default."""


class GrpcExporter:
    """Exporter of one signal over gRPC. last_log: returns the last message of the SDK."""

    def __init__(self, target: PushTarget, signal: Signal, files: TargetFiles, last_log: Callable[[], str]) -> None:
        self._last_log = last_log
        self._attempts = _Attempts(files)
        options: dict[str, Any] = {
            "endpoint": target.endpoint,
            "insecure": files.context is None,
            "credentials": _credentials(target) if files.context is not None else None,
            "headers": (("sender", "gangwatch"),),  # replaced for each request; without any, the SDK reads variables
            "timeout": target.timeout_seconds,
            "compression": grpc.Compression.Gzip if target.compression == "gzip" else grpc.Compression.NoCompression,
            "retryable_error_codes": _ONCE,
        }
        self._exporter = (
            _Metrics(self._attempts, max_export_batch_size=MOST_POINTS, **options)
            if signal == METRICS
            else _Spans(self._attempts, **options)
        )

    def export(self, data: Any) -> Outcome:
        """Send once. Raises RuntimeError if the SDK sent nothing, which is a bug."""
        self._attempts.outcomes.clear()
        self._exporter.export(data)
        outcomes = self._attempts.outcomes
        if not outcomes:
            raise RuntimeError(f"opentelemetry-sdk sent no request: {self._last_log()}")
        # One export may be several requests: the first failure, or else the first complaint, stands for all.
        return min(outcomes, key=lambda one: (one.accepted, not one.reason))

    def close(self) -> None:
        self._exporter.shutdown()


class _Attempts:
    """Requests with the current headers, and their outcomes."""

    def __init__(self, files: TargetFiles) -> None:
        self.outcomes: list[Outcome] = []
        self._files = files

    def client_of(self, stub: Any) -> _Client:
        return _Client(stub, self)

    def send(self, stub: Any, request: Any, timeout: float) -> Any:
        # Names of gRPC's metadata are in lower case.
        metadata = tuple((name.lower(), value) for name, value in self._files.headers().items())
        try:
            answer = stub.Export(request=request, metadata=metadata, timeout=timeout)
        except grpc.RpcError as error:
            code, details = error.code(), error.details() or ""
            reason = f"status {code.name}: {details[:200].strip()}"
            self.outcomes.append(Outcome(False, reason, code in _LATER, _wait_seconds(error)))
            raise
        self.outcomes.append(Outcome(True, _complaint(answer.partial_success)))
        return answer


class _Client:
    """Stub whose requests go through the attempts."""

    def __init__(self, stub: Any, attempts: _Attempts) -> None:
        self._stub, self._attempts = stub, attempts

    def Export(self, request: Any, metadata: Any, timeout: float) -> Any:  # noqa: ARG002, N802 - the stub's signature
        return self._attempts.send(self._stub, request, timeout)


class _Metrics(OTLPMetricExporter):  # type: ignore[misc] # its types are not checked
    """Exporter of metrics whose requests go through `attempts`."""

    _client: Any

    def __init__(self, attempts: _Attempts, **options: Any) -> None:
        self._attempts = attempts
        super().__init__(**options)

    def _initialize_channel_and_stub(self) -> None:
        super()._initialize_channel_and_stub()
        self._client = self._attempts.client_of(self._client)


class _Spans(OTLPSpanExporter):  # type: ignore[misc] # its types are not checked
    """Exporter of spans whose requests go through `attempts`."""

    _client: Any

    def __init__(self, attempts: _Attempts, **options: Any) -> None:
        self._attempts = attempts
        super().__init__(**options)

    def _initialize_channel_and_stub(self) -> None:
        super()._initialize_channel_and_stub()
        self._client = self._attempts.client_of(self._client)


def _credentials(target: PushTarget) -> grpc.ChannelCredentials:
    """Return the certificates of the target; the machine's authorities if it names none. Raises OSError."""
    authorities = target.ca_file or ssl.get_default_verify_paths().cafile
    key = target.key_file or target.cert_file
    return grpc.ssl_channel_credentials(
        Path(authorities).read_bytes() if authorities else None,
        key.read_bytes() if key else None,
        target.cert_file.read_bytes() if target.cert_file else None,
    )


def _complaint(partial: Any) -> str:
    """Return a text about the items that the receiver refused, '' if it refused none."""
    for field in ("rejected_data_points", "rejected_spans"):
        rejected = getattr(partial, field, 0)
        if rejected:
            what = "points" if field == "rejected_data_points" else "spans"
            return f"{rejected} {what} refused: {partial.error_message}"
    return f"0 refused: {partial.error_message}" if partial.error_message else ""


def _wait_seconds(error: grpc.RpcError) -> float:
    """Return the pause that the receiver has asked for, in a RetryInfo; 0 for none."""
    for name, value in error.trailing_metadata() or ():
        if name == "google.rpc.retryinfo-bin":
            info = RetryInfo.FromString(value)
            return float(min(info.retry_delay.seconds + info.retry_delay.nanos / 1e9, MOST_RETRY_AFTER_SECONDS))
    return 0.0
