"""Notification of the service manager with systemd's sd_notify(3), one datagram per message."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def notify(*lines: str) -> None:
    """Send these lines, for example "READY=1", to the service manager's socket ($NOTIFY_SOCKET). Errors are ignored.

    Without the variable, nothing is sent.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.settimeout(1.0)
        try:
            # A leading '@' means the abstract name space.
            sender.sendto("\n".join(lines).encode(), "\0" + address[1:] if address[0] == "@" else address)
        except OSError:
            pass


@contextmanager
def heartbeats(alive: Callable[[], bool]) -> Iterator[None]:
    """Send heartbeats to the service manager inside the context, as long as `alive` returns True.

    A separate thread sends the heartbeats, so that the daemon's work does not delay them.
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
    """Return the lines that announce a reload to systemd: RELOADING=1 and the current time (sd_notify(3))."""
    return "RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}"


def watchdog_seconds() -> float | None:
    """Return the seconds between heartbeats, a quarter of WatchdogSec=; None if systemd expects no heartbeats.

    The interval is short so that one late heartbeat does not make the service manager kill the daemon.
    """
    wanted = os.environ.get("WATCHDOG_USEC", "")
    if not wanted.isdigit() or os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(wanted) / 4e6 or None
