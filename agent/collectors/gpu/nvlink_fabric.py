"""NVLink fabric state of one GPU: registration, health and partition.

The source is nvmlDeviceGetGpuFabricInfoV, for Hopper and newer. Its structure has version 3, or version 2 if the driver
is older.
"""

from __future__ import annotations

from ctypes import byref

from agent.collectors.gpu.device import series
from agent.schema.frame import Column
from agent.sources.nvml.nvml import Device, Query, Values
from agent.sources.nvml.nvml_interface import FabricV2, FabricV3

STATES = ("not_supported", "not_started", "in_progress", "completed")
"""Registration states of the fabric, by number (NVML_GPU_FABRIC_STATE_*)."""

COMPLETED = 3

_FLAGS = (
    ("degraded_bandwidth", 0, 1),
    ("route_recovery", 2, 1),
    ("route_unhealthy", 4, 1),
    ("access_timeout_recovery", 6, 1),
    ("no_partition", 12, 2),
    ("manager_disconnected", 14, 2),
)
"""Aspect of the fabric's health, position of its two bits in the health mask, and the value of these bits for a fault.
The value 0 means that the aspect is not reported (NVML_GPU_FABRIC_HEALTH_MASK_*)."""

_CONFIGURATION_SHIFT, _CONFIGURATION_BITS = 8, 0xF

SUMMARIES = ("", "healthy", "unhealthy", "limited_capacity")
"""Summaries of the fabric's health, by number (NVML_GPU_FABRIC_HEALTH_SUMMARY_*)."""


class FabricState:
    """Fabric columns of one GPU; empty if the GPU has no fabric."""

    counters: tuple[Column, ...] = ()

    def __init__(self, device: Device) -> None:
        """Find out what the GPU supports. Raise GpuLostError or LibraryDeadError."""
        self._device = device
        self.gauges: tuple[Column, ...] = ()
        for form in (FabricV3, FabricV2):
            self._fabric: FabricV2 | FabricV3 = form()
            self._query = Query(device, "nvmlDeviceGetGpuFabricInfoV", byref(self._fabric))
            self._query.ask()
            if not self._query.gone:
                break
        # Version 2 of the structure has no summary.
        self._summaries = SUMMARIES[1:] if isinstance(self._fabric, FabricV3) else ()
        self._identity = self._identify()
        self._columns()

    def _identify(self) -> tuple[str, str]:
        """Return the cluster's UUID and the clique's number; both are empty until registration is complete."""
        fabric = self._fabric
        if self._query.gone or fabric.state != COMPLETED:
            return "", ""
        digits = bytes(fabric.cluster).hex()
        cluster = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
        return cluster, str(fabric.clique)

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
        for _, shift, wrong in _FLAGS:
            flag = fabric.health >> shift & 0x3
            values.append(float(flag == wrong) if flag else float("nan"))
        configuration = fabric.health >> _CONFIGURATION_SHIFT & _CONFIGURATION_BITS
        # 1 means correct; each number from 2 on is a different error.
        values.append(float(configuration if configuration > 1 else 0) if configuration else float("nan"))
        if isinstance(fabric, FabricV3):
            summary = fabric.summary
            values.extend(float(summary == number) if summary else float("nan") for number in range(1, len(SUMMARIES)))
        self._values[:] = values
