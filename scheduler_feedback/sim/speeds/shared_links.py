"""Uplinks that simulated gangs share: how fast each gang is while others communicate, too.

Within a rack a gang has the network of its nodes for itself. Over several racks it also uses the uplink of each. It
loads each of them with the traffic of one node at full rate, because the ring of an all-reduce crosses the border of a
rack once in each direction if its ranks follow the order of the network. In a rail-optimised network each rail of a
rack has an uplink, which a gang loads only if its slots use that rail. ``policies.network.link_speeds`` simulates
their phases.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from scheduler_feedback.core.cluster import Node
from scheduler_feedback.core.job import Slot
from scheduler_feedback.policies.network.link_speeds import Flow, Profile, Window, distinct_links, link_speeds


@dataclass(frozen=True, slots=True)
class SharedLinks:
    """Uplinks of the simulated cluster."""

    profiles: Mapping[tuple[str, int], Profile] = field(default_factory=dict)
    """Steps by workload and number of ranks. Other gangs do not communicate."""
    uplink_nodes: float = 2.0
    """Nodes' traffic at full rate that the uplink of a rack carries, or, with rails, that of a rail's NICs on so many
    nodes."""
    rails: int = 1
    """Number of rails of a node. The slots of a node are divided evenly over them, in the order of their numbers."""
    seed: int = 0
    """Seed of the phases."""

    def profile(self, workload: str, ranks: int) -> Profile | None:
        """Return one step of such a gang; None if it does not communicate."""
        found = self.profiles.get((workload, ranks))
        return found if found is not None and found.network_seconds > 0 else None

    def speeds(self, flows: Sequence[Flow], windows: Sequence[Window | None] = ()) -> tuple[Shared, ...]:
        """Return how fast each gang is beside the others.

        windows: times at which each gang begins its steps, as the scheduler has decided; empty: at any time.
        """
        if self.rails > 1:
            flows = distinct_links(flows)
        return random_speeds(tuple(flows), self.uplink_nodes, self.seed, tuple(windows))


def loads(placement: Iterable[Slot], nodes: Mapping[str, Node], rails: int = 1) -> tuple[tuple[str, float], ...]:
    """Return the traffic of a gang on the uplinks of each rack; none if all of its nodes are in one rack.

    rails: as in ``SharedLinks``. Each rail of a rack has an uplink.
    """
    used = sorted({(nodes[slot.node].rack, slot.slot * rails // nodes[slot.node].slots) for slot in placement})
    if len({rack for rack, _ in used}) < 2:
        return ()
    return tuple((f"{rack}, rail {rail}" if rails > 1 else rack, 1.0) for rack, rail in used)


class Shared(NamedTuple):
    """Speed of a gang beside others."""

    speed: float
    """Speed relative to being alone on links without a limit."""
    network_seconds: float
    """Time of the communication in the steps in which it is shortest (the lowest tenth), in seconds."""


@lru_cache(maxsize=1 << 14)
def random_speeds(
    flows: tuple[Flow, ...], capacity: float, seed: int, windows: tuple[Window | None, ...] = ()
) -> tuple[Shared, ...]:
    """Return how fast each gang is, from the random phases of a seed (``link_speeds``)."""
    took: list[list[float]] = [[] for _ in flows]
    speeds = link_speeds(flows, capacity, random.Random(f"links {seed} {flows}"), windows, took)
    return tuple(
        Shared(speed, sorted(times)[len(times) // 10] if times else flow.profile.network_seconds)
        for flow, speed, times in zip(flows, speeds, took, strict=True)
    )
