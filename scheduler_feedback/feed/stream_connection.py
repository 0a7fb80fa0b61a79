"""One stream's socket, with TLS or without: never blocks, keeps next to nothing.

TLS goes through memory instead of the socket, which halves the system calls: one recv(2) brings a whole record, where
OpenSSL alone asks for its five bytes of header first. That memory is a ``Passage``, one for all connections: OpenSSL
takes all that is in it, also the first part of a record, so that nothing of one connection is left there when another
is served. It gives its own buffers back while nothing is under way (SSL_MODE_RELEASE_BUFFERS, which CPython sets).
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Callable
from typing import Any

from agent.schema.errors import GangwatchError
from agent.schema.identity import Certificate, read_certificate
from scheduler_feedback.feed.frames_response import Response

RECORD_BYTES = 16 * 1024
"""Most that one TLS record holds (RFC 8446 section 5.1)."""

BUFFER_BYTES = 64 * 1024
"""What is taken from one socket at a time, into a buffer that all share: a layout, or a dozen frames."""


class EndedError(GangwatchError):
    """The agent ended its stream."""


class IdentityError(GangwatchError):
    """The agent's certificate was verified, and is not that of its node, or was revoked."""


Check = Callable[[Certificate], str]
"""Why a verified certificate is not accepted; '' where it is."""


class Passage:
    """What the bytes of one thread's connections pass through: a buffer for what is read, and what OpenSSL reads from
    and writes to. Both of these are empty between two calls of a connection; each keeps the size that it once had."""

    __slots__ = ("buffer", "incoming", "outgoing")

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(BUFFER_BYTES))
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()

    def clear(self) -> None:
        """Forget what a connection that failed has left."""
        self.incoming.read()
        self.outgoing.read()


class Connection:
    """A connection to one agent and the request that it is opened for. Raises OSError (ssl's errors are) and
    ``EndedError`` from whatever meets the end, ``IdentityError``, and what ``Response`` raises.

    certificate: that the agent has shown, once it is accepted; None before, and without TLS.
    """

    __slots__ = (
        "_check", "_connecting", "_passage", "_request", "_response", "_socket", "_tls", "_unsent", "certificate",
    )  # fmt: skip

    def __init__(
        self,
        family: int,
        address: tuple[str, int],
        host: str,
        request: bytes,
        passage: Passage,
        context: ssl.SSLContext | None,
        check: Check = lambda _: "",
    ) -> None:
        """Begin to connect. host: the name that the agent is asked for, where there is a context. check: of the
        certificate that it shows; nothing is sent before it is accepted."""
        self._check = check
        self.certificate: Certificate | None = None
        self._passage = passage
        self._response = Response()
        self._request = request
        self._unsent = b""
        self._connecting = True
        self._tls: ssl.SSLObject | None = None
        self._socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            if context is not None:
                self._tls = context.wrap_bio(passage.incoming, passage.outgoing, server_hostname=host)
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
        """Whether the response is over, though the connection may not be."""
        return self._response.ended

    @property
    def connecting(self) -> bool:
        """Whether there is no connection yet."""
        return self._connecting

    @property
    def writes(self) -> bool:
        """Whether there is something to be done when the socket takes bytes."""
        return self._connecting or bool(self._unsent)

    def push(self) -> None:
        """The socket takes bytes: go on with connecting, or with what is to be sent."""
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
        """Read once from the socket, which has bytes; the messages that these complete."""
        buffer = self._passage.buffer
        try:
            count = self._socket.recv_into(buffer)
        except BlockingIOError:
            return []
        if not count:
            raise EndedError("the agent ended it")
        if self._tls is None:
            return self._response.feed(buffer[:count])
        try:
            self._passage.incoming.write(buffer[:count])
            if self._request:
                self._shake_hands(self._tls)
            messages = self._decrypt(self._tls)
            if self._passage.outgoing.pending:
                self._flush()  # the answer to a change of keys
        except BaseException:
            self._passage.clear()
            raise
        return messages

    def _decrypt(self, tls: ssl.SSLObject) -> list[bytes]:
        """The messages that what has come completes. Spoils the buffer: one that all share is not made anew and cut to
        size for each frame."""
        incoming, buffer = self._passage.incoming, self._passage.buffer
        messages: list[bytes] = []
        while incoming.pending or tls.pending():
            try:
                count: Any = tls.read(RECORD_BYTES, buffer)  # into a buffer: how many bytes, which stubs don't know
            except ssl.SSLWantReadError:
                break
            if not count:
                raise EndedError("the agent ended it")
            found = self._response.feed(buffer[:count])
            messages = messages + found if messages else found
        return messages

    def _shake_hands(self, tls: ssl.SSLObject) -> None:
        """Go on with the handshake; once it is done, with the request."""
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
            self._flush()  # an alert too, which tells the agent why

    def _flush(self) -> None:
        outgoing = self._passage.outgoing
        if outgoing.pending:
            self._unsent += outgoing.read()
        if self._unsent and not self._connecting:
            try:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
            except BlockingIOError:
                pass
