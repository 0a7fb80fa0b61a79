"""Plan: free slots as a transaction, so that a gang takes all its slots or none.

A node's free slots are the bits of one integer. Nodes are indexed by tier and by number of free slots, so that asking
for the node that fits best costs no walk over the cluster: a heap of names for each (tier, free count) holds every node
that ever had that count, and an entry that no longer tells the truth is thrown away when it is met.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import IntEnum
from heapq import heappop, heappush

from scheduler_feedback.core.cluster import Node, NodeState
from scheduler_feedback.core.job import Slot


class Tier(IntEnum):
    """What a usable node is good for; nodes in any other state are in no tier and take nothing."""

    HEALTHY = 0
    PROBATION = 1
    SUSPECT = 2


_TIERS = {NodeState.HEALTHY: Tier.HEALTHY, NodeState.PROBATION: Tier.PROBATION, NodeState.SUSPECT: Tier.SUSPECT}


def tier_of(node: Node) -> Tier | None:
    """The node's tier; None where it takes nothing: absent, in quarantine, in maintenance."""
    return _TIERS.get(node.state) if node.present else None


class Plan:
    """The free slots of a cluster, changed under a transaction.

    >>> mark = plan.checkpoint()
    >>> plan.take("n1", 2)
    >>> plan.rollback(mark)      # or plan.commit()
    """

    __slots__ = ("_heaps", "_journal", "_mask", "_slots", "_tier", "_total")

    def __init__(self, nodes: Iterable[Node], busy: Iterable[Slot] = ()) -> None:
        self._mask: dict[str, int] = {}
        self._slots: dict[str, int] = {}
        self._tier: dict[str, Tier] = {}
        self._journal: list[tuple[str, int]] = []
        for node in nodes:
            self._mask[node.name] = (1 << node.slots) - 1
            self._slots[node.name] = node.slots
            if (tier := tier_of(node)) is not None:
                self._tier[node.name] = tier
        masks = self._mask
        for slot in busy:
            if slot.node in masks:
                masks[slot.node] &= ~(1 << slot.slot)
        self._index()

    def _index(self) -> None:
        # A list that is filled in the order of names is a heap already.
        self._heaps: dict[Tier, list[list[str]]] = {
            tier: [[] for _ in range(max(self._slots.values(), default=0) + 1)] for tier in Tier
        }
        self._total = dict.fromkeys(Tier, 0)
        for name in sorted(self._tier):
            free = self._mask[name].bit_count()
            self._heaps[self._tier[name]][free].append(name)
            self._total[self._tier[name]] += free

    def copy(self) -> Plan:
        """The same free slots, with no transaction open."""
        other = Plan(())
        other._mask, other._slots, other._tier = dict(self._mask), self._slots, self._tier
        other._index()
        return other

    # --- the transaction ---------------------------------------------------------------------------------------------

    def checkpoint(self) -> int:
        """A mark to roll back to. Marks nest."""
        return len(self._journal)

    def rollback(self, mark: int) -> None:
        """Undo all that was taken and given since the mark."""
        while len(self._journal) > mark:
            name, mask = self._journal.pop()
            self._put(name, mask)

    def commit(self) -> None:
        """What was taken stays taken; no earlier mark can be rolled back to."""
        self._journal.clear()

    def take(self, name: str, count: int) -> tuple[Slot, ...]:
        """Take the node's lowest free slots. Raises ValueError where fewer are free."""
        mask, taken = self._mask[name], []
        if mask.bit_count() < count:
            raise ValueError(f"{count} slots of {name} wanted, {mask.bit_count()} are free")
        self._journal.append((name, mask))
        for _ in range(count):
            lowest = mask & -mask
            taken.append(Slot(name, lowest.bit_length() - 1))
            mask ^= lowest
        self._put(name, mask)
        return tuple(taken)

    def hold(self, slots: Iterable[Slot]) -> None:
        """Take these slots, as far as they are free."""
        for slot in slots:
            if self.is_free(slot):
                self._journal.append((slot.node, self._mask[slot.node]))
                self._put(slot.node, self._mask[slot.node] & ~(1 << slot.slot))

    def give(self, slots: Iterable[Slot]) -> None:
        """Make these slots free; what the cluster does not have, or what is free already, is passed over."""
        freed: dict[str, int] = {}
        for slot in slots:
            if slot.slot < self._slots.get(slot.node, 0):
                freed[slot.node] = freed.get(slot.node, 0) | 1 << slot.slot
        for name, bits in freed.items():
            self._journal.append((name, self._mask[name]))
            self._put(name, self._mask[name] | bits)

    def _put(self, name: str, mask: int) -> None:
        before, after = self._mask[name].bit_count(), mask.bit_count()
        self._mask[name] = mask
        tier = self._tier.get(name)
        if tier is not None and before != after:
            self._total[tier] += after - before
            heappush(self._heaps[tier][after], name)

    # --- what is free ------------------------------------------------------------------------------------------------

    def is_free(self, slot: Slot) -> bool:
        return bool(self._mask.get(slot.node, 0) >> slot.slot & 1)

    def free_on(self, name: str) -> int:
        """Free slots of one node, whatever its state; 0 for a node that is not there."""
        return self._mask.get(name, 0).bit_count()

    def usable(self, name: str) -> bool:
        """Whether the node is in any tier."""
        return name in self._tier

    def free(self, tier: Tier, excluded: Collection[str] = ()) -> int:
        """Free slots of a tier, without those of the excluded nodes."""
        return self._total[tier] - sum(self.free_on(name) for name in excluded if self._tier.get(name) is tier)

    def tightest(self, tier: Tier, count: int, excluded: Collection[str] = ()) -> str | None:
        """The node of the tier that has the fewest free slots, but at least `count`; the first by name of several."""
        heaps = self._heaps[tier]
        for free in range(max(count, 1), len(heaps)):
            if (name := self._first(tier, free, excluded)) is not None:
                return name
        return None

    def emptiest(self, tier: Tier, excluded: Collection[str] = ()) -> str | None:
        """The node of the tier that has the most free slots, at least one; the first by name of several."""
        for free in range(len(self._heaps[tier]) - 1, 0, -1):
            if (name := self._first(tier, free, excluded)) is not None:
                return name
        return None

    def _first(self, tier: Tier, free: int, excluded: Collection[str]) -> str | None:
        heap = self._heaps[tier][free]
        passed_over: list[str] = []
        found: str | None = None
        while heap:
            name = heap[0]
            if self._mask[name].bit_count() != free:
                heappop(heap)
            elif name in excluded:
                passed_over.append(heappop(heap))
            else:
                found = name
                break
        for name in passed_over:
            heappush(heap, name)
        return found
