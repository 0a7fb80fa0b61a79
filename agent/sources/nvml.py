"""NVML, the driver's library, through pynvml, which is imported only where a GPU is looked for.

A value that this GPU or driver does not have is asked for once and then left alone; a GPU that has fallen off the bus
is asked again only now and then, since every call on it may take the driver's lock for long.

Errors and units: nvml.h of the driver; pynvml raises NVMLError with the code in ``value``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agent.schema.errors import SourceError, UnsupportedError

_NEVER = frozenset({2, 3, 13, 25})
"""INVALID_ARGUMENT, NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH: so for the life of the handle."""

_LOST = frozenset({15, 16, 28})
"""GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND: this GPU answers nothing until it is reset."""

_DEAD = frozenset({1, 9, 18})
"""UNINITIALIZED, DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH: the library as it is loaded answers nothing any more."""

RETRY_LOST_RUNS = 30
"""A lost GPU is left alone for this many runs."""

THROTTLE_REASONS = (
    ("gpu_idle", 0x1),
    ("clocks_setting", 0x2),
    ("power_cap", 0x4),
    ("hw_slowdown", 0x8),
    ("sync_boost", 0x10),
    ("sw_thermal", 0x20),
    ("hw_thermal", 0x40),
    ("hw_power_brake", 0x80),
    ("display_clocks", 0x100),
)
"""Bits of nvmlClocksEventReason* under the names that DCGM's ``clock_event`` label has."""


class GpuReading(NamedTuple):
    """What one GPU said, in NVML's own units; None where it does not tell."""

    utilization_percent: int | None = None
    memory_utilization_percent: int | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    power_milliwatts: int | None = None
    energy_millijoules: int | None = None
    temperature_celsius: int | None = None
    sm_clock_megahertz: int | None = None
    memory_clock_megahertz: int | None = None
    throttle_reasons: int | None = None


@dataclass(slots=True)
class Gpu:
    """One GPU of the machine. The UUID is its identity: an index changes when another GPU fails."""

    uuid: str
    pci_address: str
    model: str
    handle: Any
    unsupported: set[str] = field(default_factory=set)
    lost_runs: int = 0


class _LostError(Exception):
    """The GPU being read is lost."""


def pci_address(bus_id: str) -> str:
    """NVML's bus id as the kernel writes it: '00000000:3B:00.0' -> '0000:3b:00.0'."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


class Nvml:
    """The library, initialised, and the GPUs it found. Used from one thread."""

    def __init__(self, library: str | None = None) -> None:
        """Load and initialise. library: a path to load instead of the system's libnvidia-ml.so.1.

        Raises UnsupportedError where there is no library, driver or GPU, SourceError where it fails otherwise.
        """
        try:
            import pynvml
        except ImportError as error:
            raise UnsupportedError(f"pynvml: {error}") from None
        self._nvml: Any = pynvml
        if library is not None:
            try:
                pynvml.nvmlLib = ctypes.CDLL(library)
            except OSError as error:
                raise UnsupportedError(f"NVML: {error}") from None
            pynvml._nvmlGetFunctionPointer_cache.clear()
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            kind = UnsupportedError if error.value in (9, 12) else SourceError
            raise kind(f"NVML: nvmlInit: {error}") from None
        try:
            self.driver: str = pynvml.nvmlSystemGetDriverVersion()
            self.gpus: tuple[Gpu, ...] = tuple(self._find_gpus(pynvml.nvmlDeviceGetCount()))
        except pynvml.NVMLError as error:
            self.close()
            raise SourceError(f"NVML: {error}") from None
        if not self.gpus:
            self.close()
            raise UnsupportedError("NVML: no GPU answers")

    def _find_gpus(self, count: int) -> list[Gpu]:
        """The GPUs that tell who they are; one that is lost already when the agent starts is not among them."""
        gpus: list[Gpu] = []
        for index in range(count):
            try:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                bus_id = self._nvml.nvmlDeviceGetPciInfo(handle).busId
                gpus.append(
                    Gpu(
                        self._nvml.nvmlDeviceGetUUID(handle),
                        pci_address(bus_id.decode() if isinstance(bus_id, bytes) else bus_id),
                        self._nvml.nvmlDeviceGetName(handle),
                        handle,
                    )
                )
            except self._nvml.NVMLError as error:
                if error.value in _DEAD:
                    raise
        return gpus

    def read(self, gpu: Gpu) -> GpuReading | None:
        """Everything the GPU tells now; None while it is lost. Raises SourceError where the library itself is dead."""
        if gpu.lost_runs > 0:
            gpu.lost_runs -= 1
            return None
        nvml, handle = self._nvml, gpu.handle
        try:
            rates = self._ask(gpu, "utilization", lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
            memory = self._ask(gpu, "memory", lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2))
            return GpuReading(
                rates and rates.gpu,
                rates and rates.memory,
                memory and memory.total,
                memory and memory.used,
                self._ask(gpu, "power", lambda: nvml.nvmlDeviceGetPowerUsage(handle)),
                self._ask(gpu, "energy", lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle)),
                self._ask(gpu, "temperature", lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
                self._ask(gpu, "SM clock", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
                self._ask(gpu, "memory clock", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
                self._ask(gpu, "clock reasons", lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)),
            )
        except _LostError:
            gpu.lost_runs = RETRY_LOST_RUNS
            return None

    def _ask(self, gpu: Gpu, what: str, call: Callable[[], Any]) -> Any:
        """The call's result, None where this GPU does not give it (this time, or ever)."""
        if what in gpu.unsupported:
            return None
        try:
            return call()
        except self._nvml.NVMLError as error:
            code = error.value
            if code in _LOST:
                raise _LostError from None
            if code in _DEAD:
                raise SourceError(f"NVML: {what} of {gpu.uuid}: {error}") from None
            if code in _NEVER:
                gpu.unsupported.add(what)
            return None

    def close(self) -> None:
        """Let go of the driver; an open handle would block a GPU's reset and the driver's unloading."""
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            pass
