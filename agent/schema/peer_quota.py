"""Fair sharing of a limited number of places, such as connections and streams, among peers. Pure.

The rule is max-min fairness: a peer that requests less than an equal share gets its whole request. If all places are
taken, the peer with the most places loses one to a peer with fewer places. It loses its least valuable place (an
idle connection rather than one with a request in progress), and of equally valuable places the oldest.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from agent.schema.errors import GangwatchError

_Holder = TypeVar("_Holder", bound=Hashable)


class NoPlaceError(GangwatchError):
    """No place is free, and no place may be taken from another connection or stream."""


@dataclass(slots=True)
class _Place:
    peer: str
    since_s: float
    worth: int


class Places(Generic[_Holder]):
    """Limited places and the connections or streams (holders) that each peer has in them.

    Not thread-safe: call it from one thread or under a lock.
    """

    def __init__(self, most: int, most_each: int, *, worth_own: int = 0, worth_others: int = 0, least_s: float = 0.0):
        """Make an empty set of places.

        most: total number of places. most_each: maximum number of places per peer. worth_own: highest value of a
        place that a peer may replace by a new one of its own. worth_others: highest value of a place that a peer may
        lose to another peer. least_s: time in seconds before which no holder loses its place.
        """
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
        """Return the number of places that the peer holds."""
        return len(self._of_peer.get(peer, ()))

    def peers(self) -> int:
        """Return the number of peers that hold a place."""
        return len(self._of_peer)

    def take(self, peer: str, holder: _Holder, now_s: float, worth: int = 0) -> _Holder | None:
        """Give the holder (a connection or stream) a place. Return the holder that loses its place for this, or None.

        worth: value of the new place. now_s: monotonic seconds. Raise NoPlaceError if no place is available.
        """
        displaced: _Holder | None = None
        own = self.held(peer)
        if own >= self.most_each:
            displaced = self._least(peer, self._worth_own, now_s)
            if displaced is None:
                raise NoPlaceError(f"this peer already has {own} open")
        elif len(self._places) >= self.most:
            most, largest = max((len(holders), name) for name, holders in self._of_peer.items())
            if most > own + 1:
                displaced = self._least(largest, self._worth_others, now_s)
            if displaced is None and own:
                displaced = self._least(peer, self._worth_own, now_s)
            if displaced is None:
                raise NoPlaceError(f"all {len(self._places)} places are taken")
        if displaced is not None:
            self.drop(displaced)
        self._places[holder] = _Place(peer, now_s, worth)
        self._of_peer.setdefault(peer, {})[holder] = None
        return displaced

    def value(self, holder: _Holder, worth: int) -> None:
        """Set the value of the holder's place.

        Of a peer's places of equal value, the place whose value was set longest ago is lost first.
        """
        place = self._places.get(holder)
        if place is not None and place.worth != worth:
            place.worth = worth
            holders = self._of_peer[place.peer]
            del holders[holder]
            holders[holder] = None

    def drop(self, holder: _Holder) -> None:
        """Free the holder's place, if it has one."""
        place = self._places.pop(holder, None)
        if place is not None:
            holders = self._of_peer[place.peer]
            del holders[holder]
            if not holders:
                del self._of_peer[place.peer]

    def least(self, now_s: float, idle: int) -> _Holder | None:
        """Return the holder that would lose its place to a new peer, or None if no place can be lost.

        The peer with the most places loses one. idle: if that peer has only one place, it loses the place only if the
        place's value is at most `idle`.
        """
        if not self._of_peer:
            return None
        most, largest = max((len(holders), name) for name, holders in self._of_peer.items())
        return self._least(largest, self._worth_others if most > 1 else idle, now_s)

    def _least(self, peer: str, most_worth: int, now_s: float) -> _Holder | None:
        """Return the holder of the peer's least valuable place; None if the peer cannot lose a place.

        Of equally valuable places, take the oldest. most_worth: highest value of a place that may be lost.
        """
        found: _Holder | None = None
        least = most_worth + 1
        for holder in self._of_peer.get(peer, ()):  # in the order of arrival or of the last change of worth
            place = self._places[holder]
            if place.worth < least and now_s - place.since_s >= self._least_s:
                found, least = holder, place.worth
                if least == 0:
                    break
        return found
