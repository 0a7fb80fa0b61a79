"""Sinks: the kinds of receivers of frames. To add one, add a file and a line in SINKS."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from exporter.otlp.otlp_metrics import Otlp
from exporter.push.push import Sink
from exporter.push.remote_write import RemoteWrite
from exporter.push.target import PushTarget

SINKS: Mapping[str, Callable[[PushTarget], Sink]] = {"otlp": Otlp, "remote_write": RemoteWrite}
"""Maker of each sink, by the section of the configuration. It raises ConfigError if a library is not installed."""
