"""Reading small kernel files: once, or again and again through a kept descriptor.

A pread on a kept descriptor costs a fifth of open, read and close, and the kernel renders the file anew at offset 0.
"""

from __future__ import annotations

import errno
import os

from agent.schema.errors import SourceError, UnsupportedError

_CHUNK_BYTES = 65536
"""One read takes a whole small file; seq_file(5) gives at least a page a read, so long ones take several."""

_SWITCHED_OFF = frozenset({errno.EOPNOTSUPP, errno.ENOSYS})


def read_file(path: str) -> bytes:
    """The whole file. Raises OSError: what a missing file means, the caller knows."""
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
"""Of 2^64 - 1."""


def whole(digits: bytes) -> int:
    """A count as the kernel writes it. Raises ValueError for anything else: int() alone takes signs and underscores."""
    if not digits.isdigit() or len(digits) > MOST_DIGITS:
        raise ValueError(f"{digits[:40]!r} is no count")
    return int(digits)


class KeptFile:
    """A kernel file that is read once a tick through one descriptor.

    Opened at the first read. A failed read closes it, so that the next one opens it anew.
    """

    __slots__ = ("_descriptor", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = -1

    def read(self) -> bytes:
        """The file's present content.

        Raises UnsupportedError where there is no such file or the kernel has the feature switched off (EOPNOTSUPP, as
        pressure-stall files give under psi=0), SourceError where it cannot be read.
        """
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            data = os.pread(self._descriptor, _CHUNK_BYTES, 0)
            if not data:
                return data
            # The end of a kernel file is known only by an empty read: a seq_file stops short at a page's end.
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
