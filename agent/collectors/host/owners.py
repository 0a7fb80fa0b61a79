"""Collector of device owners, from the kubelet's pods, the driver's process lists, rank files and job files."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass

from agent.collectors.block import Block
from agent.collectors.host.kubelet_pods import PodTable
from agent.device_owners import OWNER_LABELS, Join, Owners
from agent.gpu_inventory import GpuDevice, GpuProcess, Inventory, parse_information
from agent.rank_attribution import Attribution, Owner
from agent.schema.clock import Clock, SystemClock
from agent.schema.errors import SourceError
from agent.schema.frame import Column
from agent.sources.files import read_file
from agent.sources.kubelet.pod_resources import Pod
from agent.sources.proc.slurm_node import read_job_files

RDMA_LIST_NS = 10_000_000_000
"""Interval of listing the RDMA devices, in ns. They change rarely."""

ASK_AGAIN_NS = 10_000_000_000
"""Time in ns after which the agent searches again for the unknown owner of a process."""


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Inputs from which device owners are computed. The owners are computed again only if an input has changed."""

    gpus: tuple[GpuDevice, ...]
    pods: tuple[Pod, ...]
    uids: dict[tuple[str, str], str]
    rdma_by_address: dict[str, str]
    processes: list[tuple[GpuProcess, Owner]]
    ranks: list[tuple[str, Owner]]
    files: tuple[tuple[str, str], ...]

    def owners(self) -> Owners:
        join = Join(self.gpus, self.rdma_by_address)
        join.pods(self.pods, self.uids)
        join.processes(self.processes)
        for gpu, owner in self.ranks:
            join.rank(gpu, owner)
        join.jobs(self.files)
        return join.owners()


@dataclass(slots=True)
class _Known:
    """A process on a GPU and its owner. The owner is kept while the process is alive.

    started_ns: start time, which differs for a later process with the same pid.
    """

    process: GpuProcess
    started_ns: int
    alive: bool = True
    owner: Owner | None = None
    asked_ns: int | None = None

    def due(self, now_ns: int) -> bool:
        """Return whether to search for the owner now. The search is repeated every ASK_AGAIN_NS while the owner is
        unknown."""
        if self.asked_ns is None:
            return True
        unknown = self.owner is None or (self.owner.in_pod() and not self.owner.pod)
        return unknown and now_ns - self.asked_ns >= ASK_AGAIN_NS


class OwnerCollector:
    """Collector that merges the sources of device owners and publishes each owner as a series with the value 1.

    slots: UUIDs of the GPUs by slot number of the local backend, () if its slots are processors. job_files: folder in
    which a Slurm prolog writes the job of each GPU, None if there is no such folder.
    """

    name = "attribution"
    worker = "host"
    interval_seconds = 5.0

    def __init__(
        self,
        attribution: Attribution,
        table: PodTable,
        inventory: Inventory,
        *,
        proc_root: str = "/proc",
        sys_root: str = "/sys",
        slots: tuple[str, ...] = (),
        job_files: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._attribution = attribution
        self._table = table
        self._inventory = inventory
        self._proc_root = proc_root
        self._sys_root = sys_root
        self._slots = slots
        self._job_files = job_files
        self._clock = clock or SystemClock()
        self._known: dict[int, _Known] = {}
        self._rdma: dict[str, str] = {}
        self._rdma_ns: int | None = None
        self._inputs: _Inputs | None = None
        self._owners: Owners | None = None
        self._block = Block()

    def collect(self) -> Block:
        now_ns = self._clock.monotonic_ns()
        pods = self._table.pods(now_ns)
        files: tuple[tuple[str, str], ...] = ()
        failure: SourceError | None = None
        try:
            files = read_job_files(self._job_files) if self._job_files is not None else ()
        except OSError as error:
            # Publish the other sources, and then report a failure of this collector.
            failure = SourceError(f"{self._job_files}: {error.strerror}")
        inputs = _Inputs(
            self._gpus(),
            pods,
            self._uids() if pods else {},
            self._rdma_by_address(now_ns) if pods else {},
            self._processes({(pod.namespace, pod.name) for pod in pods}, now_ns),
            self._ranks(),
            files,
        )
        if inputs != self._inputs:
            self._inputs = inputs
            owners = inputs.owners()
            if owners != self._owners:
                self._owners = owners
                self._block = _block_of(owners)
        if failure is not None:
            raise failure
        return self._block

    def close(self) -> None:
        """Do nothing: the collector keeps nothing open."""

    def _ranks(self) -> list[tuple[str, Owner]]:
        """Return the GPU assigned to each rank of the local backend, with the rank as its owner."""
        if not self._slots:
            return []
        return [
            (gpu, Owner(gang=rank.gang, attempt=str(rank.attempt), rank=str(rank.rank)))
            for rank in self._attribution.ranks()
            if (gpu := self._slot(rank.slot)) is not None
        ]

    def _slot(self, slot: str | int | None) -> str | None:
        """Return the UUID of the GPU of a slot of the local backend; None if the slot has no GPU."""
        try:
            position = int(slot) if slot is not None else -1
        except ValueError:
            return slot if isinstance(slot, str) and slot in self._slots else None
        return self._slots[position] if 0 <= position < len(self._slots) else None

    def _processes(self, listed: set[tuple[str, str]], now_ns: int) -> list[tuple[GpuProcess, Owner]]:
        """Return the processes on GPUs whose owner is attested, as (process, owner) pairs.

        If the pod of a process is not listed, request a new listing of pods.
        """
        known: dict[int, _Known] = {}
        found: list[tuple[GpuProcess, Owner]] = []
        for process in self._inventory.processes:
            one = known.get(process.pid)
            if one is None:
                one = self._known.get(process.pid)
                started_ns = self._attribution.started_ns(process.pid)
                if started_ns is None:
                    continue
                if one is None or (one.started_ns != started_ns and one.process is not process):
                    one = _Known(process, started_ns)
                elif one.started_ns == started_ns:
                    # Still the same process in the driver's new list.
                    one.process = process
                one.alive = one.started_ns == started_ns
                known[process.pid] = one
                if one.alive and one.due(now_ns):
                    one.asked_ns = now_ns
                    owner = one.owner = self._attribution.owner(process.pid)
                    if owner is not None and owner.in_pod() and (owner.namespace, owner.pod) not in listed:
                        self._table.wanted = True
            if one.alive and one.owner is not None:
                found.append((process, one.owner))
        self._known = known
        return found

    def _gpus(self) -> tuple[GpuDevice, ...]:
        """Return the GPUs listed by the driver, or those in /proc if the driver has listed none.

        If the driver does not report the minor number of a GPU, the number in /proc is used.
        """
        listed = self._inventory.gpus
        if listed and all(gpu.minor is not None for gpu in listed):
            return listed
        folder = f"{self._proc_root}/driver/nvidia/gpus"
        found: dict[str, GpuDevice] = {}
        try:
            addresses = sorted(os.listdir(folder))
        except OSError:
            return listed
        for index, address in enumerate(addresses):
            try:
                text = read_file(f"{folder}/{address}/information").decode("utf-8", "replace")
                uuid, minor, pci_address = parse_information(text)
            except (OSError, SourceError):
                continue
            found[uuid] = GpuDevice(uuid, index, minor, pci_address)
        if not listed:
            return tuple(found.values())
        return tuple(
            GpuDevice(gpu.uuid, gpu.index, found[gpu.uuid].minor, gpu.pci_address, gpu.instances)
            if gpu.minor is None and gpu.uuid in found
            else gpu
            for gpu in listed
        )

    def _rdma_by_address(self, now_ns: int) -> dict[str, str]:
        """Return the name of the RDMA device at each PCI address. The devices are listed every RDMA_LIST_NS."""
        if self._rdma_ns is None or now_ns - self._rdma_ns >= RDMA_LIST_NS:
            self._rdma_ns = now_ns
            folder = f"{self._sys_root}/class/infiniband"
            try:
                devices = sorted(os.listdir(folder))
            except OSError:
                devices = []
            self._rdma = {os.path.basename(os.path.realpath(f"{folder}/{one}/device")): one for one in devices}
        return self._rdma

    def _uids(self) -> dict[tuple[str, str], str]:
        """Return the UID of each pod by (namespace, name).

        A name that several pods have had is omitted, because the folders of ended pods remain.
        """
        pods = self._attribution.pods()
        times = Counter(pods.values())
        return {name: uid for uid, name in pods.items() if times[name] == 1}


def _info(metric: str, owner: Owner, **labels: str) -> Column:
    return Column(metric, tuple(sorted({**{label: getattr(owner, label) for label in OWNER_LABELS}, **labels}.items())))


def _block_of(owners: Owners) -> Block:
    gauges = [Column("gangwatch_owner_devices_unresolved"), Column("gangwatch_owners_left_out")]
    for one in owners.gpus:
        gauges.append(_info("gangwatch_gpu_owner_info", one.owner, gpu=one.gpu, mig=one.mig))
    for process in owners.processes:
        words = {"gpu": process.gpu, "mig": process.mig, "pid": str(process.pid)}
        gauges.append(_info("gangwatch_gpu_process_owner_info", process.owner, **words))
    for hold in owners.rdma:
        labels = ("container", "device", "namespace", "pci_address", "pod", "resource")
        gauges.append(
            Column("gangwatch_rdma_owner_info", tuple((label, str(getattr(hold, label))) for label in labels))
        )
    block = Block(gauges)
    block.gauges[:] = 1.0
    block.set_gauge(0, owners.unresolved)
    block.set_gauge(1, owners.left_out)
    return block
