"""Collectors, one per family of metrics. To add one, add a file and a line in COLLECTORS."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from agent.collectors.block import Block, Collector, RecordSource
from agent.collectors.gpu.xid import XidCollector, XidHistory
from agent.collectors.host.gpu_nic_topology import TopologyCollector
from agent.collectors.host.host import HostCollector
from agent.collectors.host.host_devices import HostDeviceCollector
from agent.collectors.host.kernel_events import KernelLogCollector
from agent.collectors.host.kubelet_pods import KubeletCollector, PodTable
from agent.collectors.host.network import NetworkCollector
from agent.collectors.host.nfs import NfsCollector
from agent.collectors.host.owners import OwnerCollector
from agent.collectors.host.pcie import PcieCollector
from agent.collectors.host.pod_labels import PodLabelCollector
from agent.collectors.host.rank_network import RankNetworkCollector
from agent.collectors.host.rank_processes import ProcessCollector
from agent.collectors.rdma.rdma import RdmaCollector
from agent.collectors.steps.step_collector import StepCollector
from agent.gpu_inventory import Inventory
from agent.power_leases import PowerLeases
from agent.rank_attribution import Attribution
from agent.schema.errors import ConfigError, UnsupportedError
from agent.sources.kubelet.pod_resources import SOCKET as KUBELET_SOCKET
from agent.sources.steps.shift_orders import ShiftOrders
from agent.sources.steps.tenants import Quotas


@dataclass(frozen=True, slots=True)
class Machine:
    """Paths and settings of this agent's collectors."""

    attribution: Attribution
    step_socket: str | None = None
    """Socket where training processes register; None disables registration."""
    proc_root: str = "/proc"
    sys_root: str = "/sys"
    nvml_library: str | None = None
    """Path of an NVML library to load; None for the system's libnvidia-ml.so.1."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the node's GPUs; () for all."""
    interval_seconds: float = 1.0
    """Interval of frames in seconds. Steps and processes of ranks are sampled twice as often, to detect
    short events."""
    xids: XidHistory = field(default_factory=XidHistory)
    """History of XIDs (GPU error codes) from driver events and from the kernel log."""
    inventory: Inventory = field(default_factory=Inventory)
    """UUIDs, indices and MIG instances of the GPUs. They are used to map devices to their owners."""
    kubelet_socket: str | None = KUBELET_SOCKET
    """The kubelet's pod-resources socket. None disables the listing of pods."""
    job_files: str | None = None
    """Folder in which a Slurm prolog writes the job of each GPU; None if there is no such folder."""
    pods: PodTable = field(default_factory=PodTable)
    """Newest listing of pods by the kubelet."""
    node: str = ""
    """Name of the node; in Kubernetes, the name of its Node object."""
    pod_label_names: tuple[str, ...] = ()
    """Keys of the pod labels to publish. () disables the requests to the API server."""
    rdma_excluded: tuple[str, ...] = ()
    """Patterns of names or PCI addresses of RDMA devices that are not read."""
    kernel_log: str = "/dev/kmsg"
    """Path of the kernel log; a file with a recorded log also works."""
    gpu_burst: bool = False
    """Whether to read each GPU ten times per second (burst sampling), in addition to the reads every second."""
    power_leases: PowerLeases | None = None
    """Power limits of GPUs that the controller asks for; None: the operator of the node allows none."""
    shift_orders: ShiftOrders | None = None
    """Time shifts of gangs that the controller orders; None: it may order none."""
    kubelet_pods: str | None = None
    """The kubelet's folder with the volumes of pods. If it is None, pods have no step sockets of their own."""
    quotas: Quotas = field(default_factory=Quotas)
    """Limits of each tenant on the step socket."""
    collectors: Mapping[str, bool] = field(default_factory=dict)
    """Whether to run each collector, by the collector's name. The entry of the name ALL_COLLECTORS applies to
    collectors without an entry. Without both entries a collector runs."""


def _steps(machine: Machine) -> Collector:
    if machine.step_socket is None:
        raise UnsupportedError("steps: no step socket is configured")
    return StepCollector(
        machine.step_socket,
        machine.attribution,
        interval_seconds=machine.interval_seconds / 2,
        pods=machine.kubelet_pods,
        quotas=machine.quotas,
        shifts=machine.shift_orders,
    )


def _nvml(machine: Machine) -> Collector:
    # Imported here, because the import raises UnsupportedError if pynvml is missing or too old.
    from agent.collectors.gpu.nvml_collector import NvmlCollector

    return NvmlCollector(
        machine.nvml_library,
        machine.interval_seconds,
        machine.gpus,
        burst=machine.gpu_burst,
        leases=machine.power_leases,
        xids=machine.xids,
        inventory=machine.inventory,
    )


def _xid(machine: Machine) -> Collector:
    folders = (f"{machine.proc_root}/driver/nvidia", f"{machine.sys_root}/bus/pci/drivers/nvidia")
    present = machine.nvml_library is not None or any(map(os.path.isdir, folders))
    return XidCollector(machine.xids, machine.interval_seconds, driver_present=present)


def _kubelet(machine: Machine) -> Collector:
    if machine.kubelet_socket is None:
        raise UnsupportedError("kubelet: no socket is configured")
    return KubeletCollector(machine.kubelet_socket, machine.pods)


def _pod_labels(machine: Machine) -> Collector:
    if not machine.pod_label_names:
        raise UnsupportedError("pod-labels: no labels are configured (agent.pod_label_names)")
    # Imported here, because most agents send no requests to an API server.
    from agent.sources.kubelet.pod_labels import PodLabels

    return PodLabelCollector(machine.pod_label_names, machine.pods, PodLabels(machine.node))


def _owners(machine: Machine) -> Collector:
    return OwnerCollector(
        machine.attribution,
        machine.pods,
        machine.inventory,
        proc_root=machine.proc_root,
        sys_root=machine.sys_root,
        slots=machine.gpus,
        job_files=machine.job_files,
    )


ALL_COLLECTORS = "*"

COLLECTORS: dict[str, Callable[[Machine], Collector]] = {
    "host": lambda machine: HostCollector(machine.proc_root, machine.interval_seconds),
    "host-devices": lambda machine: HostDeviceCollector(machine.proc_root, machine.sys_root),
    "process": lambda machine: ProcessCollector(machine.attribution, machine.proc_root, machine.interval_seconds / 2),
    "rank-network": lambda machine: RankNetworkCollector(machine.attribution, machine.proc_root, machine.sys_root),
    "steps": _steps,
    "nvml": _nvml,
    "xid": _xid,
    "rdma": lambda machine: RdmaCollector.of(machine.sys_root, machine.interval_seconds, machine.rdma_excluded),
    "network": lambda machine: NetworkCollector(machine.sys_root),
    "pcie": lambda machine: PcieCollector(machine.sys_root),
    "topology": lambda machine: TopologyCollector(machine.sys_root, machine.rdma_excluded),
    "nfs": lambda machine: NfsCollector(machine.proc_root),
    "kernel_log": lambda machine: KernelLogCollector(machine.kernel_log, machine.xids),
    "kubelet": _kubelet,
    "pod-labels": _pod_labels,
    "attribution": _owners,
}
"""Function that makes each collector, by the collector's name."""


def check_collector_names(names: Mapping[str, bool]) -> None:
    """Raise ConfigError if one of the names is not the name of a collector."""
    for name in names.keys() - COLLECTORS.keys() - {ALL_COLLECTORS}:
        near = difflib.get_close_matches(name, COLLECTORS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the names are {', '.join(COLLECTORS)}"
        raise ConfigError(f"no collector is named {name!r}: {hint}")


def make_collectors(machine: Machine) -> tuple[list[Collector], list[str]]:
    """Return the collectors that this machine supports, and for each other collector the reason why it is omitted.

    Raise SourceError if a required collector cannot be made, for example if another agent uses the step socket;
    ConfigError if machine.collectors has the name of no collector.
    """
    check_collector_names(machine.collectors)
    by_default = machine.collectors.get(ALL_COLLECTORS, True)
    made: list[Collector] = []
    left_out: list[str] = []
    for name, make in COLLECTORS.items():
        if not machine.collectors.get(name, by_default):
            left_out.append(f"{name}: disabled by the configuration (agent.collectors)")
            continue
        try:
            made.append(make(machine))
        except UnsupportedError as error:
            left_out.append(str(error))
    return made, left_out


__all__ = [
    "ALL_COLLECTORS",
    "COLLECTORS",
    "Block",
    "Collector",
    "Machine",
    "RecordSource",
    "check_collector_names",
    "make_collectors",
]
