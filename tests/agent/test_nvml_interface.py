"""Structures and constants, compared with the vendor's bindings; opening and closing of the library."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pynvml
import pytest

from agent.schema.errors import SourceError, UnsupportedError
from agent.sources.nvml import nvml_interface as ours
from agent.sources.nvml.nvml import Library, LibraryDeadError, growing_list, pci_address
from agent.sources.nvml.nvml_enumeration import find_devices
from tests import needs
from tests.fakes.nvml.build import build
from tests.fakes.nvml.control import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    LIBRARY_NOT_FOUND,
    SYSTEM,
    TIMEOUT,
    UNKNOWN,
    FakeNvml,
)

THEIRS = {
    ours.Utilization: pynvml.c_nvmlUtilization_t,
    ours.Memory: pynvml.c_nvmlMemory_v2_t,
    ours.Bar1: pynvml.c_nvmlBAR1Memory_t,
    ours.Temperature: pynvml.c_nvmlTemperature_v1_t,
    ours.Margin: pynvml.c_nvmlMarginTemperature_v1_t,
    ours.Pci: pynvml.nvmlPciInfo_t,
    ours.FieldValue: pynvml.c_nvmlFieldValue_t,
    ours.Sample: pynvml.c_nvmlSample_t,
    ours.SramErrors: pynvml.c_nvmlEccSramErrorStatus_v1_t,
    ours.RemapHistogram: pynvml.c_nvmlRowRemapperHistogramValues,
    ours.ProcessInfo: pynvml.c_nvmlProcessInfo_v2_t,
    ours.ProcessSample: pynvml.c_nvmlProcessUtilizationSample_t,
    ours.EventData: pynvml.c_nvmlEventData_t,
    ours.Attributes: pynvml.c_nvmlDeviceAttributes,
    ours.FabricV2: pynvml.c_nvmlGpuFabricInfo_v2_t,
    ours.FabricV3: pynvml.c_nvmlGpuFabricInfo_v3_t,
    ours.GpmMetric: pynvml.c_nvmlGpmMetric_t,
    ours.GpmSupport: pynvml.c_nvmlGpmSupport_t,
}


@pytest.mark.parametrize("structure", THEIRS, ids=lambda one: one.__name__)
def test_structures_have_the_layout_of_the_vendors(structure: type[ctypes.Structure]) -> None:
    vendors = THEIRS[structure]
    assert ctypes.sizeof(structure) == ctypes.sizeof(vendors)
    assert [getattr(structure, name).offset for name, *_ in structure._fields_] == [
        getattr(vendors, name).offset for name, *_ in vendors._fields_
    ]


def test_a_gpu_instance_has_the_layout_of_the_vendors() -> None:
    vendors = pynvml.c_nvmlGpuInstanceInfo_t
    assert ctypes.sizeof(ours.GpuInstanceInfo) == ctypes.sizeof(vendors)
    assert ours.GpuInstanceInfo.profile.offset == vendors.profileId.offset
    assert ours.GpuInstanceInfo.start.offset == vendors.placement.offset


def test_a_profiling_request_has_room_for_all_metrics_of_the_bindings() -> None:
    assert ours.GPM_METRICS >= pynvml.NVML_GPM_METRIC_MAX
    assert ours.GpmRequest.metrics.offset == pynvml.c_nvmlGpmMetricsGet_t.metrics.offset


def test_versions_equal_those_of_the_vendor() -> None:
    assert ours.Memory().version == pynvml.nvmlMemory_v2
    assert ours.Temperature().version == pynvml.nvmlTemperature_v1
    assert ours.Margin().version == pynvml.nvmlMarginTemperature_v1
    assert ours.SramErrors().version == pynvml.nvmlEccSramErrorStatus_v1
    assert ours.FabricV2().version == pynvml.nvmlGpuFabricInfo_v2
    assert ours.FabricV3().version == pynvml.nvmlGpuFabricInfo_v3


def test_codes_equal_those_of_the_vendor() -> None:
    lost = {pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_GPU_NOT_FOUND}
    assert lost == ours.LOST
    dead = {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
    assert dead == ours.DEAD
    never = {
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    }
    assert never == ours.NEVER
    assert ours.code_text(15) == "GPU is lost (15)"
    assert ours.code_text(12345) == "error (12345)"


# --- open and close --------------------------------------------------------------------------------------------------


def test_a_missing_library_is_unsupported(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="no-such-library"):
        Library(str(tmp_path / "no-such-library.so"))


def test_a_library_that_is_not_nvml_is_rejected() -> None:
    with pytest.raises(UnsupportedError, match="no nvmlInit_v2"):
        Library("libc.so.6")


@pytest.mark.parametrize("code", [DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND])
def test_a_missing_driver_is_unsupported(nvml_library: Path, nvml: FakeNvml, code: int) -> None:
    nvml.set_init_code(code)
    with pytest.raises(UnsupportedError, match="nvmlInit"):
        Library(str(nvml_library))


def test_other_driver_errors_are_failures(nvml_library: Path, nvml: FakeNvml) -> None:
    nvml.set_init_code(UNKNOWN)
    with pytest.raises(SourceError, match="Unknown") as failed:
        Library(str(nvml_library))
    assert not isinstance(failed.value, UnsupportedError)


def test_close_releases_the_driver_and_later_calls_fail(nvml_library: Path, nvml: FakeNvml) -> None:
    library = Library(str(nvml_library))
    assert nvml.is_initialized()
    assert library.function("nvmlNothingOfThatName") is None
    assert library.call("nvmlNothingOfThatName") == 13
    assert library.missing == {"nvmlNothingOfThatName"}
    library.close()
    library.close()
    assert library.dead
    assert not nvml.is_initialized()
    with pytest.raises(LibraryDeadError):
        library.function("nvmlInit_v2")


def test_a_library_is_unmapped_unless_a_call_is_still_running(tmp_path: Path) -> None:
    made = build(tmp_path, compiler=needs.component("gcc", "gcc"))

    def mapped() -> bool:
        return str(made) in Path("/proc/self/maps").read_text()

    library = Library(str(made))
    assert mapped()
    library.close()
    assert not mapped()
    library = Library(str(made))
    with library.using():
        library.close()
        assert mapped(), "a running call will return into this code"


def test_gpus_are_identified_and_a_lost_gpu_is_left_out(nvml_library: Path, nvml: FakeNvml) -> None:
    library = Library(str(nvml_library))
    devices = find_devices(library)
    assert [device.index for device in devices] == list(range(8))
    assert devices[2].pci_address == "0000:52:00.0"
    nvml.set_gpu_code(2, GPU_IS_LOST)
    assert [device.index for device in find_devices(library)] == [0, 1, 3, 4, 5, 6, 7]
    nvml.set_call("nvmlDeviceGetCount_v2", UNKNOWN, SYSTEM)
    with pytest.raises(SourceError, match="nvmlDeviceGetCount"):
        find_devices(library)
    library.close()


def test_mig_instances_are_kept_during_a_temporary_driver_error(nvml_library: Path, nvml: FakeNvml) -> None:
    nvml.reset("h100-mig")
    library = Library(str(nvml_library))
    known = find_devices(library)
    assert [one.profile for one in known[0].instances] == ["3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"]
    assert (known[0].mig, known[1].mig) == (True, False)
    nvml.set_call("nvmlDeviceGetMigMode", TIMEOUT)
    assert find_devices(library, known=known)[0].instances == known[0].instances
    library.close()


def test_bus_ids_have_the_format_of_the_kernel() -> None:
    assert pci_address("00000000:3B:00.0") == "0000:3b:00.0"
    assert pci_address("00010000:A1:00.0") == "10000:a1:00.0"


def test_a_list_that_outgrows_its_buffer_is_requested_again(nvml_library: Path, nvml: FakeNvml) -> None:
    for pid in range(40):
        nvml.add_process(0, 1000 + pid, 1 << 20)
    library = Library(str(nvml_library))
    device = find_devices(library)[0]
    function = library.function("nvmlDeviceGetComputeRunningProcesses_v3")
    assert function is not None
    code, entries = growing_list(function, ours.ProcessInfo, device.handle)
    assert (code, len(entries)) == (0, 40)
    library.close()
