"""Backlog of each GPU type: the instants at which its slots are expected to be free of running and earlier jobs."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from scheduler_feedback.core.cluster import Tier
from scheduler_feedback.policies.index.runtime_estimate import Release
from scheduler_feedback.policies.index.slot_plan import NOWHERE, TIERS, Plan


class TypeBacklog:
    """For each GPU type, the instants in ns at which its slots become free, the earliest first; one item per slot.

    It counts slots only, without those of spare nodes: placement decides whether a gang fits on the nodes.
    """

    __slots__ = ("free_ns", "now_ns")

    def __init__(self, plan: Plan, releases: Iterable[Release], now_ns: int) -> None:
        """Read the free slots of healthy nodes from the plan. releases: expected ends, the earliest first."""
        topology = plan.topology
        self.now_ns = now_ns
        self.free_ns: list[list[int]] = [
            [now_ns] * plan.free_in[number * TIERS + Tier.HEALTHY][0] for number in range(len(topology.type_names))
        ]
        for release in releases:
            for slot in release.slots:
                number = topology.number.get(slot.node, NOWHERE)
                pool = plan.pool[number] if number != NOWHERE else NOWHERE
                if pool != NOWHERE and pool % TIERS != Tier.SPARE:
                    self.free_ns[topology.types[number]].append(max(release.at_ns, now_ns))

    def start_ns(self, gpu_type: int, ranks: int) -> int | None:
        """Return when this many slots of the type are free at once; None if it has fewer slots."""
        free_ns = self.free_ns[gpu_type]
        return free_ns[ranks - 1] if ranks <= len(free_ns) else None

    def take(self, gpu_type: int, ranks: int, from_ns: int, until_ns: int) -> None:
        """Use `ranks` slots of the type from from_ns to until_ns: the slots that become free last before from_ns."""
        free_ns = self.free_ns[gpu_type]
        free = bisect_right(free_ns, from_ns)
        del free_ns[free - ranks : free]
        position = bisect_left(free_ns, until_ns)
        free_ns[position:position] = [until_ns] * ranks
