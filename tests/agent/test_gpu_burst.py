"""Burst sampling of a GPU (ten readings a second): extremes, mean and time above a threshold."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from agent.collectors.gpu.gpu_burst import Window
from agent.sources.nvml.nvml import GpuLostError
from tests.agent.catalogued import assert_catalogued, counter, gauge
from tests.agent.gpus import machine, uuid
from tests.fakes.nvml.control import ALL, GPU_IS_LOST, NOT_SUPPORTED, TIMEOUT, FakeNvml

GPU = {"gpu": uuid(1, 0)}
TENTH_NS = 100_000_000
MILLIWATTS = (100_000, 695_000, 200_000, 699_000, 100_000)


def test_a_window_drops_old_samples_and_sums_time_above_the_threshold() -> None:
    window = Window(1.0, 10.0)
    for tenth in range(30):
        window.add((tenth + 1) * TENTH_NS, 20.0 if tenth in (5, 27) else float(tenth % 3), TENTH_NS)
    assert window.statistics(30 * TENTH_NS) == (0.0, pytest.approx(31 / 10), 20.0)
    assert window.high_ns == 2 * TENTH_NS, "the total is since the start, so a slow scrape loses nothing"
    assert all(math.isnan(value) for value in window.statistics(60 * TENTH_NS))


def test_short_power_peaks_are_kept(nvml_library: Path, nvml: FakeNvml) -> None:
    with machine(nvml_library, nvml, burst=True) as one:
        one.parent.collect()
        burst = one.member("gpu-burst")
        assert burst.interval_seconds == 0.1
        nvml.set_field(186, 100_000, gpu=0)
        burst.collect()
        for milliwatts in MILLIWATTS:
            nvml.set_field(186, milliwatts, gpu=0)
            one.advance(0.1)
            block = burst.collect()
        assert_catalogued(block)
        power = "gangwatch_gpu_burst_power_window_watts"
        assert gauge(block, power, **GPU, statistic="min") == 100
        assert gauge(block, power, **GPU, statistic="max") == 699
        assert gauge(block, power, **GPU, statistic="mean") == pytest.approx((100_000 + sum(MILLIWATTS)) / 6 / 1000)
        assert counter(block, "gangwatch_gpu_burst_power_high_seconds_total", **GPU) == 2 * TENTH_NS
        assert counter(block, "gangwatch_gpu_burst_utilization_high_seconds_total", **GPU) is not None


def test_nvlink_burst_rates_use_the_timestamps_of_the_driver(nvml_library: Path, nvml: FakeNvml) -> None:
    with machine(nvml_library, nvml, burst=True) as one:
        one.parent.collect()
        burst = one.member("gpu-burst")
        rate = "gangwatch_gpu_burst_nvlink_transmit_window_bytes_per_second"
        kibibytes = 0
        for gigabytes in (0, 1, 46, 0):  # in a tenth of a second; 18 links can carry 47.8 in that time
            kibibytes += gigabytes * 10**9 // 1024
            nvml.set_field(138, kibibytes, gpu=0, scope=ALL)
            one.advance(0.1)
            block = burst.collect()
        assert gauge(block, rate, **GPU, statistic="max") == pytest.approx(460e9, rel=1e-6)
        assert gauge(block, rate, **GPU, statistic="min") == 0
        assert counter(block, "gangwatch_gpu_burst_nvlink_transmit_high_seconds_total", **GPU) == TENTH_NS
        nvml.set_field(138, 5, gpu=0, scope=ALL)
        one.advance(0.1)
        block = burst.collect()
        assert gauge(block, rate, **GPU, statistic="max") == pytest.approx(460e9, rel=1e-6), "a reset gives no rate"


def test_a_field_that_fails_has_no_sample_and_can_report_a_lost_gpu(nvml_library: Path, nvml: FakeNvml) -> None:
    with machine(nvml_library, nvml, burst=True) as one:
        one.parent.collect()
        burst = one.member("gpu-burst")
        nvml.set_field(186, 100_000, gpu=0)
        burst.collect()
        nvml.set_field(186, 699_000, gpu=0, code=TIMEOUT)
        one.advance(0.1)
        assert gauge(burst.collect(), "gangwatch_gpu_burst_power_window_watts", **GPU, statistic="max") == 100
        nvml.set_field(186, code=GPU_IS_LOST, gpu=0)
        one.advance(0.1)
        with pytest.raises(GpuLostError, match="field 186"):
            burst.collect()


def test_a_gpu_without_links_or_samples_has_no_columns_for_them(nvml_library: Path, nvml: FakeNvml) -> None:
    nvml.reset("geforce")
    nvml.set_call("nvmlDeviceGetSamples", NOT_SUPPORTED)
    with machine(nvml_library, nvml, burst=True) as one:
        one.parent.collect()
        block = one.member("gpu-burst").collect()
    assert {column.metric for column in block.gauge_columns} == {"gangwatch_gpu_burst_power_window_watts"}


def test_bursts_are_sampled_only_if_enabled(nvml_library: Path, nvml: FakeNvml) -> None:
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        assert not any(name.startswith("gpu-burst") for name in one.members())
