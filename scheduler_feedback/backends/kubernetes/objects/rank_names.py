"""Renaming of the agents' frames: pods become ranks of the cycle's gangs. No I/O.

An agent learns a process's pod from its control group, and nothing else about its gang. It calls the pod a gang,
'pod-UID', and uses the rank that the process reports. The controller placed the pod, so it has the pod's gang, attempt
and ranks, and renames them before the frame is processed. A job cannot report for another job: a process's report
counts only for the ranks of its pod, and an agent's only for the pods of its node.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from agent.schema.frame import (
    AnyLayout,
    Column,
    Frame,
    Layout,
    Member,
    Record,
    RecordTable,
    make_layout,
    pack,
)

_NO_ATTEMPT = -1
"""Attempt number of a rank for which the agent reports none. It means the newest attempt."""

POD = "pod-"
"""Prefix of the agents' names of gangs that are pods (agent/rank_attribution.py)."""


@dataclass(frozen=True, slots=True)
class Place:
    """Place of a pod in a gang. ranks: the pod's ranks; empty if the pod has no GPU."""

    gang: str
    attempt: int
    node: str
    ranks: range


@dataclass(slots=True)
class _Node:
    """Latest frame of a node, and the ranks of pods that the node reports.

    in_layout: ranks of pods that the node's layout names. claims: ranks of pods that recent records of the node name.
    names: new name (gang and rank) of each rank in `in_layout` or `claims`. received: the frame's records as the agent
        sent them.
    renamed: the same records with the new names. table, renamed_table: the same for a table of records.
    """

    layout_id: str = ""
    layout: AnyLayout | None = None
    in_layout: tuple[Member, ...] = ()
    claims: OrderedDict[Member, None] = field(default_factory=OrderedDict)
    names: dict[Member, Member] = field(default_factory=dict)
    version: int = -1
    received: tuple[Record, ...] = ()
    renamed: tuple[Record, ...] = ()
    table: RecordTable | None = None
    renamed_table: RecordTable | None = None


class RankNames:
    """Converter of the pods in frames to the ranks of their gangs. Used only by the thread that reads the frames.

    place_of: returns a pod's place by uid; None if gangwatch did not place it. version: returns a number that changes
    whenever a result of place_of may have changed.
    """

    MOST_CLAIMS = 4096
    """Maximum number of ranks kept from a node's records: a rank may report before the layout has it, and after the
    layout no longer has it."""

    def __init__(self, place_of: Callable[[str], Place | None], version: Callable[[], int]) -> None:
        self._place_of, self._version = place_of, version
        self._nodes: dict[str, _Node] = {}

    def __call__(self, layout: AnyLayout, frame: Frame) -> tuple[AnyLayout, Frame]:
        """Return layout and frame with every placed pod renamed to its gang."""
        node = self._nodes.get(frame.node)
        if node is None:
            node = self._nodes[frame.node] = _Node()
        changed = False
        if node.layout_id != layout.layout_id:
            node.layout_id, node.layout, changed = layout.layout_id, None, True
            node.in_layout = tuple(_claims(layout.whole()))
        if frame.records is not node.received:
            changed |= self._add_claims(node, (record.member for record in frame.records))
        table = frame.table
        if table is not None and (node.table is None or table.members is not node.table.members):
            changed |= self._add_claims(node, table.members)
        if not node.in_layout and not node.claims:
            return layout, frame
        version = self._version()
        if changed or version != node.version:
            node.version = version
            names = self._names(frame.node, dict.fromkeys((*node.in_layout, *node.claims)))
            if names != node.names:
                node.names, node.layout, node.received, node.table = names, None, (), None
        if not node.names:
            return layout, frame
        if node.layout is None:
            node.layout = pack(_renamed(layout.whole(), node.names))
        if frame.records is not node.received:
            node.received, node.renamed = frame.records, tuple(_rename(record, node.names) for record in frame.records)
        if table is not node.table:
            node.table, node.renamed_table = table, _rename_table(table, node)
        layout_id = node.layout.layout_id
        frame = msgspec.structs.replace(frame, layout_id=layout_id, records=node.renamed, table=node.renamed_table)
        return node.layout, frame

    def _add_claims(self, node: _Node, members: Iterable[Member | None]) -> bool:
        """Add the ranks of pods among these ranks of records; return whether one is new."""
        new = False
        for member in members:
            if member is not None and member.gang.startswith(POD):
                new |= member not in node.claims
                node.claims[member] = None
        while len(node.claims) > self.MOST_CLAIMS:
            node.claims.popitem(last=False)
        return new

    def _names(self, node: str, claims: Iterable[Member]) -> dict[Member, Member]:
        """Return the new name of each rank that the node reports for pods.

        In a pod, only ranks of the newest attempt get a name: a restart increments the attempt number. A pod's
        reported ranks are mapped to its own ranks by their order: in a pod with ranks 8 to 15 that reports 0 to 7, 0
        becomes 8. If two reported ranks would get the same name, only the lower one is renamed.
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
                if member.attempt in (newest, _NO_ATTEMPT) and whose.setdefault(rank, member.rank) == member.rank:
                    names[member] = Member(place.gang, place.attempt, rank)
        return names


def _claims(layout: Layout) -> Iterator[Member]:
    """Yield once each rank of a pod that a series of the layout names."""
    columns = (column for part in (layout.gauges, layout.counters) for column in part)
    yield from dict.fromkeys(member for column in columns if (member := _member(column.labels)) is not None)


def _member(labels: Iterable[tuple[str, str]]) -> Member | None:
    """Return the rank of a pod that the labels of a series name; None if they name none."""
    named = dict(labels)
    gang, rank, attempt = named.get("gang", ""), named.get("rank", ""), named.get("attempt", "")
    if not gang.startswith(POD) or not rank.isdecimal() or not (attempt.isdecimal() or not attempt):
        return None
    return Member(gang, int(attempt) if attempt else _NO_ATTEMPT, int(rank))


def _renamed(layout: Layout, names: Mapping[Member, Member]) -> Layout:
    def column(one: Column) -> Column:
        member = _member(one.labels)
        name = None if member is None else names.get(member)
        if name is None:
            return one
        named = {"gang": name.gang, "attempt": str(name.attempt), "rank": str(name.rank)}
        labels = tuple((key, named.get(key, value)) for key, value in one.labels)
        return msgspec.structs.replace(one, labels=labels)

    return make_layout(layout.node, layout.tiers, map(column, layout.gauges), map(column, layout.counters))


def _rename(record: Record, names: Mapping[Member, Member]) -> Record:
    name = None if record.member is None else names.get(record.member)
    return record if name is None else msgspec.structs.replace(record, member=name)


def _rename_table(table: RecordTable | None, node: _Node) -> RecordTable | None:
    """Return a node's table with the new names of its ranks. Equal ranks are the same object as in its last table."""
    if table is None:
        return None
    members = tuple(node.names.get(member, member) for member in table.members)
    before = node.renamed_table
    return RecordTable(before.members if before is not None and before.members == members else members, table.rows)
