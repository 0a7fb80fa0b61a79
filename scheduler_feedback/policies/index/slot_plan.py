"""Plan: the free slots of the cluster, changed in transactions, so that a gang takes all its slots or none.

A node's free slots are the bits of one integer. Nodes with the same tier and GPU type form a pool. For each number of
free slots, a pool has the set of its nodes with exactly that many, also as the bits of one integer. For every domain of
the topology, it has the number of free slots. No query therefore iterates over the whole cluster.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from scheduler_feedback.core.cluster import Node, Tier, tier_of
from scheduler_feedback.core.job import Slot
from scheduler_feedback.core.state import CachedDataset, MeasuredTraffic
from scheduler_feedback.policies.index.domains import Topology, lowest, numbers
from scheduler_feedback.policies.index.queue_shares import Shares
from scheduler_feedback.policies.speeds.learnt_speeds import LearntSpeeds

TIERS = len(Tier)
NOWHERE = -1

Requests = tuple[tuple[str, int], ...]
"""Amount of each resource, by its name."""

_NO_LIMIT = 1 << 31


def _by_node(slots: Iterable[Slot]) -> dict[str, int]:
    """Return the slots of each node as a bit mask, by node name."""
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


ALL_RAILS = -1
"""Every rail, as a bit mask: its slots are not chosen yet."""


class Crossing(NamedTuple):
    """A gang that uses uplinks."""

    job_class: str
    """Key of its class (``learnt_speeds.class_of``)."""
    ranks: int
    """Number of its ranks."""
    rails: int = ALL_RAILS
    """Rails that it uses, as a bit mask."""


class Plan:
    """Free slots of a cluster, changed in transactions.

    >>> mark = plan.checkpoint()
    >>> plan.take("n1", 2)
    >>> plan.rollback(mark)      # or plan.commit()

    A pool's number is TIERS x the GPU type's number + the tier.

    free_in[pool][domain]: number of free slots. with_free[pool][n]: bit mask of the pool's nodes with n free slots.
    slots_in[pool]: number of slots of its nodes, free or not. count: number of free slots, by node number.
    slowdown: expected slowdown of suspect nodes, by node number; healthy speed is left out.
    crossing: gangs that use the uplinks of a domain, by domain and job id. Their cost follows from their traffic.
    rails: number of rails of a node. Each has an uplink of its own in every domain; slots are divided evenly over them.
    traffic: measured traffic by job class; uplink_slowdown: expected slowdown by a gang whose traffic is unknown.
    congested: slowdown, minus 1, that interference verdicts report for the uplinks of a domain.
    declined: pending jobs that wait for a faster GPU type: by job id, (numbers of the types that the job does not use
    now, as a bit mask; expected start in ns). typed_for: digest of what this depends on (``faster_types``).
    learnt: learnt speeds of jobs, which order the GPU types; None: given speeds do.
    shares: quotas of the queues, which order the GPU types if they apply to each type; None: they do not.
    datasets: nodes that have a dataset in their caches, by its name; empty: placement ignores datasets.
    unreported: gangs that started since a node's last report: by node number and job id, (pods, requests of one pod).
    changed: numbers of the nodes whose free slots have changed; None: not recorded. ``shares/slot_parts`` reads it.
    """

    __slots__ = (
        "_amounts",
        "_journal",
        "_mask",
        "changed",
        "congested",
        "count",
        "crossing",
        "datasets",
        "declined",
        "free_in",
        "learnt",
        "pool",
        "rails",
        "shares",
        "slots_in",
        "slowdown",
        "topology",
        "traffic",
        "typed_for",
        "unreported",
        "uplink_slowdown",
        "with_free",
    )

    def __init__(self, nodes: Iterable[Node], busy: Iterable[Slot] = ()) -> None:
        nodes = list(nodes)
        self.topology = Topology(nodes)
        self._mask = [(1 << size) - 1 for size in self.topology.sizes]
        self._journal: list[tuple[int, int]] = []
        self._amounts: list[tuple[int, str, tuple[int, Requests] | None]] = []  # changes of unreported to undo
        self.changed: set[int] | None = None
        number = self.topology.number
        for name, bits in _by_node(busy).items():
            if (index := number.get(name)) is not None:
                self._mask[index] &= ~bits
        self.pool = [NOWHERE] * len(nodes)
        self.slowdown: dict[int, float] = {}
        self.crossing: dict[int, dict[str, Crossing]] = {}
        self.traffic: Mapping[str, MeasuredTraffic] = {}
        self.congested: dict[int, float] = {}
        self.uplink_slowdown = 0.0
        self.rails = 1
        self.datasets: Mapping[str, Mapping[str, CachedDataset]] = {}
        self.declined: dict[str, tuple[int, int]] = {}
        self.typed_for = b""
        self.learnt: LearntSpeeds | None = None
        self.shares: Shares | None = None
        self.unreported: dict[int, dict[str, tuple[int, Requests]]] = {}
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
        """Update the node's tier (such as healthy, suspect or spare) after a change of its state.

        Must not be called in a transaction. The node's size and place must be unchanged.
        """
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

    def copy(self, apart: bool = False) -> Plan:
        """Return a copy with the same free slots and no open transaction.

        apart: whether pods that start or leave later count in the copy or in this plan only.
        """
        other = object.__new__(Plan)
        other.topology, other._journal, other._amounts, other.changed = self.topology, [], [], None
        other._mask, other.count, other.pool = self._mask[:], self.count[:], self.pool[:]
        other.with_free = [sets[:] for sets in self.with_free]
        other.free_in = [free[:] for free in self.free_in]
        other.slots_in, other.slowdown = self.slots_in[:], dict(self.slowdown)
        other.crossing, other.congested = self.crossing, self.congested
        other.uplink_slowdown, other.traffic, other.rails = self.uplink_slowdown, self.traffic, self.rails
        other.declined, other.typed_for, other.learnt = self.declined, self.typed_for, self.learnt
        other.datasets, other.shares = self.datasets, self.shares
        other.unreported = self.unreported
        if apart:
            other.unreported = {number: dict(started) for number, started in self.unreported.items()}
        return other

    # --- other resources than slots ----------------------------------------------------------------------------------

    def note_start(self, job_id: str, number: int, pods: int, requests: Requests) -> None:
        """Count pods that started on the node since its last report, until the next one. requests: those of one pod."""
        if self.changed is not None:
            self.changed.add(number)
        self.unreported.setdefault(number, {})[job_id] = (pods, requests)

    def forget_start(self, job_id: str, numbers: Iterable[int]) -> bool:
        """Stop counting the job's pods on these nodes. Return whether any were counted."""
        found = False
        for number in numbers:
            started = self.unreported.get(number, {})
            if started.pop(job_id, None) is not None:
                found = True
                if self.changed is not None:
                    self.changed.add(number)
                if not started:
                    del self.unreported[number]
        return found

    def leave(self, job_id: str, number: int, pods: int, requests: Requests) -> None:
        """Assume that pods of the job have left the node, until ``rollback``. requests: those of one pod.

        pods: 0 revokes an earlier call.
        """
        if number not in self.topology.free:
            return
        known = self.unreported.setdefault(number, {})
        key = f"{job_id} leaves"
        self._amounts.append((number, key, known.get(key)))
        self._journal.append((NOWHERE, 0))
        known[key] = (-pods, requests)

    def _undo_leave(self) -> None:
        number, key, before = self._amounts.pop()
        known = self.unreported[number]
        if before is not None:
            known[key] = before
            return
        del known[key]
        if not known:
            del self.unreported[number]

    def cpu_milli_left(self, number: int) -> int | None:
        """Return the free thousandths of a processor on the node with this number; None if it has reported none."""
        free = self.topology.free.get(number, {}).get("cpu")
        if free is None:
            return None
        started = self.unreported.get(number, {}).values()
        return max(free - sum(pods * count for pods, used in started for name, count in used if name == "cpu"), 0)

    def pods_left(self, number: int, requests: Requests) -> int:
        """Return for how many pods the node has resources, counting gangs that started since its last report.

        requests: those of one pod. The node must have reported its free resources. Slots are not counted.
        """
        free = dict(self.topology.free[number])
        for pods, used in self.unreported.get(number, {}).values():
            for name, count in used:
                free[name] = free.get(name, 0) - pods * count
        return min((max(free.get(name, 0), 0) // count for name, count in requests if count), default=_NO_LIMIT)

    # --- transactions ------------------------------------------------------------------------------------------------

    def checkpoint(self) -> int:
        """Return a mark for ``rollback``. A transaction may have several marks."""
        return len(self._journal)

    def rollback(self, mark: int) -> None:
        """Undo every change since the mark."""
        journal = self._journal
        while len(journal) > mark:
            number, mask = journal.pop()
            if number == NOWHERE:
                self._undo_leave()
            else:
                self._put(number, mask)

    def commit(self) -> None:
        """Make all changes permanent. Earlier marks become invalid."""
        self._journal.clear()
        self._amounts.clear()

    def take(self, name: str, count: int) -> tuple[Slot, ...]:
        """Take `count` slots of the node: in the fullest NVLink island that has enough, else the lowest free slots.

        Raises ValueError if the node has fewer free slots.
        """
        return self.take_from(self.topology.number[name], count)

    def take_from(self, number: int, count: int) -> tuple[Slot, ...]:
        """Take `count` slots of the node with this number, as ``take`` does."""
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
        """Return the free slots (bit mask) of the fullest NVLink island with at least `count` free slots; 0 if none."""
        mask, size = self._mask[number], self.topology.islands[number] or self.topology.sizes[number]
        found = 0
        for first in range(0, self.topology.sizes[number], size):
            part = mask & ((1 << size) - 1) << first
            if part.bit_count() >= count and (not found or part.bit_count() < found.bit_count()):
                found = part
        return found

    def hold(self, slots: Iterable[Slot]) -> None:
        """Take these slots, except those that are already taken."""
        numbers, masks = self.topology.number, self._mask
        for name, bits in _by_node(slots).items():
            if (number := numbers.get(name)) is not None and (before := masks[number]) & bits:
                self._journal.append((number, before))
                self._put(number, before & ~bits)

    def give(self, slots: Iterable[Slot]) -> None:
        """Make these slots free. Unknown slots and slots that are already free are ignored."""
        numbers, masks, sizes = self.topology.number, self._mask, self.topology.sizes
        for name, bits in _by_node(slots).items():
            if (number := numbers.get(name)) is not None and (bits := bits & (1 << sizes[number]) - 1):
                before = masks[number]
                self._journal.append((number, before))
                self._put(number, before | bits)

    def _put(self, number: int, mask: int) -> None:
        before, after = self.count[number], mask.bit_count()
        self._mask[number] = mask
        if self.changed is not None:
            self.changed.add(number)
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

    # --- queries -----------------------------------------------------------------------------------------------------

    def free_of(self, slots: Iterable[Slot]) -> int:
        """Return how many of these slots are free."""
        numbers, masks = self.topology.number, self._mask
        return sum([masks[numbers[slot.node]] >> slot.slot & 1 for slot in slots if slot.node in numbers])

    def free_on(self, name: str) -> int:
        """Return the number of free slots of the node, whatever its state; 0 if the node is unknown."""
        number = self.topology.number.get(name)
        return 0 if number is None else self.count[number]

    def free_slots(self, number: int) -> int:
        """Return the free slots of the node with this number, as a bit mask, whatever the node's state."""
        return self._mask[number]

    def usable(self, name: str) -> bool:
        """Return whether jobs may use the node in its present state."""
        number = self.topology.number.get(name)
        return number is not None and self.pool[number] != NOWHERE

    def on_probation(self, name: str) -> bool:
        """Return whether the node is on probation. A node that is unknown or out of use is not."""
        pool = self.pool[self.topology.number[name]] if name in self.topology.number else NOWHERE
        return pool != NOWHERE and pool % TIERS == Tier.PROBATION

    def pools(self, tier: Tier, types: Collection[str] = ()) -> list[int]:
        """Return the numbers of the pools (nodes with one tier and GPU type) for these GPU types; no types: all."""
        names = self.topology.type_names
        return [n * TIERS + tier for n, name in enumerate(names) if not types or name in types]

    def share(self, job_class: str) -> float:
        """Return the share of its time for which a gang of the class waits for its network, as far as it is known.

        Two gangs of unknown share slow each other down by ``uplink_slowdown``.
        """
        row = self.traffic.get(job_class)
        return math.sqrt(self.uplink_slowdown) if row is None else row.share

    def rail_of(self, number: int, slot: int) -> int:
        """Return the number of the rail that a slot of the node with this number uses."""
        return slot * self.rails // self.topology.sizes[number]

    def uplink_cost(self, domain: int, gang: Crossing, job_id: str = "") -> float:
        """Return the expected loss if the gang uses the uplinks of the domain, as a share of the gang's slot time.

        Two gangs communicate at once for the product of their shares of the time. Each loses that much, so the gang
        that is already there loses it on its own number of slots. Gangs without a common rail lose nothing. job_id: the
        gang's job, if it is there already.
        """
        cost = self.congested.get(domain, 0.0)
        if self.uplink_slowdown and (others := self.crossing.get(domain)) is not None:
            share = self.share(gang.job_class)
            for name, other in sorted(others.items()):
                if name == job_id or not other.rails & gang.rails:
                    continue
                cost += share * self.share(other.job_class) * (1 + other.ranks / gang.ranks)
        return cost

    def has_spares(self) -> bool:
        """Return whether any node is a spare."""
        return any(self.slots_in[Tier.SPARE :: TIERS])

    def free(self, tier: Tier, excluded: Collection[str] = ()) -> int:
        """Return the number of free slots on nodes of this tier (such as healthy or spare), except excluded nodes."""
        if not excluded and len(self.free_in) == TIERS:  # the common case: one GPU type
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
        """Return the number of the node with the fewest free slots that has at least `count`; NOWHERE if none has.

        Ties go to a node in the fullest domain, so that large free areas remain, then to the lowest number.
        barred: bit mask of nodes that must not be used. within: number of the domain to search.
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
                if fullest == NOWHERE:  # the place of these nodes below this domain is unknown
                    break
                domain = domains[fullest]
                nodes &= domain.nodes
            return lowest(nodes)
        return NOWHERE

    def tight_holes(self, count: int) -> list[Slot]:
        """Return this many free slots, without taking them. Nodes with the fewest free slots come first.

        Suspect and spare nodes come after all healthy nodes.
        """
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
        """Return the number of the node in the pool with the most free slots; NOWHERE if no slot is free.

        Ties go to the lowest number.
        """
        allowed = self.topology.domains[within].nodes & ~barred
        sets = self.with_free[pool]
        for free in range(len(sets) - 1, 0, -1):
            if nodes := sets[free] & allowed:
                return lowest(nodes)
        return NOWHERE
