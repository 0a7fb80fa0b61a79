"""Fragmentation: the free parts of GPUs that typical requests cannot use.

Source: Weng et al., "Beware of Fragmentation", USENIX ATC'23, section 4. A request m of the workload cannot use a free
part of a GPU if m does not fit on the node at all, or if less of this GPU is free than m needs. The fragmentation of a
node is the mean of this amount over the workload. Requests without a GPU can use none of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any

from scheduler_feedback.policies.shares.gpu_room import Request, Room

POPULARITY = 0.95
"""Share of all requests that the typical ones cover (the published runs: podPopularityThreshold 95)."""

REMEMBERED = 1 << 18
"""Maximum number of node states whose fragmentation is remembered."""


def typical(requests: Iterable[Request], popularity: float = POPULARITY) -> dict[Request, float]:
    """Return the most frequent requests and their shares, which add up to 1.

    As many as are needed to cover `popularity` of all requests. Memory is not compared, as in the published runs.
    Raises ValueError if there are no requests.
    """
    counts = Counter(replace(one, memory_mib=0) for one in requests)
    if not counts:
        raise ValueError("no requests: their typical shapes are unknown")
    order = sorted(counts, key=lambda one: (one.cpu_milli, one.gpu_milli, one.gpus))
    return most_frequent({one: counts[one] for one in order}, popularity)


def most_frequent(counts: Mapping[Any, float], popularity: float = POPULARITY) -> dict[Any, float]:
    """Return the keys with the largest counts and their shares, which add up to 1. Of equal counts the first is used.

    As many as are needed to cover `popularity` of the sum of all counts.
    """
    kept: dict[Any, float] = {}
    covered, total = 0.0, sum(counts.values())
    for key, count in sorted(counts.items(), key=lambda item: -item[1]):
        if covered >= popularity * total:
            break
        kept[key] = count
        covered += count
    return {key: count / covered for key, count in kept.items()}


class Fragmentation:
    """Expected amount of free GPU on a node that a request of the workload cannot use."""

    def __init__(self, workload: Mapping[Request, float]) -> None:
        """workload: share of each typical request; the shares add up to 1."""
        groups: dict[tuple[int, int, tuple[str, ...]], list[tuple[int, float]]] = {}
        for request, share in workload.items():
            group = groups.setdefault((request.gpus, request.gpu_milli, request.gpu_types), [])
            group.append((request.cpu_milli, share))
        self._groups = [(*key, *_by_processors(members)) for key, members in groups.items() if key[0]]
        self._without_gpu = sum(share for request, share in workload.items() if not request.gpus)
        self._known: dict[tuple[tuple[int, ...], int, str], float] = {}

    def milli(self, room: Room) -> float:
        """Return the fragmentation of a node with these free resources, in thousandths of a GPU."""
        key = (tuple(sorted(room.gpus)), room.cpu_milli, room.gpu_type)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            found = self._known[key] = self._milli(*key)
        return found

    def _milli(self, gpus: tuple[int, ...], cpu_milli: int, gpu_type: str) -> float:
        total = sum(gpus)
        lost = self._without_gpu * total
        for count, milli, types, processors, shares in self._groups:
            fitting = 0.0
            if not types or gpu_type in types:
                small = [free for free in gpus if free < milli]
                if len(gpus) - len(small) >= count:
                    fitting = shares[bisect_right(processors, cpu_milli)]
                    lost += fitting * sum(small)
            lost += (shares[-1] - fitting) * total
        return lost


def _by_processors(members: list[tuple[int, float]]) -> tuple[list[int], list[float]]:
    """Return the requested processors in ascending order, and the sums of the shares of the first 0, 1, ... of them."""
    members.sort()
    return [cpu for cpu, _ in members], [0.0, *accumulate(share for _, share in members)]
