"""The gangs that both ours and Slurm schedule, and the cluster's shape."""

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
    """Return gangs of three."""
    return [Gang(3, 3600)] * count


def head(nodes: int) -> Gang:
    """Return the gang that requests the whole cluster and gets the reservation."""
    return Gang(nodes * GPUS, 3600)


def waiting(count: int) -> list[Gang]:
    """Return gangs behind the head. None ends before the head's start, two hours away, so none may start."""
    return [Gang(1 + number % 64, 3 * 3600 + 60 * (number % 60)) for number in range(count)]


def large_nodes(nodes: int) -> int:
    """Return the nodes of the large gang."""
    return min(512, nodes // 2)


def free_nodes(nodes: int) -> int:
    """Return the free nodes while the head waits for the whole cluster; they are reserved for it."""
    return nodes // 50
