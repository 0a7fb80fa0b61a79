"""Connection to a daemon by its URL, with or without TLS; standard library only."""

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
    """TLS settings of a client: trusted authorities, and the client's own certificate."""

    certificate: Path | None = None
    """File of the only certificate that is accepted from the server; the names in this certificate are ignored. The
    path comes from the server's record in the state folder. None: `ca_file` applies."""
    ca_file: Path | None = None
    """File of the authorities that may sign the server's certificate; None for the system's. Not used with
    `certificate`."""
    cert_file: Path | None = None
    """File of the client's certificate, for a server that requires one; None sends no certificate."""
    key_file: Path | None = None

    def context(self) -> ssl.SSLContext:
        """Return the TLS context for these settings. Raises ConfigError that names a file which can't be used."""
        import ssl  # two megabytes, and most commands connect to loopback without TLS

        file = self.certificate or self.ca_file
        try:
            context = ssl.create_default_context(cafile=str(file) if file is not None else None)
            if self.certificate is not None:
                # The server's own certificate is the trust anchor, even if an authority signed it.
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
    """Return a connection to the server at `url`; the first request opens it.

    Raises ConfigError that names a TLS file which can't be used.
    """
    address = urlsplit(url)
    host = address.hostname or ""
    if address.scheme != "https":
        return http.client.HTTPConnection(host, address.port, timeout=timeout_seconds)
    context = (trust or Trust()).context()
    return http.client.HTTPSConnection(host, address.port, timeout=timeout_seconds, context=context)
