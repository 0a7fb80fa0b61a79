"""Netlink clients of one network namespace: all TCP connections with their ``tcp_info``, and the transmit queues.

Messages: sock_diag(7) and include/uapi/linux/inet_diag.h; RTM_GETQDISC in rtnetlink(7) and
include/uapi/linux/gen_stats.h; ``struct tcp_info`` in include/uapi/linux/tcp.h. Neither request needs privileges in the
caller's own namespace.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from agent.schema.errors import SourceError, UnsupportedError
from agent.sources.network.netlink import HEADER, attributes, messages

NETLINK_ROUTE, NETLINK_SOCK_DIAG = 0, 4
SOCK_DIAG_BY_FAMILY = 20
GET_QDISC, NEW_QDISC = 38, 36
DUMP_REQUEST = 0x301
"""Flags of a request for all objects: NLM_F_REQUEST and NLM_F_DUMP."""
ERROR, DONE = 2, 3
TCP_INFO = 2
"""Attribute INET_DIAG_INFO, with the connection's ``struct tcp_info``."""
STATISTICS, QUEUE = 7, 3
"""Attribute TCA_STATS2, and in it TCA_STATS_QUEUE (``struct gnet_stats_queue``)."""
ROOT = 0xFFFFFFFF
"""Parent of an interface's outermost queueing discipline (TC_H_ROOT). It counts the packets of those inside it."""
CONNECTED = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 8
"""Mask of the TCP states in which data may be sent or still wait: ESTABLISHED, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT."""

_INT = struct.Struct("=i")
_DIAG_REQUEST = struct.Struct("=BBBBI48x")  # inet_diag_req_v2: family, protocol, extensions, padding, states
_DIAG = struct.Struct("=BBBBHH16s16sI8xIIIII")  # inet_diag_msg
_TC = struct.Struct("=BxHiIII")  # tcmsg: family, interface, handle, parent, info
_QUEUE = struct.Struct("=IIIII")  # packets and bytes that wait, drops, requeues, overlimits
_BUSY = struct.Struct("=QQQ")  # tcpi_busy_time, tcpi_rwnd_limited, tcpi_sndbuf_limited, in microseconds
_SENT = struct.Struct("=QQ")  # tcpi_bytes_sent, tcpi_bytes_retrans
_BUSY_OFFSET, _SENT_OFFSET = 168, 200

BUFFER_BYTES = 1 << 16
TIMEOUT_SECONDS = 1.0
MOST_MESSAGES = 1 << 16
"""Maximum number of messages of one dump. A machine with more connections is read in part."""


class Connection(NamedTuple):
    """Totals of one TCP connection with another host, since it was opened."""

    inode: int
    """Inode of the socket, as in the link targets of /proc/PID/fd."""
    sent_bytes: int
    retransmitted_bytes: int
    busy_us: int
    """Time in which sent data was not yet acknowledged, without the time in which the receiver's window was full."""


def parse_connection(data: bytes | bytearray, begin: int, end: int) -> Connection | None:
    """Return the connection in one message of a sock_diag dump.

    Return None for a connection within the host, and if the kernel is too old to count (before Linux 4.19). Raise
    SourceError if the message is malformed.
    """
    if end - begin < _DIAG.size:
        raise SourceError(f"sock_diag: message of only {end - begin} bytes")
    family, _, _, _, _, _, source, peer, _, _, _, _, _, inode = _DIAG.unpack_from(data, begin)
    length = 4 if family == socket.AF_INET else 16
    if source[:length] == peer[:length] or ipaddress.ip_address(peer[:length]).is_loopback:
        return None
    for kind, at, until in attributes(data, begin + _DIAG.size, end):
        if kind == TCP_INFO and until - at >= _SENT_OFFSET + _SENT.size:
            busy, window_full, _ = _BUSY.unpack_from(data, at + _BUSY_OFFSET)
            sent, again = _SENT.unpack_from(data, at + _SENT_OFFSET)
            return Connection(inode, sent, again, max(0, busy - window_full))
    return None


class Queue(NamedTuple):
    """State of the transmit queue of one interface."""

    interface: int
    """Index of the interface."""
    backlog_bytes: int
    """Bytes that wait now."""


def parse_queue(data: bytes | bytearray, begin: int, end: int) -> Queue | None:
    """Return the queue in one message of a dump of queueing disciplines; None if it is inside another one.

    Raise SourceError if the message is malformed.
    """
    if end - begin < _TC.size:
        raise SourceError(f"rtnetlink: message of only {end - begin} bytes")
    _, _, interface, _, parent, _ = _TC.unpack_from(data, begin)
    if parent != ROOT:
        return None
    for kind, at, until in attributes(data, begin + _TC.size, end):
        if kind != STATISTICS:
            continue
        for inner, first, last in attributes(data, at, until):
            if inner == QUEUE and last - first >= _QUEUE.size:
                return Queue(interface, _QUEUE.unpack_from(data, first)[1])
    return None


class Netlink:
    """Client of one netlink protocol in the namespace in which its socket was opened. It makes one request at a time.

    connector: returns the open socket; called again after an error.
    """

    def __init__(self, connector: Callable[[], socket.socket]) -> None:
        self._connector = connector
        self._socket: socket.socket | None = None
        self._buffer = bytearray(BUFFER_BYTES)
        self._sequence = 0

    def connections(self) -> list[Connection]:
        """Return the TCP connections with other hosts. Raise SourceError or UnsupportedError if the kernel refuses."""
        found: list[Connection] = []
        for family in (socket.AF_INET, socket.AF_INET6):
            body = _DIAG_REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (TCP_INFO - 1), 0, CONNECTED)
            for begin, end in self._dump(SOCK_DIAG_BY_FAMILY, body, SOCK_DIAG_BY_FAMILY):
                if (one := parse_connection(self._buffer, begin, end)) is not None:
                    found.append(one)
        return found

    def queues(self) -> list[Queue]:
        """Return the outermost transmit queue of each interface that has one."""
        found: list[Queue] = []
        for begin, end in self._dump(GET_QDISC, _TC.pack(0, 0, 0, 0, 0, 0), NEW_QDISC):
            if (one := parse_queue(self._buffer, begin, end)) is not None:
                found.append(one)
        return found

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _dump(self, kind: int, body: bytes, expected: int) -> Iterator[tuple[int, int]]:
        """Send a request, and yield begin and end of the payload of each message of the response."""
        try:
            yield from self._messages(kind, body, expected)
        except OSError as error:
            self.close()
            raise SourceError(f"netlink: {error}") from None
        except SourceError:
            self.close()  # the rest of the response would be taken for that of the next request
            raise

    def _messages(self, kind: int, body: bytes, expected: int) -> Iterator[tuple[int, int]]:
        if self._socket is None:
            self._socket = self._connector()
            self._socket.settimeout(TIMEOUT_SECONDS)
        self._sequence = (self._sequence + 1) & 0xFFFFFFFF
        self._socket.send(HEADER.pack(HEADER.size + len(body), kind, DUMP_REQUEST, self._sequence, 0) + body)
        for _ in range(MOST_MESSAGES):
            length = self._socket.recv_into(self._buffer)
            if length < HEADER.size:
                raise SourceError(f"netlink: response of only {length} bytes")
            for message in messages(self._buffer, length):
                if message.sequence != self._sequence:
                    continue
                if message.kind == DONE:
                    return
                if message.kind == ERROR:
                    self._refused(message.begin, message.end)
                if message.kind == expected:
                    yield message.begin, message.end
        raise SourceError(f"netlink: more than {MOST_MESSAGES} messages in one response")

    def _refused(self, begin: int, end: int) -> None:
        code = -_INT.unpack_from(self._buffer, begin)[0] if end - begin >= _INT.size else 0
        text = f"netlink: {os.strerror(code) if code > 0 else f'error {-code}'}"
        if code in (errno.ENOENT, errno.EOPNOTSUPP, errno.EINVAL):
            raise UnsupportedError(f"{text}; the kernel lacks tcp_diag or the queueing disciplines")
        raise SourceError(text)
