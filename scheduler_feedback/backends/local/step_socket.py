"""Path of a node's step socket. Standard library only, because every command imports it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

_SOCKET_PATH_BYTES = 107  # sun_path has 108 bytes with the terminating zero (unix(7))


def step_socket(state_folder: Path, node: str) -> str:
    """Return the path of the node's step socket: in the state folder, or in /tmp if that path is too long."""
    path = f"{state_folder}/run/{node}.sock"
    if len(os.fsencode(path)) <= _SOCKET_PATH_BYTES:
        return path
    digest = hashlib.sha256(os.fsencode(state_folder)).hexdigest()[:8]
    return f"/tmp/gangwatch-{os.getuid()}-{digest}/{node}.sock"
