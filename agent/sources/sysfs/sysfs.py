"""/sys of the machine: small readers that several families share, and which block devices are whole disks."""

from __future__ import annotations

import os
import re

from agent.sources.files import read_file

_NOT_DISKS = ("loop", "ram", "zram", "fd")
"""Block devices that hold other files, memory, or floppies: nothing that a training job waits for as a disk."""


_NUMBERS = re.compile(r"(\d+)", re.ASCII)

_PCI_ADDRESS = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")


def whole_disks(sys_root: str) -> frozenset[str] | None:
    """Names of the disks in /sys/block, where partitions never stand; None where there is no such folder."""
    try:
        with os.scandir(f"{sys_root}/block") as entries:
            names = [entry.name for entry in entries]
    except OSError:
        return None
    return frozenset(name for name in names if name.rstrip("0123456789") not in _NOT_DISKS)


def read_text(path: str) -> str:
    """A short file without the white space around it; empty where it is absent or cannot be read."""
    try:
        return read_file(path).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def is_number(text: str) -> bool:
    """Whether it is a number of at most 64 bits, as the kernel writes one."""
    return text.isascii() and text.isdigit() and len(text) <= 20 and int(text) < 1 << 64


def names_in(folder: str) -> list[str]:
    """Names in a folder, sorted as people number things (eth2 before eth10); none where there is no such folder."""
    try:
        return sorted(os.listdir(folder), key=_numbered)
    except OSError:
        return []


def _numbered(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _NUMBERS.split(name) if part]


def pci_address_of(path: str) -> str:
    """The PCI address that a path in /sys/devices ends with (0000:3b:00.0); empty where it is no PCI device's."""
    name = os.path.basename(path)
    return name if _PCI_ADDRESS.match(name) else ""


def is_kernel_tree(sys_root: str) -> bool:
    """Whether this is a running kernel's sysfs: only then do its interfaces answer system calls as well."""
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
