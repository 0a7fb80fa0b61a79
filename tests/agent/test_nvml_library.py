"""NVML library: opening, sharing, closing, names of its error codes, and the list of GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pynvml
import pytest

from agent.schema.errors import SourceError, UnsupportedError
from agent.sources.nvml import PYNVML_FLOOR
from agent.sources.nvml.nvml import Library, LibraryDeadError, growing_list, kernel_address, pci_address
from agent.sources.nvml.nvml_codes import code_text
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


def test_codes_have_the_names_of_nvml_h() -> None:
    assert code_text(pynvml.NVML_ERROR_GPU_IS_LOST) == "NVML_ERROR_GPU_IS_LOST (15)"
    assert code_text(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH) == "NVML_ERROR_ARGUMENT_VERSION_MISMATCH (25)"
    assert code_text(12345) == "error (12345)"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("raise ImportError('no pynvml here')", "no pynvml here"),
        ("NVML_SUCCESS = 0", "pynvml.py is too old"),
        ("NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN = 251", "pynvml.py is too old"),
    ],
)
def test_the_agent_runs_without_gpus_if_pynvml_is_missing_or_too_old(content: str, reason: str, tmp_path: Path) -> None:
    """The abandoned distribution "pynvml" has a package of the same name, which Python imports instead."""
    (tmp_path / "pynvml.py").write_text(content)
    program = (
        "from agent.collectors import Machine, make_collectors\n"
        "from agent.rank_attribution import Attribution\n"
        "from gangwatch.health.machine import find_gpus\n"
        "made, left_out = make_collectors(Machine(Attribution(None), kubelet_socket=None))\n"
        "print(find_gpus(), any(one.name == 'host' for one in made))\n"
        "print(*(reason for reason in left_out if reason.startswith('NVML')))\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    first, why = shown.stdout.splitlines()
    assert first == "() True"
    assert reason in why and f"install nvidia-ml-py>={PYNVML_FLOOR}" in why


def test_the_floor_of_pynvml_is_the_declared_one() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert f"nvidia-ml-py>={PYNVML_FLOOR}" in project["dependencies"]


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
    with pytest.raises(SourceError, match="NVML_ERROR_UNKNOWN") as failed:
        Library(str(nvml_library))
    assert not isinstance(failed.value, UnsupportedError)


def test_close_releases_the_driver_and_later_calls_fail(nvml_library: Path, nvml: FakeNvml) -> None:
    library = Library(str(nvml_library))
    assert nvml.is_initialized()
    assert library.function("nvmlNothingOfThatName") is None
    assert library.call("nvmlNothingOfThatName") == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
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


def test_users_of_pynvml_in_the_process_share_the_library_and_outlive_its_close(nvml_library: Path) -> None:
    """A plug-in imports pynvml as usual. By the SONAME it gets the library that the agent has loaded."""
    program = (
        "import sys, pynvml\n"
        "from agent.sources.nvml.nvml import Library\n"
        "from agent.sources.nvml.nvml_enumeration import find_devices\n"
        "library = Library(sys.argv[1])\n"
        "pynvml.nvmlInit()\n"
        "uuids = [device.uuid for device in find_devices(library)]\n"
        "library.close()\n"
        "handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]\n"
        "assert [pynvml.nvmlDeviceGetUUID(handle) for handle in handles] == uuids, uuids\n"
        "again = Library(sys.argv[1])\n"
        "pynvml.nvmlShutdown()\n"
        "assert [device.uuid for device in find_devices(again)] == uuids\n"
        "again.close()\n"
        "print(len(uuids), [line for line in open('/proc/self/maps') if sys.argv[1] in line] != [])\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program, str(nvml_library)], capture_output=True, text=True, check=False
    )
    assert (shown.returncode, shown.stdout) == (0, "8 True\n"), shown.stderr


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


@pytest.mark.parametrize(
    ("written", "address"),
    [(b"00000000:3B:00.0", "0000:3b:00.0"), (b"", ""), (b"\xff\xfe", ""), (b"no address", "")],
)
def test_text_of_the_driver_that_is_no_bus_id_gives_no_address(written: bytes, address: str) -> None:
    assert kernel_address(pynvml.nvmlPciInfo_t(busId=written)) == address


def test_a_list_that_outgrows_its_buffer_is_requested_again(nvml_library: Path, nvml: FakeNvml) -> None:
    for pid in range(40):
        nvml.add_process(0, 1000 + pid, 1 << 20)
    library = Library(str(nvml_library))
    device = find_devices(library)[0]
    function = library.function("nvmlDeviceGetComputeRunningProcesses_v3")
    assert function is not None
    code, entries = growing_list(function, pynvml.c_nvmlProcessInfo_v3_t, device.handle)
    assert (code, len(entries)) == (0, 40)
    library.close()
