"""Survey of this node's collectors. It runs each collector as the agent does, and reports which series have values.

The survey changes nothing. A driver call that does not return within SURVEY_SECONDS is reported.
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
from agent.sources.network.namespaces import inside, net_namespaces
from agent.sources.rdma.netlink import RdmaNetlink
from agent.sources.sysfs.sysfs import is_kernel_tree
from gangwatch.configuration.sections import AgentSection
from gangwatch.health.machine import Finding
from scheduler_feedback.api.web.words import count

SURVEY_SECONDS = 20.0
"""Time limit of the survey, in seconds. A driver without its persistence daemon needs seconds to open each GPU."""

PROFILING_PAUSE_SECONDS = 0.2
"""Seconds between the two samples of the survey. Profiling metrics need two samples, at least 0.1 s apart."""

MAX_NAMED = 4
"""Maximum number of metric families without values that a finding names. The rest is only counted."""

_REMEDIES = {
    "nvml": "install the NVIDIA driver (libnvidia-ml.so.1); in a container, add its device files",
    "rdma": "an RDMA NIC and its driver (rdma-core); in a container, mount the host's /sys",
    "kubelet": "mount /var/lib/kubelet/pod-resources, or set agent.kubelet_socket",
    "kernel log": "allow reads of /dev/kmsg: CAP_SYSLOG or kernel.dmesg_restrict=0; in a container, add the device",
    "pcie": "in a container, mount the host's /sys",
    "xid": "install the NVIDIA driver (libnvidia-ml.so.1); in a container, add its device files",
}


_NOT_MISSING = ("steps: ", "pod-labels: no labels are configured")
"""Beginnings of the reasons for which a collector is left out, and that no user needs to know."""

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
    ("utilization per process", "gangwatch_gpu_process_sm_utilization_ratio"),
)
"""Pairs (feature, metric family). The metric family has values only if the GPU and its driver support the feature."""


def survey(section: AgentSection) -> tuple[Finding, ...]:
    """Return a check result for each kind of collector and for each permission that collectors need."""
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
        collectors=section.collectors,
        pod_label_names=section.pod_label_names,
    )
    try:
        collectors, left_out = make_collectors(machine)
        node = Node("check", collectors, proc_root=section.proc_root)
    except GangwatchError as error:
        return (Finding("collectors", "missing", str(error), "see --proc-root and --sysfs-root"),)
    found = [_absent(reason) for reason in left_out if not reason.startswith(_NOT_MISSING)]
    taken: list[tuple[Layout, Frame]] = []

    def sample() -> None:
        node.tick()
        time.sleep(PROFILING_PAUSE_SECONDS)
        taken.append(node.tick())

    # In a thread, which is abandoned if a driver call never returns.
    sampling = threading.Thread(target=sample, name="survey", daemon=True)
    sampling.start()
    sampling.join(SURVEY_SECONDS)
    if not taken:
        stuck = Finding(
            "collectors", "limited", f"a driver call has not returned within {SURVEY_SECONDS:.0f} s",
            "the agent continues without it; see the kernel log, or reset the device"
        )  # fmt: skip
        return (*found, stuck, *rights(section))
    node.stop()
    return (*found, *_readings(*taken[0]), *rights(section))


def _absent(reason: str) -> Finding:
    """Return the check result for a collector that was not started. reason: 'COLLECTOR: why'."""
    name, _, why = reason.partition(": ")
    return Finding(
        f"counters: {name}",
        "missing",
        why or reason,
        "remove its entry"
        if why.startswith("disabled")
        else _REMEDIES.get(name, "none needed if the machine has no such device"),
    )


def _readings(layout: Layout, frame: Frame) -> list[Finding]:
    """Return one check result for each kind of collector. For example, all collectors "gpu/UUID" share one result."""
    success = {
        dict(column.labels)["collector"]: value
        for column, value in zip(layout.gauges, frame.gauges.tolist(), strict=True)
        if column.metric == "gangwatch_collector_success"
    }
    present: dict[str, int] = {}
    empty: dict[str, dict[str, int]] = {}
    columns = (
        *((column, not math.isnan(value)) for column, value in zip(layout.gauges, frame.gauges.tolist(), strict=True)),
        *zip(layout.counters, frame.counters_valid.tolist(), strict=True),
    )
    for column, answers in columns:
        kind = _kind(layout.tiers[column.tier].name)
        if answers:
            present[kind] = present.get(kind, 0) + 1
        else:
            families = empty.setdefault(kind, {})
            families[column.metric] = families.get(column.metric, 0) + 1
    kinds: dict[str, list[str]] = {}
    for name in success:
        kinds.setdefault(_kind(name), []).append(name)
    findings = [
        _finding(kind, names, sum(not success[name] for name in names), present.get(kind, 0), empty.get(kind, {}))
        for kind, names in sorted(kinds.items())
    ]
    if "gpu" in kinds:
        findings.append(_gpu_features({column.metric for column, answers in columns if answers}))
    return findings


def _gpu_features(families: set[str]) -> Finding:
    """Return a check result that lists the features that the node's GPUs report and do not report."""
    has = [words for words, family in _GPU_FEATURES if family in families]
    lacks = [words for words, family in _GPU_FEATURES if family not in families]
    missing = f"; not reported by these GPUs, their driver or their processes: {', '.join(lacks)}" if lacks else ""
    return Finding("GPU features", "found", f"{', '.join(has) or 'basic counters only'}{missing}")


def _kind(collector: str) -> str:
    return collector.partition("/")[0]


def _finding(kind: str, names: list[str], failed: int, present: int, empty: dict[str, int]) -> Finding:
    members = f"{len(names)} x: " if len(names) > 1 else ""
    name = f"counters: {kind}"
    if failed == len(names):
        return Finding(name, "missing", f"{members}no readings", _REMEDIES.get(kind, "see the agent's log"))
    detail = f"{members}{present} series"
    if empty:
        named = ", ".join(sorted(empty)[:MAX_NAMED])
        more = f" and {len(empty) - MAX_NAMED} more" if len(empty) > MAX_NAMED else ""
        detail += f"; {sum(empty.values())} empty: {named}{more}"
    if failed:
        return Finding(name, "limited", f"{detail}; {failed} of {len(names)} collectors fail", "see the agent's log")
    return Finding(name, "found", detail)


# --- rights ----------------------------------------------------------------------------------------------------------


def rights(section: AgentSection) -> tuple[Finding, ...]:
    """Try each permission that collectors need as this user, and return the check results."""
    checks: tuple[Callable[[AgentSection], Finding | None], ...] = (
        _kernel_log,
        _processes,
        _kubelet_socket,
        _rdma_namespaces,
    )
    return tuple(found for check in checks if (found := check(section)) is not None)


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
    name, use = "right: others' processes", "map processes on GPUs to jobs and ranks"
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
            lost = "processes of other users can be mapped to their job but not to their rank"
            remedy = "add CAP_SYS_PTRACE, or run as that user; in a pod, also set hostPID: true"
            return Finding(name, "missing", f"{entry}/environ: not permitted; {lost}", remedy)
        except OSError:
            continue  # the process has ended
        return Finding(name, "found", use)
    return None


def _kubelet_socket(section: AgentSection) -> Finding | None:
    path = section.kubelet_socket
    if not path or not os.path.exists(path):  # noqa: PTH110 - a socket
        return None
    if os.access(path, os.R_OK | os.W_OK):
        return Finding("right: kubelet", "found", f"{path}: map devices to pods")
    return Finding("right: kubelet", "missing", f"{path}: not permitted", "run as root or in the socket's group")


def _rdma_namespaces(section: AgentSection) -> Finding | None:
    """Check access to the network namespaces of containers. Return None if no container can own an RDMA device here."""
    if not is_kernel_tree(section.sysfs_root):
        return None
    host = RdmaNetlink()
    try:
        if not host.exclusive():
            return None
    except GangwatchError:
        return None  # no RDMA, or a kernel without the two modes
    finally:
        host.close()
    name, use = "right: containers' NICs", "hardware counters of RDMA devices in containers"
    spaces = net_namespaces(section.proc_root)
    for inode, path in spaces.items():
        try:
            inside(path, inode, lambda: None)
        except GangwatchError as error:
            return Finding(
                name, "missing", f"{error}; without it no {use}", "add CAP_SYS_ADMIN; in a pod, also set hostPID: true"
            )
    return Finding(name, "found", f"{use}: {count(len(spaces), 'network namespace')}")
