"""One persistent HTTP connection to a receiver, with its headers and certificates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from agent.schema.errors import ConfigError
from exporter.push.target import PushTarget
from exporter.push.target_files import TargetFiles

if TYPE_CHECKING:
    import http.client  # imported in functions: it takes two megabytes, and most agents push nothing

MOST_RETRY_AFTER_SECONDS = 60.0

MOST_ANSWER_BYTES = 64 * 1024


def address_of(target: PushTarget, what: str, key: str = "endpoint") -> SplitResult:
    """Return the parts of the endpoint. Raises ConfigError if it can't be used.

    what, key: section and key of the configuration that set the endpoint, unless a variable did.
    """
    label = target.variables.get("endpoint", f"{what}.{key}")
    try:
        address = urlsplit(target.endpoint)
        _ = address.port  # it raises ValueError
    except ValueError as error:
        raise ConfigError(f"{label}: {target.endpoint!r} is not an http or https URL: {error}") from None
    if address.username is not None:
        raise ConfigError(f"{label}: a password in a URL would appear in logs: use {what}.headers_file")
    if address.scheme not in ("http", "https") or not address.hostname:
        raise ConfigError(f"{label}: {target.endpoint!r} is not an http or https URL")
    return address


class Sender:
    """One persistent connection to an endpoint, for POST requests."""

    def __init__(self, target: PushTarget, headers: Mapping[str, str], what: str, key: str = "endpoint") -> None:
        """Read the files and check the endpoint. Raises ConfigError if a file or the endpoint can't be used."""
        self._target, self._address = target, address_of(target, what, key)
        self._path = (self._address.path or "/") + (f"?{self._address.query}" if self._address.query else "")
        self._files = TargetFiles(target, headers, what)
        self._connection: http.client.HTTPConnection | None = None

    def send(self, body: bytes) -> tuple[int, bytes, float]:
        """Send a POST request with this body. Return the status and body of the response, and the seconds of its
        Retry-After (0 if absent). Raises OSError."""
        import http.client

        headers = self._files.headers()
        fresh = self._connection is None
        if self._connection is None:
            self._connection = self._connect()
        try:
            self._connection.request("POST", self._path, body, headers)
            answer = self._connection.getresponse()
            content = answer.read(MOST_ANSWER_BYTES)
            if answer.read(1) or answer.will_close:
                self.close()
        except (http.client.HTTPException, OSError) as error:
            self.close()
            if not fresh:
                # If the receiver has closed the connection meanwhile, this is the first error.
                return self.send(body)
            raise OSError(f"{type(error).__name__}: {error}") from None
        return answer.status, content, retry_after_seconds(answer.headers.get("Retry-After", ""))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> http.client.HTTPConnection:
        import http.client

        host, port, timeout = self._address.hostname or "", self._address.port, self._target.timeout_seconds
        self._files.reread_certificates()
        if self._files.context is not None:
            return http.client.HTTPSConnection(host, port, timeout=timeout, context=self._files.context)
        return http.client.HTTPConnection(host, port, timeout=timeout)


def retry_after_seconds(header: str) -> float:
    """Return the seconds of a header Retry-After, at most MOST_RETRY_AFTER_SECONDS; 0 if it is absent or a date."""
    return min(float(header), MOST_RETRY_AFTER_SECONDS) if header.isdecimal() and header.isascii() else 0.0
