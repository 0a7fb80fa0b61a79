"""Frames of a cluster's agents, said in the core's words: who is a pod there is a rank of a gang here. Pure.

An agent knows of a process which pod it is in, from the process's control group, and no more: it calls the pod a gang,
'pod-UID', and believes what the process says of its rank. Which gang the pod is of, in which attempt, and which ranks
it has, the controller knows, because it placed it there. So that is said here, before the frame is folded. No job can
speak for another: whatever a process calls itself, its word counts for its own pod's ranks alone, and an agent's for
the pods of its own node.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from agent.schema.frame import (
    AnyLayout,
    Column,
    EventRecord,
    Frame,
    Layout,
    Member,
    Record,
    make_layout,
    pack,
)

_UNTOLD = -1
"""Attempt of a member whose column does not tell it: the newest."""

POD = "pod-"
"""How agents begin the name of a gang that is a pod (agent/rank_attribution.py)."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pod stands in a gang that was placed. ranks: those that it has, none where it has no GPU."""

    gang: str
    attempt: int
    node: str
    ranks: range


@dataclass(slots=True)
class _Node:
    """What was last said of one node. claims: members that are pods, as its agent tells them, in the layout and lately
    in records. names: what each is called instead. heard, said: records as they came and as they were handed on."""

    layout_id: str = ""
    layout: AnyLayout | None = None
    standing: tuple[Member, ...] = ()
    claims: OrderedDict[Member, None] = field(default_factory=OrderedDict)
    names: dict[Member, Member] = field(default_factory=dict)
    version: int = -1
    heard: tuple[Record, ...] = ()
    said: tuple[Record, ...] = ()


class Naming:
    """Renames frames. Owned by the thread that reads them.

    place_of: of a pod, by uid; None where it was not placed by us. version: another number whenever an answer of
    place_of may have changed.
    """

    MOST_CLAIMS = 4096
    """Of a node, kept beyond those of its layout: a rank may report before the layout shows it, and a few linger."""

    def __init__(self, place_of: Callable[[str], Place | None], version: Callable[[], int]) -> None:
        self._place_of, self._version = place_of, version
        self._nodes: dict[str, _Node] = {}

    def __call__(self, layout: AnyLayout, frame: Frame) -> tuple[AnyLayout, Frame]:
        """The same with every pod that was placed named as the gang that it is of; all else as it came."""
        node = self._nodes.get(frame.node)
        if node is None:
            node = self._nodes[frame.node] = _Node()
        changed = False
        if node.layout_id != layout.layout_id:
            node.layout_id, node.layout, changed = layout.layout_id, None, True
            node.standing = tuple(_claims(layout.whole()))
        if frame.records is not node.heard:
            changed |= self._hear(node, frame.records)
        if not node.standing and not node.claims:
            return layout, frame
        version = self._version()
        if changed or version != node.version:
            node.version = version
            names = self._names(frame.node, dict.fromkeys((*node.standing, *node.claims)))
            if names != node.names:
                node.names, node.layout, node.heard = names, None, ()
        if not node.names:
            return layout, frame
        if node.layout is None:
            node.layout = pack(_renamed(layout.whole(), node.names))
        if frame.records is not node.heard:
            node.heard, node.said = frame.records, tuple(_rename(record, node.names) for record in frame.records)
        return node.layout, msgspec.structs.replace(frame, layout_id=node.layout.layout_id, records=node.said)

    def _hear(self, node: _Node, records: Iterable[Record]) -> bool:
        """Take in who reports in these records; whether there was anybody new."""
        new = False
        for record in records:
            if not isinstance(record, EventRecord) and record.member.gang.startswith(POD):
                new |= record.member not in node.claims
                node.claims[record.member] = None
        while len(node.claims) > self.MOST_CLAIMS:
            node.claims.popitem(last=False)
        return new

    def _names(self, node: str, claims: Iterable[Member]) -> dict[Member, Member]:
        """What each is called. Of a pod, those count that claim its newest attempt: who restarts counts up.

        Ranks that a pod claims are its own wherever they differ by the order in which its job counts pods: of a pod of
        ranks 8 to 15 that says 0 to 7, 0 is 8. A claim to a rank that another has is left as it is.
        """
        by_pod: dict[str, list[Member]] = {}
        for claim in claims:
            by_pod.setdefault(claim.gang, []).append(claim)
        names: dict[Member, Member] = {}
        for gang, members in by_pod.items():
            place = self._place_of(gang.removeprefix(POD))
            if place is None or place.node != node or not len(place.ranks):
                continue
            newest = max(member.attempt for member in members)
            whose: dict[int, int] = {}
            for member in sorted(members, key=lambda one: one.rank):
                first, count = place.ranks.start, len(place.ranks)
                rank = first + (member.rank - first) % count
                if member.attempt in (newest, _UNTOLD) and whose.setdefault(rank, member.rank) == member.rank:
                    names[member] = Member(place.gang, place.attempt, rank)
        return names


def _claims(layout: Layout) -> Iterator[Member]:
    """Members of the layout that are pods, each once."""
    columns = (column for part in (layout.gauges, layout.counters) for column in part)
    yield from dict.fromkeys(member for column in columns if (member := _member(column.labels)) is not None)


def _member(labels: Iterable[tuple[str, str]]) -> Member | None:
    """Whose a column is, where that is a rank of a pod."""
    told = dict(labels)
    gang, rank, attempt = told.get("gang", ""), told.get("rank", ""), told.get("attempt", "")
    if not gang.startswith(POD) or not rank.isdecimal() or not (attempt.isdecimal() or not attempt):
        return None
    return Member(gang, int(attempt) if attempt else _UNTOLD, int(rank))


def _renamed(layout: Layout, names: Mapping[Member, Member]) -> Layout:
    def column(one: Column) -> Column:
        member = _member(one.labels)
        name = None if member is None else names.get(member)
        if name is None:
            return one
        told = {"gang": name.gang, "attempt": str(name.attempt), "rank": str(name.rank)}
        labels = tuple((key, told.get(key, value)) for key, value in one.labels)
        return msgspec.structs.replace(one, labels=labels)

    return make_layout(layout.node, layout.tiers, map(column, layout.gauges), map(column, layout.counters))


def _rename(record: Record, names: Mapping[Member, Member]) -> Record:
    if isinstance(record, EventRecord):
        return record
    name = names.get(record.member)
    return record if name is None else msgspec.structs.replace(record, member=name)
