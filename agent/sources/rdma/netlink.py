"""RDMA netlink client. It reads all hardware counters of a port in one message, while sysfs needs a read per counter.

The messages are in include/uapi/rdma/rdma_netlink.h: client 5 (nldev) of NETLINK_RDMA, commands GET and STAT_GET
(Linux 5.3 and newer). The message headers are in netlink(7). Successive responses of a port normally differ in their
values only. Therefore the names are parsed once; later reads check that they are unchanged and unpack all values in
one call.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from agent.schema.errors import SourceError, UnsupportedError
from agent.sources.network import netlink
from agent.sources.network.netlink import ATTRIBUTE, HEADER, Message

NETLINK_RDMA = 20
_CLIENT = 5 << 10  # RDMA_NL_NLDEV; the operation is in the lower ten bits
DEVICE_GET = _CLIENT | 1
SYSTEM_GET = _CLIENT | 6
STATISTICS_GET = _CLIENT | 17

DEVICE_INDEX = 1
DEVICE_NAME = 2
PORT_INDEX = 3
FIRMWARE_VERSION = 5
NAMESPACE_MODE = 66
COUNTERS = 80
COUNTER = 81
COUNTER_NAME = 82
COUNTER_VALUE = 83

REQUEST = 1
DUMP = 0x300
MULTI = 2
ERROR = 2
DONE = 3

_VALUE = struct.Struct("=Q")
_U32 = struct.Struct("=I")
_INT = struct.Struct("=i")

BUFFER_BYTES = 65536
"""Size in bytes of the buffer for responses. The kernel returns a response in one page (NLMSG_DEFAULT_SIZE), and a dump
in parts of up to 32 KiB."""

TIMEOUT_SECONDS = 2.0
_MOST_STRAY = 64
"""Maximum number of late responses to earlier requests that are skipped before the read fails."""


WHAT = "RDMA netlink"
messages, attributes = partial(netlink.messages, what=WHAT), partial(netlink.attributes, what=WHAT)


# --- codec -----------------------------------------------------------------------------------------------------------


def request(kind: int, flags: int, sequence: int, *attributes: tuple[int, int]) -> bytes:
    """Return an encoded netlink request. attributes: (type, 32-bit value) pairs."""
    body = b"".join(ATTRIBUTE.pack(8, name) + _U32.pack(value) for name, value in attributes)
    return HEADER.pack(HEADER.size + len(body), kind, flags | REQUEST, sequence, 0) + body


def _text(data: bytes | bytearray | memoryview, begin: int, end: int) -> str:
    return bytes(data[begin:end]).split(b"\0", 1)[0].decode("utf-8", "replace")


class NetlinkDevice(NamedTuple):
    """One RDMA device in the response to GET. number: index of the device. ports: number of ports, numbered from 1."""

    name: str
    number: int
    ports: int
    firmware_version: str


MOST_PORTS = 16
"""Maximum number of ports of a device. If a response has a larger number of ports, this maximum is used."""


def parse_device(data: bytes | bytearray | memoryview, message: Message) -> NetlinkDevice | None:
    """Return the device in one message of the response to GET; None if its name or index is missing."""
    name, firmware_version = "", ""
    index: int | None = None
    ports = 1
    for kind, begin, end in attributes(data, message.begin, message.end):
        if kind == DEVICE_NAME:
            name = _text(data, begin, end)
        elif kind == DEVICE_INDEX and end - begin == _U32.size:
            (index,) = _U32.unpack_from(data, begin)
        elif kind == PORT_INDEX and end - begin == _U32.size:
            ports = min(_U32.unpack_from(data, begin)[0], MOST_PORTS)
        elif kind == FIRMWARE_VERSION:
            firmware_version = _text(data, begin, end)
    return NetlinkDevice(name, index, ports, firmware_version) if name and index is not None else None


def parse_namespace_mode(data: bytes | bytearray | memoryview, message: Message) -> bool | None:
    """Return whether a SYS_GET response reports the exclusive namespace mode; None if it does not contain the mode."""
    for kind, begin, end in attributes(data, message.begin, message.end):
        if kind == NAMESPACE_MODE and end > begin:
            return data[begin] == 0
    return None


def parse_statistics(data: bytes | bytearray | memoryview, message: Message) -> list[tuple[str, int]]:
    """Return the name of each counter in a STAT_GET response and the offset of its 64-bit value in the buffer."""
    found: list[tuple[str, int]] = []
    for kind, begin, end in attributes(data, message.begin, message.end):
        if kind != COUNTERS:
            continue
        for entry, entry_begin, entry_end in attributes(data, begin, end):
            if entry != COUNTER:
                continue
            name = ""
            value = -1
            for field, field_begin, field_end in attributes(data, entry_begin, entry_end):
                if field == COUNTER_NAME:
                    name = _text(data, field_begin, field_end)
                elif field == COUNTER_VALUE and field_end - field_begin == _VALUE.size:
                    value = field_begin
            if name and value >= 0:
                found.append((name, value))
    return found


class Shape:
    """Structure of one port's netlink response: its length, and the offsets of the values."""

    __slots__ = ("_constant", "_length", "_struct", "names")

    def __init__(self, data: bytes | bytearray | memoryview, length: int) -> None:
        answer = next(messages(data, length), None)
        counters = [] if answer is None else parse_statistics(data, answer)
        if not counters:
            raise SourceError("RDMA netlink: response without counters")
        self.names = tuple(name for name, _ in counters)
        self._length = length
        # Skip the header: the reader has checked its sequence number.
        form = [f"={HEADER.size}x"]
        at = HEADER.size
        for _, value in counters:
            form.append(f"{value - at}sQ")
            at = value + _VALUE.size
        form.append(f"{length - at}s")
        self._struct = struct.Struct("".join(form))
        self._constant = self._struct.unpack_from(data)[0::2]

    def values(self, data: bytes | bytearray | memoryview, length: int) -> tuple[int, ...] | None:
        """Return the values of the counters; None if the response has another structure."""
        if length != self._length:
            return None
        fields = self._struct.unpack_from(data)
        return fields[1::2] if fields[0::2] == self._constant else None


# --- socket ----------------------------------------------------------------------------------------------------------


def connect() -> socket.socket:
    """Open a netlink socket to the kernel's RDMA subsystem.

    Raise UnsupportedError if the kernel has no RDMA subsystem.
    """
    return netlink.connect(NETLINK_RDMA, WHAT)


class RdmaNetlink:
    """Client for RDMA devices and their statistics. It makes one request at a time.

    connector: function that opens the socket, called at the first request. buffer: the last response; the next response
    overwrites it.
    """

    def __init__(self, connector: Callable[[], socket.socket] = connect) -> None:
        self.buffer = bytearray(BUFFER_BYTES)
        self._connector = connector
        self._socket: socket.socket | None = None
        self._sequence = 0

    def devices(self) -> dict[str, int]:
        """Return the index of each RDMA device, by device name.

        Raise UnsupportedError if the kernel does not support GET.
        """
        return {device.name: device.number for device in self.list_devices()}

    def list_devices(self) -> tuple[NetlinkDevice, ...]:
        """Return the RDMA devices of the network namespace of the socket.

        Raise UnsupportedError if the kernel does not support GET.
        """
        self._send(DEVICE_GET, DUMP)
        found: list[NetlinkDevice] = []
        while True:
            length = self._receive()
            for message in messages(self.buffer, length):
                if message.sequence != self._sequence:
                    continue
                if message.kind == DONE:
                    return tuple(found)
                self._check(message, DEVICE_GET)
                if (device := parse_device(self.buffer, message)) is not None:
                    found.append(device)
                if not message.flags & MULTI:
                    return tuple(found)

    def exclusive(self) -> bool:
        """Return whether the namespace mode is exclusive: devices of other namespaces are not visible on the host.

        Needs Linux 5.3. Raise UnsupportedError if the kernel does not report the mode, SourceError for other failures.
        """
        self._send(SYSTEM_GET, 0)
        answer = self._answer(SYSTEM_GET)[1]
        mode = parse_namespace_mode(self.buffer, answer)
        if mode is None:
            raise UnsupportedError("RDMA netlink: the kernel does not report the namespace mode")
        return mode

    def statistics(self, device_index: int, port: int) -> int:
        """Read the counters of one port into ``buffer`` and return the length of the response.

        Raise UnsupportedError if the device has no counters (EINVAL, EOPNOTSUPP), SourceError for other failures.
        """
        self._send(STATISTICS_GET, 0, (DEVICE_INDEX, device_index), (PORT_INDEX, port))
        return self._answer(STATISTICS_GET)[0]

    def _answer(self, expected: int) -> tuple[int, Message]:
        """Receive the response to the last request into ``buffer``. Return its length and header."""
        for _ in range(_MOST_STRAY):
            length = self._receive()
            answer = next(messages(self.buffer, length), None)
            if answer is None or answer.sequence != self._sequence:
                continue
            self._check(answer, expected)
            return length, answer
        raise SourceError(f"RDMA netlink: received {_MOST_STRAY} responses to other requests")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, kind: int, flags: int, *attributes: tuple[int, int]) -> None:
        try:
            if self._socket is None:
                self._socket = self._connector()
                self._socket.settimeout(TIMEOUT_SECONDS)
            self._sequence = (self._sequence + 1) & 0xFFFFFFFF
            self._socket.send(request(kind, flags, self._sequence, *attributes))
        except OSError as error:
            self.close()
            if error.errno == errno.ECONNREFUSED:
                # The kernel module of the RDMA core is not loaded.
                raise UnsupportedError(f"RDMA netlink: {error.strerror}") from None
            raise SourceError(f"RDMA netlink: {error}") from None

    def _receive(self) -> int:
        assert self._socket is not None
        try:
            length = self._socket.recv_into(self.buffer)
        except OSError as error:
            self.close()
            raise SourceError(f"RDMA netlink: {error}") from None
        if length < HEADER.size:
            self.close()
            raise SourceError(f"RDMA netlink: response of only {length} bytes")
        return length

    def _check(self, message: Message, expected: int) -> None:
        if message.kind == expected:
            return
        if message.kind == ERROR and message.end - message.begin >= _INT.size:
            code = -_INT.unpack_from(self.buffer, message.begin)[0]
            text = f"RDMA netlink: {os.strerror(code) if code > 0 else f'error {-code}'}"
            if code in (errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM):
                raise UnsupportedError(text)
            raise SourceError(text)
        raise SourceError(f"RDMA netlink: response of type {message.kind}, expected {expected}")
