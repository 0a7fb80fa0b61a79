"""Collectors, one per family of metrics. To add one, add a file and a line in COLLECTORS."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from agent.collectors.block import Block, Collector, RecordSource
from agent.collectors.gpu.nvml_collector import NvmlCollector
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
from agent.collectors.host.rank_processes import ProcessCollector
from agent.collectors.rdma.rdma import RdmaCollector
from agent.collectors.steps.step_collector import StepCollector
from agent.gpu_inventory import Inventory
from agent.rank_attribution import Attribution
from agent.schema.errors import UnsupportedError
from agent.sources.kubelet.pod_resources import SOCKET as KUBELET_SOCKET
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
    """Path to use instead of the system's libnvidia-ml.so.1."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the node's GPUs; () for all."""
    interval_seconds: float = 1.0
    """Interval of frames. Steps and processes of ranks are sampled twice as often, to catch short events."""
    xids: XidHistory = field(default_factory=XidHistory)
    """Merge of the XIDs from driver events and from the kernel log."""
    inventory: Inventory = field(default_factory=Inventory)
    """UUIDs, indices and MIG instances of the GPUs, to which the owners are mapped."""
    kubelet_socket: str | None = KUBELET_SOCKET
    """The kubelet's pod-resources socket. None disables the listing of pods."""
    job_files: str | None = None
    """Folder in which a Slurm prolog writes the job of each GPU; None for none."""
    pods: PodTable = field(default_factory=PodTable)
    """Pods listed by the kubelet."""
    rdma_excluded: tuple[str, ...] = ()
    """Patterns of names or PCI addresses of RDMA devices that are not read."""
    kernel_log: str = "/dev/kmsg"
    """The kernel log, or a recorded one."""
    gpu_burst: bool = False
    """Whether to read each GPU also at 10 Hz."""
    kubelet_pods: str | None = None
    """Folder of the kubelet with the volumes of pods; None: pods have no sockets of their own (pod_sockets.py)."""
    quotas: Quotas = field(default_factory=Quotas)
    """Limits of each tenant on the step socket."""


def _steps(machine: Machine) -> Collector:
    if machine.step_socket is None:
        raise UnsupportedError("steps: no step socket is configured")
    return StepCollector(
        machine.step_socket,
        machine.attribution,
        interval_seconds=machine.interval_seconds / 2,
        pods=machine.kubelet_pods,
        quotas=machine.quotas,
    )


def _nvml(machine: Machine) -> Collector:
    return NvmlCollector(
        machine.nvml_library,
        machine.interval_seconds,
        machine.gpus,
        burst=machine.gpu_burst,
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


COLLECTORS: tuple[Callable[[Machine], Collector], ...] = (
    lambda machine: HostCollector(machine.proc_root, machine.interval_seconds),
    lambda machine: HostDeviceCollector(machine.proc_root, machine.sys_root),
    lambda machine: ProcessCollector(machine.attribution, machine.proc_root, machine.interval_seconds / 2),
    _steps,
    _nvml,
    _xid,
    lambda machine: RdmaCollector.of(machine.sys_root, machine.interval_seconds, machine.rdma_excluded),
    lambda machine: NetworkCollector(machine.sys_root),
    lambda machine: PcieCollector(machine.sys_root),
    lambda machine: TopologyCollector(machine.sys_root, machine.rdma_excluded),
    lambda machine: NfsCollector(machine.proc_root),
    lambda machine: KernelLogCollector(machine.kernel_log, machine.xids),
    _kubelet,
    _owners,
)


def make_collectors(machine: Machine) -> tuple[list[Collector], list[str]]:
    """Return the collectors that this machine supports, and for each other collector the reason why it is omitted.

    Raise SourceError if a required collector cannot be made, for example if another agent uses the step socket.
    """
    made: list[Collector] = []
    left_out: list[str] = []
    for make in COLLECTORS:
        try:
            made.append(make(machine))
        except UnsupportedError as error:
            left_out.append(str(error))
    return made, left_out


__all__ = ["COLLECTORS", "Block", "Collector", "Machine", "RecordSource", "make_collectors"]
