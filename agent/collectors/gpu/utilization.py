"""Utilisation over a few seconds, from the samples kept by the driver (nvmlDeviceGetSamples).

The driver samples several times per second, so one read per second misses the values between two reads. The samples
since the last fetch give the minimum, mean and maximum of the whole time.
"""

from __future__ import annotations

from ctypes import byref, c_uint, c_ulonglong

import numpy as np

from agent.collectors.gpu.device import series
from agent.schema.frame import Column
from agent.sources.nvml.nvml import Device, Values
from agent.sources.nvml.nvml_interface import NOT_FOUND, SUCCESS, Sample

GPU_UTILIZATION = 1
"""Type of the samples to fetch (NVML_GPU_UTILIZATION_SAMPLES)."""

_KIND = c_uint(GPU_UTILIZATION)

ROOM = 256
"""Maximum number of samples in one call; drivers keep about a hundred."""

_SAMPLE = np.dtype({"names": ["timestamp", "value"], "formats": ["<u8", "<u4"], "offsets": [0, 8], "itemsize": 16})
"""Format of NVML's sample as a numpy type. The value is the utilisation, an unsigned int in percent."""

STATISTICS = ("min", "mean", "max")

FETCH_RUNS = 4
"""Samples are fetched every fourth run, at a different run for each GPU. A sample covers 1/6 s to 1 s (nvml.h on
nvmlUtilization_t), so ROOM is enough for much more than four seconds. With a scrape every 15 s, a window of one second
would be of no use."""


class UtilizationSamples:
    """Minimum, mean and maximum of the driver's utilisation samples of the last FETCH_RUNS runs."""

    def __init__(self, device: Device) -> None:
        """Discard the driver's older samples. Raise GpuLostError or LibraryDeadError."""
        self._device = device
        self._function = device.library.function("nvmlDeviceGetSamples")
        self._newest_us = c_ulonglong(0)
        self._value_type = c_uint()
        self._count = c_uint()
        self._samples = (Sample * ROOM)()
        view = np.frombuffer(memoryview(self._samples).cast("B"), _SAMPLE)
        self._times, self._percents = view["timestamp"], view["value"]
        self.counters: tuple[Column, ...] = ()
        self._runs_left = 0
        self._next_runs = FETCH_RUNS - device.index % FETCH_RUNS
        self._window: tuple[float, ...] = ()
        # Discard older samples of the driver: they are not part of the first window.
        self.take()
        self.gauges: tuple[Column, ...] = tuple(
            series("gangwatch_gpu_utilization_window_ratio", device, statistic=statistic)
            for statistic in (STATISTICS if self._function is not None else ())
        )

    def place(self, values: Values) -> None:
        self._values = values.gauges

    def take(self) -> list[float]:
        """Return the utilisation, 0 to 1, of each sample since the last call. Raise GpuLostError, LibraryDeadError."""
        if self._function is None:
            return []
        self._count.value = ROOM
        code = self._function(
            self._device.handle,
            _KIND,
            self._newest_us,
            byref(self._value_type),
            byref(self._count),
            self._samples,
        )
        if code != SUCCESS:
            if code != NOT_FOUND and self._device.judge(code, "nvmlDeviceGetSamples"):
                self._function = None
            return []
        count = min(self._count.value, ROOM)
        times_us = self._times[:count]
        # An unused slot of the driver's ring has time 0.
        percents = self._percents[:count][times_us > self._newest_us.value].tolist()
        if percents:
            self._newest_us.value = int(times_us.max())
        return [percent / 100 for percent in percents if percent <= 100]

    def read(self) -> None:
        if not self._runs_left:
            shares = self.take()
            self._window = (min(shares), sum(shares) / len(shares), max(shares)) if shares else ()
            if shares:
                self._runs_left, self._next_runs = self._next_runs, FETCH_RUNS
        self._runs_left = max(0, self._runs_left - 1)
        if self._window:
            self._values[:] = self._window
