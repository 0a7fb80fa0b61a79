"""The last lines of a rank's log file."""

from __future__ import annotations

import os
from pathlib import Path

MAX_TAIL_BYTES = 4 * 1024 * 1024
"""Maximum size of one response in bytes, because lines may have any length."""

_BLOCK_BYTES = 64 * 1024


def tail_of(path: Path, lines: int) -> str:
    """Return the last `lines` lines of the file, at most MAX_TAIL_BYTES. Bytes that are not UTF-8 are replaced.

    Raises FileNotFoundError.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        position = os.fstat(descriptor).st_size
        found = b""
        # The last line also ends with a line end, hence one more line end than lines.
        while position > 0 and found.count(b"\n") <= lines and len(found) < MAX_TAIL_BYTES:
            length = min(_BLOCK_BYTES, position)
            position -= length
            found = os.pread(descriptor, length, position) + found
    finally:
        os.close(descriptor)
    kept = found[-MAX_TAIL_BYTES:].split(b"\n")
    wanted = lines + 1 if kept[-1] == b"" else lines  # a final line end does not start another line
    return b"\n".join(kept[-wanted:] if lines else ()).decode(errors="replace")
