"""How near a GPU and a NIC are: by the PCI bridges between them, and by the NUMA nodes that they hang on. Pure.

A device's place is its path below /sys/devices: a host bridge (pci0000:15), then bridges, then the device itself. Two
devices are as near as what their paths share is far down. The words are those of ``nvidia-smi topo -m``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum


class Distance(IntEnum):
    """From the nearest to the farthest; what crosses the processors' link is slowest."""

    PIX = 1  # at most one PCIe switch between them
    PXB = 2  # several PCIe switches, no host bridge
    PHB = 3  # the host bridge of a NUMA node
    NODE = 4  # several host bridges of one NUMA node
    SYS = 5  # the link between NUMA nodes, or nobody knows


_HOST_BRIDGE = re.compile(r"^pci[0-9a-f]{4,8}:[0-9a-f]{2}$")

BELOW_ONE_SWITCH = 2
"""Components that a device is below what it shares where one switch lies between: the switch's port, and itself."""


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A device and its place. path: components from the host bridge to the device. numa_node: None where unknown."""

    address: str
    path: tuple[str, ...]
    numa_node: int | None = None


def path_of(real_path: str) -> tuple[str, ...]:
    """The components from the host bridge on of a device's real path in sysfs; empty where there is no host bridge."""
    components = real_path.split("/")
    for position, component in enumerate(components):
        if _HOST_BRIDGE.match(component):
            return tuple(components[position:])
    return ()


def distance(one: PciDevice, other: PciDevice) -> Distance:
    """How near the two are. Devices without a place in the PCI hierarchy, or on unknown NUMA nodes, are SYS."""
    shared = 0
    for left, right in zip(one.path, other.path, strict=False):
        if left != right:
            break
        shared += 1
    if shared == 0:
        same = one.numa_node is not None and one.numa_node == other.numa_node
        return Distance.NODE if same else Distance.SYS
    if shared == 1:
        return Distance.PHB
    below = max(len(one.path), len(other.path)) - shared
    return Distance.PIX if below <= BELOW_ONE_SWITCH else Distance.PXB


def switch_of(device: PciDevice) -> str:
    """Address of the PCIe switch (its upstream port) that the device hangs below; empty where there is none.

    Between a root port and the device a switch shows as two bridges; of several switches the nearest counts.
    """
    return device.path[-1 - BELOW_ONE_SWITCH] if len(device.path) > 2 + BELOW_ONE_SWITCH else ""


@dataclass(frozen=True, slots=True)
class Rail:
    """A GPU and the NIC beside it. number: the rail's, counted by the NICs' addresses from 0."""

    gpu: PciDevice
    nic: PciDevice
    distance: Distance
    number: int


def rails(gpus: Sequence[PciDevice], nics: Sequence[PciDevice]) -> tuple[Rail, ...]:
    """Each GPU's NIC, in the order of the GPUs' addresses: the nearest, and of those equally near the least taken.

    NICs that no GPU gets, for storage as a rule, are on no rail. Without a NIC there is none.
    """
    if not nics:
        return ()
    taken = {nic.address: 0 for nic in nics}
    chosen: list[tuple[PciDevice, PciDevice, Distance]] = []
    for gpu in sorted(gpus, key=lambda one: one.address):
        near, _, _, nic = min(
            ((distance(gpu, nic), taken[nic.address], nic.address, nic) for nic in nics), key=lambda one: one[:3]
        )
        taken[nic.address] += 1
        chosen.append((gpu, nic, near))
    numbers = {address: number for number, address in enumerate(sorted(one for one in taken if taken[one]))}
    return tuple(Rail(gpu, nic, near, numbers[nic.address]) for gpu, nic, near in chosen)
