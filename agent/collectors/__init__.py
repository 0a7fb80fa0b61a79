"""Collectors: one family of metrics a file. One more is a file, and a line in COLLECTORS."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from agent.collectors.block import Block, Collector, RecordSource
from agent.collectors.gpu.nvml_collector import NvmlCollector
from agent.collectors.gpu.xid import XidCollector, XidLedger
from agent.collectors.host.gpu_nic_topology import TopologyCollector
from agent.collectors.host.host import HostCollector
from agent.collectors.host.host_devices import HostDeviceCollector
from agent.collectors.host.kernel_events import KernelLogCollector
from agent.collectors.host.network import NetworkCollector
from agent.collectors.host.nfs import NfsCollector
from agent.collectors.host.owners import KubeletCollector, OwnerCollector, PodTable
from agent.collectors.host.pcie import PcieCollector
from agent.collectors.host.rank_processes import ProcessCollector
from agent.collectors.rdma.rdma import RdmaCollector
from agent.collectors.steps.steps import StepCollector
from agent.gpu_inventory import Inventory
from agent.rank_attribution import Attribution
from agent.schema.errors import UnsupportedError
from agent.sources.kubelet.pod_resources import SOCKET as KUBELET_SOCKET
from agent.sources.steps.tenants import Quotas


@dataclass(frozen=True, slots=True)
class Machine:
    """Where this agent's collectors read; every root is a parameter.

    step_socket: where training processes register; None where they cannot. nvml_library: a path instead of the
    system's libnvidia-ml.so.1. gpus: UUIDs of the node's, () for all. interval_seconds: the frame's; ranks'
    steps and processes are sampled twice as often, so that what is short is still seen. xids: where the driver's
    events and the kernel's log meet. inventory: what the GPUs are called, for those who join them to their owners.
    rdma_excluded: patterns of RDMA devices' names or PCI addresses that are not read. kernel_log: the kernel's log, or
    a recorded one.
    kubelet_socket, job_files: where a kubelet listens, and where a Slurm prolog writes which job has which GPU; None
    for neither. pods: what the kubelet listed. gpu_burst: read each GPU ten times a second besides. kubelet_pods: the
    folder that the kubelet keeps pods' volumes in; None: no pod has a door of its own (pod_doors.py). quotas: what each
    tenant may use of the step socket.
    """

    attribution: Attribution
    step_socket: str | None = None
    proc_root: str = "/proc"
    sys_root: str = "/sys"
    nvml_library: str | None = None
    gpus: tuple[str, ...] = ()
    interval_seconds: float = 1.0
    xids: XidLedger = field(default_factory=XidLedger)
    inventory: Inventory = field(default_factory=Inventory)
    kubelet_socket: str | None = KUBELET_SOCKET
    job_files: str | None = None
    pods: PodTable = field(default_factory=PodTable)
    rdma_excluded: tuple[str, ...] = ()
    kernel_log: str = "/dev/kmsg"
    gpu_burst: bool = False
    kubelet_pods: str | None = None
    quotas: Quotas = field(default_factory=Quotas)


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
    """The collectors that this machine has something for, and for each of the others why it is left out.

    Raises SourceError where one that is wanted cannot be made (another agent listens on the step socket).
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
