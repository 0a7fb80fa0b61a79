"""Headers and certificates of a push, whose files may be replaced while it runs."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agent.schema.errors import ConfigError
from exporter.push.target import PushTarget

if TYPE_CHECKING:
    import ssl  # imported in functions: it takes a megabyte, and most agents push nothing

log = logging.getLogger(__name__)


class TargetFiles:
    """Headers and certificates of a target. A changed file is read again; if it is invalid, the old content stays.

    A file counts as changed if its time, size or inode has changed.
    """

    def __init__(self, target: PushTarget, headers: Mapping[str, str], what: str) -> None:
        """Read the files. Raises ConfigError if one can't be used.

        headers: headers of every request. what: section of the configuration, for errors and logs.
        """
        self._target, self._what, self._given = target, what, dict(headers)
        self._headers_state = _state(target.headers_file)
        self._headers = self._read_headers()
        self._tls_state = self._tls_files_state()
        self.context = self._make_context() if target.endpoint.lower().startswith("https:") else None
        """Settings of TLS connections; None if the endpoint is not https."""

    def headers(self) -> dict[str, str]:
        """Return the headers. Reads their file again if it has changed."""
        state = _state(self._target.headers_file)
        if state != self._headers_state:
            self._headers_state = state
            try:
                self._headers = self._read_headers()
                log.info("push %s: read the changed %s", self._what, self._target.headers_file)
            except ConfigError as error:
                log.warning("push %s: the old headers stay active: %s", self._what, error)
        return dict(self._headers)

    def reread_certificates(self) -> bool:
        """Read the certificates again if a file of them has changed. Return whether `context` is a new one."""
        state = self._tls_files_state()
        if self.context is None or state == self._tls_state:
            return False
        self._tls_state = state
        try:
            self.context = self._make_context()
        except ConfigError as error:
            log.warning("push %s: the old certificates stay active: %s", self._what, error)
            return False
        log.info("push %s: read the changed certificates", self._what)
        return True

    def _read_headers(self) -> dict[str, str]:
        from_file = _read_headers(self._target.headers_file, self._label("headers_file"))
        merged: dict[str, tuple[str, str]] = {}
        for headers in (self._given, self._target.headers, from_file):
            merged.update({name.lower(): (name, value) for name, value in headers.items()})
        return dict(merged.values())

    def _tls_files_state(self) -> tuple[tuple[int, ...] | None, ...]:
        return tuple(_state(file) for file in (self._target.ca_file, self._target.cert_file, self._target.key_file))

    def _make_context(self) -> ssl.SSLContext:
        import ssl

        target = self._target
        try:
            context = ssl.create_default_context(cafile=str(target.ca_file) if target.ca_file is not None else None)
        except OSError as error:
            raise ConfigError(f"{self._label('ca_file')}: {target.ca_file}: {error.strerror or error}") from None
        if target.cert_file is None and target.key_file is not None:
            raise ConfigError(f"{self._label('key_file')}: {target.key_file}: a key without a client certificate")
        if target.cert_file is not None:
            try:
                context.load_cert_chain(target.cert_file, target.key_file, password="")  # never ask at a terminal
            except (OSError, ValueError) as error:
                files = f"{target.cert_file} with the key in {target.key_file or target.cert_file}"
                reason = getattr(error, "strerror", None) or error
                raise ConfigError(f"{self._label('cert_file')}: can't use {files}: {reason}") from None
        return context

    def _label(self, name: str) -> str:
        """Return the variable or the configuration key that has set a field of the target."""
        return self._target.variables.get(name, f"{self._what}.{name}")


def _state(file: Path | None) -> tuple[int, ...] | None:
    """Return values that change if the file is changed or replaced; None if there is no file."""
    if file is None:
        return None
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read_headers(file: Path | None, what: str) -> dict[str, str]:
    """Return the lines "Name: value" of a file; empty lines and lines with '#' are skipped. Raises ConfigError."""
    if file is None:
        return {}
    try:
        lines: Sequence[str] = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{what}: {file}: {getattr(error, 'strerror', None) or error}") from None
    headers: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, value = line.partition(":")
        if not colon or not name.strip() or not value.strip().isprintable() or not name.strip().isascii():
            raise ConfigError(f"{what}: {file}, line {number}: expected 'Name: value'")
        headers[name.strip()] = value.strip()
    return headers
