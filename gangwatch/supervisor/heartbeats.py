"""Heartbeats of daemons, as their supervisor hears them: sd_notify(3) datagrams on a socket of the state folder.

A daemon sends one only while its work goes on, so silence means that it is stuck although its process is there. The
socket has a name, and so a daemon that was started by an earlier supervisor is heard by the next.
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

WATCHDOG_SECONDS = 60.0
"""A daemon that was heard once and then not for so long is started anew; as WatchdogSec= of our units has it."""

_PEER = struct.Struct("3i")
"""struct ucred (unix(7)): pid, uid, gid of the sender, as the kernel knows them."""

_MOST_AT_ONCE = 1024
"""Datagrams read in one look: a flood must not keep the supervisor from its work."""

_STOPPED = ("T", "t")
"""States of a process that was stopped by a signal or by a debugger (proc_pid_stat(5))."""


class Heartbeats:
    """Who was heard when. Every time is `time.monotonic()`'s, given by the caller."""

    def __init__(self, path: Path) -> None:
        """Listen at `path`, which is taken from whoever had it. Raises OSError."""
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self._socket.bind(str(path))
        except BaseException:
            self._socket.close()
            raise
        self._heard_s: dict[int, float] = {}

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def environment(self, path: Path) -> dict[str, str]:
        """What a daemon is given, so that it sends some."""
        return {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": str(int(WATCHDOG_SECONDS * 1e6))}

    def take(self, now_s: float) -> None:
        """Read what has come."""
        for _ in range(_MOST_AT_ONCE):
            try:
                message, ancillary, _, _ = self._socket.recvmsg(512, socket.CMSG_SPACE(_PEER.size))
            except OSError:
                return
            for level, kind, content in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(content) >= _PEER.size:
                    pid, uid, _ = _PEER.unpack_from(content)
                    if uid == os.geteuid() and b"WATCHDOG=1" in message.split(b"\n"):
                        self._heard_s[pid] = now_s

    def forget(self, pid: int) -> None:
        """The process has ended."""
        self._heard_s.pop(pid, None)

    def excuse(self, pid: int, now_s: float) -> None:
        """It could not send any until now."""
        if pid in self._heard_s:
            self._heard_s[pid] = now_s

    def silent_seconds(self, pid: int, now_s: float) -> float:
        """For how long nothing was heard of it; 0 of a process that never sent any."""
        return max(0.0, now_s - self._heard_s.get(pid, now_s))


def is_stopped(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether somebody has stopped the process (SIGSTOP, a debugger): then it is not stuck."""
    try:
        return (proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[0].decode() in _STOPPED
    except (OSError, IndexError):
        return False


def where_it_waits(pid: int, proc: Path = Path("/proc")) -> str:
    """Its threads that wait in the kernel without being interruptible (D), and for what; '' for none."""
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
