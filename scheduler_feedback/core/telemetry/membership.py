"""Checks of the nodes' reports against the scheduler's placement: the gang and attempt of each record and series.

A record or series of a rank that its node may not report is refused and counted. A gang without a placement is separate
on each node: the first node that reports its name keeps the name, and another node's part of it is ``NAME@NODE``.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from agent.schema.frame import AnyLayout, Column, Layout, Member, make_layout
from scheduler_feedback.core.telemetry.device_locations import Parts
from scheduler_feedback.core.telemetry.placements import Placed, Placements, Refusal

AGAIN_NS = 1_000_000_000
"""Interval at which reports about ranks without a placement in the state are checked again. Only the backend can
confirm such ranks, and its data may change."""

MOST_OUTSIDE_GANGS = 64
MOST_OUTSIDE_RANKS = 256
"""Maximum number of gangs without a placement, and of ranks of such gangs, on one node. The limits exceed the agent's
quotas for reporting processes. They need little memory even if every node reaches them."""

MOST_NAME = 256
"""Maximum length of a gang's name."""


class Counted(NamedTuple):
    """Gang and attempt to which a node's records are added."""

    gang: str
    attempt: int
    ranks: frozenset[int] | None
    """Ranks that the node may report; None: any."""
    placed: bool
    """Whether the gang has a placement."""


@dataclass(slots=True)
class _Node:
    """Ranks and GPUs in one node's layout."""

    layout_id: str = ""
    """Id of the layout that the agent sent."""
    sent: AnyLayout | None = None
    """Layout that the agent sent."""
    parts_changes: int = -1
    """Number of changes of the GPUs' nodes when all GPUs of the layout belonged to the node."""
    layout: AnyLayout | None = None
    """Layout of the node with the accepted names of its ranks."""
    came_ns: int = 0
    """Time at which the agent's layout was received."""
    here: Mapping[str, Placed] | None = None
    """Gangs that were placed on the node when the accepted names were decided."""
    again_ns: int | None = None
    """Time at which it must be decided again which gang names of this node are accepted; None: only after the
    scheduler's placement on the node has changed."""
    news: object = None
    """The backend's data when all gangs of the layout were accepted; None if one was not, or has no placement."""
    members: tuple[Member, ...] = ()
    """Ranks in the layout, with the gang names that the agent uses."""
    decided: dict[tuple[str, int], Counted | Refusal] = field(default_factory=dict)
    """Decision about each (gang, attempt) in the layout, on which `names` are based."""
    names: dict[Member, Member | None] = field(default_factory=dict)
    """Accepted name of each rank, by the name that the agent uses; None if the rank is refused."""
    parts: frozenset[str] = frozenset()
    """GPUs in the layout."""
    disputed: frozenset[str] = frozenset()
    """GPUs in the layout that belong to another node."""


class Membership:
    """Decisions about which ranks and GPUs each node may report. Owned by the thread that processes frames.

    parts: node of each GPU. here: function that returns the gangs placed on a node; the same object until they change.
    refused: number of refused records and series by node and reason. owners: node of each gang without a placement.
    """

    def __init__(self, placements: Placements, parts: Parts) -> None:
        self._placements = placements
        self.here = placements.of
        self._parts = parts
        self._nodes: dict[str, _Node] = {}
        self._owned: Counter[str] = Counter()
        self.owners: dict[str, str] = {}
        self.refused: Counter[tuple[str, Refusal]] = Counter()
        self.newly_refused: list[tuple[str, str, Refusal]] = []
        self._reported: set[tuple[str, Refusal]] = set()
        self._whole = make_layout("", (), (), ())

    def same_host(self, one: str, other: str) -> bool:
        """Return whether the agents of both nodes have the same address."""
        return self._placements.same_host(one, other)

    def news(self, node: str) -> object:
        """Return an object that identifies the backend's data about the node: another one after each change. None: ask
        the backend."""
        return self._placements.news(node)

    # --- records ------------------------------------------------------------------------------------------------------

    def counted(self, node: str, gang: str, attempt: int, came_ns: int) -> Counted | Refusal:
        """Return the gang and attempt to which this node's records are added, or why they are refused. came_ns: time of
        receipt."""
        if not gang or len(gang) > MOST_NAME:
            return Refusal.UNKNOWN
        claim = self._placements.claim(node, gang, came_ns)
        if claim is None:
            name = self._outside(node, gang)
            return Refusal.LIMIT if name is None else Counted(name, attempt, None, False)
        if isinstance(claim, Refusal):
            return claim
        if attempt < claim.attempt:
            return Refusal.ENDED
        if attempt > claim.attempt and claim.ranks is not None:
            return Refusal.ATTEMPT
        return Counted(gang, claim.attempt, claim.ranks, True)

    def refuse(self, node: str, gang: str, why: Refusal, count: int = 1) -> None:
        """Count refused records or series. The first per node and reason is kept for the log."""
        self.refused[node, why] += count
        if (node, why) not in self._reported:
            self._reported.add((node, why))
            self.newly_refused.append((node, gang, why))

    def _outside(self, node: str, gang: str) -> str | None:
        """Return a name for the node's ranks of a gang without a placement; None if the node has too many such
        gangs."""
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
        """Delete the record of which node owns the gang's name."""
        owner = self.owners.pop(gang, None)
        if owner is not None:
            self._owned[owner] -= 1
            if not self._owned[owner]:
                del self._owned[owner]

    # --- series -------------------------------------------------------------------------------------------------------

    def layout_of(self, layout: AnyLayout, here: Mapping[str, Placed], received_ns: int) -> AnyLayout:
        """Return the layout with the accepted names of its ranks. Refused series have empty rank labels.

        here: the gangs placed on the node, as the method ``here`` returns them.
        Returns the same object until the layout or the accepted names change.
        """
        node = self._nodes.get(layout.node)
        if node is None:
            node = self._nodes[layout.node] = _Node()
        if node.sent is layout or node.layout_id == layout.layout_id:
            assert node.layout is not None
            node.sent = layout
            if node.here is here and (node.again_ns is None or received_ns < node.again_ns):
                return node.layout
            news = self._placements.news(layout.node)
            if (
                news is not None
                and node.news is news
                and node.here is here
                and (node.parts_changes == self._parts.changes or self._parts.owns(layout.node, node.parts))
            ):
                node.parts_changes = self._parts.changes
                node.again_ns = received_ns + AGAIN_NS  # nothing has changed on which the decisions depend
                return node.layout
            if self._as_before(node, here, received_ns):  # the usual case, once a second
                return node.layout
        else:
            node.sent = None
            self._whole = layout.whole()
            node.members, node.parts = _named(self._whole)
            node.decided = {}
            node.news = None
            node.came_ns = received_ns
        attempts = list(node.decided) or {(member.gang, member.attempt) for member in node.members}
        decided = {one: self.counted(layout.node, *one, node.came_ns) for one in attempts}
        names = node.names
        if decided != node.decided or node.layout_id != layout.layout_id:
            names = self._names(layout.node, node.members, decided)
            node.decided = decided
        disputed = self._parts.list(layout.node, node.parts, received_ns)
        node.here = here
        # `here` changes only with the state's placement. Everything else must be decided again after a while.
        elsewhere = bool(disputed) or any(gang not in here for gang, _ in decided)
        node.again_ns = received_ns + AGAIN_NS if elsewhere else None
        if node.layout_id != layout.layout_id or node.disputed != disputed or node.names != names:
            node.layout_id, node.names, node.disputed = layout.layout_id, names, disputed
            node.layout = layout
            if disputed or any(name != member for member, name in names.items()):
                self._whole = _renamed(self.whole_of(layout), names, disputed)
                node.layout = RenamedLayout(self._whole.layout_id, layout.node, layout.sizes, layout, names, disputed)
        assert node.layout is not None
        return node.layout

    def _as_before(self, node: _Node, here: Mapping[str, Placed], received_ns: int) -> bool:
        """Return whether all decisions about a node with an unchanged layout are the same as before. If so, they are
        kept until they must be made again."""
        assert node.layout is not None
        name, elsewhere = node.layout.node, False
        news = self._placements.news(name)
        node.news = None
        for one, before in node.decided.items():
            if self.counted(name, *one, node.came_ns) != before:
                return False
            elsewhere = elsewhere or one[0] not in here
            if isinstance(before, Refusal) or not before.placed:
                news = None
        if node.disputed or self._parts.list(name, node.parts, received_ns):
            return False
        node.here, node.news = here, news
        node.again_ns = received_ns + AGAIN_NS if elsewhere else None
        return True

    def whole_of(self, layout: AnyLayout) -> Layout:
        """Return the uncompressed layout. The one of the last change is not uncompressed again."""
        return self._whole if self._whole.layout_id == layout.layout_id else layout.whole()

    def drop(self, node: str) -> None:
        """Delete the node's layout."""
        self._nodes.pop(node, None)

    def _names(
        self, node: str, members: Iterable[Member], decided: Mapping[tuple[str, int], Counted | Refusal]
    ) -> dict[Member, Member | None]:
        """Return the accepted name of each rank, and count ranks that were not refused before.

        decided: decision about each (gang, attempt) of the members.
        """
        names: dict[Member, Member | None] = {}
        newest: dict[str, int] = {}
        for member in members:
            newest[member.gang] = max(newest.get(member.gang, -1), member.attempt)
        known = self._nodes[node].names
        for member in members:
            found = decided[member.gang, member.attempt]
            name: Member | None = None
            why: Refusal | None = None
            if isinstance(found, Refusal):
                why = found
            elif found.ranks is not None and member.rank not in found.ranks:
                why = Refusal.RANK
            elif found.placed and found.ranks is None and member.attempt != newest[member.gang]:
                why = Refusal.ENDED  # a launcher has restarted the ranks, and series of the old ones remain
            else:
                name = Member(found.gang, found.attempt, member.rank)
            names[member] = name
            if why not in (None, Refusal.NOT_KNOWN_YET) and known.get(member, member) is not None:
                assert why is not None
                self.refuse(node, member.gang, why)
        return names


def member_of(labels: Iterable[tuple[str, str]]) -> Member | None:
    """Return the rank in a column's labels; None if there is none."""
    known = dict(labels)
    try:
        return Member(known["gang"], int(known["attempt"]), int(known["rank"]))
    except (KeyError, ValueError):
        return None


def _named(layout: Layout) -> tuple[tuple[Member, ...], frozenset[str]]:
    """Return the ranks and the GPUs in the layout's labels. All series of a rank have equal labels, which are read
    once."""
    members: dict[Member, None] = {}
    parts: set[str] = set()
    seen: set[tuple[tuple[str, str], ...]] = set()
    for column in (*layout.gauges, *layout.counters):
        labels = column.labels
        if labels in seen:
            continue
        seen.add(labels)
        for key, value in labels:
            if key == "gang" and (member := member_of(labels)) is not None:
                members[member] = None
            elif key == GPU and value:
                parts.add(value)
    return tuple(members), frozenset(parts)


@dataclass(frozen=True, slots=True)
class RenamedLayout:
    """A layout with the accepted names, which are put into the original when it is uncompressed."""

    layout_id: str
    node: str
    sizes: tuple[int, int, int]
    original: AnyLayout
    names: Mapping[Member, Member | None]
    disputed: frozenset[str]

    def whole(self) -> Layout:
        """Return the uncompressed layout."""
        return _renamed(self.original.whole(), self.names, self.disputed)


def _renamed(layout: Layout, names: Mapping[Member, Member | None], disputed: frozenset[str]) -> Layout:
    """Return the layout with the accepted names. Its id is a digest of the original id and the changed names."""
    known: dict[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]] = {}

    def column(one: Column) -> Column:
        labels = known.get(one.labels)
        if labels is None:
            labels = known[one.labels] = _relabelled(one.labels, layout.node, names, disputed)
        return one if labels is one.labels else Column(one.metric, labels, one.tier, one.width)

    gauges, counters = tuple(map(column, layout.gauges)), tuple(map(column, layout.counters))
    changes = layout.layout_id, [*names.items()], sorted(disputed)
    digest = hashlib.blake2b(msgspec.msgpack.encode(changes), digest_size=8).hexdigest()
    return Layout(digest, layout.node, layout.tiers, gauges, counters)


def _relabelled(
    labels: tuple[tuple[str, str], ...], node: str, names: Mapping[Member, Member | None], disputed: frozenset[str]
) -> tuple[tuple[str, str], ...]:
    """Return the labels of a series with the accepted names; the same object if nothing changes."""
    changed: dict[str, str] = {}
    member = member_of(labels)
    if member is not None and (name := names[member]) != member:
        changed = dict.fromkeys(OF_A_RANK, "")
        if name is not None:
            changed = {"gang": name.gang, "attempt": str(name.attempt), "rank": str(name.rank)}
    for key, value in labels if disputed else ():
        if key == GPU and value in disputed:
            changed[GPU] = f"{node}/{value}"
    return tuple((key, changed.get(key, value)) for key, value in labels) if changed else labels


OF_A_RANK = ("gang", "attempt", "rank")
GPU = "gpu"
"""Label that identifies the GPU of a series. OF_A_RANK has the labels that identify the rank of a series."""
