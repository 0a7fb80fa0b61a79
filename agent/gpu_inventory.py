"""Inventory of the node's GPUs, their names in other systems, and the processes on them.

It maps the different names of a GPU to each other: the driver uses its UUID, a device plugin may use its minor
number, and an operator its index. The id of a MIG instance does not contain its GPU. One thread writes each field,
as a whole; any thread may read it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agent.schema.errors import SourceError


@dataclass(frozen=True, slots=True)
class MigDevice:
    """One MIG compute instance, with the instance ids of the driver."""

    uuid: str
    """UUID of the MIG instance, 'MIG-...'."""
    gpu_instance: int
    compute_instance: int
    profile: int | None = None
    """Profile id of the GPU instance, used in the names of resource claims; None if it was not queried."""
    placement: int | None = None
    """First memory slice of the GPU instance, used in the names of resource claims; None if it was not queried."""


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """One GPU, with its names in the driver and its MIG instances."""

    uuid: str
    index: int
    """Index of the GPU in the driver's list, which is in the order of PCI addresses."""
    minor: int | None = None
    """Minor number, the N of /dev/nvidiaN; None if not known."""
    pci_address: str = ""
    instances: tuple[MigDevice, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """One compute process on a GPU."""

    pid: int
    gpu: str
    mig: str = ""
    """UUID of the MIG instance on which the process runs; "" for a whole GPU."""


class Inventory:
    """The node's GPUs and the processes on them.

    The GPU collector sets ``gpus``. The GPU process collector sets ``processes``.
    """

    def __init__(self) -> None:
        self.gpus: tuple[GpuDevice, ...] = ()
        self.processes: tuple[GpuProcess, ...] = ()

    def gpu(self, uuid: str) -> GpuDevice | None:
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)


_INFORMATION = re.compile(r"^(GPU UUID|Device Minor|Bus Location):[ \t]*(\S+)[ \t]*$", re.MULTILINE)


def parse_information(text: str) -> tuple[str, int, str]:
    """Return UUID, minor number and PCI address from /proc/driver/nvidia/gpus/ADDRESS/information.

    Raise SourceError if one of these values is missing. The UUID is ``GPU-???...`` before the first use of the GPU.
    """
    found = dict(_INFORMATION.findall(text))
    try:
        uuid, minor = found["GPU UUID"], int(found["Device Minor"])
    except (KeyError, ValueError):
        raise SourceError(f"/proc/driver/nvidia/gpus: no UUID and minor number in {text[:80]!r}") from None
    if "?" in uuid:
        raise SourceError("/proc/driver/nvidia/gpus: the GPU has no UUID yet because it has not been used")
    return uuid, minor, found.get("Bus Location", "").lower()
