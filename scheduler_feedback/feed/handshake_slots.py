"""Who may begin its handshake: so many at a time, that those who have begun are answered before they pass for silent.

Were all of 10,000 agents begun at once, those that share a machine, a proxy or a processor with others would answer so
late that they are given up and begun anew, which makes the others later yet (seen: 1,944 times with 3,000 agents).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

MOST_ARRIVING = 256
ARRIVING_NS = 1_000_000_000
"""Most between the beginning of their handshake and their layout. Who takes longer than a second counts no more: a rack
that accepts connections and says nothing keeps nobody out for longer."""

Who = TypeVar("Who")


class Arriving(Generic[Who]):
    """Those that are let in, and those that wait for it, by turns."""

    def __init__(self, most: int = MOST_ARRIVING) -> None:
        self._most = most
        self._since_ns: dict[Who, int] = {}
        self._waiting: dict[Who, None] = {}

    @property
    def crowded(self) -> bool:
        """Whether so many wait already that no more need to be called."""
        return len(self._waiting) >= self._most

    def enter(self, who: Who, now_ns: int) -> bool:
        """Whether one may go on, now or since it was let in; else it waits, and ``let_in`` tells when it may."""
        if who not in self._since_ns:
            if self._waiting or not self._has_room(now_ns):
                self._waiting[who] = None
                return False
            self._since_ns[who] = now_ns
        return True

    def let_in(self, now_ns: int) -> Iterator[Who]:
        """Those that waited longest, as far as there is room by now."""
        while self._waiting and self._has_room(now_ns):
            who = next(iter(self._waiting))
            del self._waiting[who]
            self._since_ns[who] = now_ns
            yield who

    def leave(self, who: Who) -> None:
        """One has arrived, or has gone."""
        self._since_ns.pop(who, None)
        self._waiting.pop(who, None)

    def _has_room(self, now_ns: int) -> bool:
        while self._since_ns:
            first = next(iter(self._since_ns))  # they stand in the order in which they were let in
            if now_ns - self._since_ns[first] < ARRIVING_NS:
                break
            del self._since_ns[first]
        return len(self._since_ns) < self._most
