"""Gangs for the comparison of our scheduler with Slurm, and the number of nodes."""

from __future__ import annotations

from typing import NamedTuple

GPUS = 8
RACK_NODES = 32
SPINE_RACKS = 20


class Gang(NamedTuple):
    """One gang. ranks: number of GPUs. limit_seconds: time limit that the user declares."""

    ranks: int
    limit_seconds: int


def small(count: int) -> list[Gang]:
    """Return `count` gangs of three ranks."""
    return [Gang(3, 3600)] * count


def head(nodes: int) -> Gang:
    """Return a gang that requests the whole cluster. It becomes the head of the queue and gets the reservation."""
    return Gang(nodes * GPUS, 3600)


def waiting(count: int) -> list[Gang]:
    """Return gangs that wait behind the head of the queue.

    They need longer than the head's expected wait of two hours, so none of them may be backfilled.
    """
    return [Gang(1 + number % 64, 3 * 3600 + 60 * (number % 60)) for number in range(count)]


def large_nodes(nodes: int) -> int:
    """Return the number of nodes of the large gang."""
    return min(512, nodes // 2)


def free_nodes(nodes: int) -> int:
    """Return the number of free nodes that are reserved for the head, which requests the whole cluster."""
    return nodes // 50
