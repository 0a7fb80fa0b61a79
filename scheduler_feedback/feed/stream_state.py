"""What is known of one agent's stream, and what follows it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from agent.schema.frame import PackedLayout
from agent.schema.wire import Decoder
from scheduler_feedback.feed.agent_records import AgentRecord
from scheduler_feedback.feed.stream_connection import Connection

BACKOFF_LEAST_SECONDS = 0.1
BACKOFF_MOST_SECONDS = 5.0
"""A restarted agent is heard again well before its absence (10 s of silence) could pass for a lost node."""


@dataclass(slots=True)
class Stream:
    """What is known of one node's stream. pauses: times it was not read for a while because it sent too much.
    received_ns: monotonic, of the newest frame; None before the first. interval_seconds: at which it sends them, as its
    layout says. known_ns: monotonic, since when it is followed."""

    node: str
    connected: bool = False
    frames: int = 0
    malformed: int = 0
    pauses: int = 0
    received_ns: int | None = None
    interval_seconds: float = 1.0
    known_ns: int = 0
    identity_refused: int = 0
    """Connections that were refused because the agent's certificate is not the node's."""
    certificate_ends: float | None = None
    """When the certificate that it has shown ends, in seconds since the epoch; None without one."""
    complaint: str = field(default="", repr=False)


class Backoff:
    """Pauses between tries: they double from the least to the most, and each is jittered by half of itself."""

    __slots__ = ("_seconds",)

    def __init__(self) -> None:
        self._seconds = BACKOFF_LEAST_SECONDS

    def next(self, longest: bool = False) -> float:
        """Seconds to wait now."""
        seconds = BACKOFF_MOST_SECONDS if longest else self._seconds
        self._seconds = min(BACKOFF_MOST_SECONDS, 2 * seconds)
        return seconds * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        self._seconds = BACKOFF_LEAST_SECONDS


LAYOUT_WEIGHT = 16
"""A byte of a layout costs its reader as much as sixteen of a frame: 0.3 ms a kilobyte, to know again whose each column
is (measured)."""

ALLOWED_A_SECOND = 4 * 1024 * 1024
ALLOWED_AT_ONCE = 8 * 1024 * 1024
"""Weighted bytes of one agent. A node of eight GPUs sends 10 kB a second, and 150 kB of layout (2.4 MB by weight) when
a rank comes or goes. What one agent may send takes less than a tenth of a processor."""


class Allowance:
    """How much more one agent may send now. now_ns: monotonic."""

    __slots__ = ("_left", "_since_ns")

    def __init__(self, now_ns: int) -> None:
        self._left = float(ALLOWED_AT_ONCE)
        self._since_ns = now_ns

    def take(self, cost: int, now_ns: int) -> float:
        """Count what was sent; seconds for which no more is to be read, 0.0 where that is none."""
        earned = (now_ns - self._since_ns) * 1e-9 * ALLOWED_A_SECOND
        self._left = min(self._left + max(0.0, earned), ALLOWED_AT_ONCE) - cost
        self._since_ns = now_ns
        return max(0.0, -self._left / ALLOWED_A_SECOND)


@dataclass(slots=True, eq=False)
class Follower:
    """What follows one agent. deadline_ns: until when something has to have come, in time
    spent on listening. frames_before: when it was opened.
    burst: messages beyond MOST_FRAMES_A_SECOND. followed: False once it is not wanted any more.
    fitting: layout id of the newest frame that was held against its layout: the decoder gives the very same string to
    all frames that are as long in every part."""

    record: AgentRecord
    stream: Stream
    backoff: Backoff = field(default_factory=Backoff)
    connection: Connection | None = None
    descriptor: int = -1
    decoder: Decoder = field(default_factory=Decoder)
    layout: PackedLayout | None = None
    deadline_ns: int = 0
    tries: int = 0
    frames_before: int = 0
    fitting: str = ""
    burst: float = 0.0
    allowance: Allowance | None = None
    followed: bool = True
