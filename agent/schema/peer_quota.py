"""Places that peers share: connections and streams, of which no peer may take so many that others find none. Pure.

The rule is max-min fairness. A peer that asks for less than its share gets it; where all places are taken, the peer
with the most gives one up to a peer with fewer. What it gives up is what is worth the least: a connection that has
said nothing yet before one that is being answered, and of equals the oldest.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from agent.schema.errors import GangwatchError

_Holder = TypeVar("_Holder", bound=Hashable)


class NoPlaceError(GangwatchError):
    """All places are taken by holders that are worth as much."""


@dataclass(slots=True)
class _Place:
    peer: str
    since_s: float
    worth: int


class Places(Generic[_Holder]):
    """Which peer holds which places. Not locked: the owner calls it from one thread, or under a lock of its own."""

    def __init__(self, most: int, most_each: int, *, worth_own: int = 0, worth_others: int = 0, least_s: float = 0.0):
        """most: places in all. most_each: of one peer. worth_own, worth_others: the most that a place may be worth that
        makes room for another of the same peer, or of another peer. least_s: seconds that a holder keeps its place
        before it has to make room."""
        self.most = most
        self.most_each = most_each
        self._worth_own = worth_own
        self._worth_others = worth_others
        self._least_s = least_s
        self._places: dict[_Holder, _Place] = {}
        self._of_peer: dict[str, dict[_Holder, None]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[_Holder]:
        return iter(tuple(self._places))

    def __contains__(self, holder: object) -> bool:
        return holder in self._places

    def held(self, peer: str) -> int:
        """How many places the peer holds."""
        return len(self._of_peer.get(peer, ()))

    def peers(self) -> int:
        """How many peers hold a place."""
        return len(self._of_peer)

    def take(self, peer: str, holder: _Holder, now_s: float, worth: int = 0) -> _Holder | None:
        """Give the holder a place; the holder that had to make room for it, or None.

        now_s: monotonic seconds. Raises NoPlaceError where none can be had.
        """
        displaced: _Holder | None = None
        own = self.held(peer)
        if own >= self.most_each:
            displaced = self._least(peer, self._worth_own, now_s)
            if displaced is None:
                raise NoPlaceError(f"{own} are open already from where this comes")
        elif len(self._places) >= self.most:
            most, largest = max((len(holders), name) for name, holders in self._of_peer.items())
            if most > own + 1:
                displaced = self._least(largest, self._worth_others, now_s)
            if displaced is None and own:
                displaced = self._least(peer, self._worth_own, now_s)
            if displaced is None:
                raise NoPlaceError(f"{len(self._places)} are open already")
        if displaced is not None:
            self.drop(displaced)
        self._places[holder] = _Place(peer, now_s, worth)
        self._of_peer.setdefault(peer, {})[holder] = None
        return displaced

    def value(self, holder: _Holder, worth: int) -> None:
        """Say what the holder's place is worth from now on. Of those that are worth as much, the one of which that was
        said the longest ago makes room first."""
        place = self._places.get(holder)
        if place is not None and place.worth != worth:
            place.worth = worth
            holders = self._of_peer[place.peer]
            del holders[holder]
            holders[holder] = None

    def drop(self, holder: _Holder) -> None:
        """The holder needs its place no longer; nothing where it had none."""
        place = self._places.pop(holder, None)
        if place is not None:
            holders = self._of_peer[place.peer]
            del holders[holder]
            if not holders:
                del self._of_peer[place.peer]

    def least(self, now_s: float, idle: int) -> _Holder | None:
        """The holder that would make room for another peer's: of the peer with the most; None where none would.

        idle: what a place is worth at most that also the only one of its peer gives up.
        """
        if not self._of_peer:
            return None
        most, largest = max((len(holders), name) for name, holders in self._of_peer.items())
        return self._least(largest, self._worth_others if most > 1 else idle, now_s)

    def _least(self, peer: str, most_worth: int, now_s: float) -> _Holder | None:
        """Of the peer's holders the one to make room, the oldest of those that are worth the least; None: none has."""
        found: _Holder | None = None
        least = most_worth + 1
        for holder in self._of_peer.get(peer, ()):  # in the order in which they came, or changed their worth
            place = self._places[holder]
            if place.worth < least and now_s - place.since_s >= self._least_s:
                found, least = holder, place.worth
                if least == 0:
                    break
        return found
