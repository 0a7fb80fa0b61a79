"""Who owns which device: what a kubelet, the driver's process lists, rank files and job files tell, joined. Pure.

Several tellers know of one owner, and each knows another part: the kubelet the container, the driver the process, the
process its rank. Where they agree in all that both tell, they are one owner with all that any of them told.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields

from agent.gpu_inventory import GpuDevice, GpuProcess, MigDevice
from agent.rank_attribution import Owner
from agent.sources.kubelet.pod_resources import Pod

MAX_OWNERS = 512
"""Most rows of one kind that a node publishes: eight GPUs of 48 replicas and as many ranks are fewer."""

GPU_DRIVER = "gpu.nvidia.com"
"""The driver's name in resource claims (github.com/kubernetes-sigs/dra-driver-nvidia-gpu)."""


@dataclass(frozen=True, slots=True, order=True)
class GpuOwner:
    """One owner of a GPU, or of one of its MIG instances (`mig`: its UUID, "" for the whole GPU)."""

    gpu: str
    mig: str
    owner: Owner


@dataclass(frozen=True, slots=True, order=True)
class ProcessOwner:
    """The owner of one process on a GPU: of several that share it, each has its own memory and its own share."""

    gpu: str
    mig: str
    pid: int
    owner: Owner


@dataclass(frozen=True, slots=True, order=True)
class RdmaOwner:
    """One container's hold on RDMA devices. device, pci_address: "" where a shared pool does not tell which."""

    device: str
    pci_address: str
    resource: str
    namespace: str
    pod: str
    container: str


@dataclass(frozen=True, slots=True)
class Owners:
    """What is published. unresolved: devices in use whose id no GPU answers to. left_out: what is over MAX_OWNERS."""

    gpus: tuple[GpuOwner, ...] = ()
    processes: tuple[ProcessOwner, ...] = ()
    rdma: tuple[RdmaOwner, ...] = ()
    unresolved: int = 0
    left_out: int = 0


# --- names of devices ------------------------------------------------------------------------------------------------

_REPLICA = re.compile(r"::\d+\Z")
"""The device plugin numbers the replicas of a shared device (k8s-device-plugin, internal/rm: ``ID::REPLICA``)."""

_GPU = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z", re.IGNORECASE)
_MIG = re.compile(r"MIG-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z", re.IGNORECASE)
_MIG_BEFORE_470 = re.compile(r"MIG-(GPU-[0-9a-f-]{36})/(\d+)/(\d+)\Z", re.IGNORECASE)
_MINOR = re.compile(r"nvidia(\d+)(?:/gi(\d+))?(?:/vgpu\d+)?\Z")
"""Google's plugin names devices by their nodes in /dev (container-engine-accelerators, pkg/gpu/nvidia)."""

_CLAIMED = re.compile(r"gpu-(\d+)(?:-mig-(?:(\d+)-(\d+)-\d+|[0-9a-z]+-(\d+)-(\d+)))?\Z")
"""Names in resource claims: ``gpu-MINOR``, and for a MIG device ``-mig-PROFILE-START-SIZE`` or
``-mig-NAME-PROFILE-START`` (dra-driver-nvidia-gpu, CanonicalName)."""

_INDEX = re.compile(r"(\d+)(?:\.(\d+))?\Z")
"""Names of job files: the GPU's index, for MIG with the GPU instance."""


def resolve(device: str, gpus: Sequence[GpuDevice]) -> tuple[str, str] | None:
    """(UUID of the GPU, UUID of the MIG instance or "") for a device plugin's id; None where it is none of these."""
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
    # Several compute instances of one GPU instance: which of them, this name does not tell.
    return (gpu.uuid, inside[0].uuid) if len(inside) == 1 else None


def resolve_claimed(device: str, gpus: Sequence[GpuDevice]) -> tuple[str, str] | None:
    """The same for a device's name in a resource claim of GPU_DRIVER."""
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
    """The same for the name of a job file."""
    if (match := _INDEX.match(name)) is not None:
        index, instance = match.groups()
        gpu = next((one for one in gpus if one.index == int(index)), None)
        return None if gpu is None else _instance(gpu, instance)
    return resolve(name, gpus)


# --- joining ---------------------------------------------------------------------------------------------------------


def _tells_no_more(less: Owner, more: Owner) -> bool:
    """Whether `more` says all that `less` says."""
    return all(one in ("", other) for one, other in zip(astuple(less), astuple(more), strict=True))


def _joined(first: Owner, second: Owner, parts: Sequence[Owner]) -> Owner | None:
    """One owner of both, where they share a pod or job and contradict each other in nothing; None otherwise.

    Also None where a process would be joined to one of several containers of its pod: nothing tells which.
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


def join_owners(told: Iterable[Owner]) -> list[Owner]:
    """The distinct owners of one device, sorted: parts of one are put together, and what tells less is left out."""
    joined: set[Owner] = set(told)
    for parts in _alike(joined):
        for position, first in enumerate(parts):
            joined.update(pair for second in parts[:position] if (pair := _joined(first, second, parts)) is not None)
    less = {
        one
        for parts in _alike(joined)
        for one in parts
        if any(other != one and _tells_no_more(one, other) for other in parts)
    }
    return sorted(joined - less)


def _alike(owners: Iterable[Owner]) -> list[list[Owner]]:
    """Owners of one pod, of one Slurm job, of one gang: those that may be parts of one another. One may be in each."""
    groups: dict[tuple[str, str, str], list[Owner]] = {}
    for one in sorted(owners):
        for key in (("pod", one.namespace, one.pod), ("job", "", one.slurm_job), ("gang", "", one.gang)):
            if key[2]:
                groups.setdefault(key, []).append(one)
    return [group for group in groups.values() if len(group) > 1]


@dataclass(slots=True)
class Join:
    """Collects what the tellers say, and gives the owners of it.

    gpus: the GPUs that there are. rdma_by_address: RDMA device by PCI address.
    """

    gpus: Sequence[GpuDevice]
    rdma_by_address: Mapping[str, str] = field(default_factory=dict)
    _told: dict[tuple[str, str], list[Owner]] = field(default_factory=dict)
    _processes: set[ProcessOwner] = field(default_factory=set)
    _rdma: set[RdmaOwner] = field(default_factory=set)
    _unresolved: int = 0

    def pods(self, pods: Iterable[Pod], uids: Mapping[tuple[str, str], str]) -> None:
        """What a kubelet lists. uids: of the pods, by namespace and name, where they are known."""
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
                self._hold(device.lower(), resource, owner)  # an SR-IOV pool that is named under nvidia.com
            else:
                self._add(found, owner)
        elif device.lower() in self.rdma_by_address or resource.startswith("rdma/"):
            self._hold(device.lower(), resource, owner)

    def _hold(self, address: str, resource: str, owner: Owner) -> None:
        device = self.rdma_by_address.get(address, "")
        pci_address = address if device else ""
        self._rdma.add(RdmaOwner(device, pci_address, resource, owner.namespace, owner.pod, owner.container))

    def processes(self, processes: Iterable[tuple[GpuProcess, Owner]]) -> None:
        """What the driver and the processes' own attestation tell."""
        for process, owner in processes:
            self._add((process.gpu, process.mig), owner)
            self._processes.add(ProcessOwner(process.gpu, process.mig, process.pid, owner))

    def jobs(self, files: Iterable[tuple[str, str]]) -> None:
        """What a prolog wrote: (file's name, job)."""
        for name, job in files:
            self._add(resolve_file(name, self.gpus), Owner(slurm_job=job))

    def rank(self, gpu: str, owner: Owner) -> None:
        """A rank that was given a GPU by the local backend."""
        self._add((gpu, ""), owner)

    def _add(self, device: tuple[str, str] | None, owner: Owner) -> None:
        if device is None:
            self._unresolved += 1
        else:
            self._told.setdefault(device, []).append(owner)

    def owners(self) -> Owners:
        """The owners of everything told so far, at most MAX_OWNERS of each kind."""
        joined = {device: join_owners(told) for device, told in sorted(self._told.items())}
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
    """The owner with all that others tell of it, where only one of the joined can be meant."""
    meant = [one for one in joined if _tells_no_more(owner, one)]
    return meant[0] if len(meant) == 1 else owner


_PCI_NAME = re.compile(r"pci-([0-9a-f]{4})-([0-9a-f]{2})-([0-9a-f]{2})-([0-7])\Z")
"""How network drivers name a device in a resource claim: its address, with what a name may not hold replaced."""


def _claimed_address(device: str) -> str:
    match = _PCI_NAME.match(device)
    return "" if match is None else "{}:{}:{}.{}".format(*match.groups())


OWNER_LABELS = tuple(sorted(one.name for one in fields(Owner)))
