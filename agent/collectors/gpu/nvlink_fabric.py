"""NVLink fabric state of one GPU: registration, health and partition.

The source is nvmlDeviceGetGpuFabricInfoV, for Hopper and newer. Its structure has version 3, or version 2 if the driver
is older.
"""

from __future__ import annotations

from ctypes import byref
from typing import Any

import pynvml

from agent.collectors.gpu.device import series
from agent.schema.frame import Column
from agent.sources.nvml.nvml import Device, Query, Values

STATES = ("not_supported", "not_started", "in_progress", "completed")
"""Registration states of the fabric, by number (NVML_GPU_FABRIC_STATE_*)."""

COMPLETED: int = pynvml.NVML_GPU_FABRIC_STATE_COMPLETED

_FLAGS = (
    ("degraded_bandwidth", 0, 1),
    ("route_recovery", 2, 1),
    ("route_unhealthy", 4, 1),
    ("access_timeout_recovery", 6, 1),
    ("no_partition", 12, 2),
    ("manager_disconnected", 14, 2),
)
"""Aspects of the fabric's health in the driver's health mask (NVML_GPU_FABRIC_HEALTH_MASK_*). Each aspect has two bits.
An entry contains the aspect, the position of its lower bit, and the value of the two bits that means a fault. The value
0 means that the driver does not report the aspect."""

_CONFIGURATION_SHIFT, _CONFIGURATION_BITS = 8, 0xF

SUMMARIES = ("", "healthy", "unhealthy", "limited_capacity")
"""Summaries of the fabric's health, by number (NVML_GPU_FABRIC_HEALTH_SUMMARY_*)."""


class FabricState:
    """Series of one GPU about the NVLink fabric; none if the GPU has no fabric."""

    counters: tuple[Column, ...] = ()

    def __init__(self, device: Device) -> None:
        """Find out whether the GPU supports the fabric query. Raise GpuLostError or LibraryDeadError."""
        self._device = device
        self.gauges: tuple[Column, ...] = ()
        for form in (pynvml.c_nvmlGpuFabricInfo_v3_t, pynvml.c_nvmlGpuFabricInfo_v2_t):
            self._fabric: Any = form()
            self._query = Query(device, "nvmlDeviceGetGpuFabricInfoV", byref(self._fabric))
            self._query.ask()
            if not self._query.gone:
                break
        # Version 2 of the structure has no summary.
        self._summaries = SUMMARIES[1:] if hasattr(self._fabric, "healthSummary") else ()
        self._identity = self._identify()
        self._columns()

    def _identify(self) -> tuple[str, str]:
        """Return the cluster's UUID and the clique's number; both are empty until registration is complete."""
        fabric = self._fabric
        if self._query.gone or fabric.state != COMPLETED:
            return "", ""
        digits = bytes(fabric.clusterUuid).hex()
        cluster = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
        return cluster, str(fabric.cliqueId)

    def _columns(self) -> None:
        if self._query.gone or self._fabric.state == 0:
            self.gauges = ()
            return
        device = self._device
        cluster, clique = self._identity
        self.gauges = (
            series("gangwatch_fabric_info", device, clique=clique, cluster=cluster),
            *(series("gangwatch_fabric_state", device, state=state) for state in STATES[1:]),
            series("gangwatch_fabric_status", device),
            *(series("gangwatch_fabric_fault", device, aspect=aspect) for aspect, _, _ in _FLAGS),
            series("gangwatch_fabric_misconfiguration", device),
            *(series("gangwatch_fabric_health", device, health=summary) for summary in self._summaries),
        )

    def place(self, values: Values) -> None:
        self._values = values.gauges

    def read(self) -> None:
        if not self._query.ask():
            return
        fabric = self._fabric
        identity = self._identify()
        if identity != self._identity or bool(self.gauges) != bool(fabric.state):
            self._identity = identity
            self._columns()
            return  # the columns have changed: the collector makes a new block and reads again
        if not self.gauges:
            return
        values: list[float] = [1.0]
        values.extend(float(fabric.state == number) for number in range(1, len(STATES)))
        # nvml.h: the status is valid only once registration is complete.
        values.append(float(fabric.status) if fabric.state == COMPLETED else float("nan"))
        health = fabric.healthMask
        for _, shift, wrong in _FLAGS:
            flag = health >> shift & 0x3
            values.append(float(flag == wrong) if flag else float("nan"))
        configuration = health >> _CONFIGURATION_SHIFT & _CONFIGURATION_BITS
        # 1 means correct; each number from 2 on is a different error.
        values.append(float(configuration if configuration > 1 else 0) if configuration else float("nan"))
        if self._summaries:
            summary = fabric.healthSummary
            values.extend(float(summary == number) if summary else float("nan") for number in range(1, len(SUMMARIES)))
        self._values[:] = values
