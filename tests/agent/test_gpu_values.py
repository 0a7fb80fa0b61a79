"""Meaning of the driver's numbers: decoding, scales, states and fallbacks, compared with hand-computed values."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from agent.collectors.gpu.gpu_slow import RECOVERY_ACTIONS
from agent.collectors.gpu.utilization import FETCH_RUNS
from agent.collectors.gpu.xid import XidHistory
from tests.agent.catalogued import counter, gauge
from tests.agent.gpus import machine, uuid
from tests.fakes.nvml.control import (
    NOT_SUPPORTED,
    SIGNED_INT,
    TIMEOUT,
    UNSIGNED_INT,
    UNSIGNED_LONG_LONG,
    FakeNvml,
)

GPU = {"gpu": uuid(1, 0)}
B200 = {"gpu": uuid(3, 0)}


def test_power_is_the_one_second_mean_if_the_gpu_has_it(nvml_library: Path, nvml: FakeNvml) -> None:
    nvml.set_field(185, 345_678, gpu=0, kind=UNSIGNED_INT)
    nvml.set_field(186, 500_000, gpu=0, kind=UNSIGNED_INT)
    nvml.set_field(185, gpu=1, code=NOT_SUPPORTED)  # like GA100
    nvml.set_field(186, 222_000, gpu=1, kind=UNSIGNED_INT)
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        first, second = one.member("gpu", 0).collect(), one.member("gpu", 1).collect()
    assert gauge(first, "gangwatch_gpu_power_watts", **GPU) == pytest.approx(345.678)
    assert gauge(first, "gangwatch_gpu_power_instant_watts", **GPU) == 500
    assert gauge(second, "gangwatch_gpu_power_watts", gpu=uuid(1, 1)) == 222


def test_the_temperature_comes_from_the_newest_source(nvml_library: Path, nvml: FakeNvml) -> None:
    nvml.reset("b200")
    nvml.set_reading("nvmlDeviceGetTemperatureV", 61)
    nvml.set_field(308, gpu=1, code=NOT_SUPPORTED)
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        exact, whole = one.member("gpu", 0).collect(), one.member("gpu", 1).collect()
    assert gauge(exact, "gangwatch_gpu_temperature_celsius", **B200) % 1 == 0.25
    assert gauge(whole, "gangwatch_gpu_temperature_celsius", gpu=uuid(3, 1)) == 61


def test_temperature_limits_are_margins_or_degrees(nvml_library: Path, nvml: FakeNvml) -> None:
    nvml.set_field(193, -5 & 0xFFFF_FFFF, kind=SIGNED_INT)
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        block = one.member("gpu-slow").collect()
    assert gauge(block, "gangwatch_gpu_temperature_margin_limit_celsius", **GPU, limit="shutdown") == -5
    assert all(column.metric != "gangwatch_gpu_temperature_threshold_celsius" for column in block.gauge_columns)
    nvml.reset("a100")
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        older = one.member("gpu-slow").collect()
    assert gauge(older, "gangwatch_gpu_temperature_threshold_celsius", gpu=uuid(2, 0), threshold="slowdown") == 89


def test_throttling_has_a_state_and_a_duration(nvml_library: Path, nvml: FakeNvml) -> None:
    nvml.set_reading("nvmlDeviceGetCurrentClocksEventReasons", 0x8 | 0x40 | 0x400)
    nvml.set_field(270, 1_500_000_000, gpu=0)
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        block = one.member("gpu").collect()
    held = {
        dict(column.labels)["reason"]
        for column, value in zip(block.gauge_columns, block.gauges, strict=True)
        if column.metric == "gangwatch_gpu_throttle_state" and value == 1
    }
    assert held == {"hw_slowdown", "hw_thermal", "reliability"}
    assert counter(block, "gangwatch_gpu_throttle_seconds_total", **GPU, reason="hw_thermal") == 1_500_000_000


@pytest.mark.parametrize("action", range(len(RECOVERY_ACTIONS)))
def test_exactly_the_reported_recovery_action_is_1(nvml_library: Path, nvml: FakeNvml, action: int) -> None:
    nvml.set_field(230, action, kind=UNSIGNED_INT)
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        block = one.member("gpu-slow").collect()
    values = {name: gauge(block, "gangwatch_gpu_recovery_action", **GPU, action=name) for name in RECOVERY_ACTIONS}
    assert values == {name: float(number == action) for number, name in enumerate(RECOVERY_ACTIONS)}


def test_a_degraded_pcie_link_has_a_ratio_below_1(nvml_library: Path, nvml: FakeNvml) -> None:
    nvml.set_reading("nvmlDeviceGetCurrPcieLinkGeneration", 1, gpu=0)
    nvml.set_reading("nvmlDeviceGetCurrPcieLinkWidth", 8, gpu=0)
    nvml.set_reading("nvmlDeviceGetCurrPcieLinkGeneration", 77, gpu=1)
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        slow = one.member("gpu-slow", 0)
        block = slow.collect()
        # 2.5 GT/s with 8b/10b on 8 lanes, of 32 GT/s with 128b/130b on 16.
        share = (2.5e9 * 8 / 10 * 8) / (32e9 * 128 / 130 * 16)
        assert gauge(block, "gangwatch_gpu_pcie_link_ratio", **GPU) == pytest.approx(share)
        other = one.member("gpu-slow", 1).collect()
        assert math.isnan(gauge(other, "gangwatch_gpu_pcie_link_ratio", gpu=uuid(1, 1))), "an unknown generation"
        assert gauge(other, "gangwatch_gpu_pcie_link_generation", gpu=uuid(1, 1)) == 77
        nvml.set_call("nvmlDeviceGetMaxPcieLinkWidth", TIMEOUT, 0)
        assert math.isnan(gauge(slow.collect(), "gangwatch_gpu_pcie_link_ratio", **GPU))


def test_pcie_bytes_are_the_integral_of_the_profiled_rates(nvml_library: Path, nvml: FakeNvml) -> None:
    name = "gangwatch_gpu_pcie_transmit_bytes"
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        fast = one.member("gpu")
        fast.collect()
        sent = 0.0
        for _ in range(5):
            one.advance(2.0)
            block = fast.collect()
            sent += 2.0 * gauge(block, f"{name}_per_second", **GPU)
        assert counter(block, f"{name}_total", **GPU) == pytest.approx(sent, abs=1)
        assert sent > 5e9


def test_without_profiling_pcie_bytes_come_from_64_bit_driver_counters(nvml_library: Path, nvml: FakeNvml) -> None:
    """At PCIe 5 speed a 32-bit counter wraps fourteen times a second, so its differences are ambiguous."""
    nvml.set_call("nvmlGpmQueryDeviceSupport", NOT_SUPPORTED)
    nvml.set_field(197, 7 << 40, gpu=1, kind=UNSIGNED_LONG_LONG)
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        narrow, wide = one.member("gpu", 0).collect(), one.member("gpu", 1).collect()
    assert all(column.metric != "gangwatch_gpu_pcie_transmit_bytes_total" for column in narrow.counter_columns)
    assert counter(wide, "gangwatch_gpu_pcie_transmit_bytes_total", gpu=uuid(1, 1)) == 7 << 40


def test_nvlink_totals_are_bytes_and_exact(nvml_library: Path, nvml: FakeNvml) -> None:
    nvml.set_field(138, 2**52 + 1, gpu=0, scope=17)
    nvml.set_field(165, 3, gpu=0, scope=4, kind=UNSIGNED_INT)
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        fast, slow = one.member("gpu").collect(), one.member("gpu-slow").collect()
    assert counter(fast, "gangwatch_nvlink_transmit_bytes_total", **GPU, link="17") == (2**52 + 1) * 1024
    assert gauge(slow, "gangwatch_nvlink_speed_bytes_per_second", **GPU, link="0") == 26_562_000_000
    assert gauge(slow, "gangwatch_nvlink_state", **GPU, link="4") == 3


def test_bit_error_ratios_of_nvlink_5_are_decoded(nvml_library: Path, nvml: FakeNvml) -> None:
    nvml.reset("b200")
    nvml.set_field(220, 4 << 8 | 12, gpu=0, scope=2)
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        block = one.member("gpu-slow").collect()
    ratio = "gangwatch_nvlink_bit_error_ratio"
    assert gauge(block, ratio, **B200, link="2", stage="effective") == pytest.approx(4e-12)
    assert gauge(block, ratio, **B200, link="3", stage="effective") == pytest.approx(1e-15)
    assert gauge(block, ratio, **B200, link="3", stage="raw") == pytest.approx(5e-9)


def test_a_failing_link_affects_only_its_own_series(nvml_library: Path, nvml: FakeNvml) -> None:
    nvml.set_field(138, gpu=0, scope=7, code=TIMEOUT)
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        block = one.member("gpu").collect()
    sent = "gangwatch_nvlink_transmit_bytes_total"
    assert counter(block, sent, **GPU, link="7") is None
    assert counter(block, sent, **GPU, link="6") is not None


def test_link_errors_are_summed_by_kind_unless_a_link_is_missing(nvml_library: Path, nvml: FakeNvml) -> None:
    summed = "gangwatch_gpu_nvlink_errors_total"
    for link in range(18):
        nvml.set_field(161, 100 + link, gpu=0, scope=link)
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        slow = one.member("gpu-slow")
        block = slow.collect()
        assert counter(block, summed, **GPU, kind="replay") == sum(100 + link for link in range(18))
        recoveries = counter(block, summed, **GPU, kind="recovery")
        nvml.set_field(161, gpu=0, scope=7, code=TIMEOUT)
        block = slow.collect()
        assert counter(block, summed, **GPU, kind="replay") is None
        assert recoveries is not None and counter(block, summed, **GPU, kind="recovery") >= recoveries


def test_raw_link_totals_are_in_the_fast_tier_if_there_is_nothing_better(nvml_library: Path, nvml: FakeNvml) -> None:
    data, raw = "gangwatch_nvlink_transmit_bytes_total", "gangwatch_nvlink_transmit_raw_bytes_total"
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        fast, slow = one.member("gpu").collect(), one.member("gpu-slow").collect()
    assert counter(fast, data, **GPU, link="0") is not None and counter(slow, raw, **GPU, link="0") is not None
    assert raw not in {column.metric for column in fast.counter_columns}
    nvml.set_field(138, gpu=1, scope=0, code=NOT_SUPPORTED)
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        fast, slow = one.member("gpu", 1).collect(), one.member("gpu-slow", 1).collect()
    assert counter(fast, raw, gpu=uuid(1, 1), link="0") is not None
    assert raw not in {column.metric for column in slow.counter_columns}


@pytest.mark.parametrize(
    ("mask", "faults", "misconfiguration"),
    [
        (0x1 | 2 << 2 | 1 << 4 | 2 << 6 | 4 << 8 | 2 << 12 | 2 << 14,
         {"degraded_bandwidth", "route_unhealthy", "no_partition", "manager_disconnected"}, 4.0),
        (2 | 1 << 2 | 2 << 4 | 1 << 6 | 1 << 8 | 1 << 12 | 1 << 14,
         {"route_recovery", "access_timeout_recovery"}, 0.0),
        (0, set(), math.nan),
    ],
)  # fmt: skip
def test_the_fabric_health_mask_is_decoded(
    nvml_library: Path, nvml: FakeNvml, mask: int, faults: set[str], misconfiguration: float
) -> None:
    nvml.set_reading("nvmlDeviceGetGpuFabricInfoV", mask)
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        block = one.member("gpu-slow").collect()
    values = {
        dict(column.labels)["aspect"]: value
        for column, value in zip(block.gauge_columns, block.gauges.tolist(), strict=True)
        if column.metric == "gangwatch_fabric_fault"
    }
    assert {aspect for aspect, value in values.items() if value == 1} == faults
    assert all(math.isnan(value) for value in values.values()) is (mask == 0), "0 means unknown, not healthy"
    found = gauge(block, "gangwatch_fabric_misconfiguration", **GPU)
    assert found == misconfiguration or math.isnan(misconfiguration)


def test_only_newer_drivers_have_the_fabric_summary(nvml_library: Path, nvml: FakeNvml) -> None:
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        older = one.member("gpu-slow").collect()
    assert all(column.metric != "gangwatch_fabric_health" for column in older.gauge_columns)
    nvml.reset("b200")
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        well, limited = one.member("gpu-slow", 0).collect(), one.member("gpu-slow", 6).collect()
    assert gauge(well, "gangwatch_fabric_health", **B200, health="healthy") == 1
    assert gauge(limited, "gangwatch_fabric_health", gpu=uuid(3, 6), health="limited_capacity") == 1


def test_bridged_gpus_are_remote_ends_of_each_other(nvml_library: Path, nvml: FakeNvml) -> None:
    nvml.reset("a100-bridge")
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        topology = one.members()["gpu-topology"]
        block = topology.collect()
        asked = nvml.call_count("nvmlDeviceGetNvLinkRemotePciInfo_v2", 0)
        assert topology.collect() is block
        assert nvml.call_count("nvmlDeviceGetNvLinkRemotePciInfo_v2", 0) == asked, "requested once"
    first, second = uuid(6, 0), uuid(6, 1)
    link = {"link": "3", "remote": second, "remote_kind": "gpu", "remote_link": "3", "version": "3.0"}
    assert gauge(block, "gangwatch_nvlink_info", gpu=first, **link) == 1
    assert gauge(block, "gangwatch_gpu_peer_info", gpu=first, peer=second, ancestor="system", nvlink="yes") == 1
    assert gauge(block, "gangwatch_gpu_numa_node", gpu=second) == 1


def test_utilization_comes_from_the_samples_of_the_driver(nvml_library: Path, nvml: FakeNvml) -> None:
    window = "gangwatch_gpu_utilization_window_ratio"

    def asked() -> int:
        return nvml.call_count("nvmlDeviceGetSamples", 0)

    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        fast = one.member("gpu")
        assert math.isnan(gauge(fast.collect(), window, **GPU, statistic="mean")), (
            "samples from before the start are not used"
        )
        one.advance(1.0)
        block = fast.collect()
        low, mean, high = (gauge(block, window, **GPU, statistic=name) for name in ("min", "mean", "max"))
        assert 0.88 <= low <= mean <= high <= 0.99
        before = asked()
        for _ in range(FETCH_RUNS - 1):
            one.advance(1.0)
            assert gauge(fast.collect(), window, **GPU, statistic="mean") == mean
        assert asked() == before, "the window stays until the samples are fetched again"
        one.advance(1.0)
        assert gauge(fast.collect(), window, **GPU, statistic="mean") != mean
        assert asked() == before + 1
        for _ in range(FETCH_RUNS):
            newest = gauge(fast.collect(), window, **GPU, statistic="max")
        assert math.isnan(newest), "no new samples"


def test_mig_instances_have_separate_utilization(nvml_library: Path, nvml: FakeNvml) -> None:
    nvml.reset("h100-mig")
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        instances = {each.gpu_instance: each.uuid for each in one.inventory.gpus[0].instances}
        member = one.member("gpu-mig")
        member.collect()
        one.advance(1.0)
        block = member.collect()
        busy = [
            gauge(block, "gangwatch_gpu_mig_sm_active_ratio", gpu=uuid(4, 0), mig=mig) for mig in instances.values()
        ]
        assert busy == sorted(busy, reverse=True)
        assert len(set(busy)) == 4
        used = gauge(block, "gangwatch_gpu_mig_memory_used_bytes", gpu=uuid(4, 0), mig=instances[1])
        assert used < gauge(block, "gangwatch_gpu_mig_memory_total_bytes", gpu=uuid(4, 0), mig=instances[1])
        whole = one.member("gpu").collect()
        assert all(column.metric != "gangwatch_gpu_utilization_ratio" for column in whole.gauge_columns)


def test_other_events_are_counted_and_recorded() -> None:
    xids = XidHistory()
    xids.name_gpu("0000:1b:00.0", uuid(1, 0))
    xids.note("0000:1b:00.0", "dram_retired", 5)
    xids.note("0000:1b:00.0", "dram_retired", 6)
    assert xids.newest().events == ((uuid(1, 0), "dram_retired", 2),)
    assert [(record.kind, record.entity) for record in xids.take_records()] == [("gpu", uuid(1, 0))] * 2  # type: ignore[union-attr]
