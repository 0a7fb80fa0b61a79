"""Fake of the kernel's end of an RDMA netlink socket, at the level of raw messages.

``FakeRdma.connect`` replaces ``agent.sources.rdma.netlink.connect``: it returns one end of a datagram socket pair, and
a thread answers on the other end with the byte layout of nldev.c. All values are invented.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from agent.sources.rdma import netlink

NESTED = 0x8000


def attribute(kind: int, payload: bytes) -> bytes:
    """Return an encoded attribute, padded to four bytes."""
    raw = struct.pack("=HH", 4 + len(payload), kind) + payload
    return raw + bytes(-len(raw) % 4)


def message(kind: int, flags: int, sequence: int, payload: bytes) -> bytes:
    return netlink.HEADER.pack(netlink.HEADER.size + len(payload), kind, flags, sequence, 4711) + payload


def statistics(counters: Sequence[tuple[str, int]], index: int = 0, port: int = 1, *, padded: bool = False) -> bytes:
    """Return the payload of a STAT_GET response. padded: add padding attributes, for machines that need alignment."""
    entries = b"".join(
        attribute(
            netlink.COUNTER | NESTED,
            attribute(netlink.COUNTER_NAME, name.encode() + b"\0")
            + (attribute(0, b"") if padded else b"")
            + attribute(netlink.COUNTER_VALUE, struct.pack("=Q", value)),
        )
        for name, value in counters
    )
    return (
        attribute(netlink.DEVICE_INDEX, struct.pack("=I", index))
        + attribute(netlink.PORT_INDEX, struct.pack("=I", port))
        + attribute(netlink.COUNTERS | NESTED, entries)
    )


def device(name: str, index: int) -> bytes:
    """Return the payload of a device's message in a response to GET."""
    return attribute(netlink.DEVICE_INDEX, struct.pack("=I", index)) + attribute(
        netlink.DEVICE_NAME, name.encode() + b"\0"
    )


def error(code: int, request: bytes) -> bytes:
    return struct.pack("=i", -code) + request[:16]


@dataclass
class FakeRdma:
    """Fake RDMA kernel. counters: of each port, by device. silent: never respond. refuses: errno of every call."""

    counters: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    silent: bool = False
    refuses: int = 0
    exclusive: bool = False
    stale: int = 0
    """Number of responses to old requests that precede the right one."""
    indexes: dict[str, int] = field(default_factory=dict)
    asked: int = 0
    _threads: list[threading.Thread] = field(default_factory=list)

    def connect(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        thread = threading.Thread(target=self._serve, args=(theirs,), daemon=True)
        thread.start()
        self._threads.append(thread)
        return ours

    def index_of(self, name: str) -> int:
        return self.indexes.setdefault(name, len(self.indexes))

    def _serve(self, end: socket.socket) -> None:
        # A client that has given up (old response first, error) has closed its end: drop the rest.
        with end, contextlib.suppress(ConnectionError):
            while request := end.recv(4096):
                self.asked += 1
                if self.silent:
                    continue
                for answer in self._answers(request):
                    end.send(answer)

    def _answers(self, request: bytes) -> list[bytes]:
        _, kind, _, sequence, _ = netlink.HEADER.unpack_from(request)
        if self.refuses:
            return [message(netlink.ERROR, 0, sequence, error(self.refuses, request))]
        before = [message(kind, 0, sequence - 1, b"") for _ in range(self.stale)]
        if kind == netlink.DEVICE_GET:
            listed = b"".join(
                message(kind, netlink.MULTI, sequence, device(name, self.index_of(name))) for name in self.counters
            )
            return [*before, listed, message(netlink.DONE, netlink.MULTI, sequence, struct.pack("=i", 0))]
        if kind == netlink.SYSTEM_GET:
            mode = attribute(netlink.NAMESPACE_MODE, bytes([not self.exclusive]))
            return [*before, message(kind, 0, sequence, mode)]
        asked = {
            name: struct.unpack_from("=I", request, begin)[0]
            for name, begin, _ in netlink.attributes(request, netlink.HEADER.size, len(request))
        }
        for name, counters in self.counters.items():
            if self.index_of(name) == asked.get(netlink.DEVICE_INDEX):
                payload = statistics(counters, asked[netlink.DEVICE_INDEX], asked[netlink.PORT_INDEX])
                return [*before, message(kind, 0, sequence, payload)]
        return [message(netlink.ERROR, 0, sequence, error(errno.EINVAL, request))]
