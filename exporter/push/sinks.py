"""Sinks: the kinds of receivers of frames. To add one, add a file and a line in SINKS."""

from __future__ import annotations

from exporter.otlp.otlp_metrics import Otlp
from exporter.push.push import Sink
from exporter.push.remote_write import RemoteWrite

SINKS: tuple[type[Sink], ...] = (Otlp, RemoteWrite)
