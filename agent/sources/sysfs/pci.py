"""GPUs and NICs in /sys/bus/pci: position, link and AER error counts.

Formats: Documentation/ABI/testing/sysfs-bus-pci and sysfs-bus-pci-devices-aer_stats of the kernel.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from agent.schema.errors import SourceError
from agent.schema.gpu_nic_distance import PciDevice, path_of
from agent.sources.sysfs.sysfs import is_number, names_in, read_text

NVIDIA = "0x10de"

_GPU_CLASSES = ("0x0300", "0x0302")
"""PCI classes of VGA and 3D controllers, which are GPUs: first two bytes of the class (include/linux/pci_ids.h)."""

_NIC_CLASSES = ("0x0200", "0x0207")
"""PCI classes of Ethernet and InfiniBand controllers. The class of a ConnectX depends on its link layer."""

AER_FILES = {
    "correctable": "aer_dev_correctable",
    "nonfatal": "aer_dev_nonfatal",
    "fatal": "aer_dev_fatal",
}


class Function(NamedTuple):
    """PCI function of a GPU or NIC.

    folder: its path in sysfs, without symbolic links. kind: 'gpu' or 'nic'. driver: '' without a driver.
    """

    device: PciDevice
    folder: str
    kind: str
    driver: str
    virtual: bool


class FunctionFinder:
    """Repeated listing of GPUs and NICs on the PCI bus. The result is kept while the set of devices is the same."""

    _THOROUGH = 16
    """Number of calls of ``find`` after which all devices are read again, because a driver may have been bound to a
    device since the last read."""

    def __init__(self, sys_root: str) -> None:
        self._folder = f"{sys_root}/bus/pci/devices"
        self._addresses: list[str] = []
        self._functions: list[Function] = []
        self._times = 0

    def find(self) -> list[Function]:
        """Return the PCI functions of GPUs and NICs, sorted by address.

        Omit devices that are removed during the listing.
        """
        self._times += 1
        addresses = names_in(self._folder)
        if addresses != self._addresses or self._times % self._THOROUGH == 0:
            self._addresses = addresses
            self._functions = [one for address in addresses if (one := self._read(address)) is not None]
        return self._functions

    def _read(self, address: str) -> Function | None:
        pci_class = read_text(f"{self._folder}/{address}/class")
        if pci_class.startswith(_GPU_CLASSES) and read_text(f"{self._folder}/{address}/vendor") == NVIDIA:
            kind = "gpu"
        elif pci_class.startswith(_NIC_CLASSES):
            kind = "nic"
        else:
            return None
        real = os.path.realpath(f"{self._folder}/{address}")
        node = read_text(f"{real}/numa_node")
        driver = f"{real}/driver"
        return Function(
            # The kernel writes -1 if the firmware does not report it.
            PciDevice(address, path_of(real), int(node) if is_number(node) else None),
            real,
            kind,
            os.path.basename(os.path.realpath(driver)) if os.path.exists(driver) else "",
            os.path.lexists(f"{real}/physfn"),
        )


_SPEED = re.compile(r"^(\d{1,3}(?:\.\d)?) GT/s(?: PCIe)?$", re.ASCII)

GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""PCI Express generation by transfer rate in GT/s."""


def parse_generation(text: str) -> int | None:
    """Return the generation of a link speed such as '32.0 GT/s PCIe'; None for 'Unknown'.

    'Unknown' is the value of a device that is off the bus. Raise ValueError for any other text.
    """
    if text in ("Unknown", "Unknown speed"):
        return None
    match = _SPEED.match(text)
    if match is None or float(match[1]) not in GENERATIONS:
        raise ValueError(f"{text[:40]!r} is not a link speed")
    return GENERATIONS[float(match[1])]


MOST_LANES = 32


def parse_width(text: str) -> int | None:
    """Return the number of lanes in a text such as '16'; None for 0, 63 and 255.

    63 and 255 mean that the device is off the bus.
    """
    if not is_number(text):
        raise ValueError(f"{text[:40]!r} is not a link width")
    lanes = int(text)
    return lanes if 0 < lanes <= MOST_LANES else None


def parse_aer(data: bytes) -> dict[str, int]:
    """Parse an AER file (aer_dev_*), and return the count of each PCIe error by its name in the kernel.

    The total is omitted. Raise SourceError for a malformed line.
    """
    counts: dict[str, int] = {}
    for line in data.split(b"\n"):
        if not line:
            continue
        name, _, count = line.rpartition(b" ")
        if not name or not count.isdigit():
            raise SourceError(f"aer: {line[:60]!r} is not a count")
        text = name.decode("utf-8", "replace").strip()
        if not text.startswith("TOTAL_ERR_"):
            counts[text] = int(count)
    return counts
