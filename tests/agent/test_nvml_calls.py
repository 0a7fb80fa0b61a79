"""Batches of driver calls: each value gets its place, and a failing call affects only its own values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from ctypes import c_uint, c_ulonglong
from pathlib import Path

import numpy as np
import pynvml
import pytest

from agent.schema.frame import Column
from agent.sources.nvml.nvml import Device, GpuLostError, Library, Values
from agent.sources.nvml.nvml_calls import Call, CallBatch
from agent.sources.nvml.nvml_enumeration import find_devices
from tests.fakes.nvml.control import GPU_IS_LOST, NOT_SUPPORTED, TIMEOUT, FakeNvml

UTILIZATION, MEMORY, CLOCK = "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetClockInfo"
REASONS, DEGREES = "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetTemperatureV"


@pytest.fixture
def device(nvml_library: Path, nvml: FakeNvml) -> Iterator[Device]:
    library = Library(str(nvml_library))
    yield find_devices(library)[0]
    library.close()


def columns(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name) for name in names)


CALLS = (
    Call(REASONS, c_ulonglong, columns("bit 0", "bit 3", "bit 6"), bits=(0x1, 0x8, 0x40)),
    Call(
        MEMORY,
        pynvml.c_nvmlMemory_v2_t,
        columns("total", "used"),
        ("total", "used"),
        version=pynvml.nvmlMemory_v2,
    ),
    Call(UTILIZATION, pynvml.c_nvmlUtilization_t, columns("gpu", "memory"), ("gpu", "memory"), 0.01),
    Call(CLOCK, c_uint, columns("sm"), factor=1e6, before=(c_uint(1),)),
    (
        Call(
            DEGREES,
            pynvml.c_nvmlTemperature_v1_t,
            columns("celsius"),
            ("temperature",),
            version=pynvml.nvmlTemperature_v1,
        ),
        Call("nvmlDeviceGetTemperature", c_uint, columns("older"), before=(c_uint(0),)),
    ),
)


def placed(batch: CallBatch) -> Values:
    values = Values(np.full(len(batch.gauges), np.nan), np.zeros(0, np.uint64), np.zeros(0, np.bool_))
    batch.place(values)
    return values


def read(batch: CallBatch, values: Values) -> dict[str, float]:
    batch.read()
    return {column.metric: float(value) for column, value in zip(batch.gauges, values.gauges, strict=True)}


def test_every_value_is_at_its_place(device: Device, nvml: FakeNvml) -> None:
    nvml.set_reading(REASONS, 0x48)
    nvml.set_reading(UTILIZATION, 37)
    batch = CallBatch(device, CALLS)
    found = read(batch, placed(batch))
    assert set(found) == {"bit 0", "bit 3", "bit 6", "total", "used", "gpu", "memory", "sm", "celsius"}
    assert (found["bit 0"], found["bit 3"], found["bit 6"]) == (0, 1, 1)
    assert found["gpu"] == pytest.approx(0.37) and 1e9 < found["sm"] < 3e9
    assert found["total"] > found["used"] > 2**32, "the value needs more than four bytes"
    nvml.set_reading(DEGREES, (1 << 32) - 5)
    assert read(batch, placed(batch))["celsius"] == -5


def test_the_older_call_is_used_if_the_newer_is_unsupported(device: Device, nvml: FakeNvml) -> None:
    nvml.set_call(DEGREES, NOT_SUPPORTED)
    batch = CallBatch(device, CALLS)
    assert "celsius" not in read(batch, placed(batch)) and "older" in read(batch, placed(batch))


def test_a_failing_call_affects_only_its_own_values_and_only_then(device: Device, nvml: FakeNvml) -> None:
    batch = CallBatch(device, CALLS)
    values = placed(batch)
    before = read(batch, values)
    nvml.set_call(MEMORY, TIMEOUT)
    missing = read(batch, values)
    assert {name for name, value in missing.items() if math.isnan(value)} == {"total", "used"}
    nvml.set_call(MEMORY, 0)
    assert read(batch, values).keys() == before.keys() and not any(map(math.isnan, read(batch, values).values()))


def test_an_unsupported_call_is_not_repeated(device: Device, nvml: FakeNvml) -> None:
    batch = CallBatch(device, CALLS)
    values = placed(batch)
    nvml.set_call(CLOCK, NOT_SUPPORTED)
    assert math.isnan(read(batch, values)["sm"])
    asked = nvml.call_count(CLOCK, 0)
    assert math.isnan(read(batch, values)["sm"]) and nvml.call_count(CLOCK, 0) == asked


def test_a_lost_gpu_is_reported_to_the_caller(device: Device, nvml: FakeNvml) -> None:
    batch = CallBatch(device, CALLS)
    values = placed(batch)
    nvml.set_gpu_code(0, GPU_IS_LOST)
    with pytest.raises(GpuLostError):
        read(batch, values)
