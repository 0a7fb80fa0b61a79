"""Listening unix socket of the agent, with a lock that excludes other agents at the same path."""

from __future__ import annotations

import fcntl
import os
import socket
import stat

from agent.schema.errors import SourceError

_ENTERED_BY_ALL = 0o011
"""Mode bits of the socket's folder: other users may enter it, but not list or change it. The kernel and control groups
identify the processes of other users."""


def lock(path: str) -> int:
    """Create or check the folder of the socket, and lock the path for this agent. Return the lock's descriptor."""
    folder = os.path.dirname(path) or "."
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        owner = os.stat(folder)
        if owner.st_uid != os.geteuid() or stat.S_IMODE(owner.st_mode) & 0o077 not in (0, _ENTERED_BY_ALL):
            raise SourceError(
                f"{folder}: the folder must belong to this user with mode 0700, or with mode 0711 if ranks of other "
                "users report to this agent: run chmod"
            )
        descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise SourceError(f"{path}.lock: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise SourceError(f"{path}: another agent is listening on this socket") from None
    return descriptor


def listen(path: str) -> socket.socket:
    """Open a listening socket at the path and return it. Replace the socket file of a dead agent."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            if stat.S_ISSOCK(os.lstat(path).st_mode):
                os.unlink(path)
        except FileNotFoundError:
            pass
        listener.bind(path)
        entered = stat.S_IMODE(os.stat(os.path.dirname(path) or ".").st_mode) & _ENTERED_BY_ALL
        os.chmod(path, 0o666 if entered else 0o600)
        listener.listen(128)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise SourceError(f"{path}: {error.strerror or error}") from None
    return listener
