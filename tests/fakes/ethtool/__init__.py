"""Fake of the kernel's call SIOCETHTOOL, which writes the response into the caller's buffer.

``FakeDriver`` replaces ``agent.sources.rdma.ethtool.SystemCall``. The buffers are those of
include/uapi/linux/ethtool.h; names and numbers are invented.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.sources.rdma.ethtool import GET_SET_INFO, GET_STATISTICS, GET_STRINGS, NAME_BYTES


@dataclass
class FakeDriver:
    """Network driver. statistics: names and values by interface, which a test may change at any time."""

    statistics: dict[str, Mapping[str, int]] = field(default_factory=dict)
    fails: int = 0

    def __call__(self, interface: str, buffer: memoryview) -> None:
        if self.fails:
            raise OSError(self.fails, os.strerror(self.fails))
        if interface not in self.statistics:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        statistics = self.statistics[interface]
        (command,) = struct.unpack_from("=I", buffer)
        if command == GET_SET_INFO:
            # The kernel clears the mask bit of a set without entries.
            struct.pack_into("=IIQI", buffer, 0, command, 0, 2 if statistics else 0, len(statistics))
        elif command == GET_STRINGS:
            struct.pack_into("=III", buffer, 0, command, 1, len(statistics))
            for position, name in enumerate(statistics):
                struct.pack_into(f"={NAME_BYTES}s", buffer, 12 + position * NAME_BYTES, name.encode())
        elif command == GET_STATISTICS:
            values = list(statistics.values())
            struct.pack_into(f"=II{len(values)}Q", buffer, 0, command, len(values), *values)
        else:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
