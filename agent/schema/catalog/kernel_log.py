"""What the kernel says in its log."""

from __future__ import annotations

from agent.schema.catalog.metric import Metric

_LOG = "/dev/kmsg"

KERNEL_LOG: tuple[Metric, ...] = (
    Metric("gangwatch_kernel_log_events_total", "counter",
           "Messages of each kind since the agent's start; each is a record of the frames too, and so are those that "
           "the log still had from before.", "", ("kind",), _LOG),
    Metric("gangwatch_kernel_log_lost_total", "counter",
           "Messages that were overwritten before the agent read them.", "", (), _LOG),
)  # fmt: skip
