"""Fuzz targets: responses of the kernel: netlink messages about RDMA, TCP connections and transmit queues, and drivers'
statistics by ioctl and in a text file."""

from __future__ import annotations

import errno
import random
import socket
import struct
from typing import cast

from agent.schema.errors import SourceError
from agent.sources.network import sockets
from agent.sources.network.netlink import HEADER
from agent.sources.rdma import ethtool, netlink
from benchmarks.fuzz import mutate
from benchmarks.fuzz.target import ACCEPTED, REFUSED, REFUSED_FIRST, Target

NESTED = 0x8000
NAMES = (b"rx_bytes", b"tx_bytes", b"", b"out_of_sequence", b"\xff\xfe", b"n" * 300, b"a\0b", b"rx prio0")

# --- RDMA netlink ----------------------------------------------------------------------------------------------------


def _attribute(chance: random.Random, kind: int, payload: bytes) -> bytes:
    """Return one padded netlink attribute. Some have a wrong length or type."""
    length = 4 + len(payload)
    if chance.random() < 0.02:
        length = chance.choice((0, 3, 4, length - 1, length + 1, 65535))
    if chance.random() < 0.02:
        kind = chance.choice((0, 9, 99, 0x3FFF))
    raw = struct.pack("=HH", max(length, 0), kind) + payload
    return raw + bytes(-len(raw) % 4)


def _u32(chance: random.Random, value: int) -> bytes:
    return struct.pack("=I", value) if chance.random() < 0.97 else b"\1" * chance.choice((0, 1, 8))


def _payload(chance: random.Random, kind: int) -> bytes:
    if kind == netlink.DEVICE_GET:
        name = chance.choice(("mlx5_0", "mlx5_1", "", "x\x85", "a" * 64)).encode() + b"\0"
        parts = [
            _attribute(chance, netlink.DEVICE_INDEX, _u32(chance, chance.randrange(4))),
            _attribute(chance, netlink.DEVICE_NAME, name),
            _attribute(chance, netlink.PORT_INDEX, _u32(chance, chance.choice((1, 2, 0, 2**32 - 1)))),
            _attribute(chance, netlink.FIRMWARE_VERSION, b"28.39.1002\0"),
        ]
        if chance.random() < 0.1:
            del parts[chance.randrange(len(parts))]
        return b"".join(parts)
    if kind == netlink.SYSTEM_GET:
        mode = chance.choice((b"\0", b"\1", b""))
        return _attribute(chance, netlink.NAMESPACE_MODE, mode) if chance.random() < 0.9 else b""
    counters = b"".join(
        _attribute(
            chance,
            (netlink.COUNTER if chance.random() < 0.97 else 9) | NESTED,
            _attribute(chance, netlink.COUNTER_NAME, chance.choice(NAMES) + b"\0")
            + _attribute(chance, netlink.COUNTER_VALUE, struct.pack("=Q", chance.getrandbits(64))),
        )
        for _ in range(chance.randrange(5))
    )
    return (
        _attribute(chance, netlink.DEVICE_INDEX, _u32(chance, 0))
        + _attribute(chance, netlink.PORT_INDEX, _u32(chance, 1))
        + _attribute(chance, netlink.COUNTERS | NESTED, counters)
    )


def _message(chance: random.Random, kind: int, flags: int, sequence: int, payload: bytes) -> bytes:
    length = HEADER.size + len(payload)
    if chance.random() < 0.03:
        length = chance.choice((0, 15, 16, length - 4, length + 4, 2**32 - 1))
    if chance.random() < 0.03:
        kind = chance.choice((netlink.DONE, 0, 7, netlink.DEVICE_GET))
    raw = HEADER.pack(max(length, 0), kind, flags, sequence, 7) + payload
    return raw + bytes(-len(raw) % 4)


KINDS = (netlink.DEVICE_GET, netlink.SYSTEM_GET, netlink.STATISTICS_GET)


def _make_rdma(chance: random.Random) -> bytes:
    """Make netlink responses: one byte that selects the request, then datagrams, each after its length in two bytes."""
    which = chance.randrange(3)
    kind = KINDS[which]
    datagrams: list[bytes] = []
    sequence = 1 if chance.random() < 0.97 else chance.choice((0, 2, 9))
    if chance.random() < 0.1:
        datagrams += [_message(chance, kind, 0, 77, b"")] * chance.choice((1, 2, 70))  # to requests that have timed out
    if chance.random() < 0.08:
        code = chance.choice((errno.EINVAL, errno.EPERM, errno.ENODEV, 0, -1))
        datagrams.append(
            _message(chance, netlink.ERROR, 0, sequence, struct.pack("=i", -code)[: chance.choice((4, 4, 2))])
        )
    elif kind == netlink.DEVICE_GET:
        parts = [
            _message(chance, kind, netlink.MULTI, sequence, _payload(chance, kind)) for _ in range(chance.randrange(4))
        ]
        if chance.random() < 0.1:
            parts.append(_message(chance, kind, 0, sequence, _payload(chance, kind)))
        datagrams.append(b"".join(parts))
        datagrams.append(_message(chance, netlink.DONE, netlink.MULTI, sequence, bytes(4)))
    else:
        datagrams.append(_message(chance, kind, 0, sequence, _payload(chance, kind)))
        if kind == netlink.STATISTICS_GET:  # the second response may or may not have the first one's shape
            again = bytearray(datagrams[-1])
            again[8:12] = struct.pack("=I", 2)
            datagrams.append(mutate.octets(chance, bytes(again)) if chance.random() < 0.4 else bytes(again))
    if chance.random() < 0.15:
        at = chance.randrange(len(datagrams))
        datagrams[at] = mutate.octets(chance, datagrams[at])
    if chance.random() < 0.03:
        del datagrams[chance.randrange(len(datagrams))]
    return bytes([which]) + b"".join(struct.pack(">H", len(one) & 0xFFFF) + one[:0xFFFF] for one in datagrams)


class _Kernel:
    """Replacement of a netlink socket. It returns the given datagrams, then times out."""

    def __init__(self, datagrams: list[bytes]) -> None:
        self._left = datagrams

    def settimeout(self, _: float) -> None: ...

    def send(self, data: bytes) -> int:
        return len(data)

    def recv_into(self, buffer: bytearray) -> int:
        if not self._left:
            raise TimeoutError("timed out")
        one = self._left.pop(0)
        buffer[: len(one)] = one
        return len(one)

    def close(self) -> None: ...


def _parse_rdma(data: bytes) -> str:
    datagrams: list[bytes] = []
    at = 1
    while at + 2 <= len(data):
        (length,) = struct.unpack_from(">H", data, at)
        datagrams.append(data[at + 2 : at + 2 + length])
        at += 2 + length
    rdma = netlink.RdmaNetlink(lambda: cast(socket.socket, _Kernel(datagrams)))
    which = data[0] % 3 if data else 0
    try:
        if which == 0:
            rdma.list_devices()
        elif which == 1:
            rdma.exclusive()
        else:
            length = rdma.statistics(0, 1)
            shape = netlink.Shape(rdma.buffer, length)
            values = shape.values(rdma.buffer, length)
            assert values is not None and len(values) == len(shape.names), "the answer has its own shape"
            shape.values(rdma.buffer, rdma.statistics(0, 1))
    except SourceError as error:
        first = "a message of" in str(error) or "an answer of" in str(error)
        return REFUSED_FIRST if first else REFUSED
    finally:
        rdma.close()
    return ACCEPTED


# --- ethtool ---------------------------------------------------------------------------------------------------------


def _make_ioctl(chance: random.Random) -> bytes:
    """Make the network driver's responses to three requests: the number of statistics in each, then the statistics'
    names."""
    count = chance.choice((0, 1, 2, 3, 3, 3, 5, 65537, 2**32 - 1))
    named = count if chance.random() < 0.9 else chance.choice((0, 1, 65537))
    valued = named if chance.random() < 0.9 else chance.choice((0, 4, 2**32 - 1))
    mask = 2 if chance.random() < 0.95 else 0
    names = b"".join(chance.choice(NAMES)[:32].ljust(32, b"\0") for _ in range(min(named, 5)))
    return struct.pack("=QIII", mask, count, named, valued) + (mutate.octets(chance, names) if names else b"")


def _parse_ioctl(data: bytes) -> str:
    mask, count, named, valued = struct.unpack_from("=QIII", data.ljust(20, b"\0"))
    names = data[20:]

    def answer(_: str, buffer: memoryview) -> None:
        (command,) = struct.unpack_from("=I", buffer)
        if command == ethtool.GET_SET_INFO:
            struct.pack_into("=IIQI", buffer, 0, command, 0, mask, count)
        elif command == ethtool.GET_STRINGS:
            struct.pack_into("=III", buffer, 0, command, 1, named)
            buffer[12 : 12 + len(names)] = names
        else:
            struct.pack_into("=II", buffer, 0, command, valued)

    asked = ethtool.Ethtool(answer)
    try:
        statistics = asked.read("eth0")
        assert len(statistics.names) == len(statistics.values)
        assert asked.read("eth0").names is statistics.names
    except SourceError as error:
        return REFUSED_FIRST if "no statistics" in str(error) else REFUSED
    finally:
        asked.close()
    return ACCEPTED


RECORDED = (
    b"NIC statistics:\n     rx_packets: 7\n     tx_prio0_bytes: 18446744073709551615\n",
    b"     rx packets: 12\n     [0]: rx_ucast: 4\n",
)


def _make_recorded(chance: random.Random) -> bytes:
    return mutate.one_of(chance, RECORDED, mutate.lines)


def _parse_recorded(data: bytes) -> str:
    try:
        found = ethtool.parse_recorded(data)
    except SourceError:
        return REFUSED
    assert all(0 <= value < 1 << 64 for value in found.values())
    return ACCEPTED if found else REFUSED_FIRST


# --- TCP connections and transmit queues ------------------------------------------------------------------------------


def _connection(chance: random.Random) -> bytes:
    family, length = chance.choice(((socket.AF_INET, 4), (socket.AF_INET6, 16), (0, 16)))
    addresses = [chance.randbytes(length), chance.randbytes(length), b"\x7f\0\0\1" + bytes(length - 4)]
    source, peer = chance.choice(addresses), chance.choice(addresses)
    head = struct.pack(
        "=BBBBHH16s16sI8xIIIII", family, 1, 0, 0, 1, 2, source, peer, 0, 0, 0, 0, 0, chance.getrandbits(32)
    )
    information = chance.randbytes(chance.choice((0, 104, 192, 216, 232, 248)))
    return head + _attribute(chance, sockets.TCP_INFO, information)


def _queue(chance: random.Random) -> bytes:
    parent = chance.choice((sockets.ROOT, sockets.ROOT, 0, 0x10001))
    inner = _attribute(chance, chance.choice((1, sockets.QUEUE)), chance.randbytes(chance.choice((0, 16, 20, 20))))
    head = struct.pack("=BxHiIII", 0, 0, chance.randrange(1, 9), 1, parent, 0)
    return head + _attribute(chance, 1, b"tbf\0") + _attribute(chance, sockets.STATISTICS | NESTED, inner)


def _make_sockets(chance: random.Random) -> bytes:
    """Return the parts of one response, each after its length in two bytes. The first byte says what is asked for."""
    queues = chance.random() < 0.5
    kind, make = (sockets.NEW_QDISC, _queue) if queues else (sockets.SOCK_DIAG_BY_FAMILY, _connection)
    parts = []
    for _ in range(chance.randrange(1, 4)):
        part = b""
        for _ in range(chance.randrange(4)):
            payload = make(chance)
            if chance.random() < 0.05:
                payload = payload[: chance.randrange(len(payload))]
            part += _message(chance, kind, netlink.MULTI, chance.choice((1, 1, 1, 1, 2)), payload)
        parts.append(part)
    if chance.random() < 0.1:
        code = chance.choice((-1, -2, -22, 5))
        parts.append(_message(chance, sockets.ERROR, 0, 1, struct.pack("=i", code)[: chance.choice((4, 4, 2))]))
    parts += [_message(chance, sockets.DONE, netlink.MULTI, sequence, bytes(4)) for sequence in (1, 2)]
    data = bytes([queues]) + b"".join(struct.pack("=H", len(part)) + part for part in parts)
    return mutate.octets(chance, data) if chance.random() < 0.1 else data


class _Answers:
    """Kernel end of a socket that returns the parts of a response one by one."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def settimeout(self, seconds: float) -> None:
        """Ignore the timeout."""

    def send(self, data: bytes) -> None:
        """Ignore the request."""

    def recv_into(self, buffer: bytearray) -> int:
        if len(self._data) < 2:
            raise TimeoutError("timed out")
        (length,) = struct.unpack_from("=H", self._data)
        part, self._data = self._data[2 : 2 + length], self._data[2 + length :]
        buffer[: len(part)] = part
        return len(part)

    def close(self) -> None:
        """Do nothing."""


def _parse_sockets(data: bytes) -> str:
    if not data:
        return REFUSED_FIRST
    kernel = _Answers(data[1:])
    client = sockets.Netlink(lambda: cast(socket.socket, kernel))
    try:
        if data[0]:
            queues = client.queues()
            assert all(one.backlog_bytes >= 0 for one in queues)
            return ACCEPTED if queues else REFUSED_FIRST
        connections = client.connections()
    except SourceError:
        return REFUSED
    assert all(one.busy_us >= 0 and one.inode >= 0 for one in connections)
    return ACCEPTED if connections else REFUSED_FIRST


TARGETS = (
    Target(
        "netlink-sockets",
        _make_sockets,
        _parse_sockets,
        (
            "agent.sources.network.sockets:parse_connection",
            "agent.sources.network.sockets:parse_queue",
            "agent.sources.network.netlink:attributes",
            "agent.sources.network.sockets:Netlink._messages",
            "agent.sources.network.sockets:Netlink._refused",
            "agent.sources.network.sockets:Netlink.queues",
            "agent.sources.network.sockets:Netlink.connections",
        ),
    ),
    Target(
        "netlink-rdma",
        _make_rdma,
        _parse_rdma,
        (
            "agent.sources.network.netlink:messages",
            "agent.sources.network.netlink:attributes",
            "agent.sources.rdma.netlink:parse_device",
            "agent.sources.rdma.netlink:parse_namespace_mode",
            "agent.sources.rdma.netlink:parse_statistics",
            "agent.sources.rdma.netlink:Shape",
            "agent.sources.rdma.netlink:RdmaNetlink.list_devices",
            "agent.sources.rdma.netlink:RdmaNetlink.exclusive",
            "agent.sources.rdma.netlink:RdmaNetlink.statistics",
            "agent.sources.rdma.netlink:RdmaNetlink._answer",
            "agent.sources.rdma.netlink:RdmaNetlink._receive",
            "agent.sources.rdma.netlink:RdmaNetlink._check",
        ),
    ),
    Target(
        "netlink-ethtool",
        _make_ioctl,
        _parse_ioctl,
        (
            "agent.sources.rdma.ethtool:Ethtool.read",
            "agent.sources.rdma.ethtool:Ethtool._count",
            "agent.sources.rdma.ethtool:Ethtool._read_names",
            "agent.sources.rdma.ethtool:parse_names",
        ),
    ),
    Target("ethtool-recorded", _make_recorded, _parse_recorded, ("agent.sources.rdma.ethtool:parse_recorded",)),
)
