"""Sinks: where frames are pushed. One more is a file, and a line in SINKS."""

from __future__ import annotations

from exporter.otlp.otlp_metrics import Otlp
from exporter.push.push import Sink
from exporter.push.remote_write import RemoteWrite

SINKS: tuple[type[Sink], ...] = (Otlp, RemoteWrite)
