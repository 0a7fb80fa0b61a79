"""What the node's GPUs are called by whom, and who computes on them: told by those who asked the driver, for others.

The driver names a GPU by its UUID. A kubelet's device plugin may name it by its minor number, an operator by its index,
a MIG instance hides its GPU altogether: who joins them needs this table. Each half is replaced whole by its one writer
and may be read from any thread.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agent.schema.errors import SourceError


@dataclass(frozen=True, slots=True)
class MigDevice:
    """One MIG compute instance. uuid: ``MIG-...``; the instances' ids are the driver's.

    profile, placement: the GPU instance's profile id and first memory slice, None where nobody asked; resource claims
    name instances by them.
    """

    uuid: str
    gpu_instance: int
    compute_instance: int
    profile: int | None = None
    placement: int | None = None


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """One GPU. index: the driver's, in the order of PCI addresses; minor: of /dev/nvidiaN, None where not known."""

    uuid: str
    index: int
    minor: int | None = None
    pci_address: str = ""
    instances: tuple[MigDevice, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """One process that computes on a GPU. mig: UUID of the MIG instance, "" for a whole GPU."""

    pid: int
    gpu: str
    mig: str = ""


class Inventory:
    """The table. ``gpus`` is set by whoever lists the GPUs, ``processes`` by whoever asks for their processes."""

    def __init__(self) -> None:
        self.gpus: tuple[GpuDevice, ...] = ()
        self.processes: tuple[GpuProcess, ...] = ()

    def gpu(self, uuid: str) -> GpuDevice | None:
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)


_INFORMATION = re.compile(r"^(GPU UUID|Device Minor|Bus Location):[ \t]*(\S+)[ \t]*$", re.MULTILINE)


def parse_information(text: str) -> tuple[str, int, str]:
    """UUID, minor number and PCI address in /proc/driver/nvidia/gpus/ADDRESS/information.

    Raises SourceError where one of them is missing; the UUID is ``GPU-???...`` before the GPU's first use.
    """
    found = dict(_INFORMATION.findall(text))
    try:
        uuid, minor = found["GPU UUID"], int(found["Device Minor"])
    except (KeyError, ValueError):
        raise SourceError(f"/proc/driver/nvidia/gpus: no UUID and minor number in {text[:80]!r}") from None
    if "?" in uuid:
        raise SourceError("/proc/driver/nvidia/gpus: the GPU has not been used, and has no UUID yet")
    return uuid, minor, found.get("Bus Location", "").lower()
