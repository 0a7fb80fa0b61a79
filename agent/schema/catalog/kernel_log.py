"""Metrics of events in the kernel log."""

from __future__ import annotations

from agent.schema.catalog.metric import Metric

_LOG = "/dev/kmsg"

KERNEL_LOG: tuple[Metric, ...] = (
    Metric("gangwatch_kernel_log_events_total", "counter",
           "Kernel messages by kind since the agent started. Frames also contain each message as a record, including "
           "older messages that were still in the log.", "", ("kind",), _LOG),
    Metric("gangwatch_kernel_log_lost_total", "counter",
           "Kernel messages overwritten before the agent read them.", "", (), _LOG),
)  # fmt: skip
