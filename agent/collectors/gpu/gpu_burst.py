"""Burst sampling of one GPU at 10 Hz, for changes that slower sampling misses.

Each run reads power and the NVLink totals in one call, and the driver's utilisation samples. It publishes the minimum,
mean and maximum over the last frame interval, so that every frame covers the whole time since the previous frame. It
also publishes the time above a threshold as a counter, which a slow scrape does not miss.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from ctypes import Array, byref

from agent.collectors.gpu import nvlink
from agent.collectors.gpu.device import DeviceCollector, Part, series
from agent.collectors.gpu.utilization import STATISTICS, UtilizationSamples
from agent.schema.frame import Column
from agent.sources.nvml.nvml import Device, Query, Values
from agent.sources.nvml.nvml_interface import ALL_LINKS, SUCCESS, FieldValue

INTERVAL_SECONDS = 0.1

POWER_INSTANT, POWER_LIMIT, SPEED, TRANSMITTED, RECEIVED = 186, 190, 164, 138, 139

HIGH_SHARE = 0.9
"""Share of the power limit, of the link speed, or of full utilisation. A sample above this share counts as high."""


class Window:
    """Samples of one quantity over the last window, and the total time above the threshold."""

    __slots__ = ("_held_ns", "_samples", "_seconds", "high_ns", "threshold")

    def __init__(self, seconds: float, threshold: float) -> None:
        """Create the window. threshold: NaN if not known; then no sample counts as high."""
        self.threshold = threshold
        self.high_ns = 0
        self._seconds = seconds
        self._samples: deque[tuple[int, float]] = deque()

    def add(self, now_ns: int, value: float, held_ns: int) -> None:
        """Add a sample. held_ns: time before `now_ns` to which the sample applies."""
        self._samples.append((now_ns, value))
        if value > self.threshold:
            self.high_ns += held_ns

    def statistics(self, now_ns: int) -> tuple[float, float, float]:
        """Return minimum, mean and maximum of the samples in the window that ends now; NaN if there are none."""
        oldest_ns = now_ns - round(self._seconds * 1e9)
        while self._samples and self._samples[0][0] <= oldest_ns:
            self._samples.popleft()
        if not self._samples:
            return math.nan, math.nan, math.nan
        values = [value for _, value in self._samples]
        return min(values), sum(values) / len(values), max(values)


class Bursts:
    """Windows of samples of one GPU: power, utilisation, and NVLink in both directions."""

    def __init__(self, device: Device, window_seconds: float) -> None:
        """Find out what the GPU supports. Raise GpuLostError or LibraryDeadError."""
        self._device = device
        self._links = nvlink.link_count(device)
        wanted = [(POWER_INSTANT, 0), (POWER_LIMIT, 0), (SPEED, 0)]
        wanted += [(TRANSMITTED, ALL_LINKS), (RECEIVED, ALL_LINKS)] if self._links else []
        probe = _entries(wanted)
        _ask(device, probe, len(wanted))
        answers = {(entry.field, entry.scope): entry.value for entry in probe if entry.code == SUCCESS}
        limit = answers.get((POWER_LIMIT, 0), 0) & 0xFFFF_FFFF
        speed = answers.get((SPEED, 0), 0) & 0xFFFF_FFFF
        self._wanted = [key for key in wanted if key in answers and key[0] not in (POWER_LIMIT, SPEED)]
        self._array = _entries(self._wanted)
        self._query = Query(device, "nvmlDeviceGetFieldValues", len(self._wanted), byref(self._array))
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
        if self._query.ask():
            for entry in self._array:
                if entry.code != SUCCESS:
                    self._device.judge(entry.code, f"field {entry.field}")
                elif entry.field == POWER_INSTANT:
                    self._windows[POWER_INSTANT].add(now_ns, (entry.value & 0xFFFF_FFFF) * 1e-3, held_ns)
                else:
                    self._add_rate(entry.field, int(entry.value), int(entry.timestamp), now_ns, held_ns)
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
        """Add the rate since the previous sample.

        kibibytes: total so far. timestamp_us: the driver's time of the total.
        """
        before = self._before.get(field)
        self._before[field] = (kibibytes, timestamp_us)
        if before is None or kibibytes < before[0] or timestamp_us <= before[1]:
            return
        rate = (kibibytes - before[0]) * nvlink.KIBIBYTE / ((timestamp_us - before[1]) * 1e-6)
        self._windows[field].add(now_ns, rate, held_ns)


def _entries(wanted: Sequence[tuple[int, int]]) -> Array[FieldValue]:
    array = (FieldValue * max(1, len(wanted)))()
    for entry, (field, scope) in zip(array, wanted, strict=False):
        entry.field, entry.scope = field, scope
    return array


def _ask(device: Device, entries: Array[FieldValue], count: int) -> None:
    """Read the fields once. Raise GpuLostError or LibraryDeadError."""
    Query(device, "nvmlDeviceGetFieldValues", count, byref(entries)).ask()


def burst_collector(device: Device, window_seconds: float, phase: float) -> DeviceCollector:
    make: Callable[[Device], Sequence[Part]] = lambda one: (Bursts(one, window_seconds),)  # noqa: E731
    return DeviceCollector(f"gpu-burst/{device.pci_address}", device, make, INTERVAL_SECONDS, phase)
