"""Orders of time shifts, as lines for the streams of agents (``leased_orders``)."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from scheduler_feedback.core.job import TimeShift

WORD = b"time-shifts"

MOST_GANGS = 64
"""Maximum number of gangs in one order, which an agent accepts."""

MOST_NAME = 256
"""Maximum length of an encoded name of a gang."""


def order_line(shifts: Mapping[str, TimeShift]) -> bytes:
    """Return the order for one agent. shifts: by gang as the agent names it; empty to end all shifts."""
    pairs = [
        f" {name}={shift.period_ns}/{shift.offset_ns}"
        for gang, shift in sorted(shifts.items())
        if 0 < len(name := quote(gang)) <= MOST_NAME
    ]
    return WORD + "".join(pairs[:MOST_GANGS]).encode() + b"\n"


NONE = order_line({})
