"""Protocol of the controller's connections: uvicorn's HTTP/1.1 over h11, with a deadline for each step.

uvicorn alone limits only the size of a request's headers and the idle time (docs/adr/0034). Here the gate checks
each connection once a second and closes those that have exceeded a deadline.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Protocol

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from exporter.serving import limits

_quiet = logging.getLogger("exporter.serving.requests")
_quiet.setLevel(logging.ERROR)  # uvicorn logs each malformed request; they are counted instead

PEER = "gangwatch_peer"
"""Key in the ASGI scope's state: the peer (peers.py), or the name of the token's holder."""

UNIX_PEER = "uid:"
"""Prefix of the name of a unix socket's client; the user id follows it."""

_BYTES_ACKED = struct.Struct("=Q")
"""Format of the number of bytes that the client has acknowledged: the field tcpi_bytes_acked at byte 120 of struct
tcp_info (linux/tcp.h, since Linux 4.1)."""

PLACE = "gangwatch_place"
"""Key in the ASGI scope's state: the connection of the request, as registered at the gate."""


class Place(Protocol):
    """Interface to the gate, through which the protocol reports events of its connection."""

    peer: str

    def value(self, worth: int) -> None:
        """Set the priority of the connection, a value of ``Worth``."""

    def gone(self) -> None:
        """Remove the ended connection from the gate's table of connections."""

    def malformed(self) -> None:
        """Count a malformed request."""


class Worth(IntEnum):
    """Priority of a connection. At the limit of connections, the gate closes a connection of the lowest priority."""

    SILENT = 0  # no complete request received yet
    IDLE = 1  # between two requests
    ANSWERING = 2
    TOKEN = 3  # a request with the token is being answered


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol with deadlines. The gate creates it and calls ``look`` once a second."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        place: Place,
        admits: Callable[[Any], object],
    ) -> None:
        super().__init__(config, server_state, {**app_state, PEER: place.peer, PLACE: place})
        self.logger = _quiet
        self._place = place
        self._admits = admits
        self._since_s = self.loop.time()
        """Monotonic time at which the current step of the connection began, for example the wait for the headers."""
        self._head_begun = True
        """Whether the timeout HEAD_SECONDS applies: for the first request from the start of the connection, for a later
        request from its first byte."""
        self._held_up: tuple[int, int, float] | None = None
        """Latest progress of a client that has not received the whole response: bytes acknowledged by the client, bytes
        queued, and the time of the measurement. None if no bytes are queued."""
        self._lingering_bytes: int | None = None
        """Number of bytes that may still be read of a request that was answered early; None otherwise."""

    # --- asyncio -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family == socket.AF_UNIX:
            pid, uid, _ = struct.unpack("=iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            self.client = (f"{UNIX_PEER}{uid}", pid)  # no TCP client has such an address
        session = transport.get_extra_info("ssl_object")
        if session is not None and not self._admits(session):
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._lingering_bytes is not None:
            self._lingering_bytes -= len(data)
            if self._lingering_bytes < 0:
                self.transport.abort()
            return
        if self.transport.is_closing():
            return
        now_s = self.loop.time()
        state, cycle = self.conn.their_state, self.cycle
        super().data_received(data)
        after = self.conn.their_state
        if self.cycle is not cycle or after is not state:
            self._since_s = now_s
        if after is h11.IDLE and not self._head_begun:
            self._head_begun, self._since_s = True, now_s
        elif after is not h11.IDLE:
            self._head_begun = False

    def connection_lost(self, exc: Exception | None) -> None:
        self._place.gone()
        super().connection_lost(exc)

    # --- uvicorn -----------------------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        unread = self.conn.their_state is h11.SEND_BODY
        super().on_response_complete()
        if unread and not self.transport.is_closing():
            # The client still sends unread input: send the response, but accept no other request.
            self._lingering_bytes = limits.LINGER_BYTES
            self._since_s = self.loop.time()
        elif self.conn.their_state is h11.IDLE:
            self._head_begun, self._since_s = bool(self.conn.trailing_data[0]), self.loop.time()

    def send_400_response(self, msg: str) -> None:
        self._place.malformed()
        if self._give_up():
            try:
                super().send_400_response(msg)
            except h11.LocalProtocolError:
                # The response to HEAD has no body, but uvicorn would send one: its head is already written.
                self.transport.close()

    def _give_up(self) -> bool:
        """Discard the application's response. Return whether an error response can be sent instead."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            # As uvicorn does after a disconnect: further output of the application is dropped.
            cycle.disconnected = True
            cycle.message_event.set()
            self.flow.resume_writing()
            if cycle.response_started:  # a partial response must not look complete
                self.transport.abort()
                return False
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return False
        return True

    # --- the gate ----------------------------------------------------------------------------------------------------

    def look(self, now_s: float) -> str:
        """Close the connection if it has exceeded a deadline. Return the reason, which a metric counts; otherwise
        ''."""
        transport: asyncio.Transport | None = self.transport
        if transport is None:  # the TLS handshake has a separate deadline
            return ""
        if self._has_stalled(now_s):
            transport.abort()
            return "send"
        if transport.is_closing():
            return ""
        if self._lingering_bytes is not None:
            if now_s - self._since_s > limits.LINGER_SECONDS:
                transport.close()
            return ""
        state = self.conn.their_state
        if state is h11.IDLE and self._head_begun and now_s - self._since_s > limits.HEAD_SECONDS:
            self._time_out()
            return "head"
        if state is h11.SEND_BODY and not self.flow.read_paused and now_s - self._since_s > limits.BODY_SECONDS:
            self._time_out()
            return "body"
        return ""

    def _has_stalled(self, now_s: float) -> bool:
        """Return whether the client reads the response too slowly."""
        waiting: int = self.transport.get_write_buffer_size()
        if not waiting:
            self._held_up = None
            return False
        taken = _taken(self.transport.get_extra_info("socket"))
        if self._held_up is None or taken - self._held_up[0] >= min(limits.LEAST_SENT_BYTES, self._held_up[1]):
            self._held_up = taken, waiting, now_s
        return now_s - self._held_up[2] > limits.SEND_SECONDS

    def _time_out(self) -> None:
        """Send 408 if that is still possible, and close."""
        if self._give_up():
            body = b"the request was not complete in time\n"
            self.transport.write(
                b"HTTP/1.1 408 Request Timeout\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
                b"content-length: %d\r\n\r\n%b" % (len(body), body)
            )
            self.transport.close()


def _taken(connection: socket.socket) -> int:
    """Return how many bytes the client's kernel has acknowledged; 0 if unknown."""
    try:
        (acknowledged,) = _BYTES_ACKED.unpack_from(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192), 120)
    except (OSError, struct.error):
        return 0
    return int(acknowledged)
