"""Queue of pending jobs in scheduling order, grouped so that a scheduling pass need not evaluate every job.

Jobs of one shape (and of one queue, if queues have limits) form a kind: if one of them fits, all do. Within a kind,
jobs are in buckets by expected run time, so a pass finds the short ones without evaluating the others.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import Any

from scheduler_feedback.policies.queue.placement import REQUIRED_LEVEL, Shape, least_slots

Key = tuple[Any, ...]
"""Sort key of a job in the queue: the job with the least key is first. Its last item is the job's id."""


@dataclass(slots=True)
class Bucket:
    """Pending jobs of one kind with similar expected run times."""

    keys: list[Key] = field(default_factory=list)
    """Sort keys of the pending jobs, in scheduling order."""
    lengths_ns: list[int] = field(default_factory=list)
    """Expected run times of these jobs in ns, the shortest first."""


@dataclass(slots=True)
class Kind:
    """Pending jobs with equal requirements: if one of them fits into the free slots, all do."""

    shape: Shape
    queue: str
    ranks: int
    """Minimum number of slots of a job of this kind."""
    buckets: dict[int, Bucket] = field(default_factory=dict)


@dataclass(slots=True)
class Place:
    """Position of a pending job: its sort key, kind, bucket number, and expected run time."""

    key: Key
    kind: Kind
    bucket: int
    length_ns: int


class WaitingLine:
    """Queue of pending jobs. order: sorted keys. places: position by job id. kinds: kind by (shape, queue)."""

    __slots__ = ("kinds", "order", "places")

    def __init__(self) -> None:
        self.order: list[Key] = []
        self.places: dict[str, Place] = {}
        self.kinds: dict[tuple[Shape, str], Kind] = {}

    def __contains__(self, job_id: str) -> bool:
        return job_id in self.places

    def needs_level(self) -> bool:
        """Return whether a pending job needs all its slots in one network domain."""
        return any(kind.shape[REQUIRED_LEVEL] is not None for kind in self.kinds.values())

    def __len__(self) -> int:
        return len(self.order)

    def add(self, job_id: str, key: Key, shape: Shape, queue: str, length_ns: int) -> None:
        kind = self.kinds.get((shape, queue))
        if kind is None:
            kind = self.kinds[(shape, queue)] = Kind(shape, queue, least_slots(shape))
        # A bucket spans half an octave, so a window splits one bucket of each kind, about a thirtieth of its jobs.
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
