"""Burst sampling of one GPU at 10 Hz, for changes that slower sampling misses.

Each run reads power and the NVLink totals in one call, and the driver's utilisation samples. It publishes the
minimum, mean and maximum over the last frame interval, so that every frame covers the whole time since the previous
frame. Counters give the total time during which a value was above its threshold; they are exact for any scrape
interval.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

import pynvml

from agent.collectors.gpu import nvlink
from agent.collectors.gpu.device import DeviceCollector, Part, series
from agent.collectors.gpu.utilization import STATISTICS, UtilizationSamples
from agent.schema.frame import Column
from agent.sources.nvml.nvml import Device, Values
from agent.sources.nvml.nvml_fields import ALL_LINKS, FieldArray

INTERVAL_SECONDS = 0.1

POWER_INSTANT: int = pynvml.NVML_FI_DEV_POWER_INSTANT
POWER_LIMIT: int = pynvml.NVML_FI_DEV_POWER_CURRENT_LIMIT
SPEED: int = pynvml.NVML_FI_DEV_NVLINK_GET_SPEED
TRANSMITTED: int = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX
RECEIVED: int = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX

HIGH_SHARE = 0.9
"""A sample counts as high if it is above this share of its limit: of the GPU's power limit, of the NVLink speed, or of
full utilisation."""


class Window:
    """Samples of one quantity in a sliding time window, and the total time above a threshold."""

    __slots__ = ("_held_ns", "_samples", "_seconds", "high_ns", "threshold")

    def __init__(self, seconds: float, threshold: float) -> None:
        """Create the window.

        seconds: length of the window. threshold: NaN if not known; the time above it is then 0.
        """
        self.threshold = threshold
        self.high_ns = 0
        self._seconds = seconds
        self._samples: deque[tuple[int, float]] = deque()

    def add(self, now_ns: int, value: float, held_ns: int) -> None:
        """Add a sample taken at `now_ns`. If it is above the threshold, add `held_ns` to the total time above it.

        held_ns: time since the previous sample.
        """
        self._samples.append((now_ns, value))
        if value > self.threshold:
            self.high_ns += held_ns

    def statistics(self, now_ns: int) -> tuple[float, float, float]:
        """Return minimum, mean and maximum of the samples in the window that ends at `now_ns`; NaN if there are
        none."""
        oldest_ns = now_ns - round(self._seconds * 1e9)
        while self._samples and self._samples[0][0] <= oldest_ns:
            self._samples.popleft()
        if not self._samples:
            return math.nan, math.nan, math.nan
        values = [value for _, value in self._samples]
        return min(values), sum(values) / len(values), max(values)


class Bursts:
    """Recent samples of one GPU: power, utilisation, and NVLink rate in both directions."""

    def __init__(self, device: Device, window_seconds: float) -> None:
        """Find out which of power, utilisation and NVLink rate the GPU supports.

        Raise GpuLostError or LibraryDeadError.
        """
        self._device = device
        self._links = nvlink.link_count(device)
        wanted = [(POWER_INSTANT, 0), (POWER_LIMIT, 0), (SPEED, 0)]
        wanted += [(TRANSMITTED, ALL_LINKS), (RECEIVED, ALL_LINKS)] if self._links else []
        probe = FieldArray(device, wanted)
        probe.read()
        codes, numbers = probe.view["code"].tolist(), probe.view["value"].tolist()
        answers = {
            key: number for key, code, number in zip(wanted, codes, numbers, strict=True) if code == pynvml.NVML_SUCCESS
        }
        limit = answers.get((POWER_LIMIT, 0), 0) & 0xFFFF_FFFF
        speed = answers.get((SPEED, 0), 0) & 0xFFFF_FFFF
        self._wanted = [key for key in wanted if key in answers and key[0] not in (POWER_LIMIT, SPEED)]
        self._fields = FieldArray(device, self._wanted)
        self._entries = self._fields.view[["field", "code", "value", "timestamp"]]
        self._samples = UtilizationSamples(device)
        bytes_high = HIGH_SHARE * speed * 1e6 * self._links if speed else math.nan
        self._windows: dict[int, Window] = {}
        self._before: dict[int, tuple[int, int]] = {}
        gauges: list[Column] = []
        counters: list[Column] = []

        def column(metric: str, unit: str) -> None:
            gauges.extend(series(f"{metric}_window_{unit}", device, statistic=name) for name in STATISTICS)
            counters.append(series(f"{metric}_high_seconds_total", device))

        for field, _ in self._wanted:
            if field == POWER_INSTANT:
                self._windows[field] = Window(window_seconds, HIGH_SHARE * limit * 1e-3 if limit else math.nan)
                column("gangwatch_gpu_burst_power", "watts")
            else:
                self._windows[field] = Window(window_seconds, bytes_high)
                direction = "transmit" if field == TRANSMITTED else "receive"
                column(f"gangwatch_gpu_burst_nvlink_{direction}", "bytes_per_second")
        self._utilization = Window(window_seconds, HIGH_SHARE) if self._samples.gauges else None
        if self._utilization is not None:
            column("gangwatch_gpu_burst_utilization", "ratio")
        self.gauges: tuple[Column, ...] = tuple(gauges)
        self.counters: tuple[Column, ...] = tuple(counters)
        self._taken_ns: int | None = None

    def place(self, values: Values) -> None:
        self._placed = values

    def read(self) -> None:
        now_ns = self._device.clock.monotonic_ns()
        held_ns = 0 if self._taken_ns is None else now_ns - self._taken_ns
        self._taken_ns = now_ns
        if self._fields.read():
            for field, code, number, timestamp_us in self._entries.tolist():
                if code != pynvml.NVML_SUCCESS:
                    self._device.judge(code, f"field {field}")
                elif field == POWER_INSTANT:
                    self._windows[POWER_INSTANT].add(now_ns, (number & 0xFFFF_FFFF) * 1e-3, held_ns)
                else:
                    self._add_rate(field, number, timestamp_us, now_ns, held_ns)
        windows = list(self._windows.values())
        if self._utilization is not None:
            shares = self._samples.take()
            for share in shares:
                self._utilization.add(now_ns, share, held_ns // len(shares))
            windows.append(self._utilization)
        gauges, counters, counters_valid = self._placed
        for index, window in enumerate(windows):
            gauges[3 * index : 3 * index + 3] = window.statistics(now_ns)
            if not math.isnan(window.threshold):
                counters[index] = window.high_ns
                counters_valid[index] = True

    def _add_rate(self, field: int, kibibytes: int, timestamp_us: int, now_ns: int, held_ns: int) -> None:
        """Add the mean NVLink rate since the previous read of an NVML field to the window of this field.

        kibibytes: total transferred so far. timestamp_us: time at which the driver read the total. held_ns: time
        since the previous sample.
        """
        before = self._before.get(field)
        self._before[field] = (kibibytes, timestamp_us)
        if before is None or kibibytes < before[0] or timestamp_us <= before[1]:
            return
        rate = (kibibytes - before[0]) * nvlink.KIBIBYTE / ((timestamp_us - before[1]) * 1e-6)
        self._windows[field].add(now_ns, rate, held_ns)


def burst_collector(device: Device, window_seconds: float, phase: float) -> DeviceCollector:
    make: Callable[[Device], Sequence[Part]] = lambda one: (Bursts(one, window_seconds),)  # noqa: E731
    return DeviceCollector(f"gpu-burst/{device.pci_address}", device, make, INTERVAL_SECONDS, phase)
