"""Values of one GPU that are read every second, for example utilisation, memory, power, clock and NVLink bytes.

They are the GPU's fast tier. A read makes one batch call for fields and a dozen single calls. The first run finds out
which of them the GPU supports; the others have no series. ``nvmlDeviceGetPcieThroughput`` is not used: it measures for
20 ms and holds the driver's lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_uint, c_ulonglong

import pynvml

from agent.collectors.gpu import c2c, nvlink
from agent.collectors.gpu.device import DeviceCollector, Part, series
from agent.collectors.gpu.utilization import UtilizationSamples
from agent.sources.nvml.nvml import Device
from agent.sources.nvml.nvml_calls import Call, CallBatch
from agent.sources.nvml.nvml_fields import FieldBatch, Source, Wanted, counter, gauge
from agent.sources.nvml.nvml_gpm import MEBIBYTE, Gpm, GpmColumn

TEMPERATURE = "gangwatch_gpu_temperature_celsius"

TEMPERATURE_FIELD = 308
"""Field with the temperature of the GPU's die in fractions of a degree, in newer drivers. pynvml has no name for it."""

PERCENT = 0.01
MILLI = 1e-3
MEGA = 1e6

THROTTLE_REASONS = (
    ("gpu_idle", pynvml.nvmlClocksEventReasonGpuIdle),
    ("clocks_setting", pynvml.nvmlClocksEventReasonApplicationsClocksSetting),
    ("power_cap", pynvml.nvmlClocksEventReasonSwPowerCap),
    ("hw_slowdown", pynvml.nvmlClocksEventReasonHwSlowdown),
    ("sync_boost", pynvml.nvmlClocksEventReasonSyncBoost),
    ("sw_thermal", pynvml.nvmlClocksEventReasonSwThermalSlowdown),
    ("hw_thermal", pynvml.nvmlClocksEventReasonHwThermalSlowdown),
    ("hw_power_brake", pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown),
    ("display_clocks", pynvml.nvmlClocksEventReasonDisplayClockSetting),
    ("board_limit", 0x200),
    ("reliability", 0x400),
)
"""Reasons why the driver lowers the GPU's clock, each with its bit in NVML's mask of throttle reasons. The last two are
numbers because older versions of pynvml have no names for them. DCGM has no names for them either; its label
``clock_event`` has the same names for the others."""

THROTTLE_TIMES = (
    ("power_cap", pynvml.NVML_FI_DEV_PERF_POLICY_POWER),
    ("thermal_policy", pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL),
    ("sync_boost", pynvml.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST),
    ("board_limit", pynvml.NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT),
    ("low_utilization", pynvml.NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION),
    ("reliability", pynvml.NVML_FI_DEV_PERF_POLICY_RELIABILITY),
    ("sw_thermal", pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN),
    ("hw_thermal", pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN),
    ("hw_power_brake", pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN),
)
"""NVML fields, by throttle reason. Each field counts the nanoseconds in which this reason kept the clock below the
requested clock."""

SM_CLOCK: int = pynvml.NVML_CLOCK_SM
"""NVML's number of the clock of the SMs (the GPU's processors). This clock matters most to training and is read every
second. The other clocks are read every ten seconds."""

PIPES = (
    ("integer", pynvml.NVML_GPM_METRIC_INTEGER_UTIL),
    ("tensor_dfma", pynvml.NVML_GPM_METRIC_DFMA_TENSOR_UTIL),
    ("tensor_hmma", pynvml.NVML_GPM_METRIC_HMMA_TENSOR_UTIL),
    ("tensor_dmma", 8),  # pynvml names it from 13.595 on
    ("tensor_imma", pynvml.NVML_GPM_METRIC_IMMA_TENSOR_UTIL),
    ("fp64", pynvml.NVML_GPM_METRIC_FP64_UTIL),
    ("fp32", pynvml.NVML_GPM_METRIC_FP32_UTIL),
    ("fp16", pynvml.NVML_GPM_METRIC_FP16_UTIL),
)
"""Execution pipes of a GPU, each with the GPM metric of its activity. The activity of all tensor pipes together is not
in this list: it has a metric of its own."""


def fast_fields(device: Device, links: int) -> Iterator[Wanted]:
    """Yield the NVML fields that are read every second. links: number of the GPU's NVLinks."""
    average, instant = pynvml.NVML_FI_DEV_POWER_AVERAGE, pynvml.NVML_FI_DEV_POWER_INSTANT
    # The average is the mean over 1 s (Ampere and newer except GA100); other GPUs have only the instant value.
    yield gauge(series("gangwatch_gpu_power_watts", device), Source(average, MILLI), Source(instant, MILLI))
    yield gauge(series("gangwatch_gpu_power_instant_watts", device), Source(instant, MILLI))
    yield gauge(series("gangwatch_gpu_module_power_watts", device), Source(instant, MILLI, 1))
    yield gauge(series(TEMPERATURE, device), Source(TEMPERATURE_FIELD))
    yield gauge(series("gangwatch_gpu_memory_temperature_celsius", device), Source(pynvml.NVML_FI_DEV_MEMORY_TEMP))
    yield counter(
        series("gangwatch_gpu_energy_joules_total", device),
        Source(pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION),
        Source(pynvml.NVML_FI_DEV_ENERGY),
    )
    for reason, field in THROTTLE_TIMES:
        yield counter(series("gangwatch_gpu_throttle_seconds_total", device, reason=reason), Source(field))
    yield from nvlink.fast_fields(device, links)


def fast_calls(device: Device, temperature: bool) -> Iterator[Call | tuple[Call, Call]]:
    """Yield the NVML calls for utilisation, memory, clock and throttle reasons.

    If `temperature`, also yield the call for the temperature of the GPU's die.
    """
    yield Call(
        "nvmlDeviceGetUtilizationRates",
        pynvml.c_nvmlUtilization_t,
        (series("gangwatch_gpu_utilization_ratio", device), series("gangwatch_gpu_memory_utilization_ratio", device)),
        ("gpu", "memory"),
        PERCENT,
    )
    kinds = ("total", "used", "free", "reserved")
    yield Call(
        "nvmlDeviceGetMemoryInfo_v2",
        pynvml.c_nvmlMemory_v2_t,
        tuple(series(f"gangwatch_gpu_memory_{kind}_bytes", device) for kind in kinds),
        kinds,
        version=pynvml.nvmlMemory_v2,
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
            Call(
                "nvmlDeviceGetTemperatureV",
                pynvml.c_nvmlTemperature_v1_t,
                column,
                ("temperature",),
                version=pynvml.nvmlTemperature_v1,
            ),
            Call("nvmlDeviceGetTemperature", c_uint, column, before=(c_uint(pynvml.NVML_TEMPERATURE_GPU),)),
        )


def gpm_columns(device: Device, links: int) -> list[GpmColumn]:
    """Return the profiling metrics (GPM, nvmlGpmMetricId_t) of the whole GPU. links: number of its NVLinks.

    Raise GpuLostError or LibraryDeadError.
    """
    columns = [
        GpmColumn(
            pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL, series("gangwatch_gpu_graphics_engine_active_ratio", device), PERCENT
        ),
        GpmColumn(pynvml.NVML_GPM_METRIC_SM_UTIL, series("gangwatch_gpu_sm_active_ratio", device), PERCENT),
        GpmColumn(pynvml.NVML_GPM_METRIC_SM_OCCUPANCY, series("gangwatch_gpu_sm_occupancy_ratio", device), PERCENT),
        GpmColumn(pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL, series("gangwatch_gpu_tensor_active_ratio", device), PERCENT),
        GpmColumn(pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL, series("gangwatch_gpu_dram_active_ratio", device), PERCENT),
    ]
    columns.extend(
        GpmColumn(metric, series("gangwatch_gpu_pipe_active_ratio", device, pipe=pipe), PERCENT)
        for pipe, metric in PIPES
    )
    traffic = {
        "pcie": (
            ("transmit", pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC),
            ("receive", pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC),
        ),
        "nvlink": (
            ("receive", pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC),
            ("transmit", pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC),
        ),
    }
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
    """Yield the NVML fields of the PCIe byte counters, for GPUs without profiling metrics (GPM).

    A counter of 32 bits is skipped: it restarts at 0 several times between two reads.
    """
    for direction, field in (
        ("transmit", pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES),
        ("receive", pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES),
    ):
        column = series(f"gangwatch_gpu_pcie_{direction}_bytes_total", device)
        yield counter(column, Source(field), wide_only=True)


def fast_parts(device: Device) -> Iterator[Part]:
    """Yield the parts (driver calls with their series) that are read every second. Raise GpuLostError or
    LibraryDeadError."""
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
    yield CallBatch(device, fast_calls(device, temperature=not has_temperature))
    yield UtilizationSamples(device)


def fast_collector(device: Device, interval_seconds: float, phase: float) -> DeviceCollector:
    return DeviceCollector(f"gpu/{device.pci_address}", device, fast_parts, interval_seconds, phase)
