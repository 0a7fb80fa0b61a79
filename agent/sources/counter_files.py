"""Many kernel files of one number each, read together into an array.

The descriptors are kept where the files are read every second: a pread costs a fifth of open, read and close. Each file
fails for itself: one that has no number for us is remembered and left alone for a while, because asking a device for
what it has not got may cost a firmware command and a line in the kernel's log each time.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

_MOST_BYTES = 32
"""2^64 - 1 has 20 digits; a line end follows."""

_NO_ANSWER = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EIO, errno.EACCES, errno.EPERM})
"""What a file that will not answer the next time either says. Others (ENODEV, ENOENT) say that the device is gone: it
may be back at the next run, and asking costs a failed open."""


def parse_number(data: bytes) -> int:
    """A file of one decimal number. Raises ValueError for anything else ('N/A (no PMA)' is what some say)."""
    digits = data.strip()
    # int() alone would take signs, underscores and other scripts' digits, none of which a kernel writes.
    if not digits.isdigit():
        raise ValueError(f"{data[:_MOST_BYTES]!r} is no number")
    return int(digits)


def _error(data: bytes) -> OSError | ValueError:
    """What a reading without a number means: an empty one that the file is going, any other that it has none."""
    return ValueError("no number") if data else OSError(errno.ENODEV, os.strerror(errno.ENODEV))


class CounterFiles:
    """Reads files into consecutive cells.

    keep: hold the descriptors. A slow tier does not: a node with 16 NICs has a thousand of its files, and a process
    may have 1,024 descriptors. retry_runs: for how many runs a file that gives no number is left alone.
    first: files that are read before the others at every run, and whose values are not wanted.
    """

    __slots__ = ("_descriptors", "_first", "_keep", "_paths", "_retry_runs", "_skips", "_texts")

    def __init__(self, paths: Sequence[str], *, keep: bool, retry_runs: int, first: Sequence[str] = ()) -> None:
        self._paths = tuple(paths)
        self._keep = keep
        self._retry_runs = retry_runs
        self._first = tuple(first)
        self._descriptors = [-1] * len(self._paths)
        self._skips = [0] * len(self._paths)
        self._texts = [b""] * len(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def read_into(self, cells: memoryview, valid: memoryview) -> int:
        """Set cells[i] for each file i that gives a number, and valid[i] to whether it does. Returns how many do.

        cells: format 'L' or 'Q', at least as long as there are files. valid: format '?'. The same
        cells at every call: what a file said the last time is not written again.
        """
        for path in self._first:
            self._read_once(path)
        pread, texts = os.pread, self._texts
        good = 0
        for index, descriptor in enumerate(self._descriptors):
            if descriptor < 0:
                valid[index] = read = self._read_anew(index, cells)
                good += read
                continue
            try:
                data = pread(descriptor, _MOST_BYTES, 0)
                if data == texts[index]:  # most counters count errors, of which there was none
                    valid[index] = True
                    good += 1
                elif data.strip().isdigit():  # parse_number, without the call
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
        return good

    def unreadable(self) -> int:
        """Files that are left alone at present because they gave no number."""
        return sum(skips > 0 for skips in self._skips)

    def close(self) -> None:
        """Give the descriptors back; a later read opens the files again."""
        for index in range(len(self._descriptors)):
            self._close(index)

    def _read_anew(self, index: int, cells: memoryview) -> bool:
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
        if self._keep:
            self._texts[index] = data
        else:
            self._close(index)
        return True

    def _failed(self, index: int, error: OSError | ValueError) -> None:
        self._close(index)
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
