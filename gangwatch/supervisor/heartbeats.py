"""Receiver of the daemons' heartbeats: sd_notify(3) datagrams on a socket in the state folder.

A daemon sends heartbeats only while it makes progress. Missing heartbeats mean that the daemon is stuck, even if its
process is alive. The socket has a fixed path, so that a new supervisor receives heartbeats of daemons that an
earlier supervisor started.
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

import psutil

WATCHDOG_SECONDS = 60.0
"""Seconds without a heartbeat after which a daemon is restarted. Equals WatchdogSec= of gangwatch's systemd units."""

_PEER = struct.Struct("3i")
"""Format of struct ucred (unix(7)), in which the kernel passes the pid, uid and gid of a sender."""

_MAX_DATAGRAMS = 1024
"""Maximum number of datagrams that one call reads, so that a flood of datagrams can't block the supervisor."""


class Heartbeats:
    """Receiver of heartbeats. It stores the time (`time.monotonic()`) of each process's last heartbeat."""

    def __init__(self, path: Path) -> None:
        """Create the socket at `path` and listen there. An existing socket is replaced. Raises OSError."""
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self._socket.bind(str(path))
        except BaseException:
            self._socket.close()
            raise
        self._received_s: dict[int, float] = {}

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def environment(self, path: Path) -> dict[str, str]:
        """Return the environment variables that make a daemon send heartbeats."""
        return {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": str(int(WATCHDOG_SECONDS * 1e6))}

    def take(self, now_s: float) -> None:
        """Read the received datagrams, and record `now_s` as the last heartbeat of each sender."""
        for _ in range(_MAX_DATAGRAMS):
            try:
                message, ancillary, _, _ = self._socket.recvmsg(512, socket.CMSG_SPACE(_PEER.size))
            except OSError:
                return
            for level, kind, content in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(content) >= _PEER.size:
                    pid, uid, _ = _PEER.unpack_from(content)
                    if uid == os.geteuid() and b"WATCHDOG=1" in message.split(b"\n"):
                        self._received_s[pid] = now_s

    def forget(self, pid: int) -> None:
        """Delete the stored heartbeat time of a process that has ended."""
        self._received_s.pop(pid, None)

    def excuse(self, pid: int, now_s: float) -> None:
        """Restart the heartbeat timeout of a process that was stopped and so could not send heartbeats."""
        if pid in self._received_s:
            self._received_s[pid] = now_s

    def seconds_since(self, pid: int, now_s: float) -> float:
        """Return the seconds since the process's last heartbeat; 0 if it has never sent a heartbeat."""
        return max(0.0, now_s - self._received_s.get(pid, now_s))


def is_stopped(pid: int) -> bool:
    """Return whether a signal (SIGSTOP) or a debugger has stopped the process. Such a process is not stuck."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False


def where_it_waits(pid: int, proc: Path = Path("/proc")) -> str:
    """Return a text with the threads in uninterruptible sleep and the kernel functions in which they wait; '' for
    none."""
    found: list[str] = []
    try:
        threads = sorted((proc / str(pid) / "task").iterdir(), key=lambda thread: int(thread.name))
    except OSError:
        return ""
    for thread in threads:
        try:
            name, _, rest = (thread / "stat").read_bytes().partition(b"(")[2].rpartition(b")")
            if rest.split()[0] == b"D":
                waits = (thread / "wchan").read_text().strip("0\n") or "unknown"
                found.append(f"thread {name.decode(errors='replace')} waits in the kernel for {waits}")
        except (OSError, IndexError):
            continue
    return ", ".join(found)
