"""Network namespaces of other processes, and execution of a function in such a namespace.

setns(2) changes the namespace of the calling thread only. Therefore each call starts a thread. Entering a namespace
needs CAP_SYS_ADMIN. Listing the namespaces of processes needs CAP_SYS_PTRACE and the host's pid namespace.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import TypeVar

from agent.schema.errors import SourceError

_CLONE_NEWNET = 0x40000000

_Made = TypeVar("_Made")


def net_namespaces(proc_root: str = "/proc") -> dict[int, str]:
    """Return a path to each network namespace other than the agent's, by the inode of the namespace.

    The path is in the /proc folder of the process with the lowest pid in the namespace. Call this function rarely: it
    needs a system call (stat) per process.
    """
    try:
        own = os.stat(f"{proc_root}/self/ns/net").st_ino
        pids = sorted(int(name) for name in os.listdir(proc_root) if name.isascii() and name.isdigit())
    except OSError:
        return {}
    found: dict[int, str] = {}
    for pid in pids:
        path = f"{proc_root}/{pid}/ns/net"
        try:
            found.setdefault(os.stat(path).st_ino, path)
        except OSError:
            continue  # the process has ended, or access is denied
    found.pop(own, None)
    return found


def inside(path: str, inode: int, make: Callable[[], _Made]) -> _Made:
    """Call `make` in the network namespace of the file `path`, in a new thread, and return the result of `make`.

    Raise SourceError if the namespace cannot be entered or its inode is not `inode`. Exceptions of `make` are raised.
    """
    made: list[_Made] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if os.fstat(descriptor).st_ino != inode:
                    raise SourceError(f"{path}: the namespace has changed")
                if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET):
                    code = ctypes.get_errno()
                    raise SourceError(f"{path}: {os.strerror(code)}; entering a namespace needs CAP_SYS_ADMIN")
            finally:
                os.close(descriptor)
            made.append(make())
        except OSError as error:
            failed.append(SourceError(f"{path}: {error.strerror}"))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="namespace")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]
