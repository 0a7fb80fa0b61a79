"""The audit log: one line of JSON for each step of a request. The file is appended to, and rotated by size.

::

    {"time": "2026-11-23T12:00:00.123Z", "id": "b3f1-17", "stage": "answered", "user": "ana", "role": "submitter",
     "means": "token ana-laptop", "peer": "10.0.0.7", "method": "POST", "path": "/api/jobs",
     "about": {"job": "j-000042"}, "status": 201}

A change is written twice: `asked` before it is made, so that no change is made without a line, and `answered` with the
result. Refusals, logins and reads of logs and of the journal are written once. While the file is not writable, changes
are refused (507), except a freeze, which is safe. The log never contains environments, command lines or tokens.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from agent.schema.errors import StoreError
from agent.schema.sample import Sample

FILE_BYTES, FILES = 64 * 1024 * 1024, 10
"""Maximum size of a log file in bytes, and number of older files that are kept: two million lines in all."""

REFUSALS_PER_SECOND, REFUSALS_AT_ONCE = 10.0, 200
"""Maximum number of lines about refused anonymous requests, per second and in a burst. Further refusals are counted in
the next line, so that a flood of requests does not rotate all other lines out."""

_MOST_TEXT = 500
_log = logging.getLogger(__name__)


class Line(msgspec.Struct, omit_defaults=True):
    """One line of the audit log."""

    time: str
    id: str
    stage: str
    user: str
    role: str
    means: str
    peer: str
    method: str
    path: str
    about: dict[str, Any] = {}
    """Object of the request, for example {"job": "j-000042"}."""
    status: int = 0
    error: str = ""
    suppressed: int = 0
    """Number of refusals before this line that got no line of their own."""


class Audit:
    """Audit log in a file, or on standard output if there is no path. Thread-safe."""

    def __init__(
        self,
        path: Path | None,
        file_bytes: int = FILE_BYTES,
        files: int = FILES,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self.name = str(path) if path is not None else "standard output"
        self.lost = 0
        """Number of lines that could not be written."""
        self._file_bytes, self._files = file_bytes, files
        self._wall, self._clock = wall, clock
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._run, self._number = secrets.token_hex(4), 0
        self._room, self._filled = float(REFUSALS_AT_ONCE), clock()
        self._suppressed = 0
        self._complained = self._stuck = False

    def begin(self) -> None:
        """Open the file at the start, while the process has free descriptors. A failure is only logged.

        Each write tries to open the file again, and the change is refused if that fails too.
        """
        with self._lock:
            try:
                self._open(0)
            except OSError as error:
                self._log_failure(error)

    def number(self) -> str:
        """Return a new id for the audit log's lines about one request."""
        with self._lock:
            self._number += 1
            return f"{self._run}-{self._number}"

    def now(self) -> str:
        return datetime.fromtimestamp(self._wall(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def has_room(self) -> bool:
        """Return whether a refused anonymous request gets a line in the log. If not, count the refusal."""
        with self._lock:
            now = self._clock()
            self._room = min(REFUSALS_AT_ONCE, self._room + (now - self._filled) * REFUSALS_PER_SECOND)
            self._filled = now
            if self._room < 1.0:
                self._suppressed += 1
                return False
            self._room -= 1.0
            return True

    def write(self, line: Line) -> None:
        """Append the line. Raises StoreError if the line cannot be written."""
        with self._lock:
            line.suppressed, self._suppressed = self._suppressed, 0
            line.path, line.error = line.path[:_MOST_TEXT], line.error[:_MOST_TEXT]
            # ASCII only: U+2028 or a bidirectional control character must not make one line look like two.
            content = json.dumps(msgspec.to_builtins(line)).encode() + b"\n"
            try:
                descriptor = self._open(len(content))
                written = os.write(descriptor, content)
                if written < len(content):  # a full disk: end the partial line before the next one
                    os.write(descriptor, b"\n")
                    raise OSError(28, "No space left on device")
            except OSError as error:
                self._suppressed = line.suppressed
                self.lost += 1
                self._log_failure(error)
                raise StoreError(
                    f"the audit log {self.name} is not writable ({error.strerror}), so changes are refused: free disk "
                    "space there or repair its folder"
                ) from None
            if self._complained:
                self._complained = False
                _log.warning("audit log %s is writable again", self.name)

    def measures(self) -> Iterator[Sample]:
        yield "gangwatch_audit_lines_lost_total", (), float(self.lost)

    def close(self) -> None:
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def _open(self, more: int) -> int:
        """Return the descriptor of a file with room for `more` bytes. Rotate or open the file again if necessary."""
        if self.path is None:
            return 1
        if self._descriptor is not None:
            status = os.fstat(self._descriptor)
            try:
                there = self.path.stat()
            except FileNotFoundError:
                there = None
            if there is None or (there.st_dev, there.st_ino) != (status.st_dev, status.st_ino):
                self._forget()
            elif status.st_size and status.st_size + more > self._file_bytes:
                self._rotate()
        if self._descriptor is None:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            self._descriptor = os.open(self.path, flags, 0o600)
        return self._descriptor

    def _log_failure(self, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            _log.error("audit log %s is not writable, changes are refused: %s", self.name, error.strerror)

    def _rotate(self) -> None:
        """Rename audit.jsonl to audit.jsonl.1, that to .2, and so on. If that fails, the file keeps growing."""
        assert self.path is not None
        try:
            for index in range(self._files - 1, 0, -1):
                older = self._numbered(index)
                if older.exists():
                    older.replace(self._numbered(index + 1))
            self.path.replace(self._numbered(1))
        except OSError as error:
            if not self._stuck:
                _log.error("audit log %s is not rotated and keeps growing: %s", self.name, error.strerror)
            self._stuck = True
            return
        self._stuck = False
        self._forget()

    def _numbered(self, index: int) -> Path:
        assert self.path is not None
        return self.path.with_name(f"{self.path.name}.{index}")

    def _forget(self) -> None:
        assert self._descriptor is not None
        os.close(self._descriptor)
        self._descriptor = None
