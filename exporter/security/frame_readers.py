"""Access to an agent's frames over TLS: only with the controller's certificate, not with a password.

Frames contain records of jobs that /metrics does not, and agents may share one password. Scrapers read metrics with a
password or a client certificate, as the web configuration specifies.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from agent.schema.errors import ConfigError
from agent.schema.identity import Revocations, read_revocations
from exporter.serving.http_messages import Answer, Request, text_answer

PATHS = frozenset({"/frames", "/frame"})


class FrameReaders:
    """Allowed names in a reader's certificate. revoked_file: list of revoked certificates; None for none."""

    def __init__(self, names: Iterable[str], revoked_file: Path | None = None) -> None:
        """Read the list of revoked certificates. Raises ConfigError if it can't be read."""
        self._names = frozenset(name.lower() for name in names)
        self._file = revoked_file
        self._revocations = Revocations()
        self.read()

    def files(self) -> tuple[Path, ...]:
        """Return the files to read again when they change."""
        return () if self._file is None else (self._file,)

    def read(self) -> None:
        """Read the list of revoked certificates again; a missing file revokes nothing.

        If it raises ConfigError, nothing has changed.
        """
        if self._file is None:
            return
        try:
            data = self._file.read_bytes()
        except FileNotFoundError:
            data = b""
        except OSError as error:
            raise ConfigError(f"agent.revoked_file: {self._file}: {error.strerror}") from None
        self._revocations = read_revocations(data, f"agent.revoked_file: {self._file}")

    def refusal(self, request: Request) -> Answer | None:
        """Return an error response if this client may not read frames; None to allow the request."""
        certificate = request.certificate
        if certificate is None or not certificate.names & self._names:
            shown = ", ".join(sorted(certificate.names)) if certificate is not None and certificate.names else "none"
            return text_answer(
                403, f"frames are for the certificate of {' or '.join(sorted(self._names))} alone; yours is of: {shown}"
            )
        if why := self._revocations.refuses(certificate):
            return text_answer(403, f"your certificate is not accepted: {why}")
        return None
