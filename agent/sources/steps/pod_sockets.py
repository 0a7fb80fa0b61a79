"""Step sockets in volumes of pods, for pods that may not mount host folders.

A pod of the baseline Pod Security Standard may have an emptyDir, which the kubelet keeps below its own folder
(pods/UID/volumes/kubernetes.io~empty-dir/NAME, pkg/kubelet/kubelet_getters.go). If an emptyDir is called `gangwatch`,
the agent listens in it. Processes are identified as on the host socket: the kernel reports the process that connected,
and the control group of the process contains its pod. A process can therefore report only its own steps.

The pod may change the folder at any time, so the agent follows no symbolic link in it.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterable
from dataclasses import dataclass

VOLUME = "gangwatch"
SOCKET_NAME = "agent.sock"
SCAN_SECONDS = 2.0
"""Interval in seconds of scans for added and removed pods. Training processes retry to connect for a longer time
(gangwatch/steps.py)."""

MAX_SOCKETS = 1024
"""Maximum number of pods with a step socket. It is more than the maximum number of pods of a kubelet
(110 by default)."""

_EMPTY_DIRS = "volumes/kubernetes.io~empty-dir"


@dataclass(slots=True)
class _PodSocket:
    listener: socket.socket
    inode: int


class PodSockets:
    """Step sockets of all pods of a kubelet. Not thread-safe. folder: the kubelet's folder `pods`."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._sockets: dict[str, _PodSocket] = {}

    def scan(self) -> tuple[list[socket.socket], list[socket.socket]]:
        """Find added and removed pods, and open sockets for the added pods.

        Return these sockets, and the sockets of the removed pods, which the caller must close.
        """
        try:
            pods = sorted(os.listdir(self._folder))[:MAX_SOCKETS]
        except OSError:
            pods = []
        opened, gone = [], [self._sockets.pop(pod).listener for pod in self._sockets.keys() - set(pods)]
        for pod in pods:
            path = f"{self._folder}/{pod}/{_EMPTY_DIRS}/{VOLUME}"
            try:
                folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError:
                if pod in self._sockets:
                    gone.append(self._sockets.pop(pod).listener)
                continue
            try:
                known = self._sockets.get(pod)
                if known is not None and _inode(folder) == known.inode:
                    continue
                if known is not None:
                    gone.append(self._sockets.pop(pod).listener)
                added = self._sockets[pod] = _open(folder)
                opened.append(added.listener)
            except OSError:
                continue  # the pod is ending or changed the folder: retried at the next scan
            finally:
                os.close(folder)
        return opened, gone

    def close(self) -> Iterable[socket.socket]:
        """Close the sockets of all pods and yield them.

        Their files remain until the next agent starts or the pod ends.
        """
        for pod_socket in self._sockets.values():
            pod_socket.listener.close()
            yield pod_socket.listener
        self._sockets.clear()


def _open(folder: int) -> _PodSocket:
    """Make a socket in the folder and listen on it. Raise OSError on failure."""
    try:
        os.unlink(SOCKET_NAME, dir_fd=folder)
    except FileNotFoundError:
        pass
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(f"/proc/self/fd/{folder}/{SOCKET_NAME}")  # the full path exceeds the limit of a socket path
        # The pod may have replaced the file: open it, check it, and only then change its mode.
        held = os.open(SOCKET_NAME, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            status = os.fstat(held)
            if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.geteuid():
                raise OSError("the socket file was replaced")
            os.chmod(f"/proc/self/fd/{held}", 0o666)
        finally:
            os.close(held)
        listener.listen(128)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return _PodSocket(listener, status.st_ino)


def _inode(folder: int) -> int:
    """Return the inode of the socket file in the folder; 0 if there is none."""
    try:
        return os.stat(SOCKET_NAME, dir_fd=folder, follow_symlinks=False).st_ino
    except OSError:
        return 0
