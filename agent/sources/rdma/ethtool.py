"""A network driver's own statistics (``ethtool -S``): by system call from the kernel, or from a recorded text.

The call is ioctl(2) SIOCETHTOOL with the commands GSSET_INFO, GSTRINGS and GSTATS of include/uapi/linux/ethtool.h. The
names are asked for each time, because a driver changes them with its configuration (mlx5 lists the priorities that have
flow control) and may well keep their number.
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
"""Room for so many. The kernel writes as many as the driver has at that moment, whatever the caller made room for, and
a driver has some more for each queue (mlx5: 40 for each of at most a few hundred)."""

_BUFFER_BYTES = _STRINGS.size + MOST_STATISTICS * NAME_BYTES

EthtoolCall = Callable[[str, memoryview], None]
"""SIOCETHTOOL on an interface with a command's buffer, which is both the command and its answer. Raises OSError."""

Values = npt.NDArray[np.uint64]


class Statistics(NamedTuple):
    """What a driver told. names: the same object as the last time unless they changed. values: uint64, one each."""

    names: tuple[str, ...]
    values: Values


class StatisticsSource(Protocol):
    """Where a driver's statistics come from."""

    def read(self, interface: str) -> Statistics:
        """Raises UnsupportedError where the interface has none, SourceError where it cannot be asked."""
        ...

    def close(self) -> None: ...


# --- from the kernel -------------------------------------------------------------------------------------------------


class SystemCall:
    """The kernel's EthtoolCall. Raises SourceError where no socket can be had to ask it through."""

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
    """Names of ETH_GSTRING_LEN bytes each, padded with zeros. Raises SourceError where there is less than that."""
    if len(data) < count * NAME_BYTES:
        raise SourceError(f"ethtool: {len(data)} bytes for {count} names of {NAME_BYTES}")
    raw = bytes(data[: count * NAME_BYTES])
    return tuple(
        raw[at : at + NAME_BYTES].split(b"\0", 1)[0].decode("utf-8", "replace") for at in range(0, len(raw), NAME_BYTES)
    )


class Ethtool:
    """Asks drivers for their statistics. `call`: what the kernel is asked through; its own where None is given."""

    def __init__(self, call: EthtoolCall | None = None) -> None:
        self._call = call
        self._own: SystemCall | None = None
        # Pages that the kernel never writes to cost nothing.
        self._memory = mmap.mmap(-1, _BUFFER_BYTES)
        self._buffer = memoryview(self._memory)
        self._raw_names: dict[str, bytes] = {}
        self._names: dict[str, tuple[str, ...]] = {}

    def read(self, interface: str) -> Statistics:
        """The interface's statistics; the values stand until the next call."""
        count = self._count(interface)
        names = self._read_names(interface, count)
        _STATISTICS.pack_into(self._buffer, 0, GET_STATISTICS, count)
        self._ask(interface)
        _, told = _STATISTICS.unpack_from(self._buffer, 0)
        if told != len(names):
            raise SourceError(f"ethtool {interface}: {told} statistics with {len(names)} names")
        return Statistics(names, np.frombuffer(self._buffer, np.uint64, told, _STATISTICS.size))

    def close(self) -> None:
        if self._own is not None:
            self._own.close()
            self._own = None

    def _count(self, interface: str) -> int:
        _SET_INFO.pack_into(self._buffer, 0, GET_SET_INFO, 0, 1 << STATISTICS_SET, 0)
        self._ask(interface)
        _, _, mask, count = _SET_INFO.unpack_from(self._buffer, 0)
        if not mask or not count:
            raise UnsupportedError(f"ethtool {interface}: the driver has no statistics")
        if count > MOST_STATISTICS:
            raise SourceError(f"ethtool {interface}: {count} statistics, at most {MOST_STATISTICS}")
        return int(count)

    def _read_names(self, interface: str, count: int) -> tuple[str, ...]:
        _STRINGS.pack_into(self._buffer, 0, GET_STRINGS, STATISTICS_SET, count)
        self._ask(interface)
        _, _, told = _STRINGS.unpack_from(self._buffer, 0)
        if told > MOST_STATISTICS:
            raise SourceError(f"ethtool {interface}: {told} names, at most {MOST_STATISTICS}")
        raw = bytes(self._buffer[_STRINGS.size : _STRINGS.size + told * NAME_BYTES])
        if raw != self._raw_names.get(interface):
            self._names[interface] = parse_names(raw, told)
            self._raw_names[interface] = raw
        return self._names[interface]

    def _ask(self, interface: str) -> None:
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
"""In a recorded sysfs, beside an interface's own files: what ``ethtool -S`` printed of it."""


def parse_recorded(data: bytes) -> dict[str, int]:
    """The output of ``ethtool -S``. Raises SourceError for a line that is not of its form."""
    found: dict[str, int] = {}
    for line in data.split(b"\n"):
        name, colon, value = line.rpartition(b":")
        digits = value.strip()
        if colon and digits.isdigit() and len(digits) <= 20 and name.strip() and int(digits) < 1 << 64:
            found[name.strip().decode("utf-8", "replace")] = int(digits)
        elif line.strip() and digits:
            raise SourceError(f"ethtool: {line[:80]!r} is no statistic")
    return found


class RecordedEthtool:
    """Statistics that were written to files of a recorded or synthesised sysfs, which has no kernel to ask."""

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
        """Nothing is held."""
