"""Backlog of each GPU type: the instants at which its slots are expected to be free of running and earlier jobs."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from scheduler_feedback.core.cluster import Tier
from scheduler_feedback.policies.index.domains import numbers
from scheduler_feedback.policies.index.runtime_estimate import Release
from scheduler_feedback.policies.index.slot_plan import NOWHERE, TIERS, Plan


class TypeBacklog:
    """For each GPU type, the instants in ns at which its slots become free, the earliest first; one item per slot.

    It counts slots only, without those of spare nodes: placement decides whether a gang fits on the nodes.
    """

    __slots__ = ("free_ns", "now_ns")

    def __init__(self, plan: Plan, releases: Iterable[Release], now_ns: int, nodes: int | None = None) -> None:
        """Read the free slots of healthy nodes from the plan. releases: expected ends, the earliest first. nodes: count
        the slots of these nodes only, a bit mask."""
        topology = plan.topology
        self.now_ns = now_ns
        self.free_ns: list[list[int]] = [
            [now_ns] * free for free in (_free(plan) if nodes is None else _free_on(plan, nodes))
        ]
        for release in releases:
            for slot in release.slots:
                number = topology.number.get(slot.node, NOWHERE)
                if nodes is not None and (number == NOWHERE or not nodes >> number & 1):
                    continue
                pool = plan.pool[number] if number != NOWHERE else NOWHERE
                if pool != NOWHERE and pool % TIERS != Tier.SPARE:
                    self.free_ns[topology.types[number]].append(max(release.at_ns, now_ns))

    def start_ns(self, gpu_type: int, ranks: int, barred_ns: Sequence[int] = ()) -> int | None:
        """Return when this many slots of the type are free at once; None if it has fewer slots.

        barred_ns: when slots of the type become free that do not count, because the job must not use their nodes.
        """
        free_ns = self.free_ns[gpu_type]
        wanted = ranks
        while wanted <= len(free_ns):
            at_ns = free_ns[wanted - 1]
            free = bisect_right(free_ns, at_ns)
            missing = ranks - (free - bisect_right(barred_ns, at_ns))
            if missing <= 0:
                return at_ns
            wanted = free + missing
        return None

    def take(self, gpu_type: int, ranks: int, from_ns: int, until_ns: int) -> None:
        """Use `ranks` slots of the type from from_ns to until_ns: the slots that become free last before from_ns."""
        free_ns = self.free_ns[gpu_type]
        free = bisect_right(free_ns, from_ns)
        del free_ns[free - ranks : free]
        position = bisect_left(free_ns, until_ns)
        free_ns[position:position] = [until_ns] * ranks


def _free(plan: Plan) -> list[int]:
    """Return the number of free slots on healthy nodes by number of the GPU type."""
    return [inside[0] for inside in plan.free_in[Tier.HEALTHY :: TIERS]]


def _free_on(plan: Plan, nodes: int) -> list[int]:
    found = [0] * len(plan.topology.type_names)
    for number in numbers(nodes):
        if plan.pool[number] != NOWHERE and plan.pool[number] % TIERS == Tier.HEALTHY:
            found[plan.topology.types[number]] += plan.count[number]
    return found
