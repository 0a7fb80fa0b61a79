"""Processes on a GPU, and the share of the GPU that each uses."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from agent.collectors.gpu import gpu_processes
from agent.device_owners import resolve_claimed
from agent.gpu_inventory import GpuProcess
from tests.agent.catalogued import assert_catalogued, gauge
from tests.agent.gpus import machine, uuid
from tests.fakes.nvml.control import NO_PERMISSION, NOT_SUPPORTED, FakeNvml

GIB = 1 << 30
PREFIX = "gangwatch_gpu_process_"


def test_processes_that_share_a_gpu_have_separate_shares(nvml_library: Path, nvml: FakeNvml) -> None:
    nvml.add_process(0, 4711, 30 * GIB, sm_percent=61, memory_percent=20)
    nvml.add_process(0, 4712, 10 * GIB, sm_percent=33, memory_percent=5)
    nvml.add_process(0, 4713, 1 * GIB)
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        block = one.member("gpu-processes").collect()
        assert_catalogued(block)
        shares = {
            pid: gauge(block, f"{PREFIX}sm_utilization_ratio", gpu=uuid(1, 0), mig="", pid=pid)
            for pid in ("4711", "4712", "4713")
        }
        assert shares == {"4711": 0.61, "4712": 0.33, "4713": 0.0}
        assert gauge(block, f"{PREFIX}memory_used_bytes", gpu=uuid(1, 0), mig="", pid="4712") == 10 * GIB
        assert gauge(block, "gangwatch_gpu_processes", gpu=uuid(1, 0)) == 3
        assert GpuProcess(4712, uuid(1, 0)) in one.inventory.processes
        assert {gpu.uuid: gpu.minor for gpu in one.inventory.gpus}[uuid(1, 3)] == 3


def test_without_shares_the_total_is_not_assigned_to_a_process(nvml_library: Path, nvml: FakeNvml) -> None:
    nvml.add_process(0, 4711, 30 * GIB, sm_percent=61)
    nvml.add_process(0, 4712, 10 * GIB, sm_percent=33)
    nvml.set_call("nvmlDeviceGetProcessUtilization", NOT_SUPPORTED)
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        block = one.member("gpu-processes").collect()
        assert {column.metric for column in block.gauge_columns if column.metric.startswith(PREFIX)} == {
            f"{PREFIX}memory_used_bytes"
        }


def test_series_follow_starting_and_ending_processes(nvml_library: Path, nvml: FakeNvml) -> None:
    nvml.add_process(0, 4711, GIB, sm_percent=10)
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        collector = one.member("gpu-processes")
        first = collector.collect()
        assert collector.collect() is first
        nvml.clear_processes()
        one.advance(15)
        second = collector.collect()
        assert second is not first
        assert [column.metric for column in second.gauge_columns] == [
            "gangwatch_gpu_processes",
            "gangwatch_gpu_processes_not_shown",
        ]
        assert one.inventory.processes == ()


def test_an_impossible_share_is_absent(nvml_library: Path, nvml: FakeNvml) -> None:
    """Some drivers have reported thousands of per cent for a process that just started."""
    nvml.add_process(0, 4711, GIB, sm_percent=4000, memory_percent=12)
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        block = one.member("gpu-processes").collect()
        labels = {"gpu": uuid(1, 0), "mig": "", "pid": "4711"}
        assert math.isnan(gauge(block, f"{PREFIX}sm_utilization_ratio", **labels))
        assert gauge(block, f"{PREFIX}memory_utilization_ratio", **labels) == 0.12


def test_processes_of_mig_instances_belong_to_their_instance(nvml_library: Path, nvml: FakeNvml) -> None:
    nvml.reset("h100-mig")
    nvml.add_process(0, 4711, GIB, gpu_instance=1)
    nvml.add_process(0, 4712, 2 * GIB, gpu_instance=3)
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        migs = {mig.gpu_instance: mig.uuid for mig in one.inventory.gpus[0].instances}
        block = one.member("gpu-processes").collect()
        used = f"{PREFIX}memory_used_bytes"
        assert gauge(block, used, gpu=uuid(4, 0), mig=migs[1], pid="4711") == GIB
        assert gauge(block, used, gpu=uuid(4, 0), mig=migs[3], pid="4712") == 2 * GIB
        assert GpuProcess(4712, uuid(4, 0), migs[3]) in one.inventory.processes


def test_the_number_of_processes_is_limited_and_the_rest_is_counted(
    nvml_library: Path, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_processes, "MOST_PROCESSES", 5)
    for number in range(60):
        nvml.add_process(0, 5000 + number, (number + 1) * GIB)
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        block = one.member("gpu-processes").collect()
        assert gauge(block, "gangwatch_gpu_processes", gpu=uuid(1, 0)) == 60
        assert gauge(block, "gangwatch_gpu_processes_not_shown", gpu=uuid(1, 0)) == 55
        shown = {dict(column.labels)["pid"] for column in block.gauge_columns[2:]}
        assert shown == {"5055", "5056", "5057", "5058", "5059"}, "the processes with the most memory are kept"


def test_resource_claims_are_matched_to_their_instance(nvml_library: Path, nvml: FakeNvml) -> None:
    """A resource claim names a MIG instance by profile number and memory placement, which the driver gives only to
    root."""
    nvml.reset("h100-mig")
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        gpu = one.inventory.gpus[0]
        assert [(mig.profile, mig.placement) for mig in gpu.instances] == [(9, 4), (14, 0), (19, 2), (19, 3)]
        found = resolve_claimed(f"gpu-{gpu.minor}-mig-19-3-1", one.inventory.gpus)
        assert found == (gpu.uuid, gpu.instances[3].uuid)
        nvml.set_call("nvmlDeviceGetGpuInstanceById", NO_PERMISSION)
        nvml.set_mig(0, 2)
        one.advance(10.0)
        one.parent.collect()
        gpu = one.inventory.gpus[0]
        assert len(gpu.instances) == 7 and {mig.profile for mig in gpu.instances} == {None}
        assert resolve_claimed(f"gpu-{gpu.minor}-mig-19-3-1", one.inventory.gpus) is None, (
            "no match, because it would be a guess"
        )
