"""HTTP/1.1 for an agent: a thread a connection, requests without a body, answers whole or as streams.

Why not the ASGI server that carries the controller: its loop wakes ten times a second, which alone is half of what an
agent may use of a processor, and asyncio with it is an eighth of the memory (docs/adr/0012). An agent has a handful of
clients, reads them seldom and answers in a millisecond: blocking threads are the smallest thing that does that.

A request is refused before anything is done with it where it is not plainly one of ours: a header over 16 KiB, a body,
a line that RFC 9112 does not allow. Whatever is refused closes its connection, so nothing can hide behind it.
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
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol

from agent.schema.identity import Certificate
from agent.schema.peer_quota import NoPlaceError, Places
from exporter.serving.descriptors import exhausted, most_connections
from exporter.serving.http_messages import Answer, BadRequestError, Request, parse_request, text_answer
from exporter.serving.peers import Peers, reset
from exporter.serving.token_buckets import Buckets

if TYPE_CHECKING:
    import ssl  # two megabytes, which an agent on loopback never needs

log = logging.getLogger(__name__)

MOST_HEADER_BYTES = 16 * 1024
"""Of a request line and its headers together; nginx and Apache allow 8 KiB a line."""

MOST_CONNECTIONS, MOST_CONNECTIONS_EACH = 128, 32
"""At one time, and of one peer: on loopback a user, elsewhere an address. Twice the streams that may be open. At the
bound a connection that waits for a request makes room, of the peer that has the most."""

CONNECTIONS_PER_SECOND = 50.0
"""New ones of one peer in the long run, and twice as many at once; more are refused before they cost a thread. Root and
our own user have no such rate: they could end us anyway."""

REQUESTS_PER_SECOND = 100.0
"""Of one peer in the long run, and twice as many at once; a scraper makes one. More wait for their turn."""

MOST_WAIT_SECONDS = 2.0
"""A request that would wait longer for its turn is refused with 429."""

IDLE_SECONDS = 330.0
"""A kept connection is closed after this; Prometheus keeps its side for five minutes."""

REQUEST_SECONDS = 10.0
"""From the first byte of a request to its last, and for a TLS handshake: what takes longer is no client of ours."""

SEND_SECONDS = 10.0
"""A client that takes nothing for so long is gone."""

STREAM_POLL_SECONDS = 1.0
"""How often a stream that has nothing to say looks whether its reader is still there."""

STOP_SECONDS = 2.0
"""How long stopping waits for answers that are under way."""

ACCEPT_PAUSE_SECONDS = 0.2
"""After accept(2) fails for want of descriptors or memory."""

COMPLAIN_SECONDS = 60.0
"""What is refused is counted; the log has a line of it at most so often."""

_SILENT, _IDLE, _ANSWERING = range(3)
"""What a connection's place is worth: it has said nothing whole yet; it is between two requests; it is answered."""

Application = Callable[[Request], Answer]
"""Answers one request; called from many threads."""


class Transport(Protocol):
    """What stands between the wire and the application: encryption now, and who may ask at every request."""

    def context(self) -> ssl.SSLContext | None:
        """With what the next connection is encrypted; None for not at all."""

    def admits(self, connection: ssl.SSLSocket) -> Certificate | None:
        """The certificate of the peer of a finished handshake, without names where it has shown none; None where it may
        not go on."""

    def refusal(self, request: Request) -> Answer | None:
        """Why this request is not answered; None where it is."""

    def headers(self) -> tuple[tuple[str, str], ...]:
        """What every answer carries beside its own."""


@dataclass(eq=False, slots=True)
class _Connection:
    """One client's. peer: who it is of (serving/peers.py). idle_since: monotonic seconds since which it waits for a
    request; None while one is answered. answered: whether one was.

    newest: its last request and whether it may be kept, by the bytes that said so: a scraper sends the same each time.
    """

    socket: socket.socket
    peer: str
    idle_since: float | None
    answered: bool = False
    rest: bytes = b""
    context: ssl.SSLContext | None = field(default=None, repr=False)
    certificate: Certificate | None = None
    newest: tuple[bytes, Request, bool] | None = None


class HttpServer:
    """Serves an application on a bound socket from threads of its own until ``stop``."""

    def __init__(self, application: Application, listener: socket.socket, transport: Transport | None = None) -> None:
        self._application = application
        self._listener = listener
        self._transport = transport
        self._peers = Peers()
        self._connections: Places[_Connection] = Places(
            most_connections(MOST_CONNECTIONS), MOST_CONNECTIONS_EACH, worth_own=_IDLE, worth_others=_ANSWERING
        )
        self._rates = Buckets(REQUESTS_PER_SECOND)
        self._connects = Buckets(CONNECTIONS_PER_SECOND)
        self._exempt = frozenset({"uid 0", f"uid {os.geteuid()}"})
        self.refused: Counter[str] = Counter()
        """Connections and requests that were refused, or ended early, by why."""
        self._complained_s = -COMPLAIN_SECONDS
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._acceptor = threading.Thread(target=self._accept, name="http", daemon=True)

    def start(self) -> None:
        """Begin to serve. Requests that come before wait in the socket's backlog."""
        self._acceptor.start()

    def stop(self) -> None:
        """Take no more connections, let answers under way finish for STOP_SECONDS, and close the socket."""
        self._stopping.set()
        try:
            # Wakes the acceptor, which closing alone would not.
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
                        _shut(connection.socket)
                if late or not self._connections:
                    return
            time.sleep(0.01)

    def measures(self) -> Iterator[tuple[str, tuple[tuple[str, str], ...], float]]:
        """Series of the catalogue."""
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
            except OSError:  # it has gone already
                accepted.close()
                continue
            now_s = time.monotonic()
            if peer not in self._exempt and not self._connects.of(peer, now_s).take(now_s):
                most = f"{CONNECTIONS_PER_SECOND:g} a second"
                self._complain("rate", f"connections of {peer} are refused: more than {most}")
                with contextlib.suppress(OSError):
                    reset(accepted)
                continue
            connection = _Connection(accepted, peer, now_s)
            if not self._admit(connection):
                accepted.close()
                continue
            try:
                threading.Thread(target=self._serve, args=(connection,), name="http client", daemon=True).start()
            except RuntimeError as error:
                self._complain("threads", f"no thread for a connection: {error}")
                self._forget(connection)

    def _wait_for_room(self, error: OSError) -> None:
        """accept(2) has failed: end a connection that waits for a request, and go on after a moment."""
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        if exhausted(error) and not poll.poll(1000 * ACCEPT_PAUSE_SECONDS):
            return  # without a descriptor accept(2) fails also where nobody waits
        self._complain("descriptors" if exhausted(error) else "accept", f"no connection can be accepted: {error}")
        if exhausted(error):
            with self._lock:
                displaced = self._connections.least(time.monotonic(), _IDLE)
                if displaced is not None:
                    self._connections.drop(displaced)
                    _shut(displaced.socket)
        self._stopping.wait(ACCEPT_PAUSE_SECONDS)

    def _complain(self, reason: str, text: str) -> None:
        self.refused[reason] += 1
        now_s = time.monotonic()
        if now_s - self._complained_s >= COMPLAIN_SECONDS:
            self._complained_s = now_s
            log.warning("%s", text)

    def _admit(self, connection: _Connection) -> bool:
        """Give the connection a place; where all are taken one that waits for a request has to go, or the new one."""
        with self._lock:
            try:
                displaced = self._connections.take(connection.peer, connection, time.monotonic(), _SILENT)
            except NoPlaceError as error:
                self._complain("places", f"connections of {connection.peer} are refused: {error}")
                return False
            if displaced is not None:
                self.refused["displaced"] += 1
                _shut(displaced.socket)
            return True

    def _forget(self, connection: _Connection) -> None:
        with self._lock:
            self._connections.drop(connection)
        connection.socket.close()

    # --- one connection ----------------------------------------------------------------------------------------------

    def _serve(self, connection: _Connection) -> None:
        try:
            if self._encrypt(connection):
                while self._exchange(connection):
                    pass
        except (OSError, ValueError):
            # The peer went away or does not speak TLS: its loss. (A socket shut meanwhile raises ValueError in ssl.)
            pass
        except Exception:
            log.exception("answering %s failed", connection.peer)
        finally:
            self._forget(connection)

    def _encrypt(self, connection: _Connection) -> bool:
        """Do the handshake; False where the peer is not to go on. Raises OSError where there is none to be had."""
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

    def _exchange(self, connection: _Connection) -> bool:
        """Read one request and answer it; whether another may follow."""
        try:
            head = self._read_head(connection)
            if head is None:
                return False
            if connection.newest is None or connection.newest[0] != head:
                parsed = parse_request(head, connection.peer, connection.context is not None, connection.certificate)
                connection.newest = head, *parsed
            _, request, kept = connection.newest
        except BadRequestError as error:
            self.refused["late head" if error.status == 408 else "malformed"] += 1
            self._send(connection, text_answer(error.status, str(error)), keep=False, head_only=False)
            _drain(connection.socket)
            return False
        answer = self._busy(connection) or self._answer(request)
        keep = kept and not self._stopping.is_set() and self._is_current(connection)
        if isinstance(answer.body, bytes):
            self._send(connection, answer, keep, request.method == "HEAD")
            return keep
        return self._send_stream(connection, answer, request, keep)

    def _is_current(self, connection: _Connection) -> bool:
        """Whether the connection is encrypted as a new one would be; one that is not ends with its answer."""
        return self._transport is None or self._transport.context() is connection.context

    def _busy(self, connection: _Connection) -> Answer | None:
        """Let a peer that asks too often wait; the refusal where it would wait too long."""
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
            # A bug of ours, which costs one answer: the next may well be had.
            log.exception("%s %s could not be answered", request.method, request.path)
            return text_answer(500, "a bug, which the agent's log names")

    def _read_head(self, connection: _Connection) -> bytes | None:
        """A request's line and headers; None where the peer sends no more. Raises BadRequestError, TimeoutError."""
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
                raise BadRequestError(408, "the request does not end")
            connection.socket.settimeout(wait_seconds)
            try:
                more = connection.socket.recv(MOST_HEADER_BYTES)
            except TimeoutError:
                if data:
                    raise BadRequestError(408, "the request does not end") from None
                return None
            if not more:
                return None
            data = (data + more) if data else more.lstrip(b"\r\n")
        with self._lock:
            # Under the lock: from here on stop() and the bound leave the connection alone.
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

    def _send(self, connection: _Connection, answer: Answer, keep: bool, head_only: bool) -> None:
        assert isinstance(answer.body, bytes)
        head = self._head(answer, keep, ("Content-Length", str(len(answer.body))))
        connection.socket.settimeout(SEND_SECONDS)
        connection.socket.sendall(head if head_only else head + answer.body)

    def _send_stream(self, connection: _Connection, answer: Answer, request: Request, keep: bool) -> bool:
        """Send what the stream gives until it or its reader ends; whether another request may follow."""
        stream = answer.body
        assert not isinstance(stream, bytes)
        try:
            connection.socket.settimeout(SEND_SECONDS)
            keep = keep and not request.old
            framing = None if request.old else ("Transfer-Encoding", "chunked")
            connection.socket.sendall(self._head(answer, keep, framing))
            if request.method == "HEAD":
                return keep
            while (part := stream.next(STREAM_POLL_SECONDS)) is not None:
                if part:
                    connection.socket.sendall(part if request.old else b"%x\r\n%b\r\n" % (len(part), part))
                elif _has_gone(connection.socket):
                    return False
            if not request.old:
                connection.socket.sendall(b"0\r\n\r\n")
            return keep
        finally:
            stream.close()


def _shut(connection: socket.socket) -> None:
    """End both directions: the thread that reads or writes it is let go and closes it."""
    try:
        # The plain socket's: an SSLSocket's own would be closed under the thread that reads it.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
    except OSError:
        pass


def _drain(connection: socket.socket) -> None:
    """Take a little of what still comes: closing over unread bytes would reset the answer away before it is read."""
    try:
        connection.settimeout(0.2)
        for _ in range(8):
            if not connection.recv(65536):
                return
    except (OSError, ValueError):
        pass


def _has_gone(connection: socket.socket) -> bool:
    """Whether the reader of a stream has closed. One that sends something amid an answer is not waited for either."""
    try:
        poll = select.poll()  # and not select(2), which knows no descriptor above 1,023
        poll.register(connection, select.POLLIN | select.POLLHUP)
        return bool(poll.poll(0))
    except (OSError, ValueError):
        return True
