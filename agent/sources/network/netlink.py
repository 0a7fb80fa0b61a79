"""Parts of all netlink clients: messages, attributes, and the socket. See netlink(7).

what: name of the protocol in errors.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

from agent.schema.errors import SourceError, UnsupportedError

HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
ATTRIBUTE = struct.Struct("=HH")  # length with this header, type

_TYPE_MASK = 0x3FFF
"""Mask of the type of a netlink attribute. The two higher bits are the flags NLA_F_NESTED and NLA_F_NET_BYTEORDER."""


class Message(NamedTuple):
    """Header of one netlink message. begin, end: offsets of the message's payload in the buffer."""

    kind: int
    flags: int
    sequence: int
    begin: int
    end: int


def messages(data: bytes | bytearray | memoryview, length: int, what: str = "netlink") -> Iterator[Message]:
    """Yield the messages in the first `length` bytes. Raise SourceError if a message exceeds these bytes."""
    at = 0
    while length - at >= HEADER.size:
        size, kind, flags, sequence, _ = HEADER.unpack_from(data, at)
        if size < HEADER.size or size > length - at:
            raise SourceError(f"{what}: message of {size} bytes with only {length - at} bytes left")
        yield Message(kind, flags, sequence, at + HEADER.size, at + size)
        at += (size + 3) & ~3


def attributes(
    data: bytes | bytearray | memoryview, begin: int, end: int, what: str = "netlink"
) -> Iterator[tuple[int, int, int]]:
    """Yield (type, begin of payload, end of payload) of each attribute.

    Raise SourceError if an attribute is longer than the data left.
    """
    while end - begin >= ATTRIBUTE.size:
        size, kind = ATTRIBUTE.unpack_from(data, begin)
        if size < ATTRIBUTE.size or size > end - begin:
            raise SourceError(f"{what}: attribute of {size} bytes with only {end - begin} bytes left")
        yield kind & _TYPE_MASK, begin + ATTRIBUTE.size, begin + size
        begin += (size + 3) & ~3


def connect(protocol: int, what: str = "netlink") -> socket.socket:
    """Open a netlink socket in the calling thread's network namespace.

    Raise UnsupportedError if the kernel has no such protocol.
    """
    try:
        opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    except OSError as error:
        raise UnsupportedError(f"{what}: {error.strerror}") from None
    opened.bind((0, 0))
    return opened
