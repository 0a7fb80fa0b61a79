"""Fast tier of one GPU, read every second: utilisation, memory, power, temperature, clock, profiling, NVLink bytes.

It makes one batch call for fields and a dozen single calls. The first run finds out which of them the GPU supports; the
others have no columns. ``nvmlDeviceGetPcieThroughput`` is not used: it measures for 20 ms and holds the driver's lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_uint, c_ulonglong

from agent.collectors.gpu import c2c, nvlink
from agent.collectors.gpu.device import DeviceCollector, Part, series
from agent.collectors.gpu.utilization import UtilizationSamples
from agent.sources.nvml.nvml import Device
from agent.sources.nvml.nvml_calls import Call, CallBatch
from agent.sources.nvml.nvml_fields import FieldBatch, Source, Wanted, counter, gauge
from agent.sources.nvml.nvml_gpm import MEBIBYTE, Gpm, GpmColumn
from agent.sources.nvml.nvml_interface import Memory, Temperature, Utilization

TEMPERATURE = "gangwatch_gpu_temperature_celsius"

PERCENT = 0.01
MILLI = 1e-3
MEGA = 1e6

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
    ("board_limit", 0x200),
    ("reliability", 0x400),
)
"""Throttle reasons and their bits (nvmlClocksEventReason*). DCGM's ``clock_event`` label has the same names, except two
that DCGM lacks."""

THROTTLE_TIMES = (
    ("power_cap", 74),
    ("thermal_policy", 75),
    ("sync_boost", 76),
    ("board_limit", 77),
    ("low_utilization", 78),
    ("reliability", 79),
    ("sw_thermal", 269),
    ("hw_thermal", 270),
    ("hw_power_brake", 271),
)
"""Fields that count nanoseconds below the requested clock, by reason (NVML_FI_DEV_CLOCKS_EVENT_REASON_* and
NVML_FI_DEV_PERF_POLICY_*)."""

SM_CLOCK = 1
"""Number of the SM clock (nvmlClockType_t). It matters most to training; the other clocks are in the slow tier."""

PIPES = (
    ("integer", 4),
    ("tensor_dfma", 6),
    ("tensor_hmma", 7),
    ("tensor_dmma", 8),
    ("tensor_imma", 9),
    ("fp64", 11),
    ("fp32", 12),
    ("fp16", 13),
)
"""Pipes of a GPU and their GPM metrics. The activity of any tensor pipe is a separate metric."""


def fast_fields(device: Device, links: int) -> Iterator[Wanted]:
    """Yield the fields of the fast tier."""
    # 185 is the mean over 1 s (Ampere and newer except GA100); other GPUs have only 186.
    yield gauge(series("gangwatch_gpu_power_watts", device), Source(185, MILLI), Source(186, MILLI))
    yield gauge(series("gangwatch_gpu_power_instant_watts", device), Source(186, MILLI))
    yield gauge(series("gangwatch_gpu_module_power_watts", device), Source(186, MILLI, 1))
    # Newer drivers report fractions of a degree.
    yield gauge(series(TEMPERATURE, device), Source(308))
    yield gauge(series("gangwatch_gpu_memory_temperature_celsius", device), Source(82))
    yield counter(series("gangwatch_gpu_energy_joules_total", device), Source(83), Source(191))
    for reason, field in THROTTLE_TIMES:
        yield counter(series("gangwatch_gpu_throttle_seconds_total", device, reason=reason), Source(field))
    yield from nvlink.fast_fields(device, links)


def _calls(device: Device, temperature: bool) -> Iterator[Call | tuple[Call, Call]]:
    """Yield the calls for utilisation, memory, clock and throttle reasons.

    If `temperature`, also yield the call for the die's temperature.
    """
    yield Call(
        "nvmlDeviceGetUtilizationRates",
        Utilization,
        (series("gangwatch_gpu_utilization_ratio", device), series("gangwatch_gpu_memory_utilization_ratio", device)),
        ("gpu", "memory"),
        PERCENT,
    )
    kinds = ("total", "used", "free", "reserved")
    yield Call(
        "nvmlDeviceGetMemoryInfo_v2",
        Memory,
        tuple(series(f"gangwatch_gpu_memory_{kind}_bytes", device) for kind in kinds),
        kinds,
    )
    yield Call(
        "nvmlDeviceGetClockInfo",
        c_uint,
        (series("gangwatch_gpu_sm_clock_hertz", device),),
        factor=MEGA,
        before=(c_uint(SM_CLOCK),),
    )
    columns = tuple(series("gangwatch_gpu_throttle_state", device, reason=reason) for reason, _ in THROTTLE_REASONS)
    bits = tuple(bit for _, bit in THROTTLE_REASONS)
    yield (
        Call("nvmlDeviceGetCurrentClocksEventReasons", c_ulonglong, columns, bits=bits),
        # The name in drivers before 535.
        Call("nvmlDeviceGetCurrentClocksThrottleReasons", c_ulonglong, columns, bits=bits),
    )
    if temperature:
        column = (series(TEMPERATURE, device),)
        yield (
            Call("nvmlDeviceGetTemperatureV", Temperature, column, ("celsius",)),
            Call("nvmlDeviceGetTemperature", c_uint, column, before=(c_uint(0),)),
        )


def gpm_columns(device: Device, links: int) -> list[GpmColumn]:
    """Return the profiling columns of the whole GPU (nvmlGpmMetricId_t). links: number of its NVLinks.

    Raise GpuLostError or LibraryDeadError.
    """
    columns = [
        GpmColumn(1, series("gangwatch_gpu_graphics_engine_active_ratio", device), PERCENT),
        GpmColumn(2, series("gangwatch_gpu_sm_active_ratio", device), PERCENT),
        GpmColumn(3, series("gangwatch_gpu_sm_occupancy_ratio", device), PERCENT),
        GpmColumn(5, series("gangwatch_gpu_tensor_active_ratio", device), PERCENT),
        GpmColumn(10, series("gangwatch_gpu_dram_active_ratio", device), PERCENT),
    ]
    columns.extend(
        GpmColumn(metric, series("gangwatch_gpu_pipe_active_ratio", device, pipe=pipe), PERCENT)
        for pipe, metric in PIPES
    )
    traffic = {"pcie": (("transmit", 20), ("receive", 21)), "nvlink": (("receive", 60), ("transmit", 61))}
    for link in ("pcie", "nvlink") if links else ("pcie",):
        for direction, metric in traffic[link]:
            columns.append(
                GpmColumn(
                    metric,
                    series(f"gangwatch_gpu_{link}_{direction}_bytes_per_second", device),
                    MEBIBYTE,
                    series(f"gangwatch_gpu_pcie_{direction}_bytes_total", device) if link == "pcie" else None,
                )
            )
    return [*columns, *c2c.gpm_columns(device)]


def pcie_bytes(device: Device) -> Iterator[Wanted]:
    """Yield the PCIe byte counters, for GPUs without GPM.

    32-bit counters are skipped, because they wrap several times per run.
    """
    for direction, field in (("transmit", 197), ("receive", 198)):
        column = series(f"gangwatch_gpu_pcie_{direction}_bytes_total", device)
        yield counter(column, Source(field), wide_only=True)


def fast_parts(device: Device) -> Iterator[Part]:
    """Yield all parts of the fast tier. Raise GpuLostError or LibraryDeadError."""
    links = nvlink.link_count(device)
    # First, so that its driver buffers are freed if a later part finds the GPU lost.
    gpm = Gpm(device, gpm_columns(device, links))
    yield gpm
    fields = list(fast_fields(device, links))
    if not gpm.answers:
        fields.extend(pcie_bytes(device))
    batch = FieldBatch(device, fields)
    yield batch
    has_temperature = any(column.metric == TEMPERATURE for column in batch.gauges)
    yield CallBatch(device, _calls(device, temperature=not has_temperature))
    yield UtilizationSamples(device)


def fast_collector(device: Device, interval_seconds: float, phase: float) -> DeviceCollector:
    return DeviceCollector(f"gpu/{device.pci_address}", device, fast_parts, interval_seconds, phase)
