"""Utilisation over a few seconds, from the samples kept by the driver (nvmlDeviceGetSamples).

The driver samples several times per second, so one read per second misses the values between two reads. The samples
since the last fetch give the minimum, mean and maximum of the whole time.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_uint, c_ulonglong

import numpy as np
import pynvml

from agent.collectors.gpu.device import series
from agent.schema.frame import Column
from agent.sources.nvml.nvml import Device, Values

_KIND = c_uint(pynvml.NVML_GPU_UTILIZATION_SAMPLES)

ROOM = 256
"""Maximum number of samples that one call returns. Drivers keep about a hundred samples."""

_SAMPLE = np.dtype(
    {
        "names": ["timestamp", "value"],
        "formats": ["<u8", "<u4"],
        "offsets": [pynvml.c_nvmlSample_t.timeStamp.offset, pynvml.c_nvmlSample_t.sampleValue.offset],
        "itemsize": ctypes.sizeof(pynvml.c_nvmlSample_t),
    }
)
"""Format of NVML's sample as a numpy type. The value is the utilisation, an unsigned int in percent."""

STATISTICS = ("min", "mean", "max")

FETCH_RUNS = 4
"""The driver's samples of a GPU are fetched in every fourth run of the collector, in different runs for different GPUs.
The statistics then cover about four seconds: with a scrape every 15 s, those of one second would be of no use. The
driver takes a sample every 1/6 s to 1 s (nvml.h on nvmlUtilization_t), so ROOM is more than enough."""


class UtilizationSamples:
    """Minimum, mean and maximum of the driver's utilisation samples. They are fetched every FETCH_RUNS runs."""

    def __init__(self, device: Device) -> None:
        """Find out whether the GPU has samples, and discard the samples that the driver has taken so far.

        Raise GpuLostError or LibraryDeadError.
        """
        self._device = device
        self._function = device.library.function("nvmlDeviceGetSamples")
        self._newest_us = c_ulonglong(0)
        self._value_type = c_uint()
        self._count = c_uint()
        self._samples = (pynvml.c_nvmlSample_t * ROOM)()
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
        if code != pynvml.NVML_SUCCESS:
            if code != pynvml.NVML_ERROR_NOT_FOUND and self._device.judge(code, "nvmlDeviceGetSamples"):
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
