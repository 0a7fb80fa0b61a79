"""Backfill: what may start ahead of the head of the queue without delaying it (EASY).

The head gets a reservation: the earliest instant at which running jobs' expected ends free a valid placement for it,
and that placement. Another job may start now if it ends before that instant, or if it uses no slot of that placement.
(Lifka, "The ANL/IBM SP Scheduling System", 1995.) Running jobs that end early move the reservation forward; nothing
that is backfilled ever moves it back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from scheduler_feedback.core.job import Job, Slot
from scheduler_feedback.core.slot_plan import NOWHERE, Plan
from scheduler_feedback.core.state import Policy
from scheduler_feedback.policies.index.runtime_estimate import Release
from scheduler_feedback.policies.queue.pending_line import Bucket, Key, Kind, WaitingLine
from scheduler_feedback.policies.queue.placement import goes_anywhere, place, waits_for_healthy


@dataclass(frozen=True, slots=True)
class Reservation:
    """Slots that are kept for a job from an instant on; by rank."""

    job_id: str
    from_ns: int
    slots: tuple[Slot, ...]


def reserve(
    plan: Plan, releases: Sequence[Release], job: Job, now_ns: int, policy: Policy | None = None
) -> Reservation | None:
    """The earliest reservation for the job, given what is free now and what will be; the plan is left as it was.

    releases: in order of time. None where even the end of every running job leaves no place.
    """
    at_ns = max(now_ns, job.not_before_ns)
    ended = bisect_right(releases, at_ns, key=_at_ns) if releases and releases[0].at_ns <= at_ns else 0
    least = min(job.spec.ranks, job.spec.min_ranks or job.spec.ranks)
    if goes_anywhere(plan, job):
        return _reserve_any(plan, releases, job, least, at_ns, ended)
    return _reserve_place(plan, releases, job, least, at_ns, ended, policy)


def _reserve_any(
    plan: Plan, releases: Sequence[Release], job: Job, ranks: int, at_ns: int, ended: int
) -> Reservation | None:
    """For a gang that goes into any free slots: it is enough to count them.

    What is still to come free is reserved before what is free already, so that as much as can be is left to those
    behind it. Where the gang will really lie is decided when it starts.
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
    """For a gang that needs a certain kind of place.

    What has room once has it ever after, so the earliest end that makes room is found by doubling and halving.
    """
    mark = plan.checkpoint()
    given, suspects = 0, not waits_for_healthy(plan, job, policy)

    def with_ends(count: int) -> tuple[Slot, ...] | None:
        """A place once so many of the ends have come; it is not taken."""
        nonlocal given
        if count < given:
            plan.rollback(mark)
            given = 0
        plan.give(slot for release in releases[given:count] for slot in release.slots)
        given = count
        inner = plan.checkpoint()
        found = place(plan, job, suspects=suspects, policy=policy)
        plan.rollback(inner)
        return found

    try:
        # Fewer ends than free as many slots as it needs, whatever their place, need not be tried.
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
        assert slots is not None, "more room is room enough"
        return Reservation(job.job_id, at_ns, slots)
    finally:
        plan.rollback(mark)


def _at_ns(release: Release) -> int:
    return release.at_ns


class Backfill:
    """The free slots as jobs behind the head may use them: all of them for a short time, some for as long as they like.

    plan: free slots; beside: those of them that are not reserved. The two are kept in step.
    """

    __slots__ = ("_beside", "_plan", "_reservation", "window_ns")

    def __init__(self, plan: Plan, reservation: Reservation, now_ns: int) -> None:
        self._plan = plan
        self._reservation = reservation
        self._beside: Plan | None = None
        self.window_ns = reservation.from_ns - now_ns

    @property
    def beside(self) -> Plan:
        """The free slots that are not reserved."""
        if self._beside is None:
            self._beside = self._plan.copy()
            self._beside.hold(self._reservation.slots)
        return self._beside

    def place_short(self, policy: Policy, job: Job, most: int | None = None) -> tuple[tuple[Slot, ...], str] | None:
        """Anywhere: the job will have ended by then."""
        slots = place(self._plan, job, policy=policy, most=most)
        if slots is None:
            return None
        if self._beside is not None:
            self._beside.hold(slots)
        return slots, f"it is expected to end before the start of {self._reservation.job_id}"

    def place_beside(self, policy: Policy, job: Job, most: int | None = None) -> tuple[tuple[Slot, ...], str] | None:
        """Where nothing is reserved, for as long as it likes."""
        slots = place(self.beside, job, policy=policy, most=most)
        if slots is None:
            return None
        self._plan.hold(slots)
        return slots, f"it uses no slot reserved for {self._reservation.job_id}"


# --- who is asked ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Chances:
    """Of a kind of jobs, in one look at the line: whether a place may still be found, for a short or a long time."""

    short: bool = True
    long: bool = True


def candidates(
    line: WaitingLine, free: int, beside: int, window_ns: int | None
) -> Iterator[tuple[Key, Kind, int, Chances]]:
    """(key, kind, expected run time, chances) of those that may find room, in their order.

    free: slots that are free in all. beside: those of them that are not reserved. window_ns: run times up to it are
    short; None: every job is.
    The receiver lowers the kind's chances as it finds out; a job that it starts must leave the line before it goes on.
    """
    chances: dict[int, Chances] = {}
    heads: list[tuple[Key, int, Kind, Bucket]] = []
    for kind in line.kinds.values():
        if kind.ranks <= free:
            chances[id(kind)] = Chances(long=kind.ranks <= beside)
            for bucket in kind.buckets.values():
                if kind.ranks <= beside or window_ns is None or bucket.lengths_ns[0] <= window_ns:
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
    """``candidates``, of these alone."""
    places = sorted((line.places[job_id].key, line.places[job_id]) for job_id in job_ids if job_id in line)
    for key, place_ in places:
        if place_.kind.ranks <= free:
            yield key, place_.kind, place_.length_ns, Chances()
