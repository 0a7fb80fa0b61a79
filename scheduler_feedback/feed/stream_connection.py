"""The socket of one stream, with or without TLS. It never blocks and needs little memory.

TLS uses memory buffers instead of the socket, which halves the system calls: one recv(2) reads a whole record, while
OpenSSL alone reads its five bytes of header first. All connections share these buffers (``SharedBuffers``): OpenSSL
consumes everything in them, even a part of a record, so nothing of one connection remains when the next one is served.
OpenSSL frees its own buffers while idle (SSL_MODE_RELEASE_BUFFERS, which CPython sets).
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import quote, urlsplit

from agent.schema.errors import GangwatchError
from agent.schema.identity import Certificate, read_certificate
from agent.schema.record_table import SAMPLES_TYPE
from scheduler_feedback.feed.frames_response import Response
from scheduler_feedback.feed.leased_orders import word_of

RECORD_BYTES = 16 * 1024
"""Largest TLS record (RFC 8446 section 5.1)."""

BUFFER_BYTES = 64 * 1024
"""Bytes read from one socket at a time, into a shared buffer: a layout, or a dozen frames."""


class EndedError(GangwatchError):
    """Error: the agent closed its stream."""


class IdentityError(GangwatchError):
    """The agent's certificate is valid, but was revoked or belongs to another node."""


Check = Callable[[Certificate], str]
"""Returns why a valid certificate is not accepted; '' if it is."""


class SharedBuffers:
    """Buffers that the connections of one thread share: for reading, and for OpenSSL's input and output. The latter two
    are empty between two calls of a connection, and keep their size."""

    __slots__ = ("buffer", "incoming", "outgoing")

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(BUFFER_BYTES))
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()

    def clear(self) -> None:
        """Remove the data that a failed connection has left in the buffers."""
        self.incoming.read()
        self.outgoing.read()


class Connection:
    """A connection to one agent, which sends one request and reads the response.

    Methods raise OSError (which includes TLS errors), ``EndedError``, ``IdentityError``, and what ``Response`` raises.
    certificate: the agent's certificate, once it is accepted; None before that, and without TLS. orders: the last
    order of each kind that was sent, and when (ns), by its first word (``leased_orders``). read_bytes: number of bytes
    that the last ``take`` read.
    """

    __slots__ = (
        "_buffers", "_check", "_connecting", "_request", "_response", "_socket", "_tls", "_unsent", "certificate",
        "orders", "read_bytes",
    )  # fmt: skip

    def __init__(
        self,
        family: int,
        address: tuple[str, int],
        host: str,
        request: bytes,
        buffers: SharedBuffers,
        context: ssl.SSLContext | None,
        check: Check = lambda _: "",
    ) -> None:
        """Start connecting. host: the name to request with TLS. check: checks the agent's certificate; nothing is sent
        before it is accepted."""
        self._check = check
        self.orders: dict[bytes, tuple[bytes, int]] = {}
        self.certificate: Certificate | None = None
        self.read_bytes = 0
        self._buffers = buffers
        self._response = Response()
        self._request = request
        self._unsent = b""
        self._connecting = True
        self._tls: ssl.SSLObject | None = None
        self._socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            if context is not None:
                self._tls = context.wrap_bio(buffers.incoming, buffers.outgoing, server_hostname=host)
            code = self._socket.connect_ex(address)
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, os.strerror(code))
        except BaseException:
            self._socket.close()
            raise

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    @property
    def ended(self) -> bool:
        """Whether the response has ended; the connection may still be open."""
        return self._response.ended

    @property
    def connecting(self) -> bool:
        """Whether the connection is not established yet."""
        return self._connecting

    @property
    def writes(self) -> bool:
        """Whether to wait until the socket accepts bytes: the connection is not established, or bytes are left to
        send.
        """
        return self._connecting or bool(self._unsent)

    @property
    def most_every(self) -> int:
        """The largest N for which the agent accepts ``every N``; 1 if it sends all frames."""
        return self._response.most_every

    @property
    def most_samples(self) -> int:
        """The largest number of samples in one message for which the agent can be asked; 1: only the newest."""
        return self._response.most_samples

    @property
    def takes(self) -> frozenset[bytes]:
        """First words of the orders that the agent accepts on this connection."""
        return self._response.orders

    def ask_every(self, every: int, samples: int = 1) -> None:
        """Ask the agent for one message each `every` frames, 1 for all frames, with the values of `samples` of them."""
        self._say(b"every %d\n" % every if samples == 1 else b"every %d samples %d\n" % (every, samples))

    def order(self, line: bytes, now_ns: int) -> None:
        """Send an order (``leased_orders``)."""
        self.orders[word_of(line)] = line, now_ns
        self._say(line)

    def _say(self, line: bytes) -> None:
        if self._tls is None:
            self._unsent += line
        else:
            self._tls.write(line)
        self._flush()

    def push(self) -> None:
        """Continue connecting or sending, because the socket accepts bytes."""
        if self._connecting:
            code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code))
            self._connecting = False
            if self._tls is None:
                self._unsent, self._request = self._request, b""
            else:
                self._shake_hands(self._tls)
        self._flush()

    def take(self) -> list[bytes]:
        """Read once from the socket, and return the messages that are now complete."""
        buffer = self._buffers.buffer
        self.read_bytes = 0
        try:
            self.read_bytes = count = self._socket.recv_into(buffer)
        except BlockingIOError:
            return []
        if not count:
            raise EndedError("the agent closed the stream")
        if self._tls is None:
            return self._response.feed(buffer[:count])
        try:
            self._buffers.incoming.write(buffer[:count])
            if self._request:
                self._shake_hands(self._tls)
            messages = self._decrypt(self._tls)
            if self._buffers.outgoing.pending:
                self._flush()  # the response to a key update
        except BaseException:
            self._buffers.clear()
            raise
        return messages

    def _decrypt(self, tls: ssl.SSLObject) -> list[bytes]:
        """Decrypt the received bytes and return the messages that are now complete.

        Overwrites the shared buffer, to avoid allocating one per frame.
        """
        incoming, buffer = self._buffers.incoming, self._buffers.buffer
        messages: list[bytes] = []
        while incoming.pending or tls.pending():
            try:
                count: Any = tls.read(RECORD_BYTES, buffer)  # returns the number of bytes; the stubs say bytes
            except ssl.SSLWantReadError:
                break
            if not count:
                raise EndedError("the agent closed the stream")
            found = self._response.feed(buffer[:count])
            messages = messages + found if messages else found
        return messages

    def _shake_hands(self, tls: ssl.SSLObject) -> None:
        """Continue the handshake; after it, send the request."""
        try:
            tls.do_handshake()
            certificate = read_certificate(tls.getpeercert() or {})
            if refusal := self._check(certificate):
                raise IdentityError(refusal)
            self.certificate = certificate
            tls.write(self._request)
            self._request = b""
        except ssl.SSLWantReadError:
            pass
        finally:
            self._flush()  # also an alert, which gives the agent the reason

    def _flush(self) -> None:
        outgoing = self._buffers.outgoing
        if outgoing.pending:
            self._unsent += outgoing.read()
        if self._unsent and not self._connecting:
            try:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
            except BlockingIOError:
                pass


def frames_request(url: str, wanted: Sequence[str], headers: Mapping[str, str]) -> bytes:
    """Return the request for an agent's frames. wanted: names of metrics; none requests all."""
    parts = urlsplit(url)
    lines = [
        f"GET {parts.path.rstrip('/')}/frames{_query(tuple(wanted))} HTTP/1.1",
        f"Host: {parts.netloc.rpartition('@')[2]}",
        "User-Agent: gangwatch",
        f"Accept: {SAMPLES_TYPE}",
        "Accept-Encoding: identity",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


@lru_cache(4)
def _query(wanted: tuple[str, ...]) -> str:
    """Return the request's query. Encoding the usual hundred names takes as long as parsing ten frames."""
    return f"?metrics={quote(','.join(wanted), safe=',*')}" if wanted else ""


def reason_of(error: OSError) -> str:
    """Return why a connection failed, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    return error.strerror or str(error) or type(error).__name__
