"""The state of one agent's stream."""

from __future__ import annotations

import random
import select
from dataclasses import dataclass, field

from scheduler_feedback.feed.agent_records import AgentRecord
from scheduler_feedback.feed.stream_connection import Connection
from scheduler_feedback.feed.stream_decoder import StreamDecoder

BACKOFF_LEAST_SECONDS = 0.1
BACKOFF_MOST_SECONDS = 5.0
"""Longest pause between two connection attempts, in seconds. A restarted agent is connected again well before its node
could count as lost, which takes 10 s without frames."""


@dataclass(slots=True)
class Stream:
    """State of one node's stream that other parts of the controller read."""

    node: str
    connected: bool = False
    frames: int = 0
    malformed: int = 0
    pauses: int = 0
    """Number of times that reading was paused because the agent sent too much."""
    received_ns: int | None = None
    """Monotonic time of the newest frame; None before the first."""
    interval_seconds: float = 1.0
    """Interval of frames, from the agent's layout."""
    every: int = 1
    """The agent sends each `every`-th frame, as requested (frame_rate.py)."""
    known_ns: int = 0
    """Monotonic time at which the feed began to follow the agent."""
    identity_refused: int = 0
    """Number of connections that were refused because the agent's certificate is not the node's."""
    certificate_ends: float | None = None
    """Expiry of the agent's certificate, in seconds since the epoch; None without one."""
    complaint: str = field(default="", repr=False)


class Backoff:
    """Pauses between connection attempts. They double up to a maximum; a random factor shortens each by up to half."""

    __slots__ = ("_seconds",)

    def __init__(self) -> None:
        self._seconds = BACKOFF_LEAST_SECONDS

    def next(self, longest: bool = False) -> float:
        """Return the seconds to wait before the next connection attempt. longest: use the maximum pause at once."""
        seconds = BACKOFF_MOST_SECONDS if longest else self._seconds
        self._seconds = min(BACKOFF_MOST_SECONDS, 2 * seconds)
        return seconds * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        self._seconds = BACKOFF_LEAST_SECONDS


LAYOUT_WEIGHT = 16
"""Weight of a byte of a layout; a byte of a frame has the weight 1. A layout costs more CPU time, 0.3 ms per kilobyte
(measured), because each of its series is mapped to its owner again."""

ALLOWED_A_SECOND = 4 * 1024 * 1024
ALLOWED_AT_ONCE = 8 * 1024 * 1024
"""Maximum number of weighted bytes that one agent may send at once. A node of eight GPUs sends 10 kB a second, and 150
kB of layout (2.4 MB weighted) when a rank starts or ends. The allowance takes less than a tenth of a CPU."""


class Allowance:
    """Rate limit of one agent: the number of weighted bytes (``LAYOUT_WEIGHT``) that it may still send.

    now_ns: monotonic time.
    """

    __slots__ = ("_left", "_since_ns")

    def __init__(self, now_ns: int) -> None:
        self._left = float(ALLOWED_AT_ONCE)
        self._since_ns = now_ns

    def take(self, cost: int, now_ns: int) -> float:
        """Subtract `cost` weighted bytes. Return how many seconds to pause reading; 0.0 for no pause."""
        earned = (now_ns - self._since_ns) * 1e-9 * ALLOWED_A_SECOND
        self._left = min(self._left + max(0.0, earned), ALLOWED_AT_ONCE) - cost
        self._since_ns = now_ns
        return max(0.0, -self._left / ALLOWED_A_SECOND)


@dataclass(slots=True, eq=False)
class Follower:
    """State of one agent's stream that only the feed uses."""

    record: AgentRecord
    stream: Stream
    decoder: StreamDecoder
    backoff: Backoff = field(default_factory=Backoff)
    connection: Connection | None = None
    descriptor: int = -1
    poll: select.epoll = field(init=False)
    """The epoll object of the socket: that of connecting agents, or that of streams of frames."""
    deadline_ns: int = 0
    """Time at which the stream times out, on a clock that stops while the thread does other work than reading."""
    tries: int = 0
    frames_before: int = 0
    """Number of frames that were received before the stream was opened."""
    burst: float = 0.0
    """Number of messages that the agent has recently sent in excess of MOST_FRAMES_A_SECOND per second."""
    allowance: Allowance | None = None
    followed: bool = True
    """Whether the feed still follows the agent."""
