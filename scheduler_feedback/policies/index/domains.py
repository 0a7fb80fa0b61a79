"""Topology: the domains that each node belongs to.

Nodes are numbered so that every domain is a range of numbers. A set of nodes is the bits of one integer, and selecting
the nodes of a rack is one AND. The order is spine, rack, rail, island, then name, so nodes with neighbouring numbers
are close on the network.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from scheduler_feedback.core.cluster import Level, Node
from scheduler_feedback.core.job import Slot

WIDE = (Level.SPINE, Level.RACK, Level.RAIL, Level.ISLAND)
"""Levels above the node, from wide to narrow."""

WIDTH = {Level.ISLAND: 0, Level.NODE: 1, Level.RAIL: 2, Level.RACK: 3, Level.SPINE: 4}


@dataclass(slots=True)
class Domain:
    """Nodes that share a switch."""

    number: int
    """Number of the domain."""
    level: Level | None
    """Level of the domain; None for the whole cluster."""
    name: str
    """Name of the domain."""
    nodes: int = 0
    """Bit mask of the domain's nodes."""
    children: list[int] = field(default_factory=list)
    """Numbers of the domains inside it; empty if it contains only nodes."""


class Topology:
    """Static properties of the nodes: valid until a node appears, disappears, or changes its size or place.

    names, sizes, slots: of each node, by number.
    types: GPU type of each node, as an index into `type_names`.
    islands: size of the NVLink islands inside each node; 0 if the node is one island.
    largest: largest size.
    refused: bits of the nodes that do not meet a constraint, by the constraint's name.
    domains: number 0 is the whole cluster.
    above: numbers of each node's domains, including 0.
    """

    __slots__ = (
        "above",
        "bits",
        "by_level",
        "domains",
        "islands",
        "largest",
        "names",
        "number",
        "refused",
        "sizes",
        "slots",
        "type_names",
        "types",
    )

    def __init__(self, nodes: Iterable[Node]) -> None:
        ordered = sorted(nodes, key=lambda node: (node.spine, node.rack, node.rail, node.island, node.name))
        self.names = [node.name for node in ordered]
        self.number = {name: number for number, name in enumerate(self.names)}
        self.sizes = [node.slots for node in ordered]
        self.bits = [1 << number for number in range(len(ordered))]
        self.slots = [tuple(Slot(node.name, slot) for slot in range(node.slots)) for node in ordered]
        self.islands = [node.island_slots for node in ordered]
        self.largest = max(self.sizes, default=0)
        self.type_names = sorted({node.gpu_type for node in ordered}) or [""]
        known = {name: number for number, name in enumerate(self.type_names)}
        self.types = [known[node.gpu_type] for node in ordered]
        self.refused: dict[str, int] = {}
        for number, node in enumerate(ordered):
            for constraint in node.refuses:
                self.refused[constraint] = self.refused.get(constraint, 0) | self.bits[number]
        self.domains = [Domain(0, None, "the cluster")]
        self.by_level: dict[Level, list[int]] = {level: [] for level in WIDE}
        self.above: list[tuple[int, ...]] = []
        self._grow(ordered)

    def _grow(self, ordered: list[Node]) -> None:
        found: dict[tuple[str, ...], int] = {}
        for number, node in enumerate(ordered):
            path: tuple[str, ...] = ()
            inside = [0]
            for level, name in zip(WIDE, (node.spine, node.rack, node.rail, node.island), strict=True):
                path = (*path, name)
                if not name:
                    continue
                domain = found.get(path)
                if domain is None:
                    domain = found[path] = len(self.domains)
                    self.domains.append(Domain(domain, level, name))
                    self.domains[inside[-1]].children.append(domain)
                    self.by_level[level].append(domain)
                inside.append(domain)
            for domain in inside:
                self.domains[domain].nodes |= self.bits[number]
            self.above.append(tuple(inside))

    def bits_of(self, names: Iterable[str]) -> int:
        """Return the bits of the named nodes. Unknown names are ignored."""
        bits = 0
        for name in names:
            if (number := self.number.get(name)) is not None:
                bits |= self.bits[number]
        return bits

    def narrow(self, widest: Level) -> list[int]:
        """Return domains that cover the nodes: the level's own, and narrower ones for nodes whose domain is unknown."""
        covered, chosen = 0, []
        for level in WIDE:
            if WIDTH[level] <= WIDTH[widest]:
                for number in self.by_level[level]:
                    domain = self.domains[number]
                    if not domain.nodes & covered:
                        chosen.append(number)
                        covered |= domain.nodes
        return chosen


def lowest(bits: int) -> int:
    """Return the number of the lowest set bit."""
    return (bits & -bits).bit_length() - 1


def numbers(bits: int) -> list[int]:
    """Return the numbers of the set bits in increasing order."""
    found = []
    while bits:
        bit = bits & -bits
        found.append(bit.bit_length() - 1)
        bits ^= bit
    return found
