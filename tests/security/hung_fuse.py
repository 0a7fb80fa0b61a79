"""FUSE file whose server does not answer FLUSH, so that closing the file blocks (fuse(4); needs root).

The protocol is that of the kernel's include/uapi/linux/fuse.h, version 7.31. Each request has a header of 40 bytes,
each response one of 16.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import threading
from pathlib import Path

from tests import needs

_LOOKUP, _FORGET, _GETATTR, _OPEN, _RELEASE, _FLUSH, _INIT, _BATCH_FORGET = 1, 2, 3, 14, 18, 25, 26, 42
_HEADER = struct.Struct("<IIQQIIIHH")
_ANSWER = struct.Struct("<IiQ")
_MNT_DETACH = 2


def _attributes(node: int) -> bytes:
    """Return a struct fuse_attr. node: 1 is the root folder, 2 is the file."""
    mode = 0o40755 if node == 1 else 0o100644
    return struct.pack("<QQQQQQIIIIIIIIII", node, 0, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


class HungFuse:
    """FUSE mount on `folder` inside the ``with``. ``open`` opens its file; ``answer`` ends all blocked closes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._flushes: list[int] = []
        self.flushing = threading.Event()

    def __enter__(self) -> HungFuse:
        try:
            self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            needs.absent(f"/dev/fuse cannot be opened ({error.strerror}): run the tests as root, with the fuse module")
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0".encode()
        if self._libc.mount(b"fuse", str(self._folder).encode(), b"fuse", 0, options) != 0:
            os.close(self._device)
            needs.absent(f"FUSE cannot be mounted ({os.strerror(ctypes.get_errno())}): run the tests as root")
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.answer()
        self._libc.umount2(str(self._folder).encode(), _MNT_DETACH)
        self._thread.join(5)
        os.close(self._device)

    def open(self) -> int:
        return os.open(self._folder / "file", os.O_RDONLY | os.O_CLOEXEC)

    def answer(self) -> None:
        """Answer all waiting and later FLUSH requests."""
        flushes, self._flushes = self._flushes, []
        self.flushing.clear()
        self._answering = True
        for unique in flushes:
            self._reply(unique)

    _answering = False

    def _reply(self, unique: int, body: bytes = b"", error: int = 0) -> None:
        with contextlib.suppress(FileNotFoundError):  # the request was interrupted: its process has ended
            os.write(self._device, _ANSWER.pack(_ANSWER.size + len(body), -error, unique) + body)

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self._device, 1 << 20)
            except OSError:
                return  # unmounted
            _, opcode, unique, node, *_ = _HEADER.unpack_from(request)
            if opcode == _INIT:
                self._reply(unique, struct.pack("<IIIIHHIIHHI28x", 7, 31, 4096, 0, 8, 8, 4096, 1, 1, 0, 0))
            elif opcode == _LOOKUP:
                self._reply(unique, struct.pack("<QQQQII", 2, 1, 9, 9, 0, 0) + _attributes(2))
            elif opcode == _GETATTR:
                self._reply(unique, struct.pack("<QII", 9, 0, 0) + _attributes(node))
            elif opcode == _OPEN:
                self._reply(unique, struct.pack("<QII", 1, 0, 0))
            elif opcode == _FLUSH and not self._answering:
                self._flushes.append(unique)
                self.flushing.set()
            elif opcode in (_FLUSH, _RELEASE):
                self._reply(unique)
            elif opcode not in (_FORGET, _BATCH_FORGET):
                self._reply(unique, error=38)
