"""EASY backfill: which jobs may start ahead of the head of the queue without delaying it.

The head gets a reservation: slots, and the earliest instant at which these slots are expected to be free. Another job
may start now if it ends before that instant, or if it uses none of the reserved slots. (Lifka, "The ANL/IBM SP
Scheduling System", 1995.) If jobs end early, the reservation begins earlier. Backfilled jobs never delay it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from scheduler_feedback.core.job import Job, Slot
from scheduler_feedback.core.state import Policy
from scheduler_feedback.policies.index.runtime_estimate import Release
from scheduler_feedback.policies.index.slot_plan import NOWHERE, Plan
from scheduler_feedback.policies.queue.pending_line import Bucket, Key, Kind, WaitingLine
from scheduler_feedback.policies.queue.placement import (
    attempt_speed,
    goes_anywhere,
    place,
    prefers_now,
    waits_for_healthy,
)
from scheduler_feedback.policies.queue.reserved_room import ReservedRoom


@dataclass(frozen=True, slots=True)
class Reservation:
    """Slots that are reserved for a pending job, one per rank, and the instant from which they should be free."""

    job_id: str
    from_ns: int
    slots: tuple[Slot, ...]


def reserve(
    plan: Plan, releases: Sequence[Release], job: Job, now_ns: int, policy: Policy | None = None
) -> Reservation | None:
    """Return the earliest reservation for the job; None if it does not fit even after the end of all running jobs.

    releases: expected ends of running jobs, the earliest first. The plan of free slots is unchanged afterwards.
    """
    at_ns = max(now_ns, job.not_before_ns)
    ended = bisect_right(releases, at_ns, key=_at_ns) if releases and releases[0].at_ns <= at_ns else 0
    least = min(job.spec.ranks, plan.topology.slots_needed(job.spec))
    if goes_anywhere(plan, job) and not prefers_now(policy, job):
        return _reserve_any(plan, releases, job, least, at_ns, ended)
    return _reserve_place(plan, releases, job, least, at_ns, ended, policy)


def _reserve_any(
    plan: Plan, releases: Sequence[Release], job: Job, ranks: int, at_ns: int, ended: int
) -> Reservation | None:
    """Return the earliest reservation for a gang that may use any slots, found by counting slots.

    It prefers slots that become free later, so that jobs behind the gang can use the slots that are free now. The
    gang's placement is chosen again when it starts.
    """
    coming: list[Slot] = []
    short = ranks - sum([free[0] for free in plan.free_in])
    clean = NOWHERE not in plan.pool
    for number, release in enumerate(releases):
        if number >= ended:
            if len(coming) >= short and (release.at_ns > at_ns or number == ended):
                break
            if release.at_ns > at_ns:
                at_ns = release.at_ns
        coming += release.slots if clean else [slot for slot in release.slots if plan.usable(slot.node)]
    if len(coming) < short:
        return None
    if len(coming) >= ranks:
        return Reservation(job.job_id, at_ns, tuple(coming[-ranks:]))
    return Reservation(job.job_id, at_ns, (*coming, *plan.tight_holes(ranks - len(coming))))


def _reserve_place(
    plan: Plan, releases: Sequence[Release], job: Job, ranks: int, at_ns: int, ended: int, policy: Policy | None
) -> Reservation | None:
    """Return the earliest reservation for a gang with requirements for its slots, such as one rack.

    Bisection finds the first release after which the gang fits.
    """
    mark = plan.checkpoint()
    given, suspects = 0, not waits_for_healthy(plan, job, policy)
    limited = job.spec.constraint in plan.topology.limits or bool(plan.unreported)

    def with_ends(count: int) -> tuple[Slot, ...] | None:
        """Return slots for the job once the first `count` releases have happened; None if it does not fit."""
        nonlocal given
        if count < given:
            plan.rollback(mark)
            given = 0
        plan.give(slot for release in releases[given:count] for slot in release.slots)
        given = count
        inner = plan.checkpoint()
        emptied = {slot.node for release in releases[:count] for slot in release.slots} if limited else ()
        found = place(plan, job, suspects=suspects, policy=policy, emptied=emptied)
        plan.rollback(inner)
        return found

    try:
        # Skip prefixes of the releases that free too few slots, regardless of placement.
        short = ranks - sum([free[0] for free in plan.free_in])
        short -= sum([len(release.slots) for release in releases[:ended]])
        if short <= 0 and (slots := with_ends(ended)) is not None:
            return Reservation(job.job_id, at_ns, slots)
        enough = ended
        while enough < len(releases) and (short > 0 or enough == ended):
            short -= len(releases[enough].slots)
            enough += 1
        if short > 0:
            return None
        least, step = enough - 1, 1
        while with_ends(enough) is None:
            if enough == len(releases):
                return None
            least, enough, step = enough, min(enough + step, len(releases)), step * 2
        while enough - least > 1:
            middle = (least + enough) // 2
            if with_ends(middle) is None:
                least = middle
            else:
                enough = middle
        at_ns = releases[enough - 1].at_ns
        while enough < len(releases) and releases[enough].at_ns == at_ns:
            enough += 1
        slots = with_ends(enough)
        assert slots is not None, "more releases cannot remove a fit"
        return Reservation(job.job_id, at_ns, _coming_first(slots, releases[:enough]) if limited else slots)
    finally:
        plan.rollback(mark)


def _coming_first(slots: Sequence[Slot], releases: Sequence[Release]) -> tuple[Slot, ...]:
    """Exchange reserved slots for those of the same node that these releases free, so that fewer free slots are idle.

    A gang limited by CPU or memory uses only some slots of a node, and which of them does not matter.
    """
    needed = Counter(slot.node for slot in slots)
    coming = [slot for release in releases for slot in release.slots if slot.node in needed]
    chosen: list[Slot] = []
    for slot in dict.fromkeys((*coming, *slots)):
        if needed[slot.node] > 0:
            needed[slot.node] -= 1
            chosen.append(slot)
    return tuple(chosen)


def _at_ns(release: Release) -> int:
    return release.at_ns


class Backfill:
    """Free slots for the jobs behind the head. Short jobs may use all of them, other jobs only unreserved slots.

    _plan: all free slots. unreserved: free slots that are not reserved for the head. Every placement updates both.
    room: CPU and memory that nodes must keep for the head; None if slots alone limit all nodes.
    """

    __slots__ = ("_plan", "_room", "_unreserved", "reservation", "window_ns")

    def __init__(self, plan: Plan, reservation: Reservation, now_ns: int, room: ReservedRoom | None = None) -> None:
        self._plan = plan
        self.reservation = reservation
        self._room = room
        self._unreserved: Plan | None = None
        self.window_ns = reservation.from_ns - now_ns

    @property
    def unreserved(self) -> Plan:
        """Return the free slots that are not reserved for the head."""
        if self._unreserved is None:
            self._unreserved = self._plan.copy()
            self._unreserved.hold(self.reservation.slots)
        return self._unreserved

    def place_short(
        self, policy: Policy, job: Job, most: int | None = None, length_ns: int = 0
    ) -> tuple[tuple[Slot, ...], str] | None:
        """Take any free slots for a job that ends before the head's reservation begins. most: maximum number of ranks.

        length_ns: expected run time at speed 1. On a slower GPU type, the job may not end before the reservation; then
        it gets unreserved slots only. Return (slots, reason); None if the job does not fit.
        """
        mark = self._plan.checkpoint()
        slots = place(self._plan, job, policy=policy, most=most)
        if slots is None:
            return None
        if not self.ends_in_time(policy, job, slots, length_ns):
            self._plan.rollback(mark)
            return self.place_unreserved(policy, job, most)
        self.note(slots)
        return slots, f"it is expected to end before the start of {self.reservation.job_id}"

    def note(self, slots: Sequence[Slot]) -> None:
        """Note that a job has taken these slots from all free slots."""
        if self._unreserved is not None:
            self._unreserved.hold(slots)

    def ends_in_time(self, policy: Policy, job: Job, slots: Sequence[Slot], length_ns: int) -> bool:
        """Return whether a short job ends before the reservation with the GPU type of these slots, too.

        length_ns: expected run time at speed 1.
        """
        several = len(self._plan.topology.type_names) > 1
        return not several or length_ns <= self.window_ns * self._speed(policy, job, slots)

    def _speed(self, policy: Policy, job: Job, slots: Sequence[Slot]) -> float:
        """Return the job's speed with the GPU type and the number of these slots."""
        topology = self._plan.topology
        gpu_type = topology.type_names[topology.types[topology.number[slots[0].node]]]
        return min(attempt_speed(policy, job, gpu_type, len(slots), self._plan.learnt), 1.0)

    def place_unreserved(
        self, policy: Policy, job: Job, most: int | None = None
    ) -> tuple[tuple[Slot, ...], str] | None:
        """Take slots that are not reserved for the head, for a job of any run time. most: maximum number of ranks.

        The job also leaves the CPU and memory that the head needs. Return (slots, reason); None if the job does not
        fit.
        """
        plan = self.unreserved
        mark = plan.checkpoint()
        beyond = [] if self._room is None else self._room.beyond(plan, job.spec)
        slots = place(plan, job, policy=policy, most=most)
        if slots is None:
            plan.rollback(mark)
            return None
        plan.give(beyond)
        if self._room is not None:
            self._room.take(job.spec, slots)
        self._plan.hold(slots)
        return slots, f"it uses no slot reserved for {self.reservation.job_id}"


# --- candidates ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Chances:
    """Flags for one kind of jobs: whether the current backfill pass may find slots for more of them.

    short: for jobs that end before the head's reservation begins. long: for other jobs.
    """

    short: bool = True
    long: bool = True


def candidates(
    line: WaitingLine, free: int, unreserved: int, window_ns: int | None
) -> Iterator[tuple[Key, Kind, int, Chances]]:
    """Yield (key, kind, expected run time, chances) of the jobs that may fit, in queue order.

    free: number of all free slots. unreserved: number of free slots that are not reserved. window_ns: maximum run time
    of a short job; None: all jobs are short. The caller must clear a flag in chances if a job does not fit, and remove
    a job that starts from the queue before it requests the next candidate.
    """
    chances: dict[int, Chances] = {}
    heads: list[tuple[Key, int, Kind, Bucket]] = []
    for kind in line.kinds.values():
        if kind.ranks <= free:
            chances[id(kind)] = Chances(long=kind.ranks <= unreserved)
            for bucket in kind.buckets.values():
                if kind.ranks <= unreserved or window_ns is None or bucket.lengths_ns[0] <= window_ns:
                    heads.append((bucket.keys[0], 0, kind, bucket))
    heapify(heads)
    while heads:
        key, index, kind, bucket = heads[0]
        chance = chances[id(kind)]
        if not chance.short or (
            not chance.long and window_ns is not None and bucket.lengths_ns and bucket.lengths_ns[0] > window_ns
        ):
            heappop(heads)
            continue
        length_ns = line.places[key[-1]].length_ns
        if chance.long or window_ns is None or length_ns <= window_ns:
            yield key, kind, length_ns, chance
            if index >= len(bucket.keys):
                heappop(heads)
                continue
            if bucket.keys[index] != key:  # it was started
                heapreplace(heads, (bucket.keys[index], index, kind, bucket))
                continue
        keys, places = bucket.keys, line.places
        index += 1
        if not chance.long and window_ns is not None:
            while index < len(keys) and places[keys[index][-1]].length_ns > window_ns:
                index += 1
        if index >= len(keys):
            heappop(heads)
        else:
            heapreplace(heads, (keys[index], index, kind, bucket))


def only(line: WaitingLine, job_ids: Iterable[str], free: int) -> Iterator[tuple[Key, Kind, int, Chances]]:
    """Yield only those jobs of job_ids that may fit, in queue order, as (key, kind, expected run time, chances)."""
    places = sorted((line.places[job_id].key, line.places[job_id]) for job_id in job_ids if job_id in line)
    for key, place_ in places:
        if place_.kind.ranks <= free:
            yield key, place_.kind, place_.length_ns, Chances()
