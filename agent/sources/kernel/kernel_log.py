"""Reader of the kernel log, /dev/kmsg, from its oldest record.

The format is in Documentation/ABI/testing/dev-kmsg of the kernel. Each read returns one complete record. If the
kernel has overwritten unread records, a read fails with EPIPE, and the next read returns the oldest record. A
regular file with the same lines can be read too.
"""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

from agent.schema.errors import SourceError, UnsupportedError

RECORD_BYTES = 16384
"""Buffer size in bytes. A record with prefix and dictionary has at most 8 KiB (CONSOLE_EXT_LOG_MAX). A read with a
shorter buffer fails with EINVAL."""

_KERNEL = 0
"""Number of the syslog facility of the kernel's own messages. Messages of processes have another facility
(devkmsg_write)."""


class LogRecord(NamedTuple):
    """One record of the kernel log.

    level: 0 (emergency) to 7 (debug). microseconds: time since boot, on the log's clock.
    """

    facility: int
    level: int
    sequence: int
    microseconds: int
    text: str

    @property
    def from_kernel(self) -> bool:
        return self.facility == _KERNEL


def parse_record(line: bytes) -> LogRecord:
    """Parse one record without its dictionary lines. Raise SourceError if it is malformed."""
    prefix, semicolon, text = line.partition(b";")
    fields = prefix.split(b",")
    if not semicolon or len(fields) < 3 or not all(field.isdigit() and len(field) <= 20 for field in fields[:3]):
        raise SourceError(f"kernel log: {line[:80]!r} is not a valid record")
    priority, sequence, microseconds = (int(field) for field in fields[:3])
    return LogRecord(priority >> 3, priority & 7, sequence, microseconds, text.decode("utf-8", "replace"))


class KernelLog:
    """Reader of the kernel log, from its oldest record on. Reads do not block.

    lost: number of records that were overwritten before they were read. malformed: number of invalid lines.
    """

    def __init__(self, path: str) -> None:
        """Open the log. Raise UnsupportedError if the log does not exist or the agent may not read it."""
        self.lost = 0
        self.malformed = 0
        self._path = path
        self._rest = b""
        self._expected: int | None = None
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except PermissionError:
            raise UnsupportedError(f"{path}: requires the capability SYSLOG (kernel.dmesg_restrict is 1)") from None
        except OSError as error:
            raise UnsupportedError(f"{path}: {error.strerror}") from None

    def read(self, most: int) -> list[LogRecord]:
        """Return about `most` next records. Raise SourceError if the log cannot be read."""
        records: list[LogRecord] = []
        while len(records) < most:
            try:
                data = os.read(self._descriptor, RECORD_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.EPIPE:
                    continue  # records were overwritten; the next sequence number shows how many
                raise SourceError(f"{self._path}: {error.strerror}") from None
            if not data:
                break  # the current end of a recorded log
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
                continue  # the dictionary: the text contains the device too
            try:
                record = parse_record(line)
            except SourceError:
                self.malformed += 1
                continue
            if self._expected is not None and record.sequence > self._expected:
                self.lost += record.sequence - self._expected
            self._expected = record.sequence + 1
            records.append(record)
