"""Listening TCP sockets: where they may listen, and their address for clients."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from agent.schema.errors import ConfigError
from exporter.security.loopback import is_loopback

if TYPE_CHECKING:
    from exporter.security.security import Security

BACKLOG = 512
"""Queue of connections to accept; the kernel may allow fewer (net.core.somaxconn)."""


def listen(host: str, port: int, security: Security | None = None) -> socket.socket:
    """Return a listening socket; port 0 picks a free one.

    Raises ConfigError if it can't be bound, and for an address off loopback without TLS and authentication.
    """
    if not is_loopback(host):
        missing = "there is no web configuration" if security is None else security.protects()
        if missing:
            raise ConfigError(
                f"host {host!r}: not a loopback address, and {missing}. Off loopback, TLS and a password or a client "
                "certificate are required (--web-config FILE). Otherwise listen on 127.0.0.1 or ::1, and use ssh -L "
                "or an authenticating proxy"
            )
    address = "127.0.0.1" if host.lower() == "localhost" else host.removeprefix("[").removesuffix("]")
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = str(error)
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            reason = f"the port is in use; stop its process (ss -ltnp 'sport = :{port}'), or use another port"
        elif isinstance(error, OSError) and error.errno == errno.EACCES:
            reason = "ports below 1024 need a privilege; use another port"
        raise ConfigError(f"cannot listen on host {host!r}, port {port}: {reason}") from None
    return listener


def url_of(listener: socket.socket, security: Security | None = None) -> str:
    """Return the URL of a bound socket for clients on this machine; loopback if it is bound to all addresses."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    scheme = "https" if security is not None and security.config.tls is not None else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def certificate_of(security: Security | None) -> Path | None:
    """Return the file of the server's certificate; None without TLS or if it is inline."""
    tls = security.config.tls if security is not None else None
    return tls.certificate.absolute() if tls is not None and isinstance(tls.certificate, Path) else None
