"""Receiver of the daemons' heartbeats: sd_notify(3) datagrams on a socket in the state folder.

A daemon sends heartbeats only while it makes progress. Missing heartbeats mean that the daemon is stuck, even if its
process is alive. The socket has a path, so a new supervisor also receives from daemons of an earlier supervisor.
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

WATCHDOG_SECONDS = 60.0
"""Time since a daemon's last heartbeat after which the daemon is restarted. Equals WatchdogSec= of our units."""

_PEER = struct.Struct("3i")
"""struct ucred (unix(7)): pid, uid and gid of the sender, filled in by the kernel."""

_MAX_DATAGRAMS = 1024
"""Maximum number of datagrams per read, so that a flood can't block the supervisor."""

_STOPPED = ("T", "t")
"""Process states after a stop by a signal or a debugger (proc_pid_stat(5))."""


class Heartbeats:
    """Time of the last heartbeat of each process. The caller passes all times, from `time.monotonic()`."""

    def __init__(self, path: Path) -> None:
        """Listen at `path`; replace an existing socket. Raises OSError."""
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
        """Read the received datagrams."""
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
        """Delete the entry of a process that has ended."""
        self._received_s.pop(pid, None)

    def excuse(self, pid: int, now_s: float) -> None:
        """Restart the timeout of a process that could not send heartbeats until now."""
        if pid in self._received_s:
            self._received_s[pid] = now_s

    def seconds_since(self, pid: int, now_s: float) -> float:
        """Return the seconds since the last heartbeat; 0 for a process that never sent one."""
        return max(0.0, now_s - self._received_s.get(pid, now_s))


def is_stopped(pid: int, proc: Path = Path("/proc")) -> bool:
    """Return whether the process is stopped (SIGSTOP, a debugger); then it is not stuck."""
    try:
        return (proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[0].decode() in _STOPPED
    except (OSError, IndexError):
        return False


def where_it_waits(pid: int, proc: Path = Path("/proc")) -> str:
    """Return the process's threads in uninterruptible sleep (D) and what they wait for; '' for none."""
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
