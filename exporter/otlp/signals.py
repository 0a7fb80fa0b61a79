"""Kinds of telemetry that are pushed by OTLP."""

from __future__ import annotations

from typing import NamedTuple


class Signal(NamedTuple):
    """Kind of telemetry. name: its part in names of variables. path: its path below a base endpoint."""

    name: str
    path: str


METRICS = Signal("METRICS", "v1/metrics")
TRACES = Signal("TRACES", "v1/traces")
