"""Values of one GPU that are read every ten seconds, such as limits, errors, retired memory, PCIe and NVLink.

They are the GPU's slow tier: values that change rarely or matter little to training. There are hundreds of them, and
the driver needs a long time to read some of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from ctypes import byref, c_uint

import pynvml

from agent.collectors.gpu import c2c, nvlink
from agent.collectors.gpu.device import DeviceCollector, Part, SingleCall, series
from agent.collectors.gpu.gpu import MEGA, MILLI, PERCENT, SM_CLOCK
from agent.collectors.gpu.nvlink_fabric import FabricState
from agent.schema.frame import Column
from agent.sources.nvml.nvml import Device, Query, Values
from agent.sources.nvml.nvml_fields import FieldBatch, Source, Wanted, counter, decoded, gauge

INTERVAL_SECONDS = 10.0

CLOCKS = (
    ("graphics", pynvml.NVML_CLOCK_GRAPHICS),
    ("memory", pynvml.NVML_CLOCK_MEM),
    ("video", pynvml.NVML_CLOCK_VIDEO),
)
"""Clocks that are read every ten seconds, each with NVML's number. The graphics clock follows the SM clock, which is
read every second. The memory clock hardly changes, and few jobs use the video engines."""

ENGINES = ("encoder", "decoder")

POWER_LIMITS = (
    ("min", pynvml.NVML_FI_DEV_POWER_MIN_LIMIT),
    ("max", pynvml.NVML_FI_DEV_POWER_MAX_LIMIT),
    ("default", pynvml.NVML_FI_DEV_POWER_DEFAULT_LIMIT),
    ("current", pynvml.NVML_FI_DEV_POWER_CURRENT_LIMIT),
    ("requested", pynvml.NVML_FI_DEV_POWER_REQUESTED_LIMIT),
)

TEMPERATURE_LIMITS = (
    ("shutdown", pynvml.NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT),
    ("slowdown", pynvml.NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT),
    ("memory_max", pynvml.NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT),
    ("gpu_max", pynvml.NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT),
)
"""Temperature limits of newer GPUs (from Ada on), each with its NVML field. The field contains the degrees that are
left until the limit takes effect (T.Limit)."""

TEMPERATURE_THRESHOLDS = (
    ("shutdown", pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN),
    ("slowdown", pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
    ("memory_max", pynvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX),
    ("gpu_max", pynvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX),
)
"""Temperature limits of older GPUs, each with NVML's number. NVML returns each limit as a temperature."""

_ECC_TOTALS = (
    ("corrected", pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL, pynvml.NVML_FI_DEV_ECC_SBE_AGG_TOTAL),
    ("uncorrected", pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL, pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL),
)
"""Severities of memory errors, each with two NVML fields: the count since the driver was loaded (volatile), and the
count since the board was made (aggregate)."""

_ECC_LOCATIONS = (
    ("l1_cache", "L1"),
    ("l2_cache", "L2"),
    ("device_memory", "DEV"),
    ("register_file", "REG"),
    ("texture_memory", "TEX"),
    ("cbu", "CBU"),
)
"""Locations of memory errors, each with its code in the names of NVML fields: L1 in NVML_FI_DEV_ECC_SBE_VOL_L1."""

_ECC_KINDS = (("corrected", "SBE"), ("uncorrected", "DBE"))
"""Severities of memory errors, each with its code in the names of NVML fields: SBE in NVML_FI_DEV_ECC_SBE_VOL_L1."""

_ECC_SPANS = (
    ("gangwatch_gpu_ecc_location_errors_total", "VOL"),
    ("gangwatch_gpu_ecc_location_lifetime_errors_total", "AGG"),
)
"""Metrics of memory errors by location: errors since the driver was loaded, and errors since the board was made. Each
has its code in the names of NVML fields: VOL in NVML_FI_DEV_ECC_SBE_VOL_L1."""

PCIE_ERRORS = (
    ("l0_to_recovery", pynvml.NVML_FI_DEV_PCIE_L0_TO_RECOVERY_COUNTER),
    ("correctable", pynvml.NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS),
    ("nak_received", pynvml.NVML_FI_DEV_PCIE_COUNT_NAKS_RECEIVED),
    ("receiver", pynvml.NVML_FI_DEV_PCIE_COUNT_RECEIVER_ERROR),
    ("bad_tlp", pynvml.NVML_FI_DEV_PCIE_COUNT_BAD_TLP),
    ("nak_sent", pynvml.NVML_FI_DEV_PCIE_COUNT_NAKS_SENT),
    ("bad_dllp", pynvml.NVML_FI_DEV_PCIE_COUNT_BAD_DLLP),
    ("non_fatal", pynvml.NVML_FI_DEV_PCIE_COUNT_NON_FATAL_ERROR),
    ("fatal", pynvml.NVML_FI_DEV_PCIE_COUNT_FATAL_ERROR),
    ("unsupported_request", pynvml.NVML_FI_DEV_PCIE_COUNT_UNSUPPORTED_REQ),
    ("lcrc", pynvml.NVML_FI_DEV_PCIE_COUNT_LCRC_ERROR),
    ("lane", pynvml.NVML_FI_DEV_PCIE_COUNT_LANE_ERROR),
)
"""Kinds of PCIe errors, each with its NVML field."""

RECOVERY_ACTIONS = (
    "none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset", "recover_imex_domain", "bus_reset",
    "system_reboot",
)  # fmt: skip
"""Recovery actions of a GPU, by their number in nvmlDeviceGpuRecoveryAction_t."""

PCIE_LANE_BITS_PER_SECOND = {1: 2.5e9 * 0.8, 2: 5e9 * 0.8, 3: 8e9 * 128 / 130, 4: 16e9 * 128 / 130,
                             5: 32e9 * 128 / 130, 6: 64e9 * 242 / 256}  # fmt: skip
"""Bits per second on one PCIe lane, by PCIe generation, without the bits of the line code (PCIe 1-2: 8b/10b, 3-5:
128b/130b, 6: 242 of the 256 bytes of a flit)."""


def recovery_states(action: int) -> list[float]:
    """Return one value for each recovery action: 1 for the action that the GPU needs, 0 for the others."""
    return [float(number == action) for number in range(len(RECOVERY_ACTIONS))]


def slow_fields(device: Device, links: int) -> Iterator[Wanted]:
    """Yield the NVML fields that are read every ten seconds. links: number of the GPU's NVLinks."""
    yield gauge(series("gangwatch_gpu_ecc_enabled", device), Source(pynvml.NVML_FI_DEV_ECC_CURRENT))
    yield gauge(series("gangwatch_gpu_ecc_pending", device), Source(pynvml.NVML_FI_DEV_ECC_PENDING))
    for severity, since_load, since_made in _ECC_TOTALS:
        yield counter(series("gangwatch_gpu_ecc_errors_total", device, severity=severity), Source(since_load))
        yield counter(series("gangwatch_gpu_ecc_lifetime_errors_total", device, severity=severity), Source(since_made))
    for location, place in _ECC_LOCATIONS:
        for metric, span in _ECC_SPANS:
            for severity, kind in _ECC_KINDS:
                if (kind, place) != ("SBE", "CBU"):  # NVML has no such field
                    field = getattr(pynvml, f"NVML_FI_DEV_ECC_{kind}_{span}_{place}")
                    yield counter(series(metric, device, location=location, severity=severity), Source(field))
    for cause, field in (
        ("corrected", pynvml.NVML_FI_DEV_RETIRED_SBE),
        ("uncorrected", pynvml.NVML_FI_DEV_RETIRED_DBE),
    ):
        yield counter(series("gangwatch_gpu_retired_pages_total", device, cause=cause), Source(field))
    yield gauge(series("gangwatch_gpu_retired_pages_pending", device), Source(pynvml.NVML_FI_DEV_RETIRED_PENDING))
    for cause, field in (
        ("corrected", pynvml.NVML_FI_DEV_REMAPPED_COR),
        ("uncorrected", pynvml.NVML_FI_DEV_REMAPPED_UNC),
    ):
        yield counter(series("gangwatch_gpu_remapped_rows_total", device, cause=cause), Source(field))
    yield gauge(series("gangwatch_gpu_row_remap_pending", device), Source(pynvml.NVML_FI_DEV_REMAPPED_PENDING))
    yield gauge(series("gangwatch_gpu_row_remap_failed", device), Source(pynvml.NVML_FI_DEV_REMAPPED_FAILURE))
    for limit, field in POWER_LIMITS:
        yield gauge(series("gangwatch_gpu_power_limit_watts", device, limit=limit), Source(field, MILLI))
    for limit, field in TEMPERATURE_LIMITS:
        yield gauge(series("gangwatch_gpu_temperature_margin_limit_celsius", device, limit=limit), Source(field))
    yield counter(series("gangwatch_gpu_pcie_replays_total", device), Source(pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER))
    yield counter(
        series("gangwatch_gpu_pcie_replay_rollovers_total", device),
        Source(pynvml.NVML_FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER),
    )
    for kind, field in PCIE_ERRORS:
        yield counter(series("gangwatch_gpu_pcie_errors_total", device, kind=kind), Source(field))
    yield decoded(
        [series("gangwatch_gpu_recovery_action", device, action=action) for action in RECOVERY_ACTIONS],
        recovery_states,
        Source(pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION),
    )
    yield from nvlink.slow_fields(device, links)
    yield from c2c.slow_fields(device)


def _bar1(device: Device) -> SingleCall:
    bar1 = pynvml.c_nvmlBAR1Memory_t()
    return SingleCall(
        Query(device, "nvmlDeviceGetBAR1MemoryInfo", byref(bar1)),
        lambda: (bar1.bar1Total, bar1.bar1Used),
        [series(f"gangwatch_gpu_bar1_memory_{what}_bytes", device) for what in ("total", "used")],
    )


def _margin(device: Device) -> SingleCall:
    margin = pynvml.c_nvmlMarginTemperature_v1_t(version=pynvml.nvmlMarginTemperature_v1)
    return SingleCall(
        Query(device, "nvmlDeviceGetMarginTemperature", byref(margin)),
        lambda: (margin.marginTemperature,),
        [series("gangwatch_gpu_temperature_margin_celsius", device)],
    )


def _number(device: Device, symbol: str, column: Column, factor: float = 1.0, *before: c_uint) -> SingleCall:
    """Return a driver call that reads one unsigned number, multiplied by `factor`, into one gauge.

    before: arguments of the call after the GPU's handle and before the pointer to the result.
    """
    number = c_uint()
    return SingleCall(Query(device, symbol, *before, byref(number)), lambda: (number.value * factor,), [column])


def _sram(device: Device) -> SingleCall:
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    severities = ("corrected", "uncorrected_parity", "uncorrected_secded")
    buckets = ("l2", "sm", "pcie", "mcu", "other")
    return SingleCall(
        Query(device, "nvmlDeviceGetSramEccErrorStatus", byref(status)),
        lambda: (
            status.bThresholdExceeded,
            status.volatileCor, status.volatileUncParity, status.volatileUncSecDed,
            status.aggregateCor, status.aggregateUncParity, status.aggregateUncSecDed,
            status.aggregateUncBucketL2, status.aggregateUncBucketSm, status.aggregateUncBucketPcie,
            status.aggregateUncBucketMcu, status.aggregateUncBucketOther,
        ),
        [series("gangwatch_gpu_ecc_sram_threshold_exceeded", device)],
        [
            *(series("gangwatch_gpu_ecc_sram_errors_total", device, severity=severity) for severity in severities),
            *(
                series("gangwatch_gpu_ecc_sram_lifetime_errors_total", device, severity=severity)
                for severity in severities
            ),
            *(series("gangwatch_gpu_ecc_sram_bucket_errors_total", device, bucket=bucket) for bucket in buckets),
        ],
    )  # fmt: skip


def _remap_banks(device: Device) -> SingleCall:
    banks = pynvml.c_nvmlRowRemapperHistogramValues()
    return SingleCall(
        Query(device, "nvmlDeviceGetRowRemapperHistogram", byref(banks)),
        lambda: (banks.max, banks.high, banks.partial, banks.low, banks.none),
        [
            series("gangwatch_gpu_row_remap_banks", device, spare_rows=left)
            for left in ("max", "high", "partial", "low", "none")
        ],
    )


def _coding(device: Device, which: str) -> SingleCall:
    percent, period_us = c_uint(), c_uint()
    return SingleCall(
        Query(device, f"nvmlDeviceGet{which.capitalize()}Utilization", byref(percent), byref(period_us)),
        lambda: (percent.value * PERCENT,),
        [series(f"gangwatch_gpu_{which}_utilization_ratio", device)],
    )


def _performance_state(device: Device) -> SingleCall:
    state = c_uint()
    return SingleCall(
        Query(device, "nvmlDeviceGetPerformanceState", byref(state)),
        lambda: (float(state.value) if state.value != pynvml.NVML_PSTATE_UNKNOWN else math.nan,),
        [series("gangwatch_gpu_performance_state", device)],
    )


class PcieLink:
    """Gauges of a GPU's PCIe link: current and maximum generation, width and rate.

    The current rate is published as a share of the maximum rate.
    """

    _ASKED = (
        ("gangwatch_gpu_pcie_link_generation", "nvmlDeviceGetCurrPcieLinkGeneration"),
        ("gangwatch_gpu_pcie_link_width", "nvmlDeviceGetCurrPcieLinkWidth"),
        ("gangwatch_gpu_pcie_link_max_generation", "nvmlDeviceGetMaxPcieLinkGeneration"),
        ("gangwatch_gpu_pcie_link_max_width", "nvmlDeviceGetMaxPcieLinkWidth"),
    )

    def __init__(self, device: Device) -> None:
        """Find out whether the GPU reports its PCIe link. Raise GpuLostError or LibraryDeadError."""
        self._numbers = [c_uint() for _ in self._ASKED]
        self._queries = [
            Query(device, symbol, byref(number)) for (_, symbol), number in zip(self._ASKED, self._numbers, strict=True)
        ]
        asked = [query.ask() for query in self._queries]
        supported = not any(query.gone for query in self._queries) or any(asked)
        columns = [series(metric, device) for metric, _ in self._ASKED]
        self.gauges = (*columns, series("gangwatch_gpu_pcie_link_ratio", device)) if supported else ()
        self.counters: tuple[Column, ...] = ()

    def place(self, values: Values) -> None:
        self._values = values.gauges

    def read(self) -> None:
        if not self.gauges:
            return
        for index, query in enumerate(self._queries):
            if query.ask():
                self._values[index] = self._numbers[index].value
        generation, width, max_generation, max_width = self._values[:4].tolist()
        rate = _lane_rate(generation) * width
        most = _lane_rate(max_generation) * max_width
        self._values[4] = rate / most if most else math.nan


def _lane_rate(generation: float) -> float:
    """Return the bits per second on one PCIe lane; NaN if the generation is absent or unknown."""
    return math.nan if math.isnan(generation) else PCIE_LANE_BITS_PER_SECOND.get(int(generation), math.nan)


def slow_parts(device: Device) -> Sequence[Part]:
    """Return the parts (driver calls with their series) that are read every ten seconds.

    Raise GpuLostError or LibraryDeadError.
    """
    batch = FieldBatch(device, slow_fields(device, nvlink.link_count(device)))
    limits = "gangwatch_gpu_temperature_margin_limit_celsius"
    sums = nvlink.ErrorSums(device, batch)
    parts: list[Part] = [
        batch,
        sums,
        _bar1(device),
        _margin(device),
        _sram(device),
        _remap_banks(device),
        PcieLink(device),
        FabricState(device),
    ]
    if all(column.metric != limits for column in batch.gauges):
        parts.extend(
            _number(device, "nvmlDeviceGetTemperatureThreshold",
                    series("gangwatch_gpu_temperature_threshold_celsius", device, threshold=name), 1.0, c_uint(kind))
            for name, kind in TEMPERATURE_THRESHOLDS
        )  # fmt: skip
    parts.extend(
        _number(device, "nvmlDeviceGetMaxClockInfo",
                series("gangwatch_gpu_max_clock_hertz", device, clock=name), MEGA, c_uint(kind))
        for name, kind in (("sm", SM_CLOCK), *CLOCKS)
    )  # fmt: skip
    parts.extend(
        _number(device, "nvmlDeviceGetClockInfo", series(f"gangwatch_gpu_{name}_clock_hertz", device), MEGA,
                c_uint(kind))
        for name, kind in CLOCKS
    )  # fmt: skip
    parts += (_performance_state(device), *(_coding(device, which) for which in ENGINES))
    parts.append(_number(device, "nvmlDeviceGetFanSpeed", series("gangwatch_gpu_fan_speed_ratio", device), PERCENT))
    return parts


def slow_collector(device: Device, phase: float, interval_seconds: float = INTERVAL_SECONDS) -> DeviceCollector:
    return DeviceCollector(f"gpu-slow/{device.pci_address}", device, slow_parts, interval_seconds, phase)
