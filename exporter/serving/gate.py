"""The gate of the controller's server: it accepts connections, limits them per peer, and closes late ones.

asyncio's listener would accept connections until no descriptors are left. The gate accepts every connection too,
since peers can't be distinguished in the kernel's queue. Then it checks its limits (`places`) and closes a
connection if one is exceeded.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterator

from agent.schema.peer_quota import NoPlaceError, Places
from agent.schema.sample import Sample
from exporter.serving import limits as bounds
from exporter.serving.descriptors import exhausted, most_connections
from exporter.serving.limits import Limits
from exporter.serving.peers import Peers, reset
from exporter.serving.protocol import BoundedProtocol, Worth
from exporter.serving.token_buckets import Buckets

ACCEPTED_AT_ONCE = 16
"""Maximum number of connections to accept in a row, before the event loop serves the open ones. Accepting this number
takes two milliseconds."""

ACCEPT_PAUSE_SECONDS = 0.2
"""Pause after accept(2) failed because there were no descriptors, and there was no connection to close."""

LOOK_SECONDS = 1.0
COMPLAIN_SECONDS = 60.0
"""Minimum interval of log lines about refusals, which are also counted."""

_log = logging.getLogger(__name__)


class Connection:
    """An accepted connection: first its TLS handshake, if there is TLS, then its HTTP protocol."""

    __slots__ = ("_gate", "handshake", "peer", "protocol")

    def __init__(self, gate: Gate, peer: str) -> None:
        self._gate = gate
        self.peer = peer
        self.handshake: asyncio.Task[None] | None = None
        self.protocol: BoundedProtocol | None = None

    def value(self, worth: int) -> None:
        """Set the priority of the connection, a value of protocol.Worth."""
        self._gate.places.value(self, worth)

    def gone(self) -> None:
        """Remove this connection, which has ended, from the gate's table."""
        self._gate.places.drop(self)

    def malformed(self) -> None:
        """Count a malformed request."""
        self._gate.refused["malformed"] += 1

    def abort(self) -> None:
        """Close the connection at once."""
        if self.protocol is not None and self.protocol.transport is not None:
            self.protocol.transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()


class Gate:
    """Listener on one socket, which uvicorn uses in place of asyncio's server.

    context: returns the TLS context of the next connection; None for plain HTTP. make: creates a connection's
    protocol.
    """

    def __init__(
        self,
        listener: socket.socket,
        limits: Limits,
        context: Callable[[], ssl.SSLContext | None],
        make: Callable[[Connection], BoundedProtocol],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._context = context
        self._make = make
        self._peers = Peers()
        self.places: Places[Connection] = Places(
            most_connections(limits.connections),
            limits.connections_each,
            worth_own=Worth.IDLE,
            worth_others=Worth.ANSWERING,
        )
        self._connects = Buckets(limits.connects_per_second)
        self._exempt = frozenset({"uid 0", f"uid {os.geteuid()}"})
        self._closed = False
        self._paused: asyncio.TimerHandle | None = None
        self._complained_s: dict[str, float] = {}
        self.refused: Counter[str] = Counter()
        """Number of connections that were refused or closed, by reason."""
        self.accepted = 0
        listener.setblocking(False)
        self._loop.add_reader(listener.fileno(), self._accept)
        self._looking = self._loop.call_later(LOOK_SECONDS, self._look)

    def measures(self) -> Iterator[Sample]:
        """Yield the metric samples of this gate."""
        yield "gangwatch_http_connections", (), float(len(self.places))
        yield "gangwatch_http_connections_limit", (), float(self.places.most)
        yield "gangwatch_http_peers", (), float(self.places.peers())
        yield "gangwatch_http_accepted_total", (), float(self.accepted)

    # --- uvicorn's interface -----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop accepting connections."""
        if self._closed:
            return
        self._closed = True
        self._looking.cancel()
        if self._paused is not None:
            self._paused.cancel()
        else:
            self._loop.remove_reader(self._listener.fileno())
        self._peers.close()
        for connection in self._connections():
            if connection.protocol is None:
                connection.abort()

    async def wait_closed(self) -> None:
        """Return at once: uvicorn waits for the connections."""

    def end(self) -> None:
        """Close all open connections."""
        for connection in self._connections():
            connection.abort()

    # --- accepting ---------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        for count in range(ACCEPTED_AT_ONCE):
            try:
                accepted, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # Without descriptors, accept(2) fails even if no client is waiting; only the first failure means one.
                if count == 0:
                    self._make_room(error)
                return
            try:
                self._take(accepted, address)
            except OSError:  # already disconnected
                accepted.close()

    def _take(self, accepted: socket.socket, address: object) -> None:
        accepted.setblocking(False)
        now_s = time.monotonic()
        peer = self._peers.of(accepted, address)
        self.accepted += 1
        if peer not in self._exempt and not self._connects.of(peer, now_s).take(now_s):
            self._refuse(accepted, peer, "too many new connections", "rate")
            return
        connection = Connection(self, peer)
        try:
            displaced = self.places.take(peer, connection, now_s, Worth.SILENT)
        except NoPlaceError as error:
            self._refuse(accepted, peer, str(error), "places")
            return
        if displaced is not None:
            self.refused["displaced"] += 1
            displaced.abort()
        connection.handshake = self._loop.create_task(self._open(connection, accepted))
        # Not in the task: a task that is cancelled before it starts does not run its clean-up.
        connection.handshake.add_done_callback(lambda task: self._opened(task, connection, accepted))

    async def _open(self, connection: Connection, accepted: socket.socket) -> None:
        """Do the TLS handshake, if any, and pass the connection to its protocol."""
        context = self._context()

        def protocol() -> BoundedProtocol:
            connection.protocol = self._make(connection)
            return connection.protocol

        await self._loop.connect_accepted_socket(
            protocol,
            accepted,
            ssl=context,
            ssl_handshake_timeout=bounds.HEAD_SECONDS if context is not None else None,
            ssl_shutdown_timeout=bounds.LINGER_SECONDS if context is not None else None,
        )

    def _opened(self, task: asyncio.Task[None], connection: Connection, accepted: socket.socket) -> None:
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            return
        connection.gone()
        accepted.close()
        if isinstance(error, OSError):  # the peer disconnected, does not use TLS, or is too slow
            self.refused["handshake"] += 1
        elif error is not None:
            _log.error("can't open a connection of %s", connection.peer, exc_info=error)

    def _refuse(self, accepted: socket.socket, peer: str, why: str, reason: str) -> None:
        reset(accepted)
        self.refused[reason] += 1
        self._complain(reason, f"connections of {peer} are refused: {why}")

    def _make_room(self, error: OSError) -> None:
        """Handle a failed accept(2): close the connection with the lowest priority, or pause accepting."""
        self.refused["descriptors" if exhausted(error) else "accept"] += 1
        self._complain("accept", f"can't accept connections: {error}; {len(self.places)} are open")
        displaced = self.places.least(time.monotonic(), Worth.IDLE) if exhausted(error) else None
        if displaced is not None:
            displaced.gone()
            displaced.abort()
        # Pause in both cases: the loop must run before the descriptor is free.
        self._loop.remove_reader(self._listener.fileno())
        self._paused = self._loop.call_later(0.001 if displaced is not None else ACCEPT_PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        self._paused = None
        if not self._closed:
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _complain(self, about: str, text: str) -> None:
        now_s = time.monotonic()
        if now_s - self._complained_s.get(about, -COMPLAIN_SECONDS) >= COMPLAIN_SECONDS:
            self._complained_s[about] = now_s
            _log.warning("%s", text)

    # --- open connections --------------------------------------------------------------------------------------------

    def _connections(self) -> list[Connection]:
        return list(self.places)

    def _look(self) -> None:
        """Close the connections that have exceeded a deadline. Called once a second."""
        self._looking = self._loop.call_later(LOOK_SECONDS, self._look)
        now_s = self._loop.time()
        for connection in self._connections():
            if connection.protocol is not None and (late := connection.protocol.look(now_s)):
                self.refused[f"late {late}"] += 1
