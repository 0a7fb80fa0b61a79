"""The kernel's log, record by record, from the oldest that it still has: /dev/kmsg.

Form of a record: Documentation/ABI/testing/dev-kmsg of the kernel. Each read gives one record whole; a reader that was
overtaken is told so (EPIPE) and goes on with the oldest that is left. A recorded log is a file of the same lines.
"""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

from agent.schema.errors import SourceError, UnsupportedError

RECORD_BYTES = 16384
"""A record with its prefix and dictionary is at most 8 KiB (CONSOLE_EXT_LOG_MAX); a shorter buffer gives EINVAL."""

_KERNEL = 0
"""Facility of what the kernel itself says. A process that writes to /dev/kmsg is given another (devkmsg_write)."""


class LogRecord(NamedTuple):
    """One record. level: 0 emergency to 7 debug. microseconds: since the boot, by the kernel's own clock."""

    facility: int
    level: int
    sequence: int
    microseconds: int
    text: str

    @property
    def from_kernel(self) -> bool:
        return self.facility == _KERNEL


def parse_record(line: bytes) -> LogRecord:
    """One record without its dictionary lines. Raises SourceError for bytes that are not of its form."""
    prefix, semicolon, text = line.partition(b";")
    fields = prefix.split(b",")
    if not semicolon or len(fields) < 3 or not all(field.isdigit() and len(field) <= 20 for field in fields[:3]):
        raise SourceError(f"kernel log: {line[:80]!r} is no record")
    priority, sequence, microseconds = (int(field) for field in fields[:3])
    return LogRecord(priority >> 3, priority & 7, sequence, microseconds, text.decode("utf-8", "replace"))


class KernelLog:
    """Reads the log from its beginning, and then what is added to it. Never waits.

    lost: records that were overwritten before they were read. malformed: lines that are no records.
    """

    def __init__(self, path: str) -> None:
        """Raises UnsupportedError where there is no such log, or no right to read it."""
        self.lost = 0
        self.malformed = 0
        self._path = path
        self._rest = b""
        self._expected: int | None = None
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except PermissionError:
            raise UnsupportedError(f"{path}: needs the capability SYSLOG (kernel.dmesg_restrict is 1)") from None
        except OSError as error:
            raise UnsupportedError(f"{path}: {error.strerror}") from None

    def read(self, most: int) -> list[LogRecord]:
        """The next records, at most about so many. Raises SourceError where the log cannot be read."""
        records: list[LogRecord] = []
        while len(records) < most:
            try:
                data = os.read(self._descriptor, RECORD_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.EPIPE:
                    continue  # overtaken; how many were lost shows in the next record's number
                raise SourceError(f"{self._path}: {error.strerror}") from None
            if not data:
                break  # the end of a recorded log, for now
            self._split(data, records)
        return records

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _split(self, data: bytes, records: list[LogRecord]) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > RECORD_BYTES:
            self.malformed += 1
            self._rest = b""
        for line in lines:
            if not line or line.startswith(b" "):
                continue  # the dictionary: what it says of the device stands in the text too
            try:
                record = parse_record(line)
            except SourceError:
                self.malformed += 1
                continue
            if self._expected is not None and record.sequence > self._expected:
                self.lost += record.sequence - self._expected
            self._expected = record.sequence + 1
            records.append(record)
