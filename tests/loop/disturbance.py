"""Slowdown of a rank by signals from a process outside gangwatch."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stopped_and_continued(pid: int, held: float = 0.3, free: float = 0.25) -> Iterator[None]:
    """Send SIGSTOP and SIGCONT alternately, until the process or the ``with`` ends."""
    over = threading.Event()

    def disturb() -> None:
        try:
            while not over.is_set():
                os.kill(pid, signal.SIGSTOP)
                over.wait(held)
                os.kill(pid, signal.SIGCONT)
                over.wait(free)
        except ProcessLookupError:
            return

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
