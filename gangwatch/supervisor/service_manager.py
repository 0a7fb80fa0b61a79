"""Telling the service manager how a daemon is: systemd's sd_notify(3), which is one datagram; nothing without it."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def notify(*lines: str) -> None:
    """Send the lines ("READY=1") to $NOTIFY_SOCKET, where there is one. What can't be sent is not worth failing for."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.settimeout(1.0)
        try:
            # A leading '@' stands for the abstract name space.
            sender.sendto("\n".join(lines).encode(), "\0" + address[1:] if address[0] == "@" else address)
        except OSError:
            pass


@contextmanager
def heartbeats(alive: Callable[[], bool]) -> Iterator[None]:
    """While it lasts, tell the service manager again and again that we work, as long as `alive` says so.

    From a thread of its own: it is not held up by what it reports of.
    """
    seconds = watchdog_seconds()
    if seconds is None:
        yield
        return
    done = threading.Event()

    def beat() -> None:
        while not done.wait(seconds):
            if alive():
                notify("WATCHDOG=1")

    notify("WATCHDOG=1")
    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def reloading() -> tuple[str, str]:
    """The lines that begin a reload (systemd 253 and newer take the time, sd_notify(3))."""
    return "RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}"


def watchdog_seconds() -> float | None:
    """How often the service manager wants to hear of us; None where it does not: a quarter of WatchdogSec=, so that
    one heartbeat that is left out because work was late does not end us."""
    wanted = os.environ.get("WATCHDOG_USEC", "")
    if not wanted.isdigit() or os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(wanted) / 4e6 or None
