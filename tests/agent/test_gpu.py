"""The GPU collector above the real pynvml and a fake of the driver's library (fake_nvml.c); no GPU is needed."""

from __future__ import annotations

import ctypes
import math
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from agent.collectors.gpu import GpuCollector
from agent.node import Node
from agent.schema.errors import SourceError, UnsupportedError
from agent.sources.nvml import RETRY_LOST_RUNS, pci_address
from tests import needs
from tests.agent.catalogued import assert_catalogued, counter, gauge

UTILIZATION, MEMORY, POWER, ENERGY, TEMPERATURE, CLOCK, REASONS = range(7)
NOT_SUPPORTED, DRIVER_NOT_LOADED, TIMEOUT, LIBRARY_NOT_FOUND, LOST, UNKNOWN = 3, 9, 10, 12, 15, 999

FIRST, SECOND = ({"gpu": f"GPU-00000000-0000-0000-0000-00000000000{index}"} for index in range(2))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    gcc = needs.component("gcc", "gcc")
    made = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("fake_nvml.c")
    subprocess.run(
        [gcc, "-Wall", "-Werror", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", str(made), str(source)],
        check=True,
    )
    return str(made)


@pytest.fixture
def fake(library: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.CDLL]:
    """The fake's control functions; pynvml is as before afterwards."""
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    control = ctypes.CDLL(library)
    control.fake_reset()
    yield control
    control.fake_reset()


@pytest.fixture
def collector(library: str, fake: ctypes.CDLL) -> Iterator[GpuCollector]:
    one = GpuCollector(library)
    yield one
    one.close()
    assert not fake.fake_is_initialized(), "the driver is let go"


def test_every_value_in_base_units(collector: GpuCollector) -> None:
    block = collector.collect()
    assert_catalogued(block)
    assert gauge(block, "gangwatch_gpu_utilization_ratio", **FIRST) == 0.57
    assert gauge(block, "gangwatch_gpu_memory_utilization_ratio", **FIRST) == 0.29
    assert gauge(block, "gangwatch_gpu_memory_total_bytes", **FIRST) == 80 * 2**30
    assert gauge(block, "gangwatch_gpu_memory_used_bytes", **SECOND) == 1_000_000_008
    assert gauge(block, "gangwatch_gpu_power_watts", **FIRST) == 345.678
    assert gauge(block, "gangwatch_gpu_temperature_celsius", **SECOND) == 42
    assert gauge(block, "gangwatch_gpu_sm_clock_hertz", **FIRST) == 1_980_000_000
    assert gauge(block, "gangwatch_gpu_memory_clock_hertz", **FIRST) == 2_619_000_000
    assert counter(block, "gangwatch_gpu_energy_joules_total", **FIRST) == 2**53 + 1
    held = {
        dict(column.labels)["reason"]
        for column, value in zip(block.gauge_columns, block.gauges, strict=True)
        if column.metric == "gangwatch_gpu_throttle_state" and value == 1 and ("gpu", FIRST["gpu"]) in column.labels
    }
    assert held == {"power_cap", "hw_thermal"}
    info = {"driver": "555.55.55", "model": "NVIDIA Fake 80GB", "pci_address": "0000:3c:00.0"}
    assert gauge(block, "gangwatch_gpu_info", **info, **SECOND) == 1
    assert collector.collect() is block


def test_a_node_that_shares_the_machine_tells_of_its_own_gpus_only(library: str, fake: ctypes.CDLL) -> None:
    shared = GpuCollector(library, devices=(SECOND["gpu"],))
    block = shared.collect()
    assert {value for column in block.gauge_columns for name, value in column.labels if name == "gpu"} == {
        SECOND["gpu"]
    }
    assert gauge(block, "gangwatch_gpu_temperature_celsius", **SECOND) == 42
    shared.close()


def test_what_a_gpu_does_not_support_is_absent_and_not_asked_again(collector: GpuCollector, fake: ctypes.CDLL) -> None:
    fake.fake_set_error(0, UTILIZATION, NOT_SUPPORTED)
    fake.fake_set_error(0, ENERGY, NOT_SUPPORTED)
    for _ in range(3):
        block = collector.collect()
    assert math.isnan(gauge(block, "gangwatch_gpu_utilization_ratio", **FIRST))
    assert counter(block, "gangwatch_gpu_energy_joules_total", **FIRST) is None
    assert gauge(block, "gangwatch_gpu_power_watts", **FIRST) == 345.678
    assert gauge(block, "gangwatch_gpu_utilization_ratio", **SECOND) == 0.58
    assert fake.fake_asked(0, UTILIZATION) == 1
    assert fake.fake_asked(1, UTILIZATION) == 3


@pytest.mark.parametrize("error", [TIMEOUT, UNKNOWN])
def test_a_passing_error_is_absent_this_time_only(collector: GpuCollector, fake: ctypes.CDLL, error: int) -> None:
    fake.fake_set_error(0, POWER, error)
    assert math.isnan(gauge(collector.collect(), "gangwatch_gpu_power_watts", **FIRST))
    fake.fake_set_error(0, POWER, 0)
    assert gauge(collector.collect(), "gangwatch_gpu_power_watts", **FIRST) == 345.678


def test_a_lost_gpu_is_absent_left_alone_for_a_while_and_takes_no_other_with_it(
    collector: GpuCollector, fake: ctypes.CDLL
) -> None:
    collector.collect()
    fake.fake_set_error(0, -1, LOST)
    for _ in range(RETRY_LOST_RUNS + 1):
        block = collector.collect()
        assert math.isnan(gauge(block, "gangwatch_gpu_temperature_celsius", **FIRST))
        assert gauge(block, "gangwatch_gpu_temperature_celsius", **SECOND) == 42
    assert fake.fake_asked(0, UTILIZATION) == 2, "once before, once to learn that it is lost"
    fake.fake_set_error(0, -1, 0)
    assert gauge(collector.collect(), "gangwatch_gpu_temperature_celsius", **FIRST) == 41


def test_a_driver_that_is_unloaded_is_a_failure_until_it_is_back(collector: GpuCollector, fake: ctypes.CDLL) -> None:
    collector.collect()
    fake.fake_set_error(0, -1, DRIVER_NOT_LOADED)
    with pytest.raises(SourceError, match="utilization of GPU-"):
        collector.collect()
    fake.fake_set_init_error(DRIVER_NOT_LOADED)
    with pytest.raises(SourceError) as failed:
        collector.collect()
    assert not isinstance(failed.value, UnsupportedError), "there were GPUs: it keeps asking"
    fake.fake_reset()
    assert gauge(collector.collect(), "gangwatch_gpu_temperature_celsius", **FIRST) == 41


@pytest.mark.parametrize("error", [DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND])
def test_without_a_driver_there_is_nothing_to_collect(collector: GpuCollector, fake: ctypes.CDLL, error: int) -> None:
    fake.fake_set_init_error(error)
    with pytest.raises(UnsupportedError):
        collector.collect()


def test_without_a_gpu_there_is_nothing_to_collect(collector: GpuCollector, fake: ctypes.CDLL) -> None:
    fake.fake_set_count(0)
    with pytest.raises(UnsupportedError):
        collector.collect()


def test_without_the_library_there_is_nothing_to_collect(tmp_path: Path, fake: ctypes.CDLL) -> None:
    with pytest.raises(UnsupportedError, match="no-such-library"):
        GpuCollector(str(tmp_path / "no-such-library.so")).collect()


def test_a_node_without_gpus_does_not_list_the_collector(tmp_path: Path, fake: ctypes.CDLL) -> None:
    node = Node("n0", [GpuCollector(str(tmp_path / "no-such-library.so"))])
    layout, _ = node.tick()
    assert [tier.name for tier in layout.tiers] == ["node"]
    assert not any(column.metric.startswith("gangwatch_collector") for column in layout.gauges)
    node.stop()


def test_bus_ids_are_written_as_the_kernel_does() -> None:
    assert pci_address("00000000:3B:00.0") == "0000:3b:00.0"
    assert pci_address("00010000:A1:00.0") == "10000:a1:00.0"
