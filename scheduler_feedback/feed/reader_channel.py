"""Channel between a controller and one of its reader processes: a ring in shared memory, and a socket pair.

The reader process writes entries (messages of agents, and events) into the ring. Then it sends a packet with their
place over the socket, which also wakes the controller. The controller copies the entries and sends how far it has read.
If the ring is full, the process waits, so messages stay in the sockets of the agents. Packets also carry commands in
the other direction. If one side ends, the other side receives the end of the socket.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec

RING_BYTES = 16 * 1024 * 1024
"""Size of a ring in bytes: 3,000 frames, which arrive during a long tick of a controller with 12,500 nodes. Larger than
the largest message (``frames_response.MOST_MESSAGE_BYTES``) and the entries that one read adds."""

PACKET_BYTES = 64 * 1024
"""Largest packet. A socket of the kernel's default size accepts several."""

NAMES_A_PACKET = 128
"""Maximum number of node names in one command (a name has at most 253 bytes)."""

FRAME, LAYOUT, EVENT = 0, 1, 2
"""Kinds of entries. FRAME is any message that does not look like a layout."""

_ENTRY = struct.Struct("<BIIQ")  # kind, length, number of the connection, monotonic time of the receipt
_PLACE = struct.Struct("<QI")  # position in the ring, counted from its first byte ever, and number of bytes


class EndOfChannelError(Exception):
    """The other side of the channel has ended."""


# --- events of a reader process ---------------------------------------------------------------------------------------


class StreamChanged(msgspec.Struct, frozen=True, tag=True):
    """Fields of a node's ``Stream`` that the reader process decides. The numbers count from the process's start."""

    node: str
    known_ns: int
    every: int
    malformed: int
    pauses: int
    identity_refused: int
    complaint: str


class Opened(msgspec.Struct, frozen=True, tag=True):
    """A connection is open, and its first message follows."""

    connection: int
    node: str
    certificate_ends: float | None


class Closed(msgspec.Struct, frozen=True, tag=True):
    """A connection was closed."""

    connection: int


class Reached(msgspec.Struct, frozen=True, tag=True):
    """A node's agent is reached at this address."""

    node: str
    address: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A bug that one agent triggered. text: the traceback."""

    subject: str
    text: str


class Logged(msgspec.Struct, frozen=True, tag=True):
    """A line for the controller's log. level: as in ``logging``."""

    logger: str
    level: int
    text: str


class Busy(msgspec.Struct, frozen=True, tag=True):
    """Number N for which the process has time for each N-th frame only (``FrameRate.every``)."""

    every: int


ReaderEvent = StreamChanged | Opened | Closed | Reached | Failed | Logged | Busy


# --- commands of the controller ---------------------------------------------------------------------------------------


class Start(msgspec.Struct, frozen=True, tag=True):
    """Begin to read. share, shares: the process reads the nodes of share number `share` of `shares`."""

    folder: str
    wanted: tuple[str, ...]
    credentials: dict[str, str | None] | None
    """Fields of ``Credentials``; None for the system's authorities."""
    share: int
    shares: int


class Used(msgspec.Struct, frozen=True, tag=True):
    """The controller has read the ring up to this position."""

    position: int


class Accept(msgspec.Struct, frozen=True, tag=True):
    """The connection has sent a valid frame."""

    connection: int


class Refuse(msgspec.Struct, frozen=True, tag=True):
    """Close a connection because of an invalid message. kind: 'version', 'frame' or 'bug'."""

    connection: int
    kind: str
    complaint: str


class Rate(msgspec.Struct, frozen=True, tag=True):
    """Ask agents for each `every`-th frame."""

    every: int


class Watch(msgspec.Struct, frozen=True, tag=True):
    """Nodes that send one message for `every` frames at most. first: the nodes of earlier commands are no longer
    watched."""

    nodes: tuple[str, ...]
    first: bool
    every: int = 1


class Interval(msgspec.Struct, frozen=True, tag=True):
    """Interval of an agent's frames in seconds."""

    node: str
    seconds: float


class Order(msgspec.Struct, frozen=True, tag=True):
    """Send an order (``leased_orders``) to the agent, if it accepts such orders."""

    connection: int
    line: bytes


Command = Start | Used | Accept | Refuse | Rate | Watch | Interval | Order

_encode = msgspec.msgpack.Encoder().encode
_decode_event: msgspec.msgpack.Decoder[ReaderEvent] = msgspec.msgpack.Decoder(ReaderEvent)
_decode_command: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)


class ReaderEnd:
    """The reader process's end. memory: descriptor of the ring's memory. pair: socket of kind SOCK_SEQPACKET."""

    def __init__(self, memory: int, pair: socket.socket) -> None:
        self._pair = pair
        pair.setblocking(False)
        self._map = mmap.mmap(memory, 0)
        self._ring, self._size = memoryview(self._map), len(self._map)
        self._written = self._used = 0
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._commands: deque[Command] = deque()

    def fileno(self) -> int:
        return self._pair.fileno()

    def close(self) -> None:
        """Close this end."""
        self._ring.release()
        self._map.close()
        self._pair.close()

    @property
    def full(self) -> bool:
        """Whether so many entries wait that they must be flushed before more are added."""
        return self._waiting_bytes >= self._size // 8

    def add(self, kind: int, connection: int, received_ns: int, message: bytes) -> None:
        """Add a message. It is sent by the next ``flush``."""
        self._waiting += _ENTRY.pack(kind, len(message), connection, received_ns), message
        self._waiting_bytes += _ENTRY.size + len(message)

    def add_event(self, event: ReaderEvent) -> None:
        """Add an event, after the messages that were added before."""
        self.add(EVENT, 0, 0, _encode(event))

    def flush(self) -> None:
        """Send all added entries; wait while the ring has no room. Raises EndOfChannelError."""
        if not self._waiting:
            return
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        size, begun = 0, 0
        for place in range(0, len(waiting), 2):  # an entry's head and its bytes
            size += len(waiting[place]) + len(waiting[place + 1])
            if size >= self._size // 8:
                self._send(b"".join(waiting[begun : place + 2]))
                size, begun = 0, place + 2
        if size:
            self._send(b"".join(waiting[begun:]))

    def _send(self, data: bytes) -> None:
        """Write whole entries into the ring and send their place. An entry must have less than half of the ring."""
        while len(data) > self._size - (self._written - self._used):
            self._wait(select.POLLIN)
        at = self._written % self._size
        first = self._size - at
        if len(data) <= first:
            self._ring[at : at + len(data)] = data
        else:
            self._ring[at:], self._ring[: len(data) - first] = data[:first], data[first:]
        place = _PLACE.pack(self._written, len(data))
        self._written += len(data)
        while True:
            try:
                self._pair.send(place)
                return
            except BlockingIOError:
                self._wait(select.POLLIN | select.POLLOUT)
            except OSError:
                raise EndOfChannelError from None

    def commands(self) -> Iterator[Command]:
        """Yield the received commands, without waiting. Raises EndOfChannelError."""
        self._receive()
        while self._commands:
            yield self._commands.popleft()

    def wait_for_command(self) -> Command:
        """Return the next command. Raises EndOfChannelError."""
        while not self._commands:
            self._wait(select.POLLIN)
        return self._commands.popleft()

    def _wait(self, events: int) -> None:
        poll = select.poll()
        poll.register(self._pair, events)
        poll.poll()
        self._receive()

    def _receive(self) -> None:
        while (packet := _received(self._pair)) is not None:
            command = _decode_command.decode(packet)
            if isinstance(command, Used):
                self._used = command.position
            else:
                self._commands.append(command)


class ControllerEnd:
    """The controller's end. memory, other: descriptors for the reader process; close them once it has started."""

    def __init__(self, size: int) -> None:
        """Create the memory and the sockets. Raises OSError."""
        self.memory = os.memfd_create("gangwatch-feed", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.memory, size)
            self._map = mmap.mmap(self.memory, size)
            self._pair, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            os.close(self.memory)
            raise
        self.other = other
        self._pair.setblocking(False)
        self._size = size
        self._read = 0
        self._unsent: deque[bytes] = deque()

    def fileno(self) -> int:
        return self._pair.fileno()

    def started(self) -> None:
        """Close the descriptors of the other end."""
        os.close(self.memory)
        self.other.close()

    def close(self) -> None:
        """Close this end. The process ends then."""
        self._pair.close()
        self._map.close()

    def send(self, command: Command) -> None:
        """Send a command. If the socket is full, it is sent later, by another call or by ``push``."""
        self._unsent.append(_encode(command))
        self.push()

    def push(self) -> None:
        """Send the commands that are not sent yet, as far as the socket accepts them."""
        while self._unsent:
            try:
                self._pair.send(self._unsent[0])
            except BlockingIOError:
                return
            except OSError:
                self._unsent.clear()  # the process has ended, which the next ``take`` reports
                return
            self._unsent.popleft()

    def take(self) -> list[tuple[int, int, int, bytes]] | None:
        """Return the entries of the next packet: kind, connection, time of the receipt, and bytes. None without one.

        Raises EndOfChannelError at the end of the channel, and if the packet is invalid.
        """
        packet = _received(self._pair)
        if packet is None:
            return None
        try:
            position, length = _PLACE.unpack(packet)
            if position != self._read or length > self._size:
                raise EndOfChannelError
            at = position % self._size
            data = self._map[at : at + length]
            if len(data) < length:
                data += self._map[: length - len(data)]
            self._read += length
            self.send(Used(self._read))
            return list(_entries(data))
        except struct.error:
            raise EndOfChannelError from None


def decode_event(data: bytes) -> ReaderEvent:
    """Decode an event. Raises msgspec.DecodeError."""
    return _decode_event.decode(data)


def _entries(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    at, head, unpack = 0, _ENTRY.size, _ENTRY.unpack_from
    while at < len(data):
        kind, length, connection, received_ns = unpack(data, at)
        at += head
        yield kind, connection, received_ns, data[at : at + length]
        at += length


def _received(pair: socket.socket) -> bytes | None:
    """Return the next packet; None if there is none yet. Raises EndOfChannelError."""
    try:
        packet: Any = pair.recv(PACKET_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        raise EndOfChannelError from None
    if not packet:
        raise EndOfChannelError
    return bytes(packet)
