"""Statistics of a network driver (``ethtool -S``), read with a system call or from a recorded text.

The call is ioctl(2) SIOCETHTOOL with the commands GSSET_INFO, GSTRINGS and GSTATS of include/uapi/linux/ethtool.h.
The names of the statistics are read each time, because a new configuration of the driver may change names while
their number stays the same.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import socket
import struct
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from agent.schema.errors import SourceError, UnsupportedError
from agent.sources.files import read_file

SIOCETHTOOL = 0x8946
GET_SET_INFO = 0x37
GET_STRINGS = 0x1B
GET_STATISTICS = 0x1D
STATISTICS_SET = 1  # ETH_SS_STATS
NAME_BYTES = 32  # ETH_GSTRING_LEN

_REQUEST = struct.Struct("16sP16x")  # struct ifreq: name, ifr_data
_SET_INFO = struct.Struct("=IIQI")  # cmd, reserved, sset_mask, one count
_STRINGS = struct.Struct("=III")  # cmd, string_set, len
_STATISTICS = struct.Struct("=II")  # cmd, n_stats

MOST_STATISTICS = 65536
"""Number of statistics for which the buffer has room; a driver with more is not read. The room is ample, because the
kernel writes all statistics even if the caller's buffer is too small. Drivers have statistics per queue (mlx5: 40 for
each of up to a few hundred queues)."""

_BUFFER_BYTES = _STRINGS.size + MOST_STATISTICS * NAME_BYTES

EthtoolCall = Callable[[str, memoryview], None]
"""Function that calls SIOCETHTOOL for an interface name and a buffer. The buffer contains the command before the call
and the result after it. The function raises OSError on failure."""

Values = npt.NDArray[np.uint64]


class Statistics(NamedTuple):
    """Statistics that a network driver reports.

    names: the same tuple as before if unchanged. values: uint64 [names].
    """

    names: tuple[str, ...]
    values: Values


class StatisticsSource(Protocol):
    """Interface that reads the statistics of network drivers."""

    def read(self, interface: str) -> Statistics:
        """Return the statistics of the network interface with this name.

        Raise UnsupportedError if there are no statistics, SourceError for other failures.
        """
        ...

    def close(self) -> None: ...


# --- from the kernel -------------------------------------------------------------------------------------------------


class SystemCall:
    """EthtoolCall that makes the system call. The constructor raises SourceError if no socket can be opened."""

    def __init__(self) -> None:
        try:
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        except OSError as error:
            raise SourceError(f"ethtool: {error.strerror}") from None

    def __call__(self, interface: str, buffer: memoryview) -> None:
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        fcntl.ioctl(self._socket, SIOCETHTOOL, _REQUEST.pack(os.fsencode(interface), address))

    def close(self) -> None:
        self._socket.close()


def parse_names(data: bytes | memoryview, count: int) -> tuple[str, ...]:
    """Parse `count` names of ETH_GSTRING_LEN bytes each, padded with zeros.

    Raise SourceError if the data is too short.
    """
    if len(data) < count * NAME_BYTES:
        raise SourceError(f"ethtool: {len(data)} bytes are too short for {count} names of {NAME_BYTES} bytes")
    raw = bytes(data[: count * NAME_BYTES])
    return tuple(
        raw[at : at + NAME_BYTES].split(b"\0", 1)[0].decode("utf-8", "replace") for at in range(0, len(raw), NAME_BYTES)
    )


class Ethtool:
    """Source of network driver statistics from the kernel. call: function that replaces the system call in tests."""

    def __init__(self, call: EthtoolCall | None = None) -> None:
        self._call = call
        self._own: SystemCall | None = None
        # Pages that the kernel does not write are not allocated.
        self._memory = mmap.mmap(-1, _BUFFER_BYTES)
        self._buffer = memoryview(self._memory)
        self._raw_names: dict[str, bytes] = {}
        self._names: dict[str, tuple[str, ...]] = {}

    def read(self, interface: str) -> Statistics:
        """Return the statistics of the interface. The next call overwrites their values."""
        count = self._count(interface)
        names = self._read_names(interface, count)
        _STATISTICS.pack_into(self._buffer, 0, GET_STATISTICS, count)
        self._query(interface)
        _, returned = _STATISTICS.unpack_from(self._buffer, 0)
        if returned != len(names):
            raise SourceError(f"ethtool {interface}: {returned} statistics with {len(names)} names")
        return Statistics(names, np.frombuffer(self._buffer, np.uint64, returned, _STATISTICS.size))

    def close(self) -> None:
        if self._own is not None:
            self._own.close()
            self._own = None

    def _count(self, interface: str) -> int:
        _SET_INFO.pack_into(self._buffer, 0, GET_SET_INFO, 0, 1 << STATISTICS_SET, 0)
        self._query(interface)
        _, _, mask, count = _SET_INFO.unpack_from(self._buffer, 0)
        if not mask or not count:
            raise UnsupportedError(f"ethtool {interface}: the driver has no statistics")
        if count > MOST_STATISTICS:
            raise SourceError(f"ethtool {interface}: {count} statistics, at most {MOST_STATISTICS}")
        return int(count)

    def _read_names(self, interface: str, count: int) -> tuple[str, ...]:
        _STRINGS.pack_into(self._buffer, 0, GET_STRINGS, STATISTICS_SET, count)
        self._query(interface)
        _, _, returned = _STRINGS.unpack_from(self._buffer, 0)
        if returned > MOST_STATISTICS:
            raise SourceError(f"ethtool {interface}: {returned} names, at most {MOST_STATISTICS}")
        raw = bytes(self._buffer[_STRINGS.size : _STRINGS.size + returned * NAME_BYTES])
        if raw != self._raw_names.get(interface):
            self._names[interface] = parse_names(raw, returned)
            self._raw_names[interface] = raw
        return self._names[interface]

    def _query(self, interface: str) -> None:
        call = self._call
        if call is None:
            call = self._own = self._own or SystemCall()
        try:
            call(interface, self._buffer)
        except OSError as error:
            text = f"ethtool {interface}: {error.strerror}"
            if error.errno == errno.EOPNOTSUPP:
                raise UnsupportedError(text) from None
            raise SourceError(text) from None


# --- from a recording ------------------------------------------------------------------------------------------------

RECORDED = "ethtool_statistics"
"""Name of the file with the output of ``ethtool -S`` in an interface's folder of a recorded sysfs."""


def parse_recorded(data: bytes) -> dict[str, int]:
    """Parse the output of ``ethtool -S`` into values by name. Raise SourceError for a malformed line."""
    found: dict[str, int] = {}
    for line in data.split(b"\n"):
        name, colon, value = line.rpartition(b":")
        digits = value.strip()
        if colon and digits.isdigit() and len(digits) <= 20 and name.strip() and int(digits) < 1 << 64:
            found[name.strip().decode("utf-8", "replace")] = int(digits)
        elif line.strip() and digits:
            raise SourceError(f"ethtool: {line[:80]!r} is not a statistic")
    return found


class RecordedEthtool:
    """Source of statistics from files of a recorded or generated copy of sysfs."""

    def __init__(self, sys_root: str) -> None:
        self._sys_root = sys_root
        self._names: dict[str, tuple[str, ...]] = {}

    def read(self, interface: str) -> Statistics:
        path = f"{self._sys_root}/class/net/{interface}/{RECORDED}"
        try:
            recorded = parse_recorded(read_file(path))
        except FileNotFoundError:
            raise UnsupportedError(f"{path}: no such file") from None
        except OSError as error:
            raise SourceError(f"{path}: {error.strerror}") from None
        names = tuple(recorded)
        if names != self._names.get(interface):
            self._names[interface] = names
        return Statistics(self._names[interface], np.array(list(recorded.values()), np.uint64))

    def close(self) -> None:
        """Do nothing: the source holds no resources."""
