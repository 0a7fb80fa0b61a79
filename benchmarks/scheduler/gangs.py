"""The gangs that ours and Slurm both decide about, and the cluster's shape."""

from __future__ import annotations

from typing import NamedTuple

GPUS = 8
RACK_NODES = 32
SPINE_RACKS = 20


class Gang(NamedTuple):
    """ranks: GPUs. limit_seconds: the user's."""

    ranks: int
    limit_seconds: int


def small(count: int) -> list[Gang]:
    """Gangs of three."""
    return [Gang(3, 3600)] * count


def head(nodes: int) -> Gang:
    """It wants the whole cluster, and gets the reservation."""
    return Gang(nodes * GPUS, 3600)


def waiting(count: int) -> list[Gang]:
    """Behind it: none ends before the head's start, two hours away, so none may start; each has to be thought of."""
    return [Gang(1 + number % 64, 3 * 3600 + 60 * (number % 60)) for number in range(count)]


def large_nodes(nodes: int) -> int:
    """Of the large gang."""
    return min(512, nodes // 2)


def free_nodes(nodes: int) -> int:
    """Nodes that nobody holds while the head waits for the whole cluster: reserved for it, and yet they are free."""
    return nodes // 50
