"""Merge of the reports of the kubelet, the driver's process lists, rank files and job files on device owners. Pure.

Each source reports a part of an owner: the kubelet its container, the driver its process, the process its rank.
Parts that do not contradict each other are merged into one owner.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields

from agent.gpu_inventory import GpuDevice, GpuProcess, MigDevice
from agent.rank_attribution import Owner
from agent.sources.kubelet.pod_resources import Pod

MAX_OWNERS = 512
"""Maximum number of owners of one kind (GPU, process or RDMA device) that a node publishes. Eight GPUs with 48 replicas
each need fewer."""

GPU_DRIVER = "gpu.nvidia.com"
"""Name of NVIDIA's GPU driver in resource claims (github.com/kubernetes-sigs/dra-driver-nvidia-gpu)."""


@dataclass(frozen=True, slots=True, order=True)
class GpuOwner:
    """One owner of a GPU or of one of its MIG instances (`mig`: UUID, "" for the whole GPU)."""

    gpu: str
    mig: str
    owner: Owner


@dataclass(frozen=True, slots=True, order=True)
class ProcessOwner:
    """One process on a GPU and its owner. Queries join it with the memory and GPU time of the process."""

    gpu: str
    mig: str
    pid: int
    owner: Owner


@dataclass(frozen=True, slots=True, order=True)
class RdmaOwner:
    """One container that uses an RDMA device.

    device, pci_address: "" if the kubelet reports only a shared pool of devices.
    """

    device: str
    pci_address: str
    resource: str
    namespace: str
    pod: str
    container: str


@dataclass(frozen=True, slots=True)
class Owners:
    """Owners of the node's GPUs and RDMA devices that the agent publishes."""

    gpus: tuple[GpuOwner, ...] = ()
    processes: tuple[ProcessOwner, ...] = ()
    rdma: tuple[RdmaOwner, ...] = ()
    unresolved: int = 0
    """Number of devices in use whose id matches no GPU."""
    left_out: int = 0
    """Number of owners that are not published because there are more than MAX_OWNERS."""


# --- names of devices ------------------------------------------------------------------------------------------------

_REPLICA = re.compile(r"::\d+\Z")
"""Suffix with the replica's number that the device plugin appends to a shared device's id: ``ID::REPLICA``
(k8s-device-plugin, internal/rm)."""

_GPU = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z", re.IGNORECASE)
_MIG = re.compile(r"MIG-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z", re.IGNORECASE)
_MIG_BEFORE_470 = re.compile(r"MIG-(GPU-[0-9a-f-]{36})/(\d+)/(\d+)\Z", re.IGNORECASE)
_MINOR = re.compile(r"nvidia(\d+)(?:/gi(\d+))?(?:/vgpu\d+)?\Z")
"""Pattern of the device names of Google's device plugin. They are the names in /dev (container-engine-accelerators,
pkg/gpu/nvidia)."""

_CLAIMED = re.compile(r"gpu-(\d+)(?:-mig-(?:(\d+)-(\d+)-\d+|[0-9a-z]+-(\d+)-(\d+)))?\Z")
"""Pattern of GPU names in resource claims: ``gpu-MINOR``, and for a MIG device ``-mig-PROFILE-START-SIZE`` or
``-mig-NAME-PROFILE-START`` (dra-driver-nvidia-gpu, CanonicalName)."""

_INDEX = re.compile(r"(\d+)(?:\.(\d+))?\Z")
"""Pattern of the names of job files: the GPU's index, followed by the number of the GPU instance for MIG."""


def resolve(device: str, gpus: Sequence[GpuDevice]) -> tuple[str, str] | None:
    """Return the GPU or MIG instance with this id of a device plugin; None if unknown.

    The result is (GPU UUID, MIG instance UUID or "").
    """
    device = _REPLICA.sub("", device)
    if _GPU.match(device):
        return device, ""
    if _MIG.match(device):
        for gpu in gpus:
            if any(mig.uuid == device for mig in gpu.instances):
                return gpu.uuid, device
        return None
    if (match := _MIG_BEFORE_470.match(device)) is not None:
        uuid, gpu_instance, compute_instance = match.groups()
        for gpu in gpus:
            for mig in gpu.instances:
                ids = (mig.gpu_instance, mig.compute_instance)
                if gpu.uuid == uuid and ids == (int(gpu_instance), int(compute_instance)):
                    return uuid, mig.uuid
        return uuid, device
    if (match := _MINOR.match(device)) is not None:
        minor, instance = match.groups()
        found = next((gpu for gpu in gpus if gpu.minor == int(minor)), None)
        return None if found is None else _instance(found, instance)
    return None


def _instance(gpu: GpuDevice, gpu_instance: str | None) -> tuple[str, str] | None:
    if gpu_instance is None:
        return gpu.uuid, ""
    inside = [mig for mig in gpu.instances if mig.gpu_instance == int(gpu_instance)]
    # The name does not say which of several compute instances of one GPU instance is meant.
    return (gpu.uuid, inside[0].uuid) if len(inside) == 1 else None


def resolve_claimed(device: str, gpus: Sequence[GpuDevice]) -> tuple[str, str] | None:
    """Return the GPU or MIG instance with this name in a resource claim; None if unknown.

    The result is (GPU UUID, MIG instance UUID or "").
    """
    match = _CLAIMED.match(device)
    if match is None:
        return None
    gpu = next((one for one in gpus if one.minor == int(match.group(1))), None)
    if gpu is None:
        return None
    profile, start = match.group(2) or match.group(4), match.group(3) or match.group(5)
    if profile is None:
        return gpu.uuid, ""
    placed: list[MigDevice] = [
        mig for mig in gpu.instances if (mig.profile, mig.placement) == (int(profile), int(start))
    ]
    return (gpu.uuid, placed[0].uuid) if len(placed) == 1 else None


def resolve_file(name: str, gpus: Sequence[GpuDevice]) -> tuple[str, str] | None:
    """Return the GPU or MIG instance for which there is a job file of this name; None if unknown.

    The result is (GPU UUID, MIG instance UUID or "").
    """
    if (match := _INDEX.match(name)) is not None:
        index, instance = match.groups()
        gpu = next((one for one in gpus if one.index == int(index)), None)
        return None if gpu is None else _instance(gpu, instance)
    return resolve(name, gpus)


# --- joining ---------------------------------------------------------------------------------------------------------


def _is_part_of(less: Owner, more: Owner) -> bool:
    """Return whether each value of owner `less` that is not empty is also in owner `more`."""
    return all(one in ("", other) for one, other in zip(astuple(less), astuple(more), strict=True))


def _joined(first: Owner, second: Owner, parts: Sequence[Owner]) -> Owner | None:
    """Merge two descriptions of an owner. Return None if they contradict each other or have no pod or job in common.

    Return None also if only one of them names a container, and the pod has several containers: the other description
    may belong to another container.
    """
    pod = (first.namespace, first.pod)
    same_pod = first.pod and pod == (second.namespace, second.pod)
    same_job = first.slurm_job and first.slurm_job == second.slurm_job
    if not (same_pod or same_job):
        return None
    if same_pod and first.container != second.container:
        containers = {one.container for one in parts if one.container and (one.namespace, one.pod) == pod}
        if len(containers) > 1:
            return None
    pairs = list(zip(astuple(first), astuple(second), strict=True))
    if any(one and other and one != other for one, other in pairs):
        return None
    return Owner(*(one or other for one, other in pairs))


def join_owners(parts_of_owners: Iterable[Owner]) -> list[Owner]:
    """Return the different owners of one device, sorted.

    Parts of one owner are merged, and incomplete parts are omitted.
    """
    joined: set[Owner] = set(parts_of_owners)
    for parts in _alike(joined):
        for position, first in enumerate(parts):
            joined.update(pair for second in parts[:position] if (pair := _joined(first, second, parts)) is not None)
    less = {
        one
        for parts in _alike(joined)
        for one in parts
        if any(other != one and _is_part_of(one, other) for other in parts)
    }
    return sorted(joined - less)


def _alike(owners: Iterable[Owner]) -> list[list[Owner]]:
    """Return groups of owners with the same pod, Slurm job or gang. Only owners in one group can be merged.

    Groups may overlap.
    """
    groups: dict[tuple[str, str, str], list[Owner]] = {}
    for one in sorted(owners):
        for key in (("pod", one.namespace, one.pod), ("job", "", one.slurm_job), ("gang", "", one.gang)):
            if key[2]:
                groups.setdefault(key, []).append(one)
    return [group for group in groups.values() if len(group) > 1]


@dataclass(slots=True)
class Join:
    """Reports of all sources on the owners of a node's devices."""

    gpus: Sequence[GpuDevice]
    """All GPUs of the node."""
    rdma_by_address: Mapping[str, str] = field(default_factory=dict)
    """Names of the RDMA devices by PCI address."""
    _reported: dict[tuple[str, str], list[Owner]] = field(default_factory=dict)
    _processes: set[ProcessOwner] = field(default_factory=set)
    _rdma: set[RdmaOwner] = field(default_factory=set)
    _unresolved: int = 0

    def pods(self, pods: Iterable[Pod], uids: Mapping[tuple[str, str], str]) -> None:
        """Add the pods listed by a kubelet. uids: the known uids of pods, by (namespace, name)."""
        for pod in pods:
            uid = uids.get((pod.namespace, pod.name), "")
            gang = f"pod-{uid}" if uid else ""
            for container in pod.containers:
                owner = Owner(pod.namespace, pod.name, container.name, gang)
                for resource, device in container.devices:
                    self._device(resource, device, owner)
                for claimed in container.claimed:
                    if claimed.driver == GPU_DRIVER:
                        self._add(resolve_claimed(claimed.device, self.gpus), owner)
                    elif (address := _claimed_address(claimed.device)) in self.rdma_by_address:
                        self._hold(address, claimed.driver, owner)

    def _device(self, resource: str, device: str, owner: Owner) -> None:
        found = resolve(device, self.gpus)
        if found is not None or resource.startswith("nvidia.com/"):
            if found is None and device.lower() in self.rdma_by_address:
                self._hold(device.lower(), resource, owner)  # an SR-IOV pool named under nvidia.com
            else:
                self._add(found, owner)
        elif device.lower() in self.rdma_by_address or resource.startswith("rdma/"):
            self._hold(device.lower(), resource, owner)

    def _hold(self, address: str, resource: str, owner: Owner) -> None:
        device = self.rdma_by_address.get(address, "")
        pci_address = address if device else ""
        self._rdma.add(RdmaOwner(device, pci_address, resource, owner.namespace, owner.pod, owner.container))

    def processes(self, processes: Iterable[tuple[GpuProcess, Owner]]) -> None:
        """Add processes listed by the driver, with their owners."""
        for process, owner in processes:
            self._add((process.gpu, process.mig), owner)
            self._processes.add(ProcessOwner(process.gpu, process.mig, process.pid, owner))

    def jobs(self, files: Iterable[tuple[str, str]]) -> None:
        """Add the job files that a Slurm prolog wrote, as (file name, job) pairs."""
        for name, job in files:
            self._add(resolve_file(name, self.gpus), Owner(slurm_job=job))

    def rank(self, gpu: str, owner: Owner) -> None:
        """Add a rank of the local backend as the owner of the GPU that is assigned to it."""
        self._add((gpu, ""), owner)

    def _add(self, device: tuple[str, str] | None, owner: Owner) -> None:
        if device is None:
            self._unresolved += 1
        else:
            self._reported.setdefault(device, []).append(owner)

    def owners(self) -> Owners:
        """Return the owners of all devices, at most MAX_OWNERS of GPUs, of processes and of RDMA devices."""
        joined = {device: join_owners(parts) for device, parts in sorted(self._reported.items())}
        gpus = [GpuOwner(gpu, mig, owner) for (gpu, mig), owners in joined.items() for owner in owners]
        processes = sorted(
            ProcessOwner(one.gpu, one.mig, one.pid, _whole(one.owner, joined[one.gpu, one.mig]))
            for one in self._processes
        )
        rdma = sorted(self._rdma)
        left_out = sum(max(0, len(rows) - MAX_OWNERS) for rows in (gpus, processes, rdma))
        return Owners(
            tuple(gpus[:MAX_OWNERS]),
            tuple(processes[:MAX_OWNERS]),
            tuple(rdma[:MAX_OWNERS]),
            self._unresolved,
            left_out,
        )


def _whole(owner: Owner, joined: Iterable[Owner]) -> Owner:
    """Return the merged owner that contains all values of `owner`. If no owner or more than one does, return
    `owner`."""
    matching = [one for one in joined if _is_part_of(owner, one)]
    return matching[0] if len(matching) == 1 else owner


_PCI_NAME = re.compile(r"pci-([0-9a-f]{4})-([0-9a-f]{2})-([0-9a-f]{2})-([0-7])\Z")
"""Pattern of the names of network devices in resource claims: the PCI address with forbidden characters replaced."""


def _claimed_address(device: str) -> str:
    match = _PCI_NAME.match(device)
    return "" if match is None else "{}:{}:{}.{}".format(*match.groups())


OWNER_LABELS = tuple(sorted(one.name for one in fields(Owner)))
