"""The controller's credentials for agents with TLS, and the certificates that it accepts."""

from __future__ import annotations

import base64
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from agent.schema.certificate_file import validity
from agent.schema.errors import ConfigError
from agent.schema.identity import Certificate, Revocations, of_node, read_revocations, speaks_for

Verify = Literal["node", "host"]


@dataclass(frozen=True, slots=True)
class Credentials:
    """Files of the credentials, and checks of certificates. All files are read again when one of them changes."""

    ca_file: Path | None = None
    """Certificate authorities for agents; None: the system's."""
    cert_file: Path | None = None
    """The controller's certificate: agents send frames only to a client with one."""
    key_file: Path | None = None
    username: str = ""
    """User name for agents that require a password; used with password_file."""
    password_file: Path | None = None
    """File of the password, read at every connection."""
    verify: Verify = "node"
    """'node': an agent's certificate must be issued to its node. 'host': the certificate must be issued to the host at
    which the agent is reached. This distinguishes nodes only if each node has its own host name."""
    revoked_file: Path | None = None
    """List of revoked certificates (agent/schema/identity.py)."""

    def files(self) -> tuple[Path, ...]:
        """Return the files that are read again when they change."""
        files = (self.ca_file, self.cert_file, self.key_file, self.revoked_file)
        return tuple(file for file in files if file is not None)

    def read(self) -> Trust:
        """Read all files. Raises ConfigError naming the key of [feed] and the file."""
        key, file = "ca_file", self.ca_file
        try:
            context = ssl.create_default_context(cafile=str(self.ca_file) if self.ca_file is not None else None)
            if self.cert_file is not None:
                key, file = "cert_file", self.cert_file
                context.load_cert_chain(self.cert_file, self.key_file, _no_password)
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
            raise ConfigError(f"feed.{key}: {file}: {reason}") from None
        # The certificate's names are checked after its chain is verified: OpenSSL checks host names only, and would
        # accept a name with '*' for every node.
        context.check_hostname = self.verify == "host"
        return Trust(context, self.verify, self._revocations(), self._ends())

    def _ends(self) -> float | None:
        if self.cert_file is None:
            return None
        try:
            return validity(self.cert_file.read_bytes())[1]
        except OSError as error:
            raise ConfigError(f"feed.cert_file: {self.cert_file}: {error.strerror}") from None

    def _revocations(self) -> Revocations:
        if self.revoked_file is None:
            return Revocations()
        try:
            data = self.revoked_file.read_bytes()
        except FileNotFoundError:
            return Revocations()
        except OSError as error:
            raise ConfigError(f"feed.revoked_file: {self.revoked_file}: {error.strerror}") from None
        return read_revocations(data, f"feed.revoked_file: {self.revoked_file}")

    def headers(self, url: str) -> dict[str, str]:
        """Return headers for a request: the password, only over TLS. Raises OSError if its file cannot be read."""
        if self.password_file is None or urlsplit(url).scheme != "https":
            return {}
        password = self.password_file.read_text(encoding="utf-8").rstrip("\n")
        encoded = base64.b64encode(f"{self.username}:{password}".encode()).decode()
        return {"Authorization": f"Basic {encoded}"}


@dataclass(frozen=True, slots=True)
class Trust:
    """The contents of the credentials' files. context: TLS context for new connections."""

    context: ssl.SSLContext
    verify: Verify
    revocations: Revocations
    ends: float | None = None
    """Expiry of the controller's certificate, in seconds since the epoch; None without one."""

    def name_of(self, node: str, host: str) -> str:
        """Return the server name (TLS SNI) to request from a node's agent."""
        if self.verify == "host":
            return host
        try:
            return of_node(node)
        except ConfigError:
            return host

    def refusal(self, certificate: Certificate, node: str, host: str) -> str:
        """Return why a valid certificate is not accepted for a node's agent at this host; '' if it is."""
        if self.verify == "node" and not speaks_for(certificate, node, host):
            shown = ", ".join(sorted(certificate.names)) or "no name"
            return f"its certificate is issued to {shown[:200]}, not to node {node}"
        if why := self.revocations.refuses(certificate):
            return f"its certificate is not accepted: {why}"
        return ""


class CurrentCredentials:
    """The credentials and the newest valid contents of their files. Without credentials, connections use the system's
    certificate authorities and no client certificate.
    """

    def __init__(self, credentials: Credentials | None) -> None:
        """Read the files. Raises ConfigError if the credentials are unusable."""
        self.given = credentials
        self._files = credentials or Credentials()
        self._stamps = _stamps(self._files)
        self._trust = self._files.read() if credentials is not None else None

    @property
    def ends(self) -> float | None:
        """Expiry of the controller's certificate, in seconds since the epoch; None without one."""
        return self._trust.ends if self._trust is not None else None

    def trust(self) -> Trust:
        """Return the newest valid contents of the files."""
        if self._trust is None:
            self._trust = self._files.read()
        return self._trust

    def headers(self, url: str) -> dict[str, str]:
        """Return headers for a request (see ``Credentials.headers``)."""
        return self._files.headers(url)

    def read_again(self) -> Trust | None:
        """Read the files if they have changed; None if not. Raises ConfigError; the former contents then stay valid."""
        stamps = _stamps(self._files)
        if stamps == self._stamps:
            return None
        self._stamps = stamps
        self._trust = self._files.read()
        return self._trust


def _stamps(credentials: Credentials) -> tuple[tuple[int, int, int] | None, ...]:
    """Return values that change when a file changes, also if only a link in its path changes (as on Kubernetes)."""
    stamps: list[tuple[int, int, int] | None] = []
    for file in credentials.files():
        try:
            status = file.stat()
            stamps.append((status.st_mtime_ns, status.st_ino, status.st_size))
        except OSError:
            stamps.append(None)
    return tuple(stamps)


def _no_password() -> str:
    raise ValueError("the key is encrypted, and a daemon cannot ask for a password: use an unencrypted key")
