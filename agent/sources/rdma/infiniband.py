"""RDMA devices in /sys/class/infiniband, their attributes and counters.

Formats: Documentation/ABI/stable/sysfs-class-infiniband and drivers/infiniband/core/sysfs.c of the kernel.

The RDMA subsystem has two network-namespace modes. In the shared mode all devices are in this folder. In the
exclusive mode the devices of containers are not in it (agent/collectors/rdma/rdma_namespaces.py). A virtual function
has counters of its own traffic only; the counters of the physical port are those of the physical function.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from agent.sources.sysfs.sysfs import is_number, names_in, pci_address_of, read_text

SWITCH_MANAGEMENT = b"SW_MNG"
"""Text in the vital product data of ConnectX functions that manage NVLink switches on HGX B200 and B300. The agent
skips them: they are not NICs of the node, and each read of their counters writes firmware errors to the kernel log. The
start script of NVIDIA Fabric Manager searches for the same text."""

_VPD_BYTES = 4096

_INFINIBAND_CLASS = "0x0207"
"""PCI class of an InfiniBand controller. The PCI functions that manage NVLink switches have this class too."""

_REPRESENTOR = re.compile(r"^(c\d+)?pf\d+(vf|sf)\d+$")
"""Pattern of the phys_port_name of netdevs that represent virtual functions of a NIC in switch mode."""


_NETDEV = re.compile(r"^(?!\.{1,2}$)[!-.0-9;-~]{1,15}$", re.ASCII)
"""Pattern of valid network interface names (dev_valid_name, IFNAMSIZ). Names are checked because paths contain them."""


@dataclass(frozen=True, slots=True)
class Port:
    """One port of an RDMA device.

    counters, hardware_counters: names of the counter files, in the order in which they are read.
    """

    number: str
    link_layer: str
    netdev: str
    counters: tuple[str, ...]
    hardware_counters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """One RDMA device. A string is empty if the kernel does not report the value.

    physical_function: for a virtual function, PCI address of its physical function. hardware_counters: files in the
    hw_counters folder of the device. EFA, and mlx5 in switch mode, have this folder in addition to those of the ports.
    """

    name: str
    path: str
    driver: str
    pci_address: str
    numa_node: str
    board_id: str
    firmware_version: str
    hca_type: str
    physical_function: str
    hardware_counters: tuple[str, ...]
    ports: tuple[Port, ...]


class DeviceFinder:
    """Repeated listing of the RDMA devices. Attributes of a device are kept until its folder in sysfs is replaced.

    excluded: patterns (fnmatch) of device names and PCI addresses that are not read.
    """

    _THOROUGH = 16
    """Number of calls of ``find`` after which all attributes are read again, since a device's firmware may change."""

    def __init__(self, sys_root: str, excluded: Sequence[str] = ()) -> None:
        self._folder = f"{sys_root}/class/infiniband"
        self._excluded = tuple(excluded)
        self._known: dict[str, tuple[object, RdmaDevice | None]] = {}
        self._times = 0

    def find(self) -> tuple[list[RdmaDevice], list[str]]:
        """Return the RDMA devices to read, sorted by name, and the names of the devices that are not read."""
        self._times += 1
        if self._times % self._THOROUGH == 0:
            self._known.clear()
        known: dict[str, tuple[object, RdmaDevice | None]] = {}
        for name in names_in(self._folder):
            identity = self._identity(name)
            before = self._known.get(name)
            known[name] = before if before is not None and before[0] == identity else (identity, self._read(name))
        self._known = known
        return (
            [device for _, device in known.values() if device is not None],
            [name for name, (_, device) in known.items() if device is None],
        )

    def _identity(self, name: str) -> object:
        """Return a value that changes if the device or its sysfs folder is replaced, or a netdev of a port is
        renamed."""
        try:
            link = os.readlink(f"{self._folder}/{name}")
        except OSError:
            link = ""
        before = self._known.get(name)
        ports = () if before is None or before[1] is None else before[1].ports
        netdevs = [read_text(f"{self._folder}/{name}/ports/{port.number}/gid_attrs/ndevs/0") for port in ports]
        changed = [one for one, port in zip(netdevs, ports, strict=True) if one and one != port.netdev]
        try:
            status = os.stat(f"{self._folder}/{name}")
        except OSError:
            return None
        return (link, status.st_dev, status.st_ino, tuple(changed))

    def _read(self, name: str) -> RdmaDevice | None:
        """Return the device with its attributes; None if it is excluded or manages an NVLink switch."""
        device = os.path.realpath(f"{self._folder}/{name}/device")
        address = pci_address_of(device)
        if any(fnmatchcase(name, pattern) or fnmatchcase(address, pattern) for pattern in self._excluded):
            return None
        return None if _manages_switch(device) else _describe(self._folder, name, device, address)


def _manages_switch(device: str) -> bool:
    if not read_text(f"{device}/class").startswith(_INFINIBAND_CLASS) or os.path.lexists(f"{device}/physfn"):
        return False
    try:
        descriptor = os.open(f"{device}/vpd", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return SWITCH_MANAGEMENT in os.read(descriptor, _VPD_BYTES)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _describe(folder: str, name: str, device: str, address: str) -> RdmaDevice:
    path = f"{folder}/{name}"
    physical = os.path.realpath(f"{device}/physfn")
    netdevs = _netdevs(device)
    return RdmaDevice(
        name=name,
        path=path,
        driver=os.path.basename(os.path.realpath(f"{device}/driver")) if os.path.exists(f"{device}/driver") else "",
        pci_address=address,
        numa_node=_known(read_text(f"{device}/numa_node")),
        board_id=read_text(f"{path}/board_id"),
        firmware_version=read_text(f"{path}/fw_ver"),
        hca_type=read_text(f"{path}/hca_type"),
        physical_function=pci_address_of(physical) if os.path.exists(physical) else "",
        hardware_counters=tuple(names_in(f"{path}/hw_counters")),
        ports=tuple(_port(path, number, netdevs) for number in names_in(f"{path}/ports")),
    )


def _known(numa_node: str) -> str:
    return "" if numa_node == "-1" else numa_node


def _port(path: str, number: str, netdevs: Mapping[str, str]) -> Port:
    folder = f"{path}/ports/{number}"
    # The first entry of the GID table names the port's netdev; reading an empty one fails with EINVAL.
    netdev = read_text(f"{folder}/gid_attrs/ndevs/0")
    if not _NETDEV.match(netdev):
        netdev = netdevs.get(number, "")
    return Port(
        number=number,
        link_layer=read_text(f"{folder}/link_layer"),
        netdev=netdev,
        counters=tuple(names_in(f"{folder}/counters")),
        hardware_counters=tuple(names_in(f"{folder}/hw_counters")),
    )


def _netdevs(device: str) -> dict[str, str]:
    """Return the netdev of each port, by port number. Port numbers start at 1, but dev_port in sysfs starts at 0."""
    found: dict[str, str] = {}
    for name in names_in(f"{device}/net"):
        if _REPRESENTOR.match(read_text(f"{device}/net/{name}/phys_port_name")):
            continue
        port = read_text(f"{device}/net/{name}/dev_port")
        found.setdefault(str(int(port) + 1) if port.isdecimal() else "1", name)
    return found


# --- a port's state --------------------------------------------------------------------------------------------------


def parse_state(text: str) -> int:
    """Return the number at the start of a port state such as '4: ACTIVE'. Raise ValueError for any other text."""
    number, colon, _ = text.partition(":")
    if not colon or not is_number(number):
        raise ValueError(f"{text[:40]!r} is not a port state")
    return int(number)


_RATE = re.compile(r"^(\d{1,6}(?:\.\d{1,3})?) Gb/sec(?: \((\d{1,3})X\b.*\))?\s*$", re.ASCII)


def parse_rate(text: str) -> tuple[float, int | None]:
    """Return (bytes per second, number of lanes or None) of a rate such as '400 Gb/sec (4X NDR)'.

    Raise ValueError for any other text.
    """
    match = _RATE.match(text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is not a port rate")
    return float(match[1]) * 1e9 / 8, None if match[2] is None else int(match[2])
