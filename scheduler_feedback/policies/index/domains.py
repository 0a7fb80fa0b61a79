"""Topology: the network domains (spine, rack, rail, NVLink island) of each node.

Nodes are numbered so that every domain is a range of numbers. A set of nodes is the bits of one integer, and selecting
the nodes of a rack is one AND. The order is spine, rack, rail, island, then name, so nodes with neighbouring numbers
are close on the network.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from scheduler_feedback.core.cluster import Level, Limit, Node
from scheduler_feedback.core.job import JobSpec, Slot

WIDE = (Level.SPINE, Level.RACK, Level.RAIL, Level.ISLAND)
"""Network levels that group nodes, the widest first."""

WIDTH = {Level.ISLAND: 0, Level.NODE: 1, Level.RAIL: 2, Level.RACK: 3, Level.SPINE: 4}


@dataclass(slots=True)
class Domain:
    """A network domain: the nodes below one switch, or the whole cluster."""

    number: int
    """Index of the domain in ``Topology.domains``."""
    level: Level | None
    """Network level of the domain, for example rack; None for the whole cluster."""
    name: str
    """Name of the domain, for example of the rack."""
    nodes: int = 0
    """Nodes of the domain, as a bit mask: bit n is the node with number n."""
    children: list[int] = field(default_factory=list)
    """Numbers of the next narrower domains inside this domain; empty if it has none."""


class Topology:
    """Static properties of the nodes. They change only if a node appears, disappears, or changes its size or place.

    names, sizes, slots: name, number of slots, and slots of each node, by node number.
    types: GPU type of each node, as an index into `type_names`.
    islands: size of the NVLink islands inside each node; 0 if the node is one island.
    largest: number of slots of the largest node.
    refused: bit mask of the nodes that do not meet a constraint, by the constraint's name.
    limits: limits by other resources than slots, by the constraint's name and the node's number.
    free: free amounts of other resources, by the node's number, for nodes with limits.
    mig: for each MIG profile, the nodes that have it, as a bit mask, and how many of its instances a GPU holds.
    domains: all domains by number; number 0 is the whole cluster.
    above: for each node, the numbers of the domains that contain it, including 0.
    """

    __slots__ = (
        "above",
        "bits",
        "by_level",
        "domains",
        "free",
        "islands",
        "largest",
        "limits",
        "mig",
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
        self.limits: dict[str, dict[int, Limit]] = {}
        for number, node in enumerate(ordered):
            for limit in node.limits:
                self.limits.setdefault(limit.constraint, {})[number] = limit
        self.free = {number: dict(node.free) for number, node in enumerate(ordered) if node.free}
        self.mig: dict[str, tuple[int, int]] = {}
        for number, node in enumerate(ordered):
            for profile in node.mig_profiles:
                having, least = self.mig.get(profile.name, (0, len(profile.starts)))
                self.mig[profile.name] = having | self.bits[number], min(least, len(profile.starts))
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

    def slots_needed(self, spec: JobSpec) -> int:
        """Return how many idle slots are enough for the job's least number of ranks.

        Several MIG instances fit on one GPU.
        """
        ranks = spec.min_ranks or spec.ranks
        if not spec.mig_profile or spec.mig_profile not in self.mig:
            return ranks
        return -(-ranks // max(self.mig[spec.mig_profile][1], 1))

    def bits_of(self, names: Iterable[str]) -> int:
        """Return the named nodes as a bit mask. Unknown names are ignored."""
        bits = 0
        for name in names:
            if (number := self.number.get(name)) is not None:
                bits |= self.bits[number]
        return bits

    def narrow(self, widest: Level) -> list[int]:
        """Divide the cluster into network domains of level `widest`. Return the numbers of these domains.

        A node without a known domain at this level is covered by its next narrower domain.
        """
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
    """Return the position of the lowest set bit, counted from 0."""
    return (bits & -bits).bit_length() - 1


def numbers(bits: int) -> list[int]:
    """Return the positions of the set bits, in increasing order."""
    found = []
    while bits:
        bit = bits & -bits
        found.append(bit.bit_length() - 1)
        bits ^= bit
    return found
