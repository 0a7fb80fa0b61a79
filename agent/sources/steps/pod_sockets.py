"""A way to the step socket for pods that may mount nothing of the host: a door in a volume of their own.

A pod of the baseline Pod Security Standard may have an emptyDir, which the kubelet keeps below its own folder
(pods/UID/volumes/kubernetes.io~empty-dir/NAME, pkg/kubelet/kubelet_getters.go). Where one is called `gangwatch`, the
agent listens in it. Who comes in is attested as everywhere: the kernel says which process connected, its control group
says which pod that is of. So a door opens nothing for anybody but a way to say one's own steps.

The folder belongs to the pod, which may do there what it likes, at any moment: no name in it is followed.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterable
from dataclasses import dataclass

VOLUME = "gangwatch"
DOOR = "agent.sock"
LOOK_SECONDS = 2.0
"""Between two looks for pods that have come or gone; a reporter tries again for longer (gangwatch/steps.py)."""

MOST_DOORS = 1024
"""More than a kubelet runs pods: 110 unless it is told otherwise."""

_EMPTY_DIRS = "volumes/kubernetes.io~empty-dir"


@dataclass(slots=True)
class _Door:
    listener: socket.socket
    inode: int


class PodDoors:
    """The doors of all pods below `folder`, a kubelet's `pods`. Of one thread; ``close`` takes them away."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._doors: dict[str, _Door] = {}

    def look(self) -> tuple[list[socket.socket], list[socket.socket]]:
        """Listeners that are new, and such as lead nowhere any more: these are to be closed by whoever has them."""
        try:
            pods = sorted(os.listdir(self._folder))[:MOST_DOORS]
        except OSError:
            pods = []
        opened, gone = [], [self._doors.pop(pod).listener for pod in self._doors.keys() - set(pods)]
        for pod in pods:
            path = f"{self._folder}/{pod}/{_EMPTY_DIRS}/{VOLUME}"
            try:
                folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError:
                if pod in self._doors:
                    gone.append(self._doors.pop(pod).listener)
                continue
            try:
                known = self._doors.get(pod)
                if known is not None and _inode(folder) == known.inode:
                    continue
                if known is not None:
                    gone.append(self._doors.pop(pod).listener)
                door = self._doors[pod] = _open(folder)
                opened.append(door.listener)
            except OSError:
                continue  # a pod's own doing, or it is going: tried again at the next look
            finally:
                os.close(folder)
        return opened, gone

    def close(self) -> Iterable[socket.socket]:
        """All that are open, closed; their files stay until the next agent or the pod's end."""
        for door in self._doors.values():
            door.listener.close()
            yield door.listener
        self._doors.clear()


def _open(folder: int) -> _Door:
    """Listen in the folder. Raises OSError."""
    try:
        os.unlink(DOOR, dir_fd=folder)
    except FileNotFoundError:
        pass
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(f"/proc/self/fd/{folder}/{DOOR}")  # the whole path is longer than a socket's may be
        # What lies there by now need not be what was bound: it is held first, and looked at, and then opened to all.
        held = os.open(DOOR, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            status = os.fstat(held)
            if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.geteuid():
                raise OSError("it was replaced")
            os.chmod(f"/proc/self/fd/{held}", 0o666)
        finally:
            os.close(held)
        listener.listen(128)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return _Door(listener, status.st_ino)


def _inode(folder: int) -> int:
    """Of what lies at the door now; 0 where nothing does."""
    try:
        return os.stat(DOOR, dir_fd=folder, follow_symlinks=False).st_ino
    except OSError:
        return 0
