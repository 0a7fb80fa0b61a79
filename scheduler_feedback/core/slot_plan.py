"""Plan: free slots as a transaction, so that a gang takes all its slots or none.

A node's free slots are the bits of one integer. Nodes that are alike (tier and GPU type) form a pool; a pool keeps, for
each number of free slots, the set of its nodes that have just so many, again as the bits of one integer, and for every
domain of the topology how many slots are free in it. So no question walks over the cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import IntEnum

from scheduler_feedback.core.cluster import Node, NodeState
from scheduler_feedback.core.domains import Topology, lowest, numbers
from scheduler_feedback.core.job import Slot


class Tier(IntEnum):
    """What a usable node is good for; nodes in any other state are in no tier and take nothing."""

    HEALTHY = 0
    PROBATION = 1
    SUSPECT = 2
    SPARE = 3


TIERS = len(Tier)
NOWHERE = -1
_TIERS = {NodeState.HEALTHY: Tier.HEALTHY, NodeState.PROBATION: Tier.PROBATION, NodeState.SUSPECT: Tier.SUSPECT}


def tier_of(node: Node) -> Tier | None:
    """The node's tier; None where it takes nothing: absent, in quarantine, in maintenance."""
    if node.spare and node.present and node.state is NodeState.HEALTHY:
        return Tier.SPARE
    return _TIERS.get(node.state) if node.present else None


def _by_node(slots: Iterable[Slot]) -> dict[str, int]:
    """The bits of the slots, by node. A gang's slots mostly lie node by node, so a node is looked up once a run."""
    found: dict[str, int] = {}
    last, bits = "", 0
    for slot in slots:
        if (name := slot.node) != last:
            if bits:
                found[last] = bits
            last, bits = name, found.get(name, 0)
        bits |= 1 << slot.slot
    if bits:
        found[last] = bits
    return found


class Plan:
    """The free slots of a cluster, changed under a transaction.

    >>> mark = plan.checkpoint()
    >>> plan.take("n1", 2)
    >>> plan.rollback(mark)      # or plan.commit()

    A pool's number is TIERS x the type's number + the tier. free_in[pool][domain]: free slots. with_free[pool][n]: the
    nodes of the pool that have n slots free. count: free slots of each node, by number. slots_in[pool]: slots of its
    nodes, free or not. slowdown: of the suspect nodes that are held to be slow, by number.
    crossing: how many gangs cross the uplinks of a domain, each of which costs uplink_slowdown. congested: what the
    uplinks of a domain are known to cost beside.
    """

    __slots__ = (
        "_journal",
        "_mask",
        "congested",
        "count",
        "crossing",
        "free_in",
        "pool",
        "slots_in",
        "slowdown",
        "topology",
        "uplink_slowdown",
        "with_free",
    )

    def __init__(self, nodes: Iterable[Node], busy: Iterable[Slot] = ()) -> None:
        nodes = list(nodes)
        self.topology = Topology(nodes)
        self._mask = [(1 << size) - 1 for size in self.topology.sizes]
        self._journal: list[tuple[int, int]] = []
        number = self.topology.number
        for name, bits in _by_node(busy).items():
            if (index := number.get(name)) is not None:
                self._mask[index] &= ~bits
        self.pool = [NOWHERE] * len(nodes)
        self.slowdown: dict[int, float] = {}
        self.crossing: dict[int, int] = {}
        self.congested: dict[int, float] = {}
        self.uplink_slowdown = 0.0
        for node in nodes:
            self.pool[number[node.name]] = self._pool_of(node)
            self._note_slowdown(node)
        self._count()

    def _pool_of(self, node: Node) -> int:
        tier = tier_of(node)
        number = self.topology.number[node.name]
        return NOWHERE if tier is None else self.topology.types[number] * TIERS + tier

    def _note_slowdown(self, node: Node) -> None:
        number = self.topology.number[node.name]
        if node.slowdown > 1 and self.pool[number] % TIERS == Tier.SUSPECT and self.pool[number] != NOWHERE:
            self.slowdown[number] = node.slowdown
        else:
            self.slowdown.pop(number, None)

    def _count(self) -> None:
        topology = self.topology
        pools = TIERS * len(topology.type_names)
        self.count = [mask.bit_count() for mask in self._mask]
        self.with_free = [[0] * (topology.largest + 1) for _ in range(pools)]
        self.free_in = [[0] * len(topology.domains) for _ in range(pools)]
        self.slots_in = [0] * pools
        for number, pool in enumerate(self.pool):
            if pool != NOWHERE:
                self._enter(number, pool)

    def _enter(self, number: int, pool: int) -> None:
        free = self.count[number]
        self.with_free[pool][free] |= self.topology.bits[number]
        self.slots_in[pool] += self.topology.sizes[number]
        inside = self.free_in[pool]
        for domain in self.topology.above[number]:
            inside[domain] += free

    def change(self, node: Node) -> None:
        """The node's state has changed. Outside of any transaction; its size and place are as they were."""
        number = self.topology.number[node.name]
        before, after = self.pool[number], self._pool_of(node)
        if before == after:
            self._note_slowdown(node)
            return
        if before != NOWHERE:
            free = self.count[number]
            self.slots_in[before] -= self.topology.sizes[number]
            self.with_free[before][free] &= ~self.topology.bits[number]
            inside = self.free_in[before]
            for domain in self.topology.above[number]:
                inside[domain] -= free
        self.pool[number] = after
        self._note_slowdown(node)
        if after != NOWHERE:
            self._enter(number, after)

    def copy(self) -> Plan:
        """The same free slots, with no transaction open."""
        other = object.__new__(Plan)
        other.topology, other._journal = self.topology, []
        other._mask, other.count, other.pool = self._mask[:], self.count[:], self.pool[:]
        other.with_free = [sets[:] for sets in self.with_free]
        other.free_in = [free[:] for free in self.free_in]
        other.slots_in, other.slowdown = self.slots_in[:], dict(self.slowdown)
        other.crossing, other.congested = self.crossing, self.congested
        other.uplink_slowdown = self.uplink_slowdown
        return other

    # --- the transaction ---------------------------------------------------------------------------------------------

    def checkpoint(self) -> int:
        """A mark to roll back to. Marks nest."""
        return len(self._journal)

    def rollback(self, mark: int) -> None:
        """Undo all that was taken and given since the mark."""
        journal = self._journal
        while len(journal) > mark:
            self._put(*journal.pop())

    def commit(self) -> None:
        """What was taken stays taken; no earlier mark can be rolled back to."""
        self._journal.clear()

    def take(self, name: str, count: int) -> tuple[Slot, ...]:
        """Take slots of the node: of the NVLink island that they fit tightest, else the lowest that are free.

        Raises ValueError where fewer are free.
        """
        return self.take_from(self.topology.number[name], count)

    def take_from(self, number: int, count: int) -> tuple[Slot, ...]:
        """``take``, by the node's number."""
        mask = self._mask[number]
        free = self.count[number]
        if free < count:
            raise ValueError(f"{count} slots of {self.topology.names[number]} wanted, {free} are free")
        self._journal.append((number, mask))
        slots = self.topology.slots[number]
        if free == count == len(slots):
            self._put(number, 0)
            return slots
        within = mask
        if (island := self.topology.islands[number]) and count <= island < len(slots):
            within = self.island(number, count) or mask
        taken = []
        for _ in range(count):
            bit = within & -within
            taken.append(slots[bit.bit_length() - 1])
            within ^= bit
            mask ^= bit
        self._put(number, mask)
        return tuple(taken)

    def island(self, number: int, count: int) -> int:
        """Free slots of the node's NVLink island that has the fewest of them, but at least `count`; 0: none has."""
        mask, size = self._mask[number], self.topology.islands[number] or self.topology.sizes[number]
        found = 0
        for first in range(0, self.topology.sizes[number], size):
            part = mask & ((1 << size) - 1) << first
            if part.bit_count() >= count and (not found or part.bit_count() < found.bit_count()):
                found = part
        return found

    def hold(self, slots: Iterable[Slot]) -> None:
        """Take these slots, as far as they are free."""
        numbers, masks = self.topology.number, self._mask
        for name, bits in _by_node(slots).items():
            if (number := numbers.get(name)) is not None and (before := masks[number]) & bits:
                self._journal.append((number, before))
                self._put(number, before & ~bits)

    def give(self, slots: Iterable[Slot]) -> None:
        """Make these slots free; what the cluster does not have, or what is free already, is passed over."""
        numbers, masks, sizes = self.topology.number, self._mask, self.topology.sizes
        for name, bits in _by_node(slots).items():
            if (number := numbers.get(name)) is not None and (bits := bits & (1 << sizes[number]) - 1):
                before = masks[number]
                self._journal.append((number, before))
                self._put(number, before | bits)

    def _put(self, number: int, mask: int) -> None:
        before, after = self.count[number], mask.bit_count()
        self._mask[number] = mask
        if before == after:
            return
        self.count[number] = after
        if (pool := self.pool[number]) == NOWHERE:
            return
        bit, sets, inside = self.topology.bits[number], self.with_free[pool], self.free_in[pool]
        sets[before] ^= bit
        sets[after] ^= bit
        after -= before
        for domain in self.topology.above[number]:
            inside[domain] += after

    # --- what is free ------------------------------------------------------------------------------------------------

    def is_free(self, slot: Slot) -> bool:
        number = self.topology.number.get(slot.node)
        return number is not None and bool(self._mask[number] >> slot.slot & 1)

    def free_of(self, slots: Iterable[Slot]) -> int:
        """How many of these slots are free."""
        numbers, masks = self.topology.number, self._mask
        return sum([masks[numbers[slot.node]] >> slot.slot & 1 for slot in slots if slot.node in numbers])

    def free_on(self, name: str) -> int:
        """Free slots of one node, whatever its state; 0 for a node that is not there."""
        number = self.topology.number.get(name)
        return 0 if number is None else self.count[number]

    def usable(self, name: str) -> bool:
        """Whether the node is in any tier."""
        number = self.topology.number.get(name)
        return number is not None and self.pool[number] != NOWHERE

    def pools(self, tier: Tier, types: Collection[str] = ()) -> list[int]:
        """The pools of a tier, of these GPU types (empty: of all)."""
        names = self.topology.type_names
        return [n * TIERS + tier for n, name in enumerate(names) if not types or name in types]

    def uplink_cost(self, domain: int) -> float:
        """Expected slowdown, above 1, of a gang that crosses the uplinks of the domain."""
        return self.congested.get(domain, 0.0) + self.uplink_slowdown * self.crossing.get(domain, 0)

    def has_spares(self) -> bool:
        """Whether any node is kept as a spare."""
        return any(self.slots_in[Tier.SPARE :: TIERS])

    def free(self, tier: Tier, excluded: Collection[str] = ()) -> int:
        """Free slots of a tier, without those of the excluded nodes."""
        if not excluded and len(self.free_in) == TIERS:  # one type of GPU, as mostly
            return self.free_in[tier][0]
        all_of_it = sum([inside[0] for inside in self.free_in[tier::TIERS]])
        if not excluded:
            return all_of_it
        pools = self.pools(tier)
        without = 0
        for name in excluded:
            number = self.topology.number.get(name)
            if number is not None and self.pool[number] in pools:
                without += self.count[number]
        return all_of_it - without

    def tightest(self, pool: int, count: int, barred: int = 0, within: int = 0) -> int:
        """Number of the pool's node that has the fewest free slots, but at least `count`; NOWHERE: there is none.

        Of several, one in the domain that is fullest, so that large holes stay large; then the lowest number. barred:
        nodes that are not to be used. within: the domain to look in.
        """
        domains = self.topology.domains
        allowed = domains[within].nodes & ~barred
        for nodes in self.with_free[pool][max(count, 1) :]:
            nodes &= allowed
            if not nodes:
                continue
            free, domain = self.free_in[pool], domains[within]
            while domain.children:
                fullest = NOWHERE
                for child in domain.children:
                    if domains[child].nodes & nodes and (fullest == NOWHERE or free[child] < free[fullest]):
                        fullest = child
                if fullest == NOWHERE:  # nodes whose place below this domain is not known
                    break
                domain = domains[fullest]
                nodes &= domain.nodes
            return lowest(nodes)
        return NOWHERE

    def tight_holes(self, count: int) -> list[Slot]:
        """So many free slots, of the fullest nodes first; they are not taken. Nodes in doubt come last."""
        found: list[Slot] = []
        for pool in sorted(range(len(self.with_free)), key=lambda pool: pool % TIERS):
            for free, nodes in enumerate(self.with_free[pool]):
                for number in numbers(nodes) if free else ():
                    if len(found) >= count:
                        return found[:count]
                    mask = self._mask[number]
                    found += [slot for slot in self.topology.slots[number] if mask >> slot.slot & 1]
        return found[:count]

    def emptiest(self, pool: int, barred: int = 0, within: int = 0) -> int:
        """Number of the pool's node that has the most free slots, at least one; the lowest of several; or NOWHERE."""
        allowed = self.topology.domains[within].nodes & ~barred
        sets = self.with_free[pool]
        for free in range(len(sets) - 1, 0, -1):
            if nodes := sets[free] & allowed:
                return lowest(nodes)
        return NOWHERE
