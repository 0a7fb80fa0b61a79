"""GPM: the profiling counters of Hopper and newer, as means between two samples.

The driver updates the counters every 100 ms (nvml.h, nvmlGpmSampleGet), so two samples must be at least 100 ms apart.
The buffers are allocated once and swapped. Older GPUs have no GPM.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from ctypes import byref, c_uint
from typing import Any, NamedTuple

import numpy as np
import pynvml

from agent.schema.errors import SourceError
from agent.schema.frame import Column
from agent.sources.nvml.nvml import Device, Query, Values, one_copy

LEAST_APART_NS = 100_000_000

MEBIBYTE = float(1 << 20)

_METRIC = np.dtype(
    {
        "names": ["metric", "code", "value"],
        "formats": ["<u4", "<i4", "<f8"],
        "offsets": [getattr(pynvml.c_nvmlGpmMetric_t, name).offset for name in ("metricId", "nvmlReturn", "value")],
        "itemsize": ctypes.sizeof(pynvml.c_nvmlGpmMetric_t),
    }
)
"""Numpy type of one metric in a GPM request."""


class GpmColumn(NamedTuple):
    """One GPM metric, the gauge that publishes it, and optionally a counter of its total."""

    metric: int
    gauge: Column
    factor: float
    """Factor from the metric's unit (percent or MiB/s) to the unit of the gauge."""
    total: Column | None = None
    """Counter of the metric's total; None for no counter. Each read adds the mean rate since the previous read,
    multiplied by the seconds since then."""


class Gpm:
    """Reader of the GPM counters of a GPU or GPU instance.

    ``gauges``, ``counters``: the series of the supported metrics.
    """

    def __init__(self, device: Device, columns: Sequence[GpmColumn], gpu_instance: int | None = None) -> None:
        """Find the supported metrics and take the first sample. Raise GpuLostError or LibraryDeadError."""
        self.gauges: tuple[Column, ...] = ()
        self.counters: tuple[Column, ...] = ()
        self._device = device
        self._columns: tuple[GpmColumn, ...] = ()
        self._samples: list[Any] = []
        library = device.library
        support = pynvml.c_nvmlGpmSupport_t(pynvml.NVML_GPM_SUPPORT_VERSION)
        code = library.call("nvmlGpmQueryDeviceSupport", device.handle, byref(support))
        if code != pynvml.NVML_SUCCESS:
            device.judge(code, "nvmlGpmQueryDeviceSupport")
        if code != pynvml.NVML_SUCCESS or not support.isSupportedDevice:
            return
        for _ in range(2):
            sample = pynvml.c_nvmlGpmSample_t()
            if library.call("nvmlGpmSampleAlloc", byref(sample)) != pynvml.NVML_SUCCESS:
                self.close()
                return
            self._samples.append(sample)
        if gpu_instance is None:
            self._take = [Query(device, "nvmlGpmSampleGet", sample) for sample in self._samples]
        else:
            instance = c_uint(gpu_instance)
            self._take = [Query(device, "nvmlGpmMigSampleGet", instance, sample) for sample in self._samples]
        self._newest = 0
        self._taken_ns: int | None = None
        try:
            self._sample(0)
        except SourceError:
            self.close()
            raise
        if self._take[0].gone:
            self.close()
            return
        self._request = pynvml.c_nvmlGpmMetricsGet_t(pynvml.NVML_GPM_METRICS_GET_VERSION)
        metrics = memoryview(self._request).cast("B")[pynvml.c_nvmlGpmMetricsGet_t.metrics.offset :]
        self._metrics = np.frombuffer(metrics, _METRIC)
        self._get = library.function("nvmlGpmMetricsGet")
        self._want(tuple(columns))

    @property
    def answers(self) -> bool:
        return bool(self._samples)

    def place(self, values: Values) -> None:
        self._gauge_values, self._counter_values, self._counter_valid = values

    def read(self) -> None:
        """Write the means of the metrics since the last sample.

        The means are absent if less than LEAST_APART_NS has passed since the last sample, or if a sample failed.
        """
        if not self._samples or self._get is None:
            return
        before_ns = self._taken_ns
        if before_ns is not None and self._device.clock.monotonic_ns() - before_ns < LEAST_APART_NS:
            return
        older = self._newest
        if not self._sample(1 - older) or before_ns is None or self._taken_ns is None:
            return
        request = self._request
        request.sample1, request.sample2 = self._samples[older], self._samples[self._newest]
        code = self._get(byref(request))
        if code != pynvml.NVML_SUCCESS:
            self._device.judge(code, "nvmlGpmMetricsGet")
            return
        values = np.multiply(self._raw, self._factors, out=self._gauge_values)
        if any(self._codes.tolist()):
            codes = self._codes
            failed = np.flatnonzero(codes != pynvml.NVML_SUCCESS)
            never = {
                int(index)
                for index in failed
                if self._device.judge(int(codes[index]), f"GPM metric {self._columns[int(index)].metric}")
            }
            if never:
                self._want(tuple(column for index, column in enumerate(self._columns) if index not in never))
                return
            values[failed] = np.nan
        seconds = (self._taken_ns - before_ns) / 1e9
        for counter, index in enumerate(self._totalled):
            rate = values.item(index)
            if not math.isnan(rate):
                self._totals[counter] += rate * seconds
                self._counter_values[counter] = int(self._totals[counter])
                self._counter_valid[counter] = True

    def _sample(self, at: int) -> bool:
        """Take a sample into one of the two buffers (index `at`). Return whether it succeeded; it is then the newest
        sample."""
        now_ns = self._device.clock.monotonic_ns()
        if not self._take[at].ask():
            # The start of the next window is not known any more.
            self._taken_ns = None
            return False
        self._newest, self._taken_ns = at, now_ns
        return True

    def _want(self, columns: tuple[GpmColumn, ...]) -> None:
        self._columns = columns
        self.gauges = tuple(column.gauge for column in columns)
        self.counters = tuple(column.total for column in columns if column.total is not None)
        self._totals = [0.0] * len(self.counters)
        self._totalled = [index for index, column in enumerate(columns) if column.total is not None]
        self._codes = self._metrics["code"][: len(columns)]
        self._raw = self._metrics["value"][: len(columns)]
        self._factors = one_copy(np.array([column.factor for column in columns], np.float64))
        self._request.numMetrics = len(columns)
        self._metrics["metric"][: len(columns)] = [column.metric for column in columns]

    def close(self) -> None:
        """Free the buffers. Later reads do nothing."""
        for sample in self._samples:
            self._device.library.call("nvmlGpmSampleFree", sample)
        self._samples = []
