"""Distance between GPUs and NICs, from the PCI bridges between them and their NUMA nodes. Pure.

The position of a device is its path below /sys/devices: a host bridge (pci0000:15), bridges, and the device. The longer
the common prefix of two paths, the nearer the devices. The terms are those of ``nvidia-smi topo -m``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum


class Distance(IntEnum):
    """Class of the distance between two PCI devices, from the nearest to the farthest.

    SYS is the slowest: traffic over the link between processors.
    """

    PIX = 1  # at most one PCIe switch between them
    PXB = 2  # several PCIe switches, no host bridge
    PHB = 3  # the host bridge of a NUMA node
    NODE = 4  # several host bridges of one NUMA node
    SYS = 5  # the link between NUMA nodes, or unknown


_HOST_BRIDGE = re.compile(r"^pci[0-9a-f]{4,8}:[0-9a-f]{2}$")

BELOW_ONE_SWITCH = 2
"""Two devices count as below one PCIe switch (PIX) if at most this number of path components follows their last common
bridge: the port of the switch, and the device. If more components follow, there are several switches (PXB)."""


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A PCI device. path: path components from the host bridge to the device. numa_node: None if unknown."""

    address: str
    path: tuple[str, ...]
    numa_node: int | None = None


def path_of(real_path: str) -> tuple[str, ...]:
    """Return the components of a real path in sysfs, beginning at the host bridge; () without a host bridge."""
    components = real_path.split("/")
    for position, component in enumerate(components):
        if _HOST_BRIDGE.match(component):
            return tuple(components[position:])
    return ()


def distance(one: PciDevice, other: PciDevice) -> Distance:
    """Return the distance between two devices; SYS if they have no common bridge and no common known NUMA node."""
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
    """Return the address of the upstream port of the device's PCIe switch; '' if there is no switch.

    A switch appears as two bridges between a root port and the device. If there are several switches, the nearest is
    returned.
    """
    return device.path[-1 - BELOW_ONE_SWITCH] if len(device.path) > 2 + BELOW_ONE_SWITCH else ""


@dataclass(frozen=True, slots=True)
class Rail:
    """A GPU and its nearest NIC. number: rail number from 0, in the order of NIC addresses."""

    gpu: PciDevice
    nic: PciDevice
    distance: Distance
    number: int


def rails(gpus: Sequence[PciDevice], nics: Sequence[PciDevice]) -> tuple[Rail, ...]:
    """Assign a NIC to each GPU, in the order of GPU addresses, and return the pairs of GPU and NIC.

    A GPU gets its nearest NIC. If several NICs are equally near, it gets the NIC with the fewest GPUs. NICs without a
    GPU have no rail; they are usually for storage. Without NICs the result is empty.
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
