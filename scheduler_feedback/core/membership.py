"""Applies the scheduler's placement to what nodes report: which gang and attempt a record or a series counts for.

A record or series of a rank that its node may not report is refused and counted. A gang that nobody placed is kept per
node: the first node that reports its name keeps the name, and another node's part of it is ``NAME@NODE``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from agent.schema.frame import AnyLayout, Column, Layout, Member, make_layout, pack
from scheduler_feedback.core.placements import Placed, Placements, Refusal

AGAIN_NS = 1_000_000_000
"""What a node reports beyond the state's placement is decided again after this: only a backend knows of it."""

MOST_OUTSIDE_GANGS = 64
MOST_OUTSIDE_RANKS = 256
"""Gangs that nobody placed, and their ranks, on one node: more than processes that report there (the agent's quotas),
and little memory even where every node sends as many."""

MOST_NAME = 256
"""Longest name of a gang."""


class Counted(NamedTuple):
    """The gang and attempt that records count for, and which ranks the node may report; None: any."""

    gang: str
    attempt: int
    ranks: frozenset[int] | None
    placed: bool


@dataclass(slots=True)
class _Node:
    """What one node's layout says of ranks. members: as the agent names them; names: what each counts for, None where
    it is refused. here: the node's placement when that was decided."""

    layout_id: str = ""
    layout: AnyLayout | None = None
    here: Mapping[str, Placed] | None = None
    again_ns: int | None = None
    members: tuple[Member, ...] = ()
    names: dict[Member, Member | None] = field(default_factory=dict)


class Membership:
    """Decides for all nodes. Owned by the thread that folds frames.

    refused: records and series by node and reason. owners: gangs that nobody placed, and whose each is.
    """

    def __init__(self, placements: Placements) -> None:
        self._placements = placements
        self._nodes: dict[str, _Node] = {}
        self._owned: Counter[str] = Counter()
        self.owners: dict[str, str] = {}
        self.refused: Counter[tuple[str, Refusal]] = Counter()
        self.newly_refused: list[tuple[str, str, Refusal]] = []
        self._reported: set[tuple[str, Refusal]] = set()

    def same_host(self, one: str, other: str) -> bool:
        """Whether the agents of both nodes are reached at one address."""
        return self._placements.same_host(one, other)

    def here(self, node: str) -> Mapping[str, Placed]:
        """Gangs placed on the node; the same object until that changes."""
        return self._placements.of(node)

    # --- records ------------------------------------------------------------------------------------------------------

    def counted(self, node: str, gang: str, attempt: int) -> Counted | Refusal:
        """What records of this gang and attempt count for, where they come from this node."""
        if not gang or len(gang) > MOST_NAME:
            return Refusal.UNKNOWN
        claim = self._placements.claim(node, gang)
        if claim is None:
            name = self._outside(node, gang)
            return Refusal.LIMIT if name is None else Counted(name, attempt, None, False)
        if isinstance(claim, Refusal):
            return claim
        if attempt != claim.attempt:
            if attempt < claim.attempt:
                return Refusal.ENDED
            if claim.ranks is not None:
                return Refusal.ATTEMPT
        return Counted(gang, claim.attempt, claim.ranks, True)

    def refuse(self, node: str, gang: str, why: Refusal, count: int = 1) -> None:
        """Count what was refused; the first of a node and reason is kept for the log."""
        self.refused[node, why] += count
        if (node, why) not in self._reported:
            self._reported.add((node, why))
            self.newly_refused.append((node, gang, why))

    def _outside(self, node: str, gang: str) -> str | None:
        """The name under which the node's part of a gang that nobody placed is kept; None: it has too many."""
        name = gang
        while (owner := self.owners.get(name)) != node:
            if owner is None:
                if self._owned[node] >= MOST_OUTSIDE_GANGS:
                    return None
                self.owners[name] = node
                self._owned[node] += 1
                break
            name += f"@{node}"
            if len(name) > MOST_NAME:
                return None
        return name

    def forget(self, gang: str) -> None:
        """Nothing is kept of the gang any more."""
        owner = self.owners.pop(gang, None)
        if owner is not None:
            self._owned[owner] -= 1
            if not self._owned[owner]:
                del self._owned[owner]

    # --- series -------------------------------------------------------------------------------------------------------

    def layout_of(self, layout: AnyLayout, received_ns: int) -> AnyLayout:
        """The layout with the names that its ranks' series count for; those that are refused have no rank's labels.

        The same object until that changes.
        """
        node = self._nodes.get(layout.node)
        if node is None:
            node = self._nodes[layout.node] = _Node()
        here = self._placements.of(layout.node)
        if node.layout_id == layout.layout_id:
            assert node.layout is not None
            if node.here is here and (node.again_ns is None or received_ns < node.again_ns):
                return node.layout
            names = self._names(layout.node, node.members)
        else:
            node.members = tuple(dict.fromkeys(_members(layout.whole())))
            names = self._names(layout.node, node.members)
        node.here = here
        # Only what the state places is told of by a change of `here`.
        elsewhere = any(member.gang not in here for member in node.members)
        node.again_ns = received_ns + AGAIN_NS if elsewhere else None
        if node.layout_id != layout.layout_id or names != node.names:
            node.layout_id, node.names = layout.layout_id, names
            node.layout = layout
            if any(name != member for member, name in names.items()):
                node.layout = pack(_renamed(layout.whole(), names))
        assert node.layout is not None
        return node.layout

    def drop(self, node: str) -> None:
        """Forget what the node's layout says."""
        self._nodes.pop(node, None)

    def _names(self, node: str, members: Iterable[Member]) -> dict[Member, Member | None]:
        names: dict[Member, Member | None] = {}
        newest: dict[str, int] = {}
        for member in members:
            newest[member.gang] = max(newest.get(member.gang, -1), member.attempt)
        known = self._nodes[node].names
        for member in members:
            found = self.counted(node, member.gang, member.attempt)
            name: Member | None = None
            why: Refusal | None = None
            if isinstance(found, Refusal):
                why = found
            elif found.ranks is not None and member.rank not in found.ranks:
                why = Refusal.RANK
            elif found.placed and found.ranks is None and member.attempt != newest[member.gang]:
                why = Refusal.ENDED  # a launcher has started the ranks again; the old ones' series linger
            else:
                name = Member(found.gang, found.attempt, member.rank)
            names[member] = name
            if why not in (None, Refusal.NOT_KNOWN_YET) and known.get(member, member) is not None:
                assert why is not None
                self.refuse(node, member.gang, why)
        return names


def member_of(labels: Iterable[tuple[str, str]]) -> Member | None:
    """The rank that a column is of; None where it is of none."""
    told = dict(labels)
    try:
        return Member(told["gang"], int(told["attempt"]), int(told["rank"]))
    except (KeyError, ValueError):
        return None


def _members(layout: Layout) -> Iterator[Member]:
    for part in (layout.gauges, layout.counters):
        for column in part:
            member = member_of(column.labels)
            if member is not None:
                yield member


def _renamed(layout: Layout, names: Mapping[Member, Member | None]) -> Layout:
    def column(one: Column) -> Column:
        member = member_of(one.labels)
        if member is None or (name := names[member]) == member:
            return one
        told: dict[str, str] = {}
        if name is not None:
            told = {"gang": name.gang, "attempt": str(name.attempt), "rank": str(name.rank)}
        labels = tuple((key, told.get(key, "")) if key in _OF_A_RANK else (key, value) for key, value in one.labels)
        return msgspec.structs.replace(one, labels=labels)

    return make_layout(layout.node, layout.tiers, map(column, layout.gauges), map(column, layout.counters))


_OF_A_RANK = ("gang", "attempt", "rank")
