"""A limit on concurrent handshakes, so that each one that begins finishes before it times out.

If 10,000 handshakes began at once, agents that share a machine, a proxy or a CPU would respond so late that handshakes
time out and begin again, which delays the others further (observed: 1,944 times with 3,000 agents).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

MOST_ARRIVING = 256
"""Maximum number of agents that are between the start of their handshake and their first layout at one time."""

ARRIVING_NS = 1_000_000_000
"""Nanoseconds after which a handshake no longer counts against the limit. A rack that accepts connections but sends
nothing blocks other agents for at most this time."""

Who = TypeVar("Who")


class HandshakeSlots(Generic[Who]):
    """Limit on concurrent handshakes. A handshake that exceeds it waits in a queue."""

    def __init__(self, most: int = MOST_ARRIVING) -> None:
        self._most = most
        self._since_ns: dict[Who, int] = {}
        self._waiting: dict[Who, None] = {}

    @property
    def crowded(self) -> bool:
        """Whether so many handshakes wait that no further connection should be opened."""
        return len(self._waiting) >= self._most

    @property
    def running(self) -> bool:
        """Whether a handshake runs or waits."""
        return bool(self._since_ns or self._waiting)

    def enter(self, who: Who, now_ns: int) -> bool:
        """Return whether `who` may start its handshake now. If not, add it to the queue; ``let_in`` yields it later."""
        if who not in self._since_ns:
            if self._waiting or not self._has_room(now_ns):
                self._waiting[who] = None
                return False
            self._since_ns[who] = now_ns
        return True

    def let_in(self, now_ns: int) -> Iterator[Who]:
        """Yield waiting handshakes that may start now, in the order in which they were queued."""
        while self._waiting and self._has_room(now_ns):
            who = next(iter(self._waiting))
            del self._waiting[who]
            self._since_ns[who] = now_ns
            yield who

    def leave(self, who: Who) -> None:
        """Record that the handshake has ended, or remove it from the queue."""
        self._since_ns.pop(who, None)
        self._waiting.pop(who, None)

    def _has_room(self, now_ns: int) -> bool:
        while self._since_ns:
            first = next(iter(self._since_ns))  # in the order in which the slots were given out
            if now_ns - self._since_ns[first] < ARRIVING_NS:
                break
            del self._since_ns[first]
        return len(self._since_ns) < self._most
