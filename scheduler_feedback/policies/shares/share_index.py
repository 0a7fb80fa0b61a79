"""Index of the free resources of all nodes, which chooses a node and GPUs for each request.

Scores are kept by request and computed again only for nodes that have changed since, because clusters have many nodes
and few different requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler_feedback.policies.shares.gpu_room import Request, Room, taken
from scheduler_feedback.policies.shares.placement_rules import Rule

REMEMBERED_REQUESTS = 512
"""Maximum number of different requests whose scores are kept; the oldest are computed again."""

TIE = 1e-6
"""Scores that differ by at most this much are equal: they are sums of shares, which rounding changes."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Resources that a request has got."""

    node: str
    """Name of the node."""
    gpus: tuple[int, ...]
    """Numbers of the GPUs on that node."""
    request: Request
    """The request."""


class ShareIndex:
    """Free resources of the nodes, and the scores of recent requests."""

    def __init__(self, rooms: Mapping[str, Room], rule: Rule) -> None:
        """rooms: free resources by node name. rule: scores the nodes."""
        self._names = list(rooms)
        self._number = {name: number for number, name in enumerate(self._names)}
        self._rooms = list(rooms.values())
        self._rule = rule
        self._scores: dict[Request, NDArray[np.float64]] = {}
        self._stale: dict[Request, set[int]] = {}

    def room(self, node: str) -> Room:
        """Return the free resources of a node. Raises KeyError."""
        return self._rooms[self._number[node]]

    def place(self, request: Request, pick: Callable[[int], int] | None = None) -> Placement | None:
        """Take resources for the request on the node with the best score; None if it fits nowhere.

        pick: returns which of this many equally good nodes is used, counted from 0; None: the first.
        """
        scores = self._current(request)
        best = scores.max(initial=-np.inf)
        if best == -np.inf:
            return None
        equal = np.flatnonzero(scores >= best - TIE)
        number = int(equal[pick(len(equal)) if pick is not None else 0])
        found = self._rule(self._rooms[number], request)
        assert found is not None, "the score says that it fits"
        self._change(number, taken(self._rooms[number], request, found[1]))
        return Placement(self._names[number], found[1], request)

    def give(self, placement: Placement) -> None:
        """Give the resources of a placement back."""
        number = self._number[placement.node]
        self._change(number, taken(self._rooms[number], placement.request, placement.gpus, -1))

    def _change(self, number: int, room: Room) -> None:
        self._rooms[number] = room
        for stale in self._stale.values():
            stale.add(number)

    def _current(self, request: Request) -> NDArray[np.float64]:
        """Return the score of each node for the request, by number; minus infinity where it does not fit."""
        scores, stale = self._scores.get(request), self._stale.get(request)
        if scores is None or stale is None:
            if len(self._scores) >= REMEMBERED_REQUESTS:
                oldest = next(iter(self._scores))
                del self._scores[oldest], self._stale[oldest]
            scores = self._scores[request] = np.full(len(self._rooms), -np.inf)
            stale = self._stale[request] = set(range(len(self._rooms)))
        known: dict[Room, float] = {}
        for number in stale:
            room = self._rooms[number]
            if (score := known.get(room)) is None:
                found = self._rule(room, request)
                score = known[room] = -np.inf if found is None else found[0]
            scores[number] = score
        stale.clear()
        return scores
