"""Functions that format times and durations for tables."""

from __future__ import annotations

import time


def span(seconds: float) -> str:
    """Return a duration in Slurm's format: 0:42, 3:20, 2:05:00, 3-04:00:00."""
    whole = int(seconds)
    days, rest = divmod(whole, 86400)
    hours, minutes = divmod(rest // 60, 60)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{rest % 60:02}"
    return f"{hours}:{minutes:02}:{rest % 60:02}" if hours else f"{minutes}:{rest % 60:02}"


def clock(wall_ns: int) -> str:
    """Return a wall time, given in ns, as local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall_ns / 1e9))
