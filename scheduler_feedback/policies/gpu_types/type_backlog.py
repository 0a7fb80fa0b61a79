"""Backlog of each GPU type: the instants at which its slots are expected to be free of running and earlier jobs."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from scheduler_feedback.core.cluster import Tier
from scheduler_feedback.policies.index.domains import numbers
from scheduler_feedback.policies.index.runtime_estimate import Release
from scheduler_feedback.policies.index.slot_plan import NOWHERE, TIERS, Plan


class TypeBacklog:
    """For each GPU type, the instants in ns at which its slots become free, the earliest first; one item per slot.

    It counts slots only: placement decides whether a gang fits on the nodes. spare_ns: the same for the slots of spare
    nodes, which only jobs that may borrow them use.
    """

    __slots__ = ("free_ns", "now_ns", "spare_ns")

    def __init__(self, plan: Plan, releases: Iterable[Release], now_ns: int, nodes: int | None = None) -> None:
        """Read the free slots of healthy nodes from the plan. releases: expected ends, the earliest first. nodes: count
        the slots of these nodes only, a bit mask."""
        topology = plan.topology
        self.now_ns = now_ns
        self.free_ns, self.spare_ns = (
            [[now_ns] * free for free in (_free(plan, tier) if nodes is None else _free_on(plan, nodes, tier))]
            for tier in (Tier.HEALTHY, Tier.SPARE)
        )
        for release in releases:
            for slot in release.slots:
                number = topology.number.get(slot.node, NOWHERE)
                if nodes is not None and (number == NOWHERE or not nodes >> number & 1):
                    continue
                pool = plan.pool[number] if number != NOWHERE else NOWHERE
                if pool != NOWHERE:
                    found = self.spare_ns if pool % TIERS == Tier.SPARE else self.free_ns
                    found[topology.types[number]].append(max(release.at_ns, now_ns))

    def start_ns(
        self, gpu_type: int, ranks: int, barred: TypeBacklog | None = None, borrows: bool = False
    ) -> int | None:
        """Return when this many slots of the type are free at once; None if it has fewer slots.

        barred: backlog of the nodes that the job must not use: their slots do not count. borrows: whether the job may
        use spare nodes.
        """
        if borrows and self.spare_ns[gpu_type]:
            return self._with_spares(gpu_type, ranks, barred)
        free_ns = self.free_ns[gpu_type]
        barred_ns = () if barred is None else barred.free_ns[gpu_type]
        wanted = ranks
        while wanted <= len(free_ns):
            at_ns = free_ns[wanted - 1]
            free = bisect_right(free_ns, at_ns)
            missing = ranks - (free - bisect_right(barred_ns, at_ns))
            if missing <= 0:
                return at_ns
            wanted = free + missing
        return None

    def _with_spares(self, gpu_type: int, ranks: int, barred: TypeBacklog | None) -> int | None:
        both = self.free_ns[gpu_type], self.spare_ns[gpu_type]
        without = () if barred is None else (barred.free_ns[gpu_type], barred.spare_ns[gpu_type])

        def count(at_ns: int) -> int:
            return sum(bisect_right(one, at_ns) for one in both) - sum(bisect_right(one, at_ns) for one in without)

        # The number of free slots never falls, so each list has a first instant at which they are enough.
        firsts = ((one, bisect_left(one, ranks, key=count)) for one in both)
        return min((one[first] for one, first in firsts if first < len(one)), default=None)

    def take(self, gpu_type: int, ranks: int, from_ns: int, until_ns: int, borrows: bool = False) -> None:
        """Use `ranks` slots of the type from from_ns to until_ns: the slots that become free last before from_ns.

        borrows: whether the job may use spare nodes, for what others lack.
        """
        free_ns = self.free_ns[gpu_type]
        others = min(ranks, bisect_right(free_ns, from_ns)) if borrows else ranks
        _take(free_ns, others, from_ns, until_ns)
        if ranks > others:
            _take(self.spare_ns[gpu_type], ranks - others, from_ns, until_ns)


def _take(free_ns: list[int], ranks: int, from_ns: int, until_ns: int) -> None:
    free = bisect_right(free_ns, from_ns)
    del free_ns[free - ranks : free]
    position = bisect_left(free_ns, until_ns)
    free_ns[position:position] = [until_ns] * ranks


def _free(plan: Plan, tier: Tier) -> list[int]:
    """Return the number of free slots on nodes of this tier by number of the GPU type."""
    return [inside[0] for inside in plan.free_in[tier::TIERS]]


def _free_on(plan: Plan, nodes: int, tier: Tier) -> list[int]:
    found = [0] * len(plan.topology.type_names)
    for number in numbers(nodes):
        if plan.pool[number] != NOWHERE and plan.pool[number] % TIERS == tier:
            found[plan.topology.types[number]] += plan.count[number]
    return found
