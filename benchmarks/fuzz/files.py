"""Files in memory, for parsers that need a path. Each process overwrites one file per suffix with every input."""

from __future__ import annotations

import atexit
import os
from pathlib import Path

_FOLDER = Path("/dev/shm")
_written: set[Path] = set()


def written(data: bytes, suffix: str) -> Path:
    """Return the path of a file with these bytes. The next call with the same suffix overwrites the file."""
    path = _FOLDER / f"gangwatch-fuzz-{os.getpid()}{suffix}"
    if path not in _written:
        _written.add(path)
        atexit.register(path.unlink, missing_ok=True)
    path.write_bytes(data)
    return path
