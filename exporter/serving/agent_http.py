"""HTTP/1.1 server of an agent: one thread per connection, requests without a body, responses as a whole or streamed.

The agent does not use the controller's ASGI server, which would take half of the agent's CPU budget and an eighth of
its memory (docs/adr/0012). An agent has few clients and rare requests, for which blocking threads suffice.

Invalid requests are refused before any processing: a header over 16 KiB, a body, a line that RFC 9112 does not
allow. A refusal closes the connection, against request smuggling.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol

from agent.schema.identity import Certificate
from agent.schema.peer_quota import NoPlaceError, Places
from exporter.serving.client_connection import ClientConnection
from exporter.serving.descriptors import exhausted, most_connections
from exporter.serving.http_messages import Answer, BadRequestError, Request, parse_request, text_answer
from exporter.serving.peers import Peers, reset
from exporter.serving.token_buckets import Buckets

if TYPE_CHECKING:
    import ssl  # two megabytes, which an agent on loopback never needs

log = logging.getLogger(__name__)

MOST_HEADER_BYTES = 16 * 1024
"""Maximum size of request line and headers together; nginx and Apache allow 8 KiB per line."""

MOST_CONNECTIONS, MOST_CONNECTIONS_EACH = 128, 32
"""Maximum number of open connections, in total and per peer (on loopback a user, elsewhere an address). It is twice the
maximum number of readers of /frames. At the limit, an idle connection of the peer with the most connections is
closed."""

CONNECTIONS_PER_SECOND = 50.0
"""Maximum rate of new connections per peer, with bursts of twice as many. Further connections are refused before they
use a thread. Root and the agent's own user have no such limit: they could end the agent anyway."""

REQUESTS_PER_SECOND = 100.0
"""Maximum rate of requests per peer, with bursts of twice as many; a scraper sends far fewer. Further requests are
delayed."""

MOST_WAIT_SECONDS = 2.0
"""Maximum delay of a request; beyond it the response is 429."""

IDLE_SECONDS = 330.0
"""Timeout of an idle connection; Prometheus keeps connections for five minutes."""

REQUEST_SECONDS = 10.0
"""Timeout of a request, from its first byte to its last, and of a TLS handshake."""

SEND_SECONDS = 10.0
"""Time after which a client that reads nothing of its response is disconnected."""

STREAM_SEND_SECONDS = 60.0
"""Time after which a reader of a stream that reads nothing is disconnected. It is longer than SEND_SECONDS, because a
controller that is stopped for half a minute would otherwise have to open thousands of streams again."""

UNSENT_BYTES = 4096
"""A stream's next message waits until fewer bytes than these wait to be sent (TCP_NOTSENT_LOWAT of tcp(7)). Otherwise
the kernel would queue megabytes of old frames for a late reader. No message is shorter for it: the kernel takes a whole
frame if it takes the first byte."""

STREAM_POLL_SECONDS = 1.0
"""Interval at which an idle stream checks whether its reader is still connected."""

STOP_SECONDS = 2.0
"""Time to wait for responses in progress when stopping."""

ACCEPT_PAUSE_SECONDS = 0.2
"""Pause after accept(2) failed because of no descriptors or memory."""

COMPLAIN_SECONDS = 60.0
"""Minimum interval of log lines about refusals, which are also counted."""

_SILENT, _IDLE, _ANSWERING = range(3)
"""Priorities of a connection; at the limit of connections, the lowest is closed first. _SILENT: the next request is not
complete yet. _IDLE: between two requests. _ANSWERING: a request is being answered."""

Application = Callable[[Request], Answer]
"""Function that handles one request. It is called from many threads."""


class Transport(Protocol):
    """Layer between socket and application: TLS per connection, access checks per request."""

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context of the next connection; None for plain HTTP."""

    def admits(self, connection: ssl.SSLSocket) -> Certificate | None:
        """Return the certificate of a client after the TLS handshake; None to refuse the client.

        A client without a certificate gets one without names.
        """

    def refusal(self, request: Request) -> Answer | None:
        """Return an error response if the request is not allowed; None to allow it."""

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Return the additional headers of every response."""


class HttpServer:
    """Threaded server of an application on a bound socket, until ``stop``."""

    def __init__(self, application: Application, listener: socket.socket, transport: Transport | None = None) -> None:
        self._application = application
        self._listener = listener
        self._transport = transport
        self._peers = Peers()
        self._connections: Places[ClientConnection] = Places(
            most_connections(MOST_CONNECTIONS), MOST_CONNECTIONS_EACH, worth_own=_IDLE, worth_others=_ANSWERING
        )
        self._rates = Buckets(REQUESTS_PER_SECOND)
        self._connects = Buckets(CONNECTIONS_PER_SECOND)
        self._exempt = frozenset({"uid 0", f"uid {os.geteuid()}"})
        self.refused: Counter[str] = Counter()
        """Number of connections and requests that were refused or ended early, by reason."""
        self._complained_s = -COMPLAIN_SECONDS
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._acceptor = threading.Thread(target=self._accept, name="http", daemon=True)

    def start(self) -> None:
        """Start serving. Requests that clients sent before wait in the socket's backlog."""
        self._acceptor.start()

    def stop(self) -> None:
        """Stop accepting, wait up to STOP_SECONDS for responses in progress, and close the socket."""
        self._stopping.set()
        try:
            # Closing the socket alone would not wake the accepting thread.
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        if self._acceptor.ident is not None:
            self._acceptor.join()
        self._listener.close()
        self._peers.close()
        deadline = time.monotonic() + STOP_SECONDS
        while True:
            with self._lock:
                late = time.monotonic() >= deadline
                for connection in self._connections:
                    if late or connection.idle_since is not None:
                        connection.shut()
                if late or not self._connections:
                    return
            time.sleep(0.01)

    def measures(self) -> Iterator[tuple[str, tuple[tuple[str, str], ...], float]]:
        """Yield the metric samples of this server."""
        yield "gangwatch_http_connections", (), float(len(self._connections))
        yield "gangwatch_http_connections_limit", (), float(self._connections.most)
        for reason, count in sorted(self.refused.items()):
            yield "gangwatch_http_refused_total", (("reason", reason),), float(count)

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                accepted, address = self._listener.accept()
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if self._stopping.is_set():
                    return
                self._wait_for_room(error)
                continue
            try:
                peer = self._peers.of(accepted, address)
            except OSError:  # already disconnected
                accepted.close()
                continue
            now_s = time.monotonic()
            if peer not in self._exempt and not self._connects.of(peer, now_s).take(now_s):
                most = f"{CONNECTIONS_PER_SECOND:g} a second"
                self._complain("rate", f"connections of {peer} are refused: more than {most}")
                with contextlib.suppress(OSError):
                    reset(accepted)
                continue
            connection = ClientConnection(accepted, peer, now_s)
            if not self._admit(connection):
                accepted.close()
                continue
            try:
                threading.Thread(target=self._serve, args=(connection,), name="http client", daemon=True).start()
            except RuntimeError as error:
                self._complain("threads", f"no thread for a connection: {error}")
                self._forget(connection)

    def _wait_for_room(self, error: OSError) -> None:
        """Handle a failed accept(2): close an idle connection, and wait before the next accept."""
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        if exhausted(error) and not poll.poll(1000 * ACCEPT_PAUSE_SECONDS):
            return  # without descriptors, accept(2) fails even if no client is waiting
        self._complain("descriptors" if exhausted(error) else "accept", f"can't accept connections: {error}")
        if exhausted(error):
            with self._lock:
                displaced = self._connections.least(time.monotonic(), _IDLE)
                if displaced is not None:
                    self._connections.drop(displaced)
                    displaced.shut()
        self._stopping.wait(ACCEPT_PAUSE_SECONDS)

    def _complain(self, reason: str, text: str) -> None:
        self.refused[reason] += 1
        now_s = time.monotonic()
        if now_s - self._complained_s >= COMPLAIN_SECONDS:
            self._complained_s = now_s
            log.warning("%s", text)

    def _admit(self, connection: ClientConnection) -> bool:
        """Register the connection. At the limit, close an idle connection, or refuse the new one."""
        with self._lock:
            try:
                displaced = self._connections.take(connection.peer, connection, time.monotonic(), _SILENT)
            except NoPlaceError as error:
                self._complain("places", f"connections of {connection.peer} are refused: {error}")
                return False
            if displaced is not None:
                self.refused["displaced"] += 1
                displaced.shut()
            return True

    def _forget(self, connection: ClientConnection) -> None:
        with self._lock:
            self._connections.drop(connection)
        connection.socket.close()

    # --- one connection ----------------------------------------------------------------------------------------------

    def _serve(self, connection: ClientConnection) -> None:
        try:
            if self._encrypt(connection):
                while self._exchange(connection):
                    pass
        except (OSError, ValueError):
            # The peer disconnected or does not use TLS. (If the socket was shut down, ssl raises ValueError.)
            pass
        except Exception:
            log.exception("handling a request of %s failed", connection.peer)
        finally:
            self._forget(connection)

    def _encrypt(self, connection: ClientConnection) -> bool:
        """Do the handshake; return False if the peer is refused. Raises OSError if the handshake fails."""
        connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        context = self._transport.context() if self._transport is not None else None
        if self._transport is None or context is None:
            return True
        connection.socket.settimeout(REQUEST_SECONDS)
        # do_handshake apart from wrapping: so that stop and the bound reach the socket while it waits.
        wrapped = context.wrap_socket(connection.socket, server_side=True, do_handshake_on_connect=False)
        connection.socket, connection.context = wrapped, context
        wrapped.do_handshake()
        connection.certificate = self._transport.admits(wrapped)
        return connection.certificate is not None

    def _exchange(self, connection: ClientConnection) -> bool:
        """Handle one request; return whether another may follow."""
        try:
            head = self._read_head(connection)
            if head is None:
                return False
            if connection.newest is None or connection.newest[0] != head:
                parsed = parse_request(head, connection.peer, connection.certificate)
                connection.newest = head, *parsed
            _, request, kept = connection.newest
        except BadRequestError as error:
            self.refused["late head" if error.status == 408 else "malformed"] += 1
            self._send(connection, text_answer(error.status, str(error)), keep=False, head_only=False)
            connection.drain()
            return False
        answer = self._busy(connection) or self._answer(request)
        keep = kept and not self._stopping.is_set() and self._is_current(connection)
        if isinstance(answer.body, bytes):
            self._send(connection, answer, keep, request.method == "HEAD")
            return keep
        return self._send_stream(connection, answer, request, keep)

    def _is_current(self, connection: ClientConnection) -> bool:
        """Return whether the connection uses the current TLS settings. If not, the server closes it after the
        response."""
        return self._transport is None or self._transport.context() is connection.context

    def _busy(self, connection: ClientConnection) -> Answer | None:
        """Delay a request if its peer exceeds its rate. Return an error response if the delay would be too long."""
        with self._lock:
            now_s = time.monotonic()
            bucket = self._rates.of(connection.peer, now_s)
            wait_seconds = bucket.wait_seconds(now_s)
            if wait_seconds <= MOST_WAIT_SECONDS:
                bucket.owe()
        if wait_seconds > MOST_WAIT_SECONDS:
            self.refused["rate"] += 1
            return text_answer(429, f"more than {REQUESTS_PER_SECOND:g} requests a second", ("Retry-After", "1"))
        if wait_seconds:
            self._stopping.wait(wait_seconds)
        return None

    def _answer(self, request: Request) -> Answer:
        try:
            refusal = self._transport.refusal(request) if self._transport is not None else None
            return self._application(request) if refusal is None else refusal
        except Exception:
            # A bug must affect only this response.
            log.exception("%s %s failed; this is a bug, please report it", request.method, request.path)
            return text_answer(500, "internal error, see the agent's log")

    def _read_head(self, connection: ClientConnection) -> bytes | None:
        """Return a request's line and headers; None if the client sends no further request. Raises BadRequestError,
        TimeoutError."""
        data = connection.rest.lstrip(b"\r\n")
        deadline: float | None = None
        with self._lock:
            connection.idle_since = time.monotonic()
            self._connections.value(connection, _IDLE if connection.answered and not data else _SILENT)
        while b"\r\n\r\n" not in data:
            if len(data) > MOST_HEADER_BYTES:
                raise BadRequestError(431, f"line and headers are longer than {MOST_HEADER_BYTES} bytes")
            if data and deadline is None:
                deadline = time.monotonic() + REQUEST_SECONDS
            wait_seconds = IDLE_SECONDS if deadline is None else deadline - time.monotonic()
            if wait_seconds <= 0:
                raise BadRequestError(408, "the request was not complete in time")
            connection.socket.settimeout(wait_seconds)
            try:
                more = connection.socket.recv(MOST_HEADER_BYTES)
            except TimeoutError:
                if data:
                    raise BadRequestError(408, "the request was not complete in time") from None
                return None
            if not more:
                return None
            data = (data + more) if data else more.lstrip(b"\r\n")
        with self._lock:
            # Under the lock: from here on, stop() and the limits do not close the connection.
            connection.idle_since, connection.answered = None, True
            self._connections.value(connection, _ANSWERING)
        head, _, connection.rest = data.partition(b"\r\n\r\n")
        if len(head) > MOST_HEADER_BYTES:
            raise BadRequestError(431, f"line and headers are longer than {MOST_HEADER_BYTES} bytes")
        return head

    def _head(self, answer: Answer, keep: bool, framing: tuple[str, str] | None) -> bytes:
        more = self._transport.headers() if self._transport is not None else ()
        lines = [
            f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}",
            time.strftime("Date: %a, %d %b %Y %H:%M:%S GMT", time.gmtime()),
            f"Content-Type: {answer.content_type}",
            "Cache-Control: no-store",
            *(f"{name}: {value}" for name, value in (*answer.headers, *more)),
            *([f"{framing[0]}: {framing[1]}"] if framing else []),
            *([] if keep else ["Connection: close"]),
        ]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")

    def _send(self, connection: ClientConnection, answer: Answer, keep: bool, head_only: bool) -> None:
        assert isinstance(answer.body, bytes)
        head = self._head(answer, keep, ("Content-Length", str(len(answer.body))))
        connection.socket.settimeout(SEND_SECONDS)
        connection.socket.sendall(head if head_only else head + answer.body)

    def _send_stream(self, connection: ClientConnection, answer: Answer, request: Request, keep: bool) -> bool:
        """Send the stream until it ends or its reader disconnects; return whether another request may follow."""
        stream = answer.body
        assert not isinstance(stream, bytes)
        try:
            connection.socket.settimeout(STREAM_SEND_SECONDS)
            connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
            keep = keep and not request.old
            framing = None if request.old else ("Transfer-Encoding", "chunked")
            connection.socket.sendall(self._head(answer, keep, framing))
            if request.method == "HEAD":
                return keep
            while (part := stream.next(STREAM_POLL_SECONDS)) is not None:
                if part:
                    connection.socket.sendall(part if request.old else b"%x\r\n%b\r\n" % (len(part), part))
                data = connection.received()
                if data is None:
                    return False
                if data and not stream.take_request(data):
                    self.refused["stream request"] += 1
                    return False
            if not request.old:
                connection.socket.sendall(b"0\r\n\r\n")
            return keep
        finally:
            stream.close()
