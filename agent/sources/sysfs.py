"""/sys of the machine: which block devices are whole disks of hardware or of a volume manager."""

from __future__ import annotations

import os

_NOT_DISKS = ("loop", "ram", "zram", "fd")
"""Block devices that hold other files, memory, or floppies: nothing that a training job waits for as a disk."""


def whole_disks(sys_root: str) -> frozenset[str] | None:
    """Names of the disks in /sys/block, where partitions never stand; None where there is no such folder."""
    try:
        with os.scandir(f"{sys_root}/block") as entries:
            names = [entry.name for entry in entries]
    except OSError:
        return None
    return frozenset(name for name in names if name.rstrip("0123456789") not in _NOT_DISKS)
