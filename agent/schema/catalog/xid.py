"""XIDs: what the driver reported of each GPU, from its events and from the kernel's log."""

from __future__ import annotations

from agent.schema.catalog.metric import Metric

_SOURCE = "NVML events and the kernel log, each occurrence once"

XID: tuple[Metric, ...] = (
    Metric("gangwatch_gpu_xid_total", "counter", "XIDs of this code, as far back as the kernel's log reaches.", "",
           ("code", "gpu"), _SOURCE),
    Metric("gangwatch_gpu_xid_events_total", "counter", "XIDs of any code; zero where there was none.", "", ("gpu",),
           _SOURCE),
    Metric("gangwatch_gpu_xid_newest_timestamp_seconds", "gauge", "When the newest XID of this code was reported.",
           "seconds", ("code", "gpu"), _SOURCE),
    Metric("gangwatch_gpu_driver_events_total", "counter",
           "Events of the driver that are no XIDs: ECC, retired memory, poison, MIG, recovery action.", "",
           ("event", "gpu"), "nvmlEventSetWait_v2"),
)  # fmt: skip
