"""What this node's collectors get: each is run as the agent runs it, and says what answers, what is silent, and why.

Nothing is changed by it. A driver that hangs is waited for no longer than SURVEY_SECONDS; what it keeps from answering
is then said to be stuck.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from agent.collectors import Machine, make_collectors
from agent.node import Node
from agent.rank_attribution import Attribution
from agent.schema.errors import GangwatchError
from agent.schema.frame import Frame, Layout
from agent.sources.rdma.netlink import RdmaNetlink
from agent.sources.rdma.network_namespaces import inside, net_namespaces
from agent.sources.sysfs.sysfs import is_kernel_tree
from gangwatch.configuration.sections import AgentSection
from gangwatch.health.machine import Finding

SURVEY_SECONDS = 20.0
"""Opening a driver without its persistence daemon takes seconds a GPU."""

PROFILING_PAUSE_SECONDS = 0.2
"""Profiling metrics need two samples a tenth of a second apart (nvmlGpmMetricsGet)."""

MOST_NAMED = 4
"""Silent families that are named; the rest is counted."""

_REMEDIES = {
    "nvml": "the NVIDIA driver (libnvidia-ml.so.1), and its device files in the container",
    "rdma": "an RDMA NIC and its driver (rdma-core); in a container /sys of the host",
    "kubelet": "mount /var/lib/kubelet/pod-resources, or set agent.kubelet_socket",
    "kernel log": "read access to /dev/kmsg: CAP_SYSLOG, or kernel.dmesg_restrict=0; in a container the device",
    "pcie": "in a container /sys of the host",
    "xid": "the NVIDIA driver (libnvidia-ml.so.1), and its device files in the container",
}


_GPU_FEATURES = (
    ("profiling", "gangwatch_gpu_sm_active_ratio"),
    ("ECC", "gangwatch_gpu_ecc_errors_total"),
    ("row remapping", "gangwatch_gpu_remapped_rows_total"),
    ("throttle times", "gangwatch_gpu_throttle_seconds_total"),
    ("memory temperature", "gangwatch_gpu_memory_temperature_celsius"),
    ("PCIe errors", "gangwatch_gpu_pcie_errors_total"),
    ("recovery action", "gangwatch_gpu_recovery_action"),
    ("NVLink", "gangwatch_nvlink_state"),
    ("NVLink fabric", "gangwatch_fabric_state"),
    ("C2C", "gangwatch_c2c_link_state"),
    ("each process's share", "gangwatch_gpu_process_sm_utilization_ratio"),
)
"""What GPUs differ in, and a family that is there where the GPU and its driver have it."""


def survey(section: AgentSection) -> tuple[Finding, ...]:
    """A finding for each kind of collector, and for each right that some of them need."""
    machine = Machine(
        Attribution(None, section.proc_root),
        None,
        section.proc_root,
        section.sysfs_root,
        section.nvml_library,
        kubelet_socket=section.kubelet_socket or None,
        job_files=section.job_files,
        rdma_excluded=section.rdma_excluded,
        kernel_log=section.kernel_log,
    )
    try:
        collectors, left_out = make_collectors(machine)
        node = Node("check", collectors, proc_root=section.proc_root)
    except GangwatchError as error:
        return (Finding("collectors", "missing", str(error), "see --proc-root and --sysfs-root"),)
    found = [_absent(reason) for reason in left_out if not reason.startswith("steps: ")]
    taken: list[tuple[Layout, Frame]] = []

    def look() -> None:
        node.tick()
        time.sleep(PROFILING_PAUSE_SECONDS)
        taken.append(node.tick())

    # In a thread that is left behind where a driver never returns: to be told so is what the check is for.
    looking = threading.Thread(target=look, name="survey", daemon=True)
    looking.start()
    looking.join(SURVEY_SECONDS)
    if not taken:
        stuck = Finding(
            "collectors", "limited", f"a driver's call has not returned in {SURVEY_SECONDS:.0f} s",
            "the agent runs on without it; look at the kernel log, or reset the device"
        )  # fmt: skip
        return (*found, stuck, *rights(section))
    node.stop()
    return (*found, *_answers(*taken[0]), *rights(section))


def _absent(reason: str) -> Finding:
    """A collector that is left out, by its reason, which begins with its name."""
    name, _, why = reason.partition(": ")
    return Finding(
        f"counters: {name}", "missing", why or reason, _REMEDIES.get(name, "nothing, where the machine has none")
    )


def _answers(layout: Layout, frame: Frame) -> list[Finding]:
    """What each kind of collector gave: members of one kind ("gpu/UUID") are told together."""
    success = {
        dict(column.labels)["collector"]: value
        for column, value in zip(layout.gauges, frame.gauges.tolist(), strict=True)
        if column.metric == "gangwatch_collector_success"
    }
    present: dict[str, int] = {}
    silent: dict[str, dict[str, int]] = {}
    columns = (
        *((column, not math.isnan(value)) for column, value in zip(layout.gauges, frame.gauges.tolist(), strict=True)),
        *zip(layout.counters, frame.counters_valid.tolist(), strict=True),
    )
    for column, answers in columns:
        kind = _kind(layout.tiers[column.tier].name)
        if answers:
            present[kind] = present.get(kind, 0) + 1
        else:
            families = silent.setdefault(kind, {})
            families[column.metric] = families.get(column.metric, 0) + 1
    kinds: dict[str, list[str]] = {}
    for name in success:
        kinds.setdefault(_kind(name), []).append(name)
    told = [
        _told(kind, names, sum(not success[name] for name in names), present.get(kind, 0), silent.get(kind, {}))
        for kind, names in sorted(kinds.items())
    ]
    return [*told, _gpu_features({column.metric for column, answers in columns if answers})] if "gpu" in kinds else told


def _gpu_features(families: set[str]) -> Finding:
    """What the node's GPUs tell and what they do not: that is the hardware's and the driver's, and no right's."""
    has = [words for words, family in _GPU_FEATURES if family in families]
    lacks = [words for words, family in _GPU_FEATURES if family not in families]
    missing = f"; not told by these GPUs, their driver or what runs on them: {', '.join(lacks)}" if lacks else ""
    return Finding("GPU features", "found", f"{', '.join(has) or 'the basics alone'}{missing}")


def _kind(collector: str) -> str:
    return collector.partition("/")[0]


def _told(kind: str, names: list[str], failed: int, present: int, silent: dict[str, int]) -> Finding:
    members = f"{len(names)} x: " if len(names) > 1 else ""
    name = f"counters: {kind}"
    if failed == len(names):
        return Finding(name, "missing", f"{members}does not answer", _REMEDIES.get(kind, "see the agent's log"))
    detail = f"{members}{present} series"
    if silent:
        named = ", ".join(sorted(silent)[:MOST_NAMED])
        more = f" and {len(silent) - MOST_NAMED} more" if len(silent) > MOST_NAMED else ""
        detail += f"; {sum(silent.values())} silent: {named}{more}"
    if failed:
        return Finding(name, "limited", f"{detail}; {failed} of {len(names)} do not answer", "see the agent's log")
    return Finding(name, "found", detail)


# --- rights ----------------------------------------------------------------------------------------------------------


def rights(section: AgentSection) -> tuple[Finding, ...]:
    """What this user may read, and what for. Each is tried, not guessed from a capability's bit."""
    looks: tuple[Callable[[AgentSection], Finding | None], ...] = (
        _kernel_log,
        _processes,
        _kubelet_socket,
        _rdma_namespaces,
    )
    return tuple(found for look in looks if (found := look(section)) is not None)


def _kernel_log(section: AgentSection) -> Finding:
    name, use = "right: kernel log", "XIDs from before the start and during a hang, AER, out-of-memory kills"
    try:
        os.close(os.open(section.kernel_log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return Finding(
            name, "missing", f"{section.kernel_log}: {error.strerror}; without it no {use}", _REMEDIES["kernel log"]
        )
    return Finding(name, "found", use)


def _processes(section: AgentSection) -> Finding | None:
    name, use = "right: others' processes", "which job and rank a process on a GPU is"
    foreign = [
        entry
        for entry in Path(section.proc_root).glob("[0-9]*")
        if entry.exists() and entry.stat().st_uid != os.getuid()
    ]
    if not foreign:
        return None if os.getuid() else Finding(name, "found", use)
    for entry in foreign:
        try:
            (entry / "environ").read_bytes()
        except PermissionError:
            lost = "ranks of other users keep their job but lose their rank"
            remedy = "CAP_SYS_PTRACE, or run as that user; in a pod hostPID: true besides"
            return Finding(name, "missing", f"{entry}/environ: not permitted; {lost}", remedy)
        except OSError:
            continue  # it has ended meanwhile
        return Finding(name, "found", use)
    return None


def _kubelet_socket(section: AgentSection) -> Finding | None:
    path = section.kubelet_socket
    if not path or not os.path.exists(path):  # noqa: PTH110 - a socket, not a file of ours
        return None
    if os.access(path, os.R_OK | os.W_OK):
        return Finding("right: kubelet", "found", f"{path}: which pod holds which device")
    return Finding("right: kubelet", "missing", f"{path}: not permitted", "run as root, or as the socket's group")


def _rdma_namespaces(section: AgentSection) -> Finding | None:
    """Only where a NIC that is given to a container leaves the host."""
    if not is_kernel_tree(section.sysfs_root):
        return None
    host = RdmaNetlink()
    try:
        if not host.exclusive():
            return None
    except GangwatchError:
        return None  # no RDMA, or a kernel from before there were two modes
    finally:
        host.close()
    name, use = "right: containers' NICs", "hardware counters of the RDMA devices that were given to containers"
    spaces = net_namespaces(section.proc_root)
    for inode, path in spaces.items():
        try:
            inside(path, inode, lambda: None)
        except GangwatchError as error:
            return Finding(
                name, "missing", f"{error}; without it no {use}", "CAP_SYS_ADMIN, and hostPID: true in a pod"
            )
    return Finding(name, "found", f"{use}: {len(spaces)} network namespace(s)")
