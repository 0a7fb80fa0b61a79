"""Faults of GPUs and their driver: which series each fault affects, how it is reported, and how it recovers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from agent.collectors.gpu.gpu import THROTTLE_REASONS
from agent.collectors.gpu.nvml_collector import NvmlCollector
from agent.node import Node
from agent.schema.errors import SourceError, UnsupportedError
from agent.schema.frame import Frame, Layout
from agent.schema.rates import Change, difference
from agent.sources.nvml.nvml import RETRY_LOST_SECONDS, GpuLostError
from tests import needs
from tests.agent.catalogued import gauge
from tests.agent.gpus import machine, uuid
from tests.fakes.nvml.build import build
from tests.fakes.nvml.control import GPU_IS_LOST, TIMEOUT, UNKNOWN, UNSIGNED_INT, FakeNvml

FIRST, SECOND = {"gpu": uuid(1, 0)}, {"gpu": uuid(1, 1)}
TEMPERATURE = "gangwatch_gpu_temperature_celsius"


# --- one GPU ---------------------------------------------------------------------------------------------------------


def test_a_lost_gpu_fails_alone_is_not_polled_and_recovers(nvml_library: Path, nvml: FakeNvml) -> None:
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        first, second = one.member("gpu", 0), one.member("gpu", 1)
        first.collect()
        second.collect()
        nvml.set_gpu_code(0, GPU_IS_LOST)
        with pytest.raises(GpuLostError, match=f"GPU {uuid(1, 0)} at 0000:1b:00.0"):
            first.collect()
        asked = nvml.call_count("nvmlDeviceGetFieldValues", 0)
        for kind in ("gpu", "gpu-slow", "gpu-processes"):
            with pytest.raises(GpuLostError):
                one.member(kind, 0).collect()
        assert nvml.call_count("nvmlDeviceGetFieldValues", 0) == asked, (
            "no call is made, because each may hold the driver's lock for long"
        )
        assert not math.isnan(gauge(second.collect(), TEMPERATURE, **SECOND))

        block = one.parent.collect()
        assert gauge(block, "gangwatch_gpu_up", **FIRST) == 0
        assert gauge(block, "gangwatch_gpu_up", **SECOND) == 1
        assert one.member("gpu", 0) is first, "its collectors remain and report the error"

        nvml.set_gpu_code(0, 0)
        one.advance(RETRY_LOST_SECONDS)
        assert gauge(one.parent.collect(), "gangwatch_gpu_up", **FIRST) == 1
        healed = one.member("gpu", 0)
        assert not math.isnan(gauge(healed.collect(), TEMPERATURE, **FIRST))


def test_a_gpu_that_returns_before_the_next_scan_keeps_its_collectors(nvml_library: Path, nvml: FakeNvml) -> None:
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        first = one.member("gpu")
        first.collect()
        nvml.set_gpu_code(0, GPU_IS_LOST)
        with pytest.raises(GpuLostError):
            first.collect()
        nvml.set_gpu_code(0, 0)
        with pytest.raises(GpuLostError):
            first.collect()
        one.advance(RETRY_LOST_SECONDS)
        assert not math.isnan(gauge(first.collect(), TEMPERATURE, **FIRST))
        assert gauge(one.parent.collect(), "gangwatch_gpu_up", **FIRST) == 1


@pytest.mark.parametrize("code", [TIMEOUT, UNKNOWN])
def test_a_temporary_failure_of_a_call_affects_only_its_value(nvml_library: Path, nvml: FakeNvml, code: int) -> None:
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        fast = one.member("gpu")
        fast.collect()
        nvml.set_call("nvmlDeviceGetTemperatureV", code, 0)
        block = fast.collect()
        assert math.isnan(gauge(block, TEMPERATURE, **FIRST))
        assert not math.isnan(gauge(block, "gangwatch_gpu_power_watts", **FIRST))
        nvml.set_call("nvmlDeviceGetTemperatureV", 0, 0)
        assert not math.isnan(gauge(fast.collect(), TEMPERATURE, **FIRST))


def test_symbols_missing_in_an_old_driver_cost_their_series_or_have_a_fallback(nvml: FakeNvml, tmp_path: Path) -> None:
    gone = (
        "nvmlDeviceGetTemperatureV", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlGpmSampleGet",
        "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetSamples", "nvmlDeviceGetProcessUtilization",
        "nvmlDeviceGetSramEccErrorStatus",
    )  # fmt: skip
    library = build(tmp_path, hidden=gone, compiler=needs.component("gcc", "gcc"))
    fake = FakeNvml(library)
    fake.reset()
    with machine(library, fake) as one:
        one.parent.collect()
        blocks = [member.collect() for name, member in one.members().items() if not name.startswith("gpu-topology")]
        metrics = {column.metric for block in blocks for column in (*block.gauge_columns, *block.counter_columns)}
        fast = one.member("gpu").collect()
    assert not math.isnan(gauge(fast, TEMPERATURE, **FIRST)), "read by the older call"
    assert gauge(fast, "gangwatch_gpu_throttle_state", **FIRST, reason="power_cap") == 1, "read by its older name"
    assert not {metric for metric in metrics if metric.startswith("gangwatch_fabric")}
    assert {"gangwatch_gpu_sm_active_ratio", "gangwatch_gpu_ecc_sram_errors_total"} & metrics == set()
    assert "gangwatch_gpu_utilization_window_ratio" not in metrics
    assert len(THROTTLE_REASONS) == 11


def test_a_driver_without_batched_fields_still_gives_the_other_values(nvml: FakeNvml, tmp_path: Path) -> None:
    library = build(tmp_path, hidden=["nvmlDeviceGetFieldValues"], compiler=needs.component("gcc", "gcc"))
    fake = FakeNvml(library)
    fake.reset()
    with machine(library, fake) as one:
        one.parent.collect()
        block = one.member("gpu").collect()
        assert not math.isnan(gauge(block, TEMPERATURE, **FIRST))
        assert all(not column.metric.startswith("gangwatch_nvlink") for column in block.counter_columns)
        one.member("gpu-slow").collect()


def test_failing_profiling_affects_only_its_own_series(nvml_library: Path, nvml: FakeNvml) -> None:
    active = "gangwatch_gpu_sm_active_ratio"
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        fast = one.member("gpu")
        fast.collect()
        one.advance(1.0)
        assert 0 < gauge(fast.collect(), active, **FIRST) <= 1
        one.advance(0.05)
        assert math.isnan(gauge(fast.collect(), active, **FIRST)), "samples that are too close give no value"
        nvml.set_call("nvmlGpmSampleGet", TIMEOUT, 0)
        one.advance(1.0)
        assert math.isnan(gauge(fast.collect(), active, **FIRST))
        nvml.set_call("nvmlGpmSampleGet", 0, 0)
        one.advance(1.0)
        assert math.isnan(gauge(fast.collect(), active, **FIRST)), "the start of the interval is unknown"
        one.advance(1.0)
        assert 0 < gauge(fast.collect(), active, **FIRST) <= 1


def test_counters_that_restart_give_no_rate(nvml_library: Path, nvml: FakeNvml) -> None:
    """A driver reload resets totals, and 32-bit counts wrap. Neither may give a huge rate."""
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        slow, fast = one.member("gpu-slow"), one.member("gpu")
        nvml.set_field(94, 2**32 - 5, gpu=0, kind=UNSIGNED_INT)
        before = (slow.collect(), fast.collect())
        held = [(block.counters.copy(), block.counters_valid.copy()) for block in before]
        nvml.set_field(94, 10, gpu=0, kind=UNSIGNED_INT)
        nvml.set_field(83, 17, gpu=0)
        after = (slow.collect(), fast.collect())
        wanted = (("gangwatch_gpu_pcie_replays_total", 15, Change.WRAPPED),
                  ("gangwatch_gpu_energy_joules_total", 0, Change.RESET))  # fmt: skip
        for (counters, valid), block, (metric, advance, change) in zip(held, after, wanted, strict=True):
            at = [column.metric for column in block.counter_columns].index(metric)
            widths = np.array([column.width for column in block.counter_columns], np.uint8)
            elapsed = np.full(len(widths), 10**9, np.int64)
            advances, changes = difference(
                counters, valid, block.counters, block.counters_valid, widths, elapsed,
                same_source=True, gap_ns=60 * 10**9,
            )  # fmt: skip
            assert (advances[at], changes[at]) == (advance, change)


# --- the driver ------------------------------------------------------------------------------------------------------


def test_collectors_recover_from_a_driver_reload(nvml_library: Path, nvml: FakeNvml) -> None:
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        fast = one.member("gpu")
        fast.collect()
        nvml.set_driver_loaded(False)
        with pytest.raises(SourceError, match="NVML_ERROR_DRIVER_NOT_LOADED"):
            fast.collect()
        with pytest.raises(SourceError, match="the library is dead"):
            fast.collect()
        with pytest.raises(SourceError) as failed:
            one.parent.collect()
        assert not isinstance(failed.value, UnsupportedError), "there were GPUs before, so it keeps polling"
        assert one.parent.members() == ()
        nvml.set_driver_loaded(True)
        one.parent.collect()
        assert not math.isnan(gauge(one.member("gpu").collect(), TEMPERATURE, **FIRST))


def test_collectors_recover_from_a_reload_between_two_calls(nvml_library: Path, nvml: FakeNvml) -> None:
    """Unload and load the driver between two calls, so that the library is no longer initialised."""
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        fast = one.member("gpu")
        fast.collect()
        nvml.set_driver_loaded(False)
        nvml.set_driver_loaded(True)
        with pytest.raises(SourceError, match="NVML_ERROR_UNINITIALIZED"):
            fast.collect()
        one.parent.collect()
        assert one.member("gpu") is not fast
        fast.close()
        assert not math.isnan(gauge(one.member("gpu").collect(), TEMPERATURE, **FIRST))


def test_profiling_buffers_are_freed_even_on_a_dead_library(nvml_library: Path, nvml: FakeNvml) -> None:
    """The library allocates the profiling buffers. They must be freed through it even if it has stopped working."""
    nvml.reset("h100-mig")
    before = nvml.gpm_samples()  # of collectors that other tests replaced; a node would close those
    with machine(nvml_library, nvml) as one:

        def collect_all() -> None:
            one.advance(10.0)
            one.parent.collect()
            for member in one.parent.members():
                member.collect()

        collect_all()
        held = nvml.gpm_samples()
        assert held > before
        for _ in range(5):
            nvml.set_driver_loaded(False)
            with pytest.raises(SourceError):
                one.member("gpu").collect()
            with pytest.raises(SourceError):
                one.parent.collect()
            assert nvml.gpm_samples() == before
            nvml.set_driver_loaded(True)
            one.parent.collect()
            nvml.set_call("nvmlDeviceGetFieldValues", GPU_IS_LOST, 0)
            with pytest.raises(GpuLostError):
                one.member("gpu").collect()
            nvml.set_call("nvmlDeviceGetFieldValues", 0, 0)
            assert nvml.gpm_samples() == before, "an incomplete set of parts holds no buffers"
            one.advance(RETRY_LOST_SECONDS)
            collect_all()
            assert nvml.gpm_samples() == held
    assert nvml.gpm_samples() == before


def test_a_mig_reconfiguration_creates_new_instances(nvml_library: Path, nvml: FakeNvml) -> None:
    nvml.reset("h100-mig")
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        first, other = one.member("gpu", 0), one.member("gpu", 1)
        migs = one.member("gpu-mig")
        assert len({dict(column.labels)["mig"] for column in migs.collect().gauge_columns}) == 4
        profiles = [
            dict(column.labels)["profile"]
            for column in one.parent.collect().gauge_columns
            if column.metric == "gangwatch_gpu_mig_info"
        ]
        assert profiles == ["3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"]
        nvml.set_mig(0, 2)
        one.parent.collect()
        assert one.member("gpu", 0) is not first
        assert one.member("gpu", 1) is other, "the other GPU is not affected"
        one.advance(1.0)
        renewed = one.member("gpu-mig").collect()
        assert len({dict(column.labels)["mig"] for column in renewed.gauge_columns}) == 7
        assert not np.isnan(renewed.gauges[:3]).any()
        assert len(one.inventory.gpus[0].instances) == 7
        nvml.set_mig(0, 0)
        one.parent.collect()
        assert not any(name.startswith("gpu-mig") for name in one.members())
        for member in (first, migs):
            member.close()


# --- the machine -----------------------------------------------------------------------------------------------------


def test_a_node_on_a_shared_machine_reports_only_its_own_gpus(nvml_library: Path, nvml: FakeNvml) -> None:
    with machine(nvml_library, nvml, devices=(uuid(1, 1),)) as one:
        one.parent.collect()
        blocks = [member.collect() for member in one.parent.members()]
        labels = {value for block in blocks for column in block.gauge_columns
                  for name, value in column.labels if name == "gpu"}  # fmt: skip
        assert labels == {uuid(1, 1)}


def test_a_machine_without_gpus_is_unsupported(nvml_library: Path, nvml: FakeNvml) -> None:
    nvml.set_gpus(0)
    with pytest.raises(UnsupportedError, match="no GPU responds"):
        NvmlCollector(str(nvml_library)).collect()


def test_a_node_without_gpus_does_not_list_the_collector(tmp_path: Path) -> None:
    node = Node("n0", [NvmlCollector(str(tmp_path / "no-such-library.so"))])
    layout, _ = node.tick()
    assert [tier.name for tier in layout.tiers] == ["node"]
    node.stop()


# --- in a running node -----------------------------------------------------------------------------------------------


class Running:
    """Running node with GPUs that makes ten frames a second."""

    def __init__(self, library: Path) -> None:
        self.collector = NvmlCollector(str(library), 0.1)
        # The parent scans for new handles every ten seconds, which is long for a test.
        self.collector.interval_seconds = 0.3
        self.node = Node("n0", [self.collector], interval_seconds=0.1)

    def value(self, metric: str, **labels: str) -> float | None:
        """Return the value in the newest frame: None if the frame has no such series, NaN if the value is absent."""
        newest = self.node.newest()
        if newest is None:
            return None
        layout, frame = newest
        return _value(layout, frame, metric, labels)

    def until(self, true: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + 30
        while not true():
            assert time.monotonic() < deadline, what
            time.sleep(0.02)

    def is_fresh(self, labels: dict[str, str]) -> bool:
        value = self.value(TEMPERATURE, **labels)
        return value is not None and not math.isnan(value)

    def is_absent(self, labels: dict[str, str]) -> bool:
        value = self.value(TEMPERATURE, **labels)
        return value is None or math.isnan(value)


def _value(layout: Layout, frame: Frame, metric: str, labels: dict[str, str]) -> float | None:
    wanted = tuple(sorted(labels.items()))
    for index, column in enumerate(layout.gauges):
        if (column.metric, column.labels) == (metric, wanted):
            return float(frame.gauges[index])
    return None


@pytest.fixture
def running(nvml_library: Path, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> Running:
    nvml.set_gpus(3)
    return Running(nvml_library)


def test_a_hung_call_of_one_gpu_delays_no_other_gpu(running: Running, nvml: FakeNvml) -> None:
    node = running.node
    node.start()
    try:
        running.until(lambda: running.is_fresh(FIRST) and running.is_fresh(SECOND), "both GPUs are reported")
        nvml.hang(0)
        running.until(
            lambda: running.value("gangwatch_collector_success", collector="gpu/0000:1b:00.0") == 0,
            "the failure is visible",
        )
        running.until(lambda: running.is_absent(FIRST), "the hung GPU's series go stale")
        running.until(lambda: running.is_fresh(SECOND), "the other GPU's series are fresh again")
        seen = nvml.call_count("nvmlDeviceGetFieldValues", 1)
        running.until(
            lambda: nvml.call_count("nvmlDeviceGetFieldValues", 1) > seen + 5, "the other GPU is still polled"
        )
        nvml.hang(0, False)
        running.until(lambda: running.is_fresh(FIRST), "the GPU has recovered")
    finally:
        nvml.hang(0, False)
        node.stop()
    running.until(lambda: not nvml.is_initialized(), "the driver is released")


def test_released_gpus_can_be_reset_and_are_acquired_again(running: Running, nvml: FakeNvml) -> None:
    node = running.node
    node.start()
    try:
        running.until(lambda: running.is_fresh(FIRST), "the GPU is reported")
        node.release()
        running.until(lambda: not nvml.is_initialized() and not node.holds_devices(), "nothing holds the driver")
        running.until(lambda: running.is_absent(FIRST), "its series are absent")
        node.acquire()
        running.until(lambda: running.is_fresh(FIRST), "the GPU is reported again")
    finally:
        node.stop()
    running.until(lambda: not nvml.is_initialized(), "the driver is released")


def test_a_running_node_recovers_from_a_driver_reload(running: Running, nvml: FakeNvml) -> None:
    node = running.node
    node.start()
    try:
        running.until(lambda: running.is_fresh(FIRST), "the GPU is reported")
        nvml.set_driver_loaded(False)
        running.until(
            lambda: running.value("gangwatch_collector_success", collector="nvml") == 0, "the failure is visible"
        )
        nvml.set_driver_loaded(True)
        running.until(lambda: running.is_fresh(FIRST) and running.is_fresh(SECOND), "the GPU has recovered")
        assert running.value("gangwatch_collector_success", collector="nvml") == 1
    finally:
        node.stop()
    running.until(lambda: not nvml.is_initialized(), "the driver is released")
