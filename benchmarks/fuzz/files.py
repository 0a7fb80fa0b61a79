"""A file in memory for parsers that read a path: one a process and suffix, overwritten by each input."""

from __future__ import annotations

import atexit
import os
from pathlib import Path

_FOLDER = Path("/dev/shm")
_written: set[Path] = set()


def written(data: bytes, suffix: str) -> Path:
    """Return the path of a file that holds these bytes until the next call with this suffix."""
    path = _FOLDER / f"gangwatch-fuzz-{os.getpid()}{suffix}"
    if path not in _written:
        _written.add(path)
        atexit.register(path.unlink, missing_ok=True)
    path.write_bytes(data)
    return path
