"""Cost of reading all GPUs once, through NVIDIA's binding (nvidia-ml-py) and through gangwatch's batches.

The three ways read the same fields and make the same calls on the same library:

- plain: the functions of the binding alone.
- kept_array: the binding's functions for single calls, gangwatch's kept array for the fields.
- ours: gangwatch's kept array and its batch of calls, with the structures of the binding.
"""

from __future__ import annotations

import ctypes
import timeit
from collections.abc import Callable
from typing import Any

import numpy as np
import pynvml

from agent.collectors.gpu.gpu import MEGA, PERCENT, THROTTLE_REASONS, fast_calls, fast_fields
from agent.collectors.gpu.nvlink import link_count
from agent.schema.frame import Column, CounterArray, GaugeArray
from agent.sources.nvml.nvml import Device, Library, Values
from agent.sources.nvml.nvml_calls import CallBatch
from agent.sources.nvml.nvml_enumeration import find_devices
from agent.sources.nvml.nvml_fields import FieldBatch, Source, counter

REPEATS, RUNS = 7, 30


def supported_fields(handle: Any, device: Device) -> list[tuple[int, int]]:
    """Return those (field, scope) pairs that the agent reads every second and the GPU supports."""
    sources = [source for wanted in fast_fields(device, link_count(device)) for source in wanted.sources]
    asked = [(source.field, source.scope) for source in sources]
    answers = pynvml.nvmlDeviceGetFieldValues(handle, asked)
    return [key for key, entry in zip(asked, answers, strict=True) if entry.nvmlReturn == pynvml.NVML_SUCCESS]


def plain_fields(handle: Any, fields: list[tuple[int, int]], counters: CounterArray) -> None:
    """Read the fields one by one with the binding's function, and write the values to `counters`."""
    counters[:] = [entry.value.ullVal for entry in pynvml.nvmlDeviceGetFieldValues(handle, fields)]


def plain_calls(handle: Any, gauges: GaugeArray) -> None:
    """Make the calls of ``fast_calls`` with the binding's functions, and write the values to `gauges`."""
    utilization = pynvml.nvmlDeviceGetUtilizationRates(handle)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    reasons = pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    gauges[:] = (
        utilization.gpu * PERCENT,
        utilization.memory * PERCENT,
        memory.total,
        memory.used,
        memory.free,
        memory.reserved,
        pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM) * MEGA,
        pynvml.nvmlDeviceGetTemperatureV(handle, pynvml.NVML_TEMPERATURE_GPU),
        *(float(reasons & bit != 0) for _, bit in THROTTLE_REASONS),
    )


def field_batch(device: Device, fields: list[tuple[int, int]]) -> FieldBatch:
    wanted = [counter(Column(f"{field}/{scope}"), Source(field, 1, scope)) for field, scope in fields]
    batch = FieldBatch(device, wanted)
    count = len(batch.counters)
    batch.place(Values(np.empty(0), np.zeros(count, np.uint64), np.zeros(count, np.bool_)))
    return batch


def call_batch(device: Device) -> CallBatch:
    batch = CallBatch(device, fast_calls(device, temperature=True))
    batch.place(Values(np.zeros(len(batch.gauges)), np.empty(0, np.uint64), np.empty(0, np.bool_)))
    return batch


def tick_costs(path: str) -> dict[str, float | int]:
    """Return the microseconds to read all GPUs without MIG once in each way, and the numbers of fields and calls.

    path: path of an NVML library. Raise SourceError if it cannot be opened.
    """
    library = Library(path)
    pynvml.nvmlLib = ctypes.CDLL(path)
    pynvml.nvmlInit()
    try:
        # With MIG on, a GPU does not support all of the calls.
        devices = [device for device in find_devices(library) if not device.mig]
        handles = [pynvml.nvmlDeviceGetHandleByIndex(device.index) for device in devices]
        fields = supported_fields(handles[0], devices[0])
        field_batches = [field_batch(device, fields) for device in devices]
        call_batches = [call_batch(device) for device in devices]
        counters, gauges = np.zeros(len(fields), np.uint64), np.zeros(len(call_batches[0].gauges))

        def plain() -> None:
            for handle in handles:
                plain_fields(handle, fields, counters)
                plain_calls(handle, gauges)

        def kept_array() -> None:
            for handle, batch in zip(handles, field_batches, strict=True):
                batch.read()
                plain_calls(handle, gauges)

        def ours() -> None:
            for batch, calls in zip(field_batches, call_batches, strict=True):
                batch.read()
                calls.read()

        ways: tuple[Callable[[], None], ...] = (plain, kept_array, ours)
        costs = {
            f"{way.__name__}_us": min(timeit.repeat(way, number=RUNS, repeat=REPEATS)) / RUNS * 1e6 for way in ways
        }
        found = {name: round(cost, 1) for name, cost in costs.items()}
        return {"gpus": len(devices), "fields_per_gpu": len(fields), **found}
    finally:
        pynvml.nvmlShutdown()
        library.close()
