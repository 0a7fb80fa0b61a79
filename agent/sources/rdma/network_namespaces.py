"""Network namespaces of other processes, and how to do one thing inside of one.

setns(2) changes the namespace of the calling thread alone: a thread is made for it, and ends with it. Entering needs
CAP_SYS_ADMIN, and seeing which process has which namespace CAP_SYS_PTRACE and the host's process namespace.
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
    """A way into each network namespace that is not our own, by its inode: the file of the oldest process that has it.

    Costs a stat a process: for what is asked rarely.
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
            continue  # it has ended, or is not ours to look at
    found.pop(own, None)
    return found


def inside(path: str, inode: int, make: Callable[[], _Made]) -> _Made:
    """What `make` gives when it is called in the namespace of that file; it is called in a thread of its own.

    Raises SourceError where the namespace can't be entered or is another one by now, and whatever `make` raises.
    """
    made: list[_Made] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if os.fstat(descriptor).st_ino != inode:
                    raise SourceError(f"{path}: another namespace than before")
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
