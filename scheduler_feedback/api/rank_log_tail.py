"""The end of a rank's log file, read from its end."""

from __future__ import annotations

import os
from pathlib import Path

MAX_TAIL_BYTES = 4 * 1024 * 1024
"""Of one answer, whatever the number of lines: a line may be of any length."""

_BLOCK_BYTES = 64 * 1024


def tail_of(path: Path, lines: int) -> str:
    """The last `lines` lines of the file, or as many as fit in MAX_TAIL_BYTES; what is no UTF-8 is replaced.

    Raises FileNotFoundError.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        position = os.fstat(descriptor).st_size
        found = b""
        # The end of the last line begins no further one, hence one more line end than lines.
        while position > 0 and found.count(b"\n") <= lines and len(found) < MAX_TAIL_BYTES:
            length = min(_BLOCK_BYTES, position)
            position -= length
            found = os.pread(descriptor, length, position) + found
    finally:
        os.close(descriptor)
    kept = found[-MAX_TAIL_BYTES:].split(b"\n")
    wanted = lines + 1 if kept[-1] == b"" else lines  # an end of line at the end is no line of its own
    return b"\n".join(kept[-wanted:] if lines else ()).decode(errors="replace")
