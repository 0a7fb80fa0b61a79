"""A connection to a daemon by its URL, over TLS where that says so; standard library only."""

from __future__ import annotations

import http.client
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from agent.schema.errors import ConfigError

if TYPE_CHECKING:
    import ssl


@dataclass(frozen=True, slots=True)
class Trust:
    """Whom of a server to believe, and what to show it.

    certificate: the very one that the server has, as its record in the state folder names it: nothing else is
    believed, and what names stand in it is no matter. ca_file: otherwise who vouches for it; None: the system's
    authorities. cert_file, key_file: our own, where the server asks for one.
    """

    certificate: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    def context(self) -> ssl.SSLContext:
        """What the connection is made with. Raises ConfigError naming the file that can't be used."""
        import ssl  # two megabytes, and most commands speak to loopback without it

        file = self.certificate or self.ca_file
        try:
            context = ssl.create_default_context(cafile=str(file) if file is not None else None)
            if self.certificate is not None:
                # The server's own certificate is the anchor, also where an authority signed it.
                context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
                context.check_hostname = False
            if self.cert_file is not None:
                file = self.cert_file
                context.load_cert_chain(self.cert_file, self.key_file)
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
            raise ConfigError(f"{file}: {reason}") from None
        return context


def connect(url: str, timeout_seconds: float, trust: Trust | None = None) -> http.client.HTTPConnection:
    """A connection to the server at `url`, made with the first request. Raises ConfigError as ``Trust.context``."""
    address = urlsplit(url)
    host = address.hostname or ""
    if address.scheme != "https":
        return http.client.HTTPConnection(host, address.port, timeout=timeout_seconds)
    context = (trust or Trust()).context()
    return http.client.HTTPSConnection(host, address.port, timeout=timeout_seconds, context=context)
