"""Telling the service manager how a daemon is: systemd's sd_notify(3), which is one datagram; nothing without it."""

from __future__ import annotations

import os
import socket
import time


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


def reloading() -> tuple[str, str]:
    """The lines that begin a reload (systemd 253 and newer take the time, sd_notify(3))."""
    return "RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}"


def watchdog_seconds() -> float | None:
    """How often the service manager wants to hear of us, at half of WatchdogSec=; None where it does not."""
    wanted = os.environ.get("WATCHDOG_USEC", "")
    if not wanted.isdigit() or os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(wanted) / 2e6 or None
