"""Checks of this machine for `gangwatch check`.

gangwatch starts even if a check fails: it then measures less, or gets a value in another way. `remedy` describes how to
add what is missing."""

from __future__ import annotations

import ctypes
import fcntl
import importlib.util
import os
import platform
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from agent.schema.errors import GangwatchError, SourceError
from gangwatch.state_folder import StateFolder
from scheduler_feedback.api.web.words import count

_F_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Finding(msgspec.Struct, frozen=True):
    """Result of one check: what was checked, whether it was found, and how to fix it."""

    name: str
    state: Literal["found", "limited", "missing"]
    detail: str
    """What the check found, or what gangwatch can't do without the missing item."""
    remedy: str = ""
    """How to add what is missing; '' if nothing is missing."""


class Gpu(msgspec.Struct, frozen=True):
    """A GPU that the driver lists."""

    uuid: str
    model: str


class Machine(msgspec.Struct, frozen=True):
    """Result of all checks of a machine."""

    host: str
    processors: int
    gpus: tuple[Gpu, ...]
    findings: tuple[Finding, ...]


def usable_processors() -> int:
    """Return the number of processors that this process may run on (sched_getaffinity(2))."""
    return len(os.sched_getaffinity(0))


def host_name() -> str:
    return socket.gethostname()


def find_gpus(library: str | None = None) -> tuple[Gpu, ...]:
    """Return the machine's GPUs in the driver's order; empty without NVML or GPUs. library: path of NVML."""
    return _nvml(library)[0]


def _nvml(library: str | None = None) -> tuple[tuple[Gpu, ...], Finding]:
    blind = "no GPU telemetry, slots are CPU slots"
    absent = "install the NVIDIA driver with libnvidia-ml.so.1 (Debian: libnvidia-ml1; container: the NVIDIA toolkit)"
    try:
        from agent.sources.nvml import LIBRARY

        ctypes.CDLL(library or LIBRARY)  # most machines with no GPU end here, before NumPy is imported
        from agent.sources.nvml.nvml import Library
        from agent.sources.nvml.nvml_enumeration import describe_device, find_devices
    except OSError as error:
        return (), Finding("nvml", "missing", f"{blind}: NVML: {error}", absent)
    except SourceError as error:
        return (), Finding("nvml", "missing", f"{blind}: {error}", "reinstall gangwatch with its dependencies")
    try:
        nvml = Library(library)
    except SourceError as error:
        return (), Finding("nvml", "missing", f"{blind}: {error}", absent)
    try:
        driver = nvml.text("nvmlSystemGetDriverVersion")
        devices = find_devices(nvml)
        for device in devices:
            describe_device(device)
        gpus = tuple(Gpu(device.uuid, device.model) for device in devices)
    except SourceError as error:
        return (), Finding("nvml", "limited", f"the driver returned an error: {error}", "see the kernel log")
    finally:
        nvml.close()
    if not gpus:
        return (), Finding("nvml", "limited", f"driver {driver}, no GPU", "")
    return gpus, Finding("nvml", "found", f"driver {driver}, {count(len(gpus), 'GPU')}: {gpus[0].model}")


# --- kernel ----------------------------------------------------------------------------------------------------------


def pressure(proc: Path) -> Finding:
    file = proc / "pressure" / "cpu"
    try:
        file.read_bytes()
    except OSError as error:
        return Finding(
            "pressure",
            "missing",
            f"{file}: {error.strerror}; contention on the host is measured only by run-queue waits",
            "a kernel with CONFIG_PSI, booted with psi=1",
        )
    return Finding("pressure", "found", f"{proc}/pressure")


def schedstat(proc: Path) -> Finding:
    file = proc / "self" / "schedstat"
    try:
        running_ns = int(file.read_bytes().split()[0])
    except (OSError, ValueError, IndexError) as error:
        running_ns, why = 0, (getattr(error, "strerror", None) or "unknown format")
    else:
        why = "always zero" if not running_ns else ""
    if why:
        return Finding(
            "schedstat",
            "missing",
            f"{file}: {why}; waiting for a processor can't be distinguished from being stopped",
            "a kernel with CONFIG_SCHED_INFO (all distributions have it); some sandboxes hide the file",
        )
    return Finding("schedstat", "found", str(file))


def children_file(proc: Path) -> Finding:
    file = proc / "self" / "task" / str(os.getpid()) / "children"
    if file.exists():
        return Finding("children", "found", str(proc / "PID/task/TID/children"))
    return Finding(
        "children",
        "missing",
        f"{file} does not exist; finding a rank's processes takes a scan of {proc}",
        "a kernel with CONFIG_PROC_CHILDREN",
    )


def delay_accounting(proc: Path) -> Finding:
    file = proc / "sys" / "kernel" / "task_delayacct"
    try:
        on = file.read_text().strip() == "1"
    except OSError:
        on = False
    if on:
        return Finding("delay accounting", "found", f"{file} = 1")
    return Finding(
        "delay accounting",
        "missing",
        "waits for block I/O are not counted, so storage is never reported as a cause",
        "sysctl kernel.task_delayacct=1, or boot with delayacct",
    )


def control_groups(proc: Path, mount: Path) -> Finding:
    remedy = "systemd: a unit with Delegate=yes; elsewhere: run in a cgroup v2 that you can write to"
    without = "a subreaper process ends the processes of jobs instead"
    file = proc / "self" / "cgroup"
    try:
        lines = file.read_text().split("\n")
    except OSError as error:
        return Finding("cgroup v2", "missing", f"{file}: {error.strerror}; {without}", remedy)
    own = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), None)
    roots = [root for root in (mount, mount / "unified") if (root / "cgroup.controllers").exists()]
    if own is None or not roots:
        return Finding("cgroup v2", "missing", f"not mounted at {mount}; {without}", remedy)
    folder = roots[0] / own.lstrip("/")
    if not os.access(folder, os.W_OK) or not os.access(folder / "cgroup.procs", os.W_OK):
        return Finding("cgroup v2", "limited", f"{folder} is not delegated to gangwatch; {without}", remedy)
    if not (folder / "cgroup.kill").exists() and folder != roots[0]:
        return Finding("cgroup v2", "limited", f"{folder} has no cgroup.kill; {without}", "Linux 5.14 or newer")
    return Finding("cgroup v2", "found", f"{folder}, writable")


def sealed_memory() -> Finding:
    try:
        descriptor = os.memfd_create("gangwatch-check", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except (OSError, AttributeError) as error:
        return Finding("sealed memory", "missing", f"memfd_create: {error}; no step reports", "Linux 3.17 or newer")
    try:
        os.ftruncate(descriptor, 4096)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _F_SEALS)
    except OSError as error:
        return Finding("sealed memory", "missing", f"F_ADD_SEALS: {error}; no step reports", "Linux 3.17 or newer")
    finally:
        os.close(descriptor)
    return Finding("sealed memory", "found", "memfd_create with F_ADD_SEALS")


def process_descriptors() -> Finding:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError) as error:
        return Finding("pidfd", "missing", f"pidfd_open: {error}; `gangwatch up` can't run", "Linux 5.3 or newer")
    return Finding("pidfd", "found", f"pidfd_open, Linux {platform.release()}")


def rdma(sys: Path) -> Finding:
    devices = sorted(path.name for path in (sys / "class" / "infiniband").glob("*"))
    if devices:
        return Finding("rdma", "found", f"{count(len(devices), 'device')}: {', '.join(devices)}")
    return Finding("rdma", "missing", f"nothing under {sys}/class/infiniband", "an RDMA NIC and its driver (rdma-core)")


# --- gangwatch -------------------------------------------------------------------------------------------------------


def port(number: int, state: StateFolder) -> Finding:
    name = f"port {number}"
    controller = state.controller()
    if controller is not None and controller.url.endswith(f":{number}"):
        return Finding(name, "found", f"in use by this state folder's controller (pid {controller.pid})")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", number))
        except OSError as error:
            return Finding(name, "missing", f"127.0.0.1:{number}: {error.strerror}", "gangwatch up --port PORT")
    return Finding(name, "found", "free")


def state_folder(state: StateFolder) -> Finding:
    existing = next(path for path in (state.path, *state.path.parents) if path.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        return Finding("state folder", "missing", f"{existing} is not writable", "--state DIR, or $GANGWATCH_STATE")
    free_bytes = shutil.disk_usage(existing).free
    sockets = state.socket_path(host_name()[:63]).parent
    elsewhere = "" if sockets.is_relative_to(state.path) else f", step sockets in {sockets}"
    detail = f"{state.path}, {free_bytes / 1e9:.1f} GB free{elsewhere}"
    if free_bytes < 256e6:
        # The journal of a busy day is tens of megabytes, plus the logs of jobs.
        return Finding("state folder", "limited", detail, "free disk space for the journal and the jobs' logs")
    return Finding("state folder", "found", detail)


def program(name: str, package: str, use: str) -> Finding:
    found = shutil.which(name)
    if found is None:
        return Finding(name, "missing", f"optional: {use}", f"apt-get install {package}")
    return Finding(name, "found", found)


def module(name: str, package: str, use: str) -> Finding:
    if importlib.util.find_spec(name) is None:
        return Finding(name, "missing", f"optional: {use}", f"pip install {package}")
    return Finding(name, "found", use)


def examine(
    state: StateFolder,
    port_number: int,
    proc: Path = Path("/proc"),
    sys: Path = Path("/sys"),
    nvml_library: str | None = None,
) -> Machine:
    """Run all checks of this machine.

    proc, sys: mount points of /proc and /sys. nvml_library: path of NVML; None for the system's library.
    """
    gpus, nvml = _nvml(nvml_library)
    checks: tuple[Callable[[], Finding], ...] = (
        process_descriptors,
        sealed_memory,
        lambda: pressure(proc),
        lambda: schedstat(proc),
        lambda: children_file(proc),
        lambda: delay_accounting(proc),
        lambda: control_groups(proc, sys / "fs" / "cgroup"),
        lambda: nvml,
        lambda: rdma(sys),
        lambda: state_folder(state),
        lambda: port(port_number, state),
        lambda: program("prometheus", "prometheus", "stores and queries the metrics of /metrics"),
        lambda: program("promtool", "prometheus", "checks /metrics in the tests"),
        lambda: module("torch", "torch", "examples/train_torch.py"),
    )
    findings = []
    for check in checks:
        try:
            findings.append(check())
        except GangwatchError as error:
            findings.append(Finding("state folder", "limited", str(error), "remove the file in the message"))
    return Machine(host_name(), usable_processors(), gpus, tuple(findings))
