"""One connection of the controller's server: uvicorn's HTTP/1.1 over h11, with a deadline for each step.

uvicorn bounds the size of a request's head and how long a connection idles; everything else it waits for as long as
the client likes (docs/adr/0034). Here the gate looks at each connection once a second and ends those that are late.
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
_quiet.setLevel(logging.ERROR)  # uvicorn warns of each malformed request: they are counted instead

PEER = "gangwatch_peer"
"""In the ASGI scope's state: who asks (peers.py), or the name of the token's holder."""

UNIX_PEER = "uid:"
"""Begins the client of a connection by a unix socket, before its user's number."""

_BYTES_ACKED = struct.Struct("=Q")
"""tcpi_bytes_acked, at byte 120 of struct tcp_info (linux/tcp.h, since Linux 4.1)."""

PLACE = "gangwatch_place"
"""In the ASGI scope's state: the place of the connection that the request came by."""


class Place(Protocol):
    """The place that a connection has."""

    peer: str

    def value(self, worth: int) -> None:
        """Say what it is worth from now on."""

    def gone(self) -> None:
        """The connection is closed."""

    def malformed(self) -> None:
        """The connection brought what is no request."""


class Worth(IntEnum):
    """What a connection's place is worth: of those that must make room, the least goes first."""

    SILENT = 0  # nothing whole was received yet
    IDLE = 1  # between two requests
    ANSWERING = 2
    TOKEN = 3  # a request that carries the token is being answered


class BoundedProtocol(H11Protocol):
    """uvicorn's, watched. The gate makes it, and calls ``look`` once a second."""

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
        """When the step that is under way began."""
        self._head_begun = True
        """Whether a head is awaited that is overdue after HEAD_SECONDS: the first, or one of which bytes came."""
        self._held_up: tuple[int, int, float] | None = None
        """Where the client takes too little: bytes it had taken in all, bytes that waited, and when that was."""
        self._lingering_bytes: int | None = None
        """What may still come of a request that was answered already; None where it is not so."""

    # --- asyncio -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family == socket.AF_UNIX:
            pid, uid, _ = struct.unpack("=iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            self.client = (f"{UNIX_PEER}{uid}", pid)  # no address of a TCP client looks so
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
            # The client still sends what nobody reads: it may have its answer, and no other request.
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
                # The answer to a HEAD has no body, and uvicorn sends one: its head is written, and that is the answer.
                self.transport.close()

    def _give_up(self) -> bool:
        """Have nothing more sent by whoever answers now; whether an answer of ours can be sent instead."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            # As uvicorn does where the client has gone: what the app sends from now on is dropped.
            cycle.disconnected = True
            cycle.message_event.set()
            self.flow.resume_writing()
            if cycle.response_started:  # half of it must not pass for all of it
                self.transport.abort()
                return False
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return False
        return True

    # --- the gate ----------------------------------------------------------------------------------------------------

    def look(self, now_s: float) -> str:
        """End the connection where it is late; with what, for the count, or ''."""
        transport: asyncio.Transport | None = self.transport
        if transport is None:  # its TLS handshake is under way, which has a deadline of its own
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
        """Whether the client takes too little of what waits for it."""
        waiting: int = self.transport.get_write_buffer_size()
        if not waiting:
            self._held_up = None
            return False
        taken = _taken(self.transport.get_extra_info("socket"))
        if self._held_up is None or taken - self._held_up[0] >= min(limits.LEAST_SENT_BYTES, self._held_up[1]):
            self._held_up = taken, waiting, now_s
        return now_s - self._held_up[2] > limits.SEND_SECONDS

    def _time_out(self) -> None:
        """Say so where that is still possible, and close."""
        if self._give_up():
            body = b"the request does not end\n"
            self.transport.write(
                b"HTTP/1.1 408 Request Timeout\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
                b"content-length: %d\r\n\r\n%b" % (len(body), body)
            )
            self.transport.close()


def _taken(connection: socket.socket) -> int:
    """How many bytes the client's kernel has acknowledged; 0 where that is not known."""
    try:
        (acknowledged,) = _BYTES_ACKED.unpack_from(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192), 120)
    except (OSError, struct.error):
        return 0
    return int(acknowledged)
