"""Receiver of a push."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Protocol = Literal["", "http/protobuf", "grpc"]
"""Transport of OTLP, in the words of OTEL_EXPORTER_OTLP_PROTOCOL. '' is http/protobuf."""

Exporter = Literal["auto", "sdk", "own"]
"""Exporter of OTLP: 'sdk' is opentelemetry-sdk's (the extras otlp and otlp-grpc), 'own' is gangwatch's (HTTP only),
'auto' is the SDK's if it is installed; for HTTP from an agent it is gangwatch's."""

SEND_SECONDS = 10.0
"""Timeout to connect, and for the response: the default of OpenTelemetry's exporters (OTEL_EXPORTER_OTLP_TIMEOUT)."""


@dataclass(frozen=True, slots=True)
class PushTarget:
    """Endpoint, interval and credentials of a push."""

    endpoint: str
    """Complete URL. For gRPC only scheme, host and port count."""
    interval_seconds: float = 15.0
    headers_file: Path | None = None
    """File of lines "Name: value". The sender reads it again when it has changed."""
    ca_file: Path | None = None
    """CA certificates for the receiver; None for the CA certificates of the system."""
    queue_frames: int = 40
    cert_file: Path | None = None
    """Client certificate for mutual TLS, PEM; None for none."""
    key_file: Path | None = None
    """Key of `cert_file`; None if that file contains the key."""
    timeout_seconds: float = SEND_SECONDS
    protocol: Protocol = ""
    """Transport of OTLP requests."""
    exporter: Exporter = "auto"
    """Exporter of OTLP requests."""
    compression: Literal["gzip", "none"] = "gzip"
    """Compression of OTLP requests. Remote write always uses snappy."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Additional headers. A header of `headers_file` with the same name replaces one of these."""
    resource: Mapping[str, str] = field(default_factory=dict)
    """Resource attributes of OTLP requests. They replace gangwatch's own attributes of the same name."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Name of the environment variable of each field that a variable has set, by name of the field, for errors."""
