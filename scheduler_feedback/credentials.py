"""With what the controller shows itself to agents that are reached over TLS, and whom of them it believes."""

from __future__ import annotations

import base64
import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from agent.schema.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Credentials:
    """ca_file: who vouches for agents, None for the system's. cert_file, key_file: our own certificate, where agents
    ask for one. username, password_file: where they ask for a password; the file is read at every connection.
    """

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    username: str = ""
    password_file: Path | None = None

    def context(self) -> ssl.SSLContext:
        """What connections are made with. Raises ConfigError naming the key of [feed] and the file."""
        key, file = "ca_file", self.ca_file
        try:
            context = ssl.create_default_context(cafile=str(self.ca_file) if self.ca_file is not None else None)
            if self.cert_file is not None:
                key, file = "cert_file", self.cert_file
                context.load_cert_chain(self.cert_file, self.key_file, _no_password)
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
            raise ConfigError(f"feed.{key}: {file}: {reason}") from None
        return context

    def headers(self, url: str) -> dict[str, str]:
        """Of a request to this URL: a password goes over TLS only. Raises OSError where its file can't be read."""
        if self.password_file is None or urlsplit(url).scheme != "https":
            return {}
        password = self.password_file.read_text(encoding="utf-8").rstrip("\n")
        encoded = base64.b64encode(f"{self.username}:{password}".encode()).decode()
        return {"Authorization": f"Basic {encoded}"}


def _no_password() -> str:
    raise ValueError("the key is encrypted; a daemon has nobody to ask for its password")
