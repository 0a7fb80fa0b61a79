"""Slow tier of one GPU: limits, errors, retired memory, PCIe, NVLink, fabric, performance state, video engines.

These values change rarely or matter little to training. They are read every ten seconds, because they are hundreds of
registers, some with slow access.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from ctypes import byref, c_uint

from agent.collectors.gpu import c2c, nvlink
from agent.collectors.gpu.device import DeviceCollector, Part, SingleCall, series
from agent.collectors.gpu.gpu import MEGA, MILLI, PERCENT, SM_CLOCK
from agent.collectors.gpu.nvlink_fabric import FabricState
from agent.schema.frame import Column
from agent.sources.nvml.nvml import Device, Query, Values
from agent.sources.nvml.nvml_fields import FieldBatch, Source, Wanted, counter, decoded, gauge
from agent.sources.nvml.nvml_interface import Bar1, Margin, RemapHistogram, SramErrors

INTERVAL_SECONDS = 10.0

CLOCKS = (("graphics", 0), ("memory", 2), ("video", 3))
"""Clocks and their numbers (nvmlClockType_t). The graphics clock follows the SM clock, which is in the fast tier. The
memory clock hardly changes, and few jobs use the video engines."""

ENGINES = ("encoder", "decoder")

POWER_LIMITS = (("min", 187), ("max", 188), ("default", 189), ("current", 190), ("requested", 192))

TEMPERATURE_LIMITS = (("shutdown", 193), ("slowdown", 194), ("memory_max", 195), ("gpu_max", 196))
"""Temperature limits and their NVML fields (T.Limit): the margin in degrees at which a limit takes effect (Ada and
newer)."""

TEMPERATURE_THRESHOLDS = (("shutdown", 0), ("slowdown", 1), ("memory_max", 2), ("gpu_max", 3))
"""Temperature limits and their numbers (nvmlTemperatureThresholds_t), for older GPUs, which report each limit as a
temperature."""

_ECC_TOTALS = (("corrected", 3, 5), ("uncorrected", 4, 6))
"""Severity of the errors, the field that counts them since the driver was loaded, and the field that counts them since
the board was made."""

_ECC_LOCATIONS = (
    ("l1_cache", (7, 8), (18, 19)),
    ("l2_cache", (9, 10), (20, 21)),
    ("device_memory", (11, 12), (22, 23)),
    ("register_file", (13, 14), (24, 25)),
    ("texture_memory", (15, 16), (26, 27)),
    ("cbu", (None, 17), (None, 28)),
)
"""Location of the errors, the fields for (corrected, uncorrected) errors since the driver was loaded, and the fields
for (corrected, uncorrected) errors since the board was made."""

SEVERITIES = ("corrected", "uncorrected")

PCIE_ERRORS = (
    ("l0_to_recovery", 169), ("correctable", 173), ("nak_received", 174), ("receiver", 175), ("bad_tlp", 176),
    ("nak_sent", 177), ("bad_dllp", 178), ("non_fatal", 179), ("fatal", 180), ("unsupported_request", 181),
    ("lcrc", 182), ("lane", 183),
)  # fmt: skip

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
    """Yield the fields of the slow tier."""
    yield gauge(series("gangwatch_gpu_ecc_enabled", device), Source(1))
    yield gauge(series("gangwatch_gpu_ecc_pending", device), Source(2))
    for severity, since_load, since_made in _ECC_TOTALS:
        yield counter(series("gangwatch_gpu_ecc_errors_total", device, severity=severity), Source(since_load))
        yield counter(series("gangwatch_gpu_ecc_lifetime_errors_total", device, severity=severity), Source(since_made))
    for location, since_load_fields, since_made_fields in _ECC_LOCATIONS:
        for metric, fields in (
            ("gangwatch_gpu_ecc_location_errors_total", since_load_fields),
            ("gangwatch_gpu_ecc_location_lifetime_errors_total", since_made_fields),
        ):
            for severity, field in zip(SEVERITIES, fields, strict=True):
                if field is not None:
                    yield counter(series(metric, device, location=location, severity=severity), Source(field))
    for cause, field in (("corrected", 29), ("uncorrected", 30)):
        yield counter(series("gangwatch_gpu_retired_pages_total", device, cause=cause), Source(field))
    yield gauge(series("gangwatch_gpu_retired_pages_pending", device), Source(31))
    for cause, field in (("corrected", 142), ("uncorrected", 143)):
        yield counter(series("gangwatch_gpu_remapped_rows_total", device, cause=cause), Source(field))
    yield gauge(series("gangwatch_gpu_row_remap_pending", device), Source(144))
    yield gauge(series("gangwatch_gpu_row_remap_failed", device), Source(145))
    for limit, field in POWER_LIMITS:
        yield gauge(series("gangwatch_gpu_power_limit_watts", device, limit=limit), Source(field, MILLI))
    for limit, field in TEMPERATURE_LIMITS:
        yield gauge(series("gangwatch_gpu_temperature_margin_limit_celsius", device, limit=limit), Source(field))
    yield counter(series("gangwatch_gpu_pcie_replays_total", device), Source(94))
    yield counter(series("gangwatch_gpu_pcie_replay_rollovers_total", device), Source(95))
    for kind, field in PCIE_ERRORS:
        yield counter(series("gangwatch_gpu_pcie_errors_total", device, kind=kind), Source(field))
    yield decoded(
        [series("gangwatch_gpu_recovery_action", device, action=action) for action in RECOVERY_ACTIONS],
        recovery_states,
        Source(230),
    )
    yield from nvlink.slow_fields(device, links)
    yield from c2c.slow_fields(device)


def _bar1(device: Device) -> SingleCall:
    bar1 = Bar1()
    return SingleCall(
        Query(device, "nvmlDeviceGetBAR1MemoryInfo", byref(bar1)),
        lambda: (bar1.total, bar1.used),
        [series(f"gangwatch_gpu_bar1_memory_{what}_bytes", device) for what in ("total", "used")],
    )


def _margin(device: Device) -> SingleCall:
    margin = Margin()
    return SingleCall(
        Query(device, "nvmlDeviceGetMarginTemperature", byref(margin)),
        lambda: (margin.celsius,),
        [series("gangwatch_gpu_temperature_margin_celsius", device)],
    )


def _number(device: Device, symbol: str, column: Column, factor: float = 1.0, *before: c_uint) -> SingleCall:
    """Return a call that writes one unsigned number to its last argument."""
    number = c_uint()
    return SingleCall(Query(device, symbol, *before, byref(number)), lambda: (number.value * factor,), [column])


def _sram(device: Device) -> SingleCall:
    status = SramErrors()
    severities = ("corrected", "uncorrected_parity", "uncorrected_secded")
    buckets = ("l2", "sm", "pcie", "mcu", "other")
    return SingleCall(
        Query(device, "nvmlDeviceGetSramEccErrorStatus", byref(status)),
        lambda: (
            status.threshold_exceeded,
            status.volatile_corrected, status.volatile_parity, status.volatile_secded,
            status.aggregate_corrected, status.aggregate_parity, status.aggregate_secded,
            status.bucket_l2, status.bucket_sm, status.bucket_pcie, status.bucket_mcu, status.bucket_other,
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
    banks = RemapHistogram()
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
    unknown = 32  # NVML_PSTATE_UNKNOWN
    return SingleCall(
        Query(device, "nvmlDeviceGetPerformanceState", byref(state)),
        lambda: (float(state.value) if state.value != unknown else math.nan,),
        [series("gangwatch_gpu_performance_state", device)],
    )


class PcieLink:
    """Current and maximum generation and width of a GPU's PCIe link, and its rate relative to the maximum rate."""

    _ASKED = (
        ("gangwatch_gpu_pcie_link_generation", "nvmlDeviceGetCurrPcieLinkGeneration"),
        ("gangwatch_gpu_pcie_link_width", "nvmlDeviceGetCurrPcieLinkWidth"),
        ("gangwatch_gpu_pcie_link_max_generation", "nvmlDeviceGetMaxPcieLinkGeneration"),
        ("gangwatch_gpu_pcie_link_max_width", "nvmlDeviceGetMaxPcieLinkWidth"),
    )

    def __init__(self, device: Device) -> None:
        """Find out what the GPU supports. Raise GpuLostError or LibraryDeadError."""
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
    """Return bits per second on one lane; NaN if the generation is absent or unknown."""
    return math.nan if math.isnan(generation) else PCIE_LANE_BITS_PER_SECOND.get(int(generation), math.nan)


def slow_parts(device: Device) -> Sequence[Part]:
    """Return all parts of the slow tier. Raise GpuLostError or LibraryDeadError."""
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
