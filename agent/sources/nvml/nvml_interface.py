"""Structures, return codes and value types of NVML calls.

Layouts and numbers are those of nvml.h (12.9 and 13.5); tests/agent/test_nvml_interface.py compares them with the
vendor's bindings. The version field of a structure contains its size in the low bits and its version from bit 24 on.
"""

from __future__ import annotations

import ctypes
from ctypes import Structure, c_char, c_double, c_int, c_longlong, c_ubyte, c_uint, c_ulonglong, c_void_p
from typing import Any, ClassVar

SUCCESS = 0
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
TIMEOUT = 10

NEVER = frozenset({2, 3, 4, 13, 25})
"""Codes of unsupported calls: INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND,
ARGUMENT_VERSION_MISMATCH. They are permanent for the handle, and for this process: its permissions do not change."""

LOST = frozenset({15, 16, 28})
"""Codes of a lost GPU: GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND. All calls on this GPU fail until it is reset."""

DEAD = frozenset({1, 9, 18})
"""Codes of a dead library: UNINITIALIZED, DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH. All calls fail until the library
is reloaded."""

ABSENT_DRIVER = frozenset({9, 12})
"""Codes of nvmlInit on a machine without a driver: DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND."""

ALL_LINKS = 0xFFFFFFFF
"""Scope of a field that is the sum over all NVLinks of the GPU."""

NOT_AVAILABLE = (1 << 64) - 1
"""Unsigned 64-bit value that means "not available" (NVML_VALUE_NOT_AVAILABLE)."""

CODES = {
    1: "Uninitialized", 2: "Invalid Argument", 3: "Not Supported", 4: "No Permission", 6: "Not Found",
    7: "Insufficient Size", 9: "Driver Not Loaded", 10: "Timeout", 12: "Library Not Found", 13: "Function Not Found",
    15: "GPU is lost", 16: "Reset Required", 17: "Operating System", 18: "Driver/library version mismatch",
    19: "In Use", 20: "Memory", 21: "No Data", 23: "Insufficient Resources", 25: "Argument Version Mismatch",
    26: "Deprecated", 27: "Not Ready", 28: "GPU Not Found", 29: "Invalid State", 999: "Unknown",
}  # fmt: skip


def code_text(code: int) -> str:
    """Return the text of a code for error messages: its name in nvml.h and its number."""
    return f"{CODES.get(code, 'error')} ({code})"


class Versioned(Structure):
    """Base class of structures whose first field is their version."""

    number: ClassVar[int] = 1

    def __init__(self) -> None:
        super().__init__()
        self.version = ctypes.sizeof(self) | self.number << 24


class Utilization(Structure):
    _fields_: ClassVar[Any] = [("gpu", c_uint), ("memory", c_uint)]


class Memory(Versioned):
    number = 2
    _fields_: ClassVar[Any] = [
        ("version", c_uint),
        ("total", c_ulonglong),
        ("reserved", c_ulonglong),
        ("free", c_ulonglong),
        ("used", c_ulonglong),
    ]


class Bar1(Structure):
    _fields_: ClassVar[Any] = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


class Temperature(Versioned):
    """Temperature of a sensor (nvmlTemperature_t). Sensor 0 is the die."""

    _fields_: ClassVar[Any] = [("version", c_uint), ("sensor", c_uint), ("celsius", c_int)]


class Margin(Versioned):
    _fields_: ClassVar[Any] = [("version", c_uint), ("celsius", c_int)]


class Pci(Structure):
    _fields_: ClassVar[Any] = [
        ("legacy", c_char * 16),
        ("domain", c_uint),
        ("bus", c_uint),
        ("device", c_uint),
        ("device_id", c_uint),
        ("subsystem_id", c_uint),
        ("bus_id", c_char * 32),
    ]


class FieldValue(Structure):
    """One field and its value (nvmlFieldValue_t).

    value: a union of eight bytes, declared as an unsigned integer. value_type: the real type of the value.
    """

    _fields_: ClassVar[Any] = [
        ("field", c_uint),
        ("scope", c_uint),
        ("timestamp", c_longlong),
        ("latency", c_longlong),
        ("value_type", c_uint),
        ("code", c_int),
        ("value", c_ulonglong),
    ]


class Sample(Structure):
    """One sample of a value (nvmlSample_t). timestamp: microseconds since the epoch."""

    _fields_: ClassVar[Any] = [("timestamp", c_ulonglong), ("value", c_ulonglong)]


class SramErrors(Versioned):
    _fields_: ClassVar[Any] = [
        ("version", c_uint),
        ("aggregate_parity", c_ulonglong),
        ("aggregate_secded", c_ulonglong),
        ("aggregate_corrected", c_ulonglong),
        ("volatile_parity", c_ulonglong),
        ("volatile_secded", c_ulonglong),
        ("volatile_corrected", c_ulonglong),
        ("bucket_l2", c_ulonglong),
        ("bucket_sm", c_ulonglong),
        ("bucket_pcie", c_ulonglong),
        ("bucket_mcu", c_ulonglong),
        ("bucket_other", c_ulonglong),
        ("threshold_exceeded", c_uint),
    ]


class RemapHistogram(Structure):
    """Number of banks of device memory, by the number of spare rows that remain in the bank."""

    _fields_: ClassVar[Any] = [
        ("max", c_uint),
        ("high", c_uint),
        ("partial", c_uint),
        ("low", c_uint),
        ("none", c_uint),
    ]


class ProcessInfo(Structure):
    """One process on a GPU, as listed by the v2 and v3 calls (nvmlProcessInfo_t)."""

    _fields_: ClassVar[Any] = [
        ("pid", c_uint),
        ("memory", c_ulonglong),
        ("gpu_instance", c_uint),
        ("compute_instance", c_uint),
    ]


class ProcessSample(Structure):
    """GPU use of one process. timestamp: microseconds since the epoch. sm, memory, encoder, decoder: percent."""

    _fields_: ClassVar[Any] = [
        ("pid", c_uint),
        ("timestamp", c_ulonglong),
        ("sm", c_uint),
        ("memory", c_uint),
        ("encoder", c_uint),
        ("decoder", c_uint),
    ]


class EventData(Structure):
    _fields_: ClassVar[Any] = [
        ("device", c_void_p),
        ("event_type", c_ulonglong),
        ("event_data", c_ulonglong),
        ("gpu_instance", c_uint),
        ("compute_instance", c_uint),
    ]


class Attributes(Structure):
    """Attributes of a MIG instance (nvmlDeviceAttributes_t)."""

    _fields_: ClassVar[Any] = [
        ("multiprocessors", c_uint),
        ("copy_engines", c_uint),
        ("decoders", c_uint),
        ("encoders", c_uint),
        ("jpeg", c_uint),
        ("optical_flow", c_uint),
        ("gpu_slices", c_uint),
        ("compute_slices", c_uint),
        ("memory_mib", c_ulonglong),
    ]


class GpuInstanceInfo(Structure):
    """One GPU instance. profile: number of the MIG profile in nvidia-smi. start, size: in slices of memory."""

    _fields_: ClassVar[Any] = [
        ("device", c_void_p),
        ("id", c_uint),
        ("profile", c_uint),
        ("start", c_uint),
        ("size", c_uint),
    ]


class FabricV2(Versioned):
    number = 2
    _fields_: ClassVar[Any] = [
        ("version", c_uint),
        ("cluster", c_ubyte * 16),
        ("status", c_uint),
        ("clique", c_uint),
        ("state", c_ubyte),
        ("health", c_uint),
    ]


class FabricV3(Versioned):
    number = 3
    _fields_: ClassVar[Any] = [*FabricV2._fields_, ("summary", c_ubyte)]


class GpmMetric(Structure):
    _fields_: ClassVar[Any] = [
        ("metric", c_uint),
        ("code", c_int),
        ("value", c_double),
        ("names", c_void_p * 3),
    ]


GPM_METRICS = 477
"""Maximum number of metrics in a request: NVML_GPM_METRIC_MAX of NVML 13.5, the largest so far. A driver accesses only
the requested number of metrics."""


class GpmRequest(Structure):
    """Request for GPM metrics between two samples. version: 1, without the size of the structure."""

    _fields_: ClassVar[Any] = [
        ("version", c_uint),
        ("count", c_uint),
        ("first", c_void_p),
        ("second", c_void_p),
        ("metrics", GpmMetric * GPM_METRICS),
    ]


class GpmSupport(Structure):
    """Whether a GPU supports GPM. version: 1, without the size of the structure."""

    _fields_: ClassVar[Any] = [("version", c_uint), ("supported", c_uint)]
