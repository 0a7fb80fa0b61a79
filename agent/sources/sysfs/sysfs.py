"""Shared readers of small files in /sys, and the list of whole disks."""

from __future__ import annotations

import os
import re

from agent.sources.files import read_file

_NOT_DISKS = ("loop", "ram", "zram", "fd")
"""Name prefixes of block devices that are not disks: loop devices, disks in memory, and floppy drives."""


_NUMBERS = re.compile(r"(\d+)", re.ASCII)

_PCI_ADDRESS = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")


def whole_disks(sys_root: str) -> frozenset[str] | None:
    """Return the names of the disks in /sys/block; None if the folder does not exist. /sys/block has no partitions."""
    try:
        with os.scandir(f"{sys_root}/block") as entries:
            names = [entry.name for entry in entries]
    except OSError:
        return None
    return frozenset(name for name in names if name.rstrip("0123456789") not in _NOT_DISKS)


def read_text(path: str) -> str:
    """Return the content of a short file without surrounding white space; empty if it cannot be read."""
    try:
        return read_file(path).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def is_number(text: str) -> bool:
    """Return whether the text is an unsigned number of at most 64 bits, as the kernel writes it."""
    return text.isascii() and text.isdigit() and len(text) <= 20 and int(text) < 1 << 64


def names_in(folder: str) -> list[str]:
    """Return the names in a folder in natural order (eth2 before eth10); empty if the folder does not exist."""
    try:
        return sorted(os.listdir(folder), key=_numbered)
    except OSError:
        return []


def _numbered(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _NUMBERS.split(name) if part]


def pci_address_of(path: str) -> str:
    """Return the PCI address at the end of a path in /sys/devices (0000:3b:00.0); empty for other devices."""
    name = os.path.basename(path)
    return name if _PCI_ADDRESS.match(name) else ""


def is_kernel_tree(sys_root: str) -> bool:
    """Return whether `sys_root` is the sysfs of the running kernel, so that system calls and files concern the same
    devices."""
    root = os.path.realpath(sys_root)
    try:
        mounts = read_file("/proc/self/mountinfo").decode("utf-8", "surrogateescape")
    except OSError:
        return False
    for line in mounts.split("\n"):
        # proc(5): the mount point is the fifth word, the file system's type the first after a lone hyphen.
        fields, _, rest = line.partition(" - ")
        words = fields.split(" ")
        if len(words) > 4 and words[4] == root and rest.split(" ", 1)[0] == "sysfs":
            return True
    return False
