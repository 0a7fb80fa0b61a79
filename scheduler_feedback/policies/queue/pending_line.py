"""The line: who waits, in order, and sorted so that thousands need not be asked one by one.

Jobs of one shape (and, where queues have limits, of one queue) can be placed all or none, so they form a class; inside
of a class they stand in buckets by expected run time, so that those short enough to end before a reservation are found
without asking the others.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import Any

from scheduler_feedback.policies.queue.placement import REQUIRED_LEVEL, Shape

Key = tuple[Any, ...]
"""How a job stands in the line: the least first; its last item is the job's id."""


@dataclass(slots=True)
class Bucket:
    """keys: in order. lengths_ns: the expected run times, rising."""

    keys: list[Key] = field(default_factory=list)
    lengths_ns: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Kind:
    """Jobs that can be placed all or none. ranks: least that any of them needs."""

    shape: Shape
    queue: str
    ranks: int
    buckets: dict[int, Bucket] = field(default_factory=dict)


@dataclass(slots=True)
class Place:
    key: Key
    kind: Kind
    bucket: int
    length_ns: int


class WaitingLine:
    """order: the keys of all, the first first. places: where each stands. kinds: by shape and queue."""

    __slots__ = ("kinds", "order", "places")

    def __init__(self) -> None:
        self.order: list[Key] = []
        self.places: dict[str, Place] = {}
        self.kinds: dict[tuple[Shape, str], Kind] = {}

    def __contains__(self, job_id: str) -> bool:
        return job_id in self.places

    def needs_level(self) -> bool:
        """Return whether a waiting job needs its slots in one domain."""
        return any(kind.shape[REQUIRED_LEVEL] is not None for kind in self.kinds.values())

    def __len__(self) -> int:
        return len(self.order)

    def add(self, job_id: str, key: Key, shape: Shape, queue: str, length_ns: int) -> None:
        kind = self.kinds.get((shape, queue))
        if kind is None:
            kind = self.kinds[(shape, queue)] = Kind(shape, queue, min(shape[0], shape[1] or shape[0]))
        # Half octaves: a window cuts through one bucket of each class, about a thirtieth of its jobs.
        number = (length_ns * length_ns).bit_length()
        bucket = kind.buckets.get(number)
        if bucket is None:
            bucket = kind.buckets[number] = Bucket()
        insort(self.order, key)
        insort(bucket.keys, key)
        insort(bucket.lengths_ns, length_ns)
        self.places[job_id] = Place(key, kind, number, length_ns)

    def remove(self, job_id: str) -> None:
        place = self.places.pop(job_id)
        kind = place.kind
        bucket = kind.buckets[place.bucket]
        del self.order[bisect_left(self.order, place.key)]
        del bucket.keys[bisect_left(bucket.keys, place.key)]
        del bucket.lengths_ns[bisect_left(bucket.lengths_ns, place.length_ns)]
        if not bucket.keys:
            del kind.buckets[place.bucket]
            if not kind.buckets:
                del self.kinds[(kind.shape, kind.queue)]
