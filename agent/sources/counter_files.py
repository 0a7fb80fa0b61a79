"""Reader that copies the numbers of many kernel files, one number per file, into an array.

Files that are read every second stay open: a pread costs a fifth of open, read and close.A file without a number is
skipped for some runs, because each read of an unsupported value may cause a firmware command and a line in the
kernel log.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

_MOST_BYTES = 32
"""Maximum number of bytes of one read. 2^64 - 1 has 20 digits, followed by a line end."""

_NO_ANSWER = frozenset(
    {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EIO, errno.EACCES, errno.EPERM, errno.EISDIR}
)
"""Error numbers of reads that will also fail at the next run. Other errors (ENODEV, ENOENT) mean that the device was
removed. It may be back at the next run, and a retry costs only a failed open."""


def parse_number(data: bytes) -> int:
    """Parse the content of a file with one decimal number. Raise ValueError for other text, such as 'N/A (no PMA)'."""
    digits = data.strip()
    # int() accepts signs, underscores and digits of other scripts, which the kernel does not write.
    if not digits.isdigit():
        raise ValueError(f"{data[:_MOST_BYTES]!r} is not a number")
    return int(digits)


def _error(data: bytes) -> OSError | ValueError:
    """Return the error for file content without a number. Empty content means that the device is being removed."""
    return ValueError("no number") if data else OSError(errno.ENODEV, os.strerror(errno.ENODEV))


class CounterFiles:
    """Reader of files that contain one number each. It writes the numbers into consecutive cells of an array.

    keep: keep the descriptors open. It is False if the process may have only 1,024 descriptors and the files are read
    rarely: a node with 16 NICs has a thousand of them. retry_runs: number of runs for which a file without a number is
    skipped. first: files that are read before the others at every run, and whose values are ignored.
    """

    __slots__ = ("_descriptors", "_failing", "_first", "_keep", "_paths", "_read", "_retry_runs", "_skips", "_texts")

    def __init__(self, paths: Sequence[str], *, keep: bool, retry_runs: int, first: Sequence[str] = ()) -> None:
        self._paths = tuple(paths)
        self._keep = keep
        self._retry_runs = retry_runs
        self._first = tuple(first)
        self._descriptors = [-1] * len(self._paths)
        self._skips = [0] * len(self._paths)
        self._texts = [b""] * len(self._paths)
        self._failing = bytearray(len(self._paths))
        self._read = False

    def __len__(self) -> int:
        return len(self._paths)

    def read_into(self, cells: memoryview, valid: memoryview) -> int:
        """Read each file, and return the number of files that contained a number.

        Cell i of `cells` gets the number in file i, and cell i of `valid` whether there is one. cells: format 'L' or
        'Q', at least one cell per file. valid: format '?'. Pass the same arrays at every call, since unchanged
        values are not written again.
        """
        for path in self._first:
            self._read_once(path)
        pread, texts = os.pread, self._texts
        good = 0
        for index, descriptor in enumerate(self._descriptors):
            if descriptor < 0:
                valid[index] = read = self._open_and_read(index, cells)
                good += read
                continue
            try:
                data = pread(descriptor, _MOST_BYTES, 0)
                if data == texts[index]:  # the common case: most counters are of errors and do not change
                    valid[index] = True
                    good += 1
                elif data.strip().isdigit():  # parse_number, inlined
                    cells[index] = int(data)
                    valid[index] = True
                    texts[index] = data
                    good += 1
                else:
                    self._failed(index, _error(data))
                    valid[index] = False
            except (OSError, ValueError) as error:
                self._failed(index, error)
                valid[index] = False
        self._read = True
        return good

    def unreadable(self) -> int | None:
        """Return the number of files that returned no number when they were last read; None before the first run."""
        return sum(self._failing) if self._read else None

    def skipped(self) -> int:
        """Return the number of files that are temporarily skipped because they returned no number."""
        return sum(skips > 0 for skips in self._skips)

    def close(self) -> None:
        """Close the descriptors. A later read opens the files again."""
        for index in range(len(self._descriptors)):
            self._close(index)

    def _open_and_read(self, index: int, cells: memoryview) -> bool:
        if self._skips[index]:
            self._skips[index] -= 1
            return False
        try:
            descriptor = os.open(self._paths[index], os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self._failed(index, error)
            return False
        self._descriptors[index] = descriptor
        try:
            data = os.pread(descriptor, _MOST_BYTES, 0)
            if not data:
                raise _error(data)
            cells[index] = parse_number(data)
        except (OSError, ValueError) as error:
            self._failed(index, error)
            return False
        self._failing[index] = False
        if self._keep:
            self._texts[index] = data
        else:
            self._close(index)
        return True

    def _failed(self, index: int, error: OSError | ValueError) -> None:
        self._close(index)
        self._failing[index] = True
        if not isinstance(error, OSError) or error.errno in _NO_ANSWER:
            self._skips[index] = self._retry_runs

    def _close(self, index: int) -> None:
        descriptor = self._descriptors[index]
        if descriptor >= 0:
            self._descriptors[index] = -1
            self._texts[index] = b""
            os.close(descriptor)

    @staticmethod
    def _read_once(path: str) -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            os.pread(descriptor, _MOST_BYTES, 0)
        except OSError:
            pass
        finally:
            os.close(descriptor)
