"""A client's connection to an agent's HTTP server."""

from __future__ import annotations

import select
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent.schema.identity import Certificate
from exporter.serving.http_messages import Request

if TYPE_CHECKING:
    import ssl  # two megabytes, which an agent on loopback never needs

RECEIVED_BYTES = 16 * 1024
"""Bytes read at a time of what a reader sends during a response: a whole TLS record (RFC 8446 section 5.1). The rest of
a record would stay in OpenSSL's buffer, where poll(2) does not see it, until the reader sends more."""


@dataclass(eq=False, slots=True)
class ClientConnection:
    """A client's connection to an agent, with its unread input."""

    socket: socket.socket
    peer: str
    """Name of the peer (serving/peers.py)."""
    idle_since: float | None
    """Monotonic time in seconds since which the connection has been idle; None during a request."""
    answered: bool = False
    """Whether a request was answered."""
    rest: bytes = b""
    context: ssl.SSLContext | None = field(default=None, repr=False)
    certificate: Certificate | None = None
    newest: tuple[bytes, Request, bool] | None = None
    """The bytes of the last request's head, the request parsed from them, and its keep-alive flag. A scraper always
    sends the same head."""

    def shut(self) -> None:
        """Shut down both directions. This unblocks the connection's thread, which closes the connection."""
        try:
            # The plain socket's: an SSLSocket's own would be closed under the thread that reads it.
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)
        except OSError:
            pass

    def drain(self) -> None:
        """Read some of the remaining input.

        Closing the connection with unread bytes would reset it, and the client would lose the response.
        """
        try:
            self.socket.settimeout(0.2)
            for _ in range(8):
                if not self.socket.recv(65536):
                    return
        except (OSError, ValueError):
            pass

    def received(self) -> bytes | None:
        """Return what the reader of a stream has sent during the response, without waiting; None if it has closed the
        connection."""
        try:
            poll = select.poll()  # not select(2), which is limited to descriptors below 1,024
            poll.register(self.socket, select.POLLIN | select.POLLHUP)
            if not poll.poll(0):
                return b""
            timeout_seconds = self.socket.gettimeout()
            self.socket.settimeout(0.0)
            try:
                return self.socket.recv(RECEIVED_BYTES) or None
            except BlockingIOError:
                return b""
            except OSError as error:
                return b"" if self._waits(error) else None
            finally:
                self.socket.settimeout(timeout_seconds)
        except (OSError, ValueError):
            return None

    def _waits(self, error: OSError) -> bool:
        """Return whether TLS needs more bytes from the peer before it has data for the application."""
        if self.context is None:
            return False
        import ssl  # loaded already: the connection uses TLS

        return isinstance(error, ssl.SSLWantReadError)
