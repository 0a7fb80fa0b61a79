"""Identification of the peer of a connection, before it has sent anything.

All local users have the address 127.0.0.1, so on loopback a peer is the user who owns the client's socket. The
kernel reports the user over NETLINK_SOCK_DIAG (sock_diag(7)) in microseconds. A kernel without it reports the user
in /proc/net/tcp. Elsewhere a peer is an address. For IPv6 it is the first 64 bits of the address, because one host
usually has a whole /64 network.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import struct
import time
from pathlib import Path

from exporter.serving.descriptors import exhausted

UNKNOWN_LOCAL = "loopback"
"""Peer name of a local client with an unknown user, usually because it has already closed its socket."""

MOST_FILE_READS_PER_SECOND = 20
"""Maximum rate of reads of /proc/net/tcp, which has a line per socket of the machine."""

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 4, 20, 1
"""Constants from linux/netlink.h and linux/sock_diag.h."""

_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI")
"""Start of struct inet_diag_req_v2 (linux/inet_diag.h), up to its socket id: family, protocol, extensions, states."""

_SOCKET_ID = struct.Struct("!HH16s16s")
"""struct inet_diag_sockid up to the interface: ports and addresses in network order; 12 bytes follow it."""

_ANY_INTERFACE, _NO_COOKIE = b"\0" * 4, b"\xff" * 8
_USER = struct.Struct("=II")
"""The last two fields of struct inet_diag_msg: uid, inode."""

_MESSAGE_BYTES = _HEADER.size + 4 + _SOCKET_ID.size + 12 + 12 + _USER.size

_log = logging.getLogger(__name__)


class Peers:
    """Identifier of peers. Only one thread may use it."""

    def __init__(self) -> None:
        self._diag: socket.socket | None = None
        self._diag_works = True
        self._file_reads: list[float] = []

    def of(self, connection: socket.socket, address: object) -> str:
        """Return the peer: 'uid 1000', an address, an IPv6 network, or UNKNOWN_LOCAL. address: the result of accept."""
        if connection.family == socket.AF_UNIX:
            pid_uid_gid = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            return f"uid {struct.unpack('=iII', pid_uid_gid)[1]}"
        assert isinstance(address, tuple)
        try:
            host = plain(str(address[0]))
        except ValueError:
            return str(address[0])
        if not host.is_loopback:
            return of_address(host)
        try:
            user = self._user(connection, host, int(address[1]))
        except OSError:
            user = None
        return UNKNOWN_LOCAL if user is None else f"uid {user}"

    def close(self) -> None:
        """Close the netlink socket."""
        if self._diag is not None:
            self._diag.close()
            self._diag = None

    # --- the user of a local socket ----------------------------------------------------------------------------------

    def _user(self, connection: socket.socket, host: _Host, port: int) -> int | None:
        ours, our_port = connection.getsockname()[:2]
        if self._diag_works:
            try:
                return self._ask(host, port, plain(ours), our_port)
            except OSError as error:
                self.close()
                if not _is_transient(error):
                    self._diag_works = False
                    _log.info(
                        "sock_diag is not available, reading users of local connections from /proc/net/tcp: %s", error
                    )
        return self._look_up(host, port, plain(ours), our_port)

    def _ask(self, host: _Host, port: int, ours: _Host, our_port: int) -> int | None:
        """Return the user who owns the client's socket (host, port) of a connection to (ours, our_port); None if it is
        closed."""
        if self._diag is None:
            self._diag = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
            self._diag.settimeout(1.0)
        family = socket.AF_INET if host.version == 4 else socket.AF_INET6
        wanted = _SOCKET_ID.pack(port, our_port, host.packed.ljust(16, b"\0"), ours.packed.ljust(16, b"\0"))
        request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0xFFFFFFFF) + wanted + _ANY_INTERFACE + _NO_COOKIE
        self._diag.send(_HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0) + request)
        message = self._diag.recv(4096)
        _, kind, *_ = _HEADER.unpack_from(message)
        if kind != _SOCK_DIAG_BY_FAMILY:  # NLMSG_ERROR
            (number,) = struct.unpack_from("=i", message, _HEADER.size)
            if -number == 2:  # ENOENT: no such socket any more, or a kernel without tcp_diag, which says the same
                return self._look_up(host, port, ours, our_port)
            raise OSError(-number, os.strerror(-number))
        if len(message) < _MESSAGE_BYTES:
            return None
        uid, inode = _USER.unpack_from(message, _MESSAGE_BYTES - _USER.size)
        # A socket without an inode was closed by its process: the kernel then reports user 0.
        if not inode or message[_HEADER.size + 4 :][: _SOCKET_ID.size] != wanted:
            return None
        return int(uid)

    def _look_up(self, host: _Host, port: int, ours: _Host, our_port: int) -> int | None:
        now = time.monotonic()
        self._file_reads = [at for at in self._file_reads if now - at < 1.0]
        if len(self._file_reads) >= MOST_FILE_READS_PER_SECOND:
            return None
        self._file_reads.append(now)
        wanted = f" {_in_hexadecimal(host)}:{port:04X} {_in_hexadecimal(ours)}:{our_port:04X} "
        table = Path("/proc/net/tcp" if host.version == 4 else "/proc/net/tcp6").read_text()
        place = table.find(wanted)
        if place < 0:
            return None
        # st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode (proc(5))
        _, _, _, _, uid, _, inode, *_ = table[place + len(wanted) :].partition("\n")[0].split()
        return int(uid) if inode != "0" else None


def reset(connection: socket.socket) -> None:
    """Reset the connection, so that the kernel releases it at once (SO_LINGER of 0, socket(7)). Raises OSError if the
    connection is already closed."""
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    finally:
        connection.close()


_Host = ipaddress.IPv4Address | ipaddress.IPv6Address


def plain(host: str) -> _Host:
    """Return the IP address without its IPv6 zone, and an IPv4-mapped address as IPv4.

    Raises ValueError if the address is malformed.
    """
    found = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped
    return found


def of_address(host: _Host) -> str:
    """Return the name of the peer with this address: the address itself, or its IPv6 network."""
    if host.version == 4:
        return str(host)
    return str(ipaddress.ip_network((host.packed[:8] + b"\0" * 8, 64)))


def _in_hexadecimal(host: _Host) -> str:
    """Return the address in the format of /proc/net/tcp: words of 32 bits in this machine's byte order."""
    words = struct.unpack(f"!{len(host.packed) // 4}I", host.packed)
    return "".join(f"{socket.htonl(word):08X}" for word in words)


def _is_transient(error: OSError) -> bool:
    return exhausted(error) or isinstance(error, TimeoutError)
