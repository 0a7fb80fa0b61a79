"""Readers of small kernel files: once, or repeatedly through an open descriptor.

A read with an open descriptor (pread from offset 0) returns the current content. It costs a fifth of open, read and
close.
"""

from __future__ import annotations

import errno
import os

from agent.schema.errors import SourceError, UnsupportedError

_CHUNK_BYTES = 65536
"""Maximum number of bytes of one read, enough for small files. Long files need several reads, since the kernel may
return one page per read."""

_SWITCHED_OFF = frozenset({errno.EOPNOTSUPP, errno.ENOSYS})


def read_file(path: str) -> bytes:
    """Return the content of the file. Raise OSError on failure."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(descriptor, _CHUNK_BYTES)
        if not data:
            return data
        while more := os.read(descriptor, _CHUNK_BYTES):
            data += more
        return data
    finally:
        os.close(descriptor)


MOST_DIGITS = 20
"""Maximum number of digits of a count: 2^64 - 1 has 20 digits."""


def whole(digits: bytes) -> int:
    """Parse a count that the kernel wrote in decimal digits. Raise ValueError for other text, such as signs."""
    if not digits.isdigit() or len(digits) > MOST_DIGITS:
        raise ValueError(f"{digits[:40]!r} is not a count")
    return int(digits)


class KeptFile:
    """Kernel file that is read repeatedly through one descriptor.

    The first read opens the file. A failed read closes the file, and the next read opens it again.
    """

    __slots__ = ("_descriptor", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = -1

    def read(self) -> bytes:
        """Return the current content of the file.

        Raise UnsupportedError if the file does not exist or the feature is switched off in the kernel (EOPNOTSUPP, as
        for pressure-stall files with psi=0), SourceError if it cannot be read.
        """
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            data = os.pread(self._descriptor, _CHUNK_BYTES, 0)
            if not data:
                return data
            # Only an empty read marks the end of a kernel file: a seq_file may stop at the end of a page.
            while more := os.pread(self._descriptor, _CHUNK_BYTES, len(data)):
                data += more
            return data
        except (FileNotFoundError, NotADirectoryError) as error:
            self.close()
            raise UnsupportedError(f"{self.path}: {error.strerror}") from None
        except OSError as error:
            self.close()
            if error.errno in _SWITCHED_OFF:
                raise UnsupportedError(f"{self.path}: {error.strerror}") from None
            raise SourceError(f"{self.path}: {error.strerror}") from None

    def close(self) -> None:
        """Close the descriptor; a later read opens the file again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
