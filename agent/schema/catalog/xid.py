"""Metrics of XIDs, from driver events and the kernel log."""

from __future__ import annotations

from agent.schema.catalog.metric import Metric

_SOURCE = "NVML events and the kernel log, each occurrence once"

XID: tuple[Metric, ...] = (
    Metric("gangwatch_gpu_xid_total", "counter", "XIDs with this code, since the oldest message in the kernel log.", "",
           ("code", "gpu"), _SOURCE),
    Metric("gangwatch_gpu_xid_events_total", "counter", "XIDs of any code; 0 if there was none.", "", ("gpu",),
           _SOURCE),
    Metric("gangwatch_gpu_xid_newest_timestamp_seconds", "gauge", "Time of the newest XID with this code.",
           "seconds", ("code", "gpu"), _SOURCE),
    Metric("gangwatch_gpu_driver_events_total", "counter",
           "Driver events other than XIDs: ECC, retired memory, poison, MIG, recovery action.", "",
           ("event", "gpu"), "nvmlEventSetWait_v2"),
)  # fmt: skip
