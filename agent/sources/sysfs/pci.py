"""/sys/bus/pci: the node's GPUs and NICs, where they are, how they are linked, and what AER has counted of them.

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
"""VGA and 3D controllers, by the first two bytes of the class (include/linux/pci_ids.h)."""

_NIC_CLASSES = ("0x0200", "0x0207")
"""Ethernet and InfiniBand controllers; a ConnectX is either, by its link layer."""

AER_FILES = {
    "correctable": "aer_dev_correctable",
    "nonfatal": "aer_dev_nonfatal",
    "fatal": "aer_dev_fatal",
}


class Function(NamedTuple):
    """A PCI function. folder: its real path. kind: 'gpu' or 'nic'. driver: empty where none is bound."""

    device: PciDevice
    folder: str
    kind: str
    driver: str
    virtual: bool


class FunctionFinder:
    """Lists the GPUs and NICs, again and again; while the bus has the same devices, they are not looked at anew."""

    _THOROUGH = 16
    """Every so many times they are: a driver may have been bound to a device that was there before."""

    def __init__(self, sys_root: str) -> None:
        self._folder = f"{sys_root}/bus/pci/devices"
        self._addresses: list[str] = []
        self._functions: list[Function] = []
        self._times = 0

    def find(self) -> list[Function]:
        """By address, in the same order every time. A device that goes while it is looked at is left out."""
        self._times += 1
        addresses = names_in(self._folder)
        if addresses != self._addresses or self._times % self._THOROUGH == 0:
            self._addresses = addresses
            self._functions = [one for address in addresses if (one := self._look(address)) is not None]
        return self._functions

    def _look(self, address: str) -> Function | None:
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
            # -1 is what the kernel writes where the firmware does not tell.
            PciDevice(address, path_of(real), int(node) if is_number(node) else None),
            real,
            kind,
            os.path.basename(os.path.realpath(driver)) if os.path.exists(driver) else "",
            os.path.lexists(f"{real}/physfn"),
        )


_SPEED = re.compile(r"^(\d{1,3}(?:\.\d)?) GT/s(?: PCIe)?$", re.ASCII)

GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""Transfers a second of each PCI Express generation."""


def parse_generation(text: str) -> int | None:
    """'32.0 GT/s PCIe': the generation; None for 'Unknown', which is what a device says that is off the bus.

    Raises ValueError for anything else.
    """
    if text in ("Unknown", "Unknown speed"):
        return None
    match = _SPEED.match(text)
    if match is None or float(match[1]) not in GENERATIONS:
        raise ValueError(f"{text[:40]!r} is no link speed")
    return GENERATIONS[float(match[1])]


MOST_LANES = 32


def parse_width(text: str) -> int | None:
    """'16': lanes; None where the device tells none (0, or 63 and 255 of one that is off the bus)."""
    if not is_number(text):
        raise ValueError(f"{text[:40]!r} is no link width")
    lanes = int(text)
    return lanes if 0 < lanes <= MOST_LANES else None


def parse_aer(data: bytes) -> dict[str, int]:
    """aer_dev_*: how often each error was reported, by the kernel's word for it; the total is not one of them.

    Raises SourceError for a line that is not of the form.
    """
    counts: dict[str, int] = {}
    for line in data.split(b"\n"):
        if not line:
            continue
        name, _, count = line.rpartition(b" ")
        if not name or not count.isdigit():
            raise SourceError(f"aer: {line[:60]!r} is no count")
        text = name.decode("utf-8", "replace").strip()
        if not text.startswith("TOTAL_ERR_"):
            counts[text] = int(count)
    return counts
