"""Count the slots of each GPU type that a preemption pass has left to give, on spare nodes and on all others."""

from __future__ import annotations

from collections.abc import Collection

from scheduler_feedback.core.cluster import Tier
from scheduler_feedback.core.job import Job, Slot
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex
from scheduler_feedback.policies.index.slot_plan import NOWHERE, TIERS
from scheduler_feedback.policies.queue.placement import in_parts


class Room:
    """The slots of one GPU type that a preemption pass may still give to jobs.

    idle, idle_spares: number of idle slots on nodes that are no spares, and on spare nodes. movable, movable_spares:
    the same for slots of gangs that may be stopped. Only jobs that may borrow use slots on spare nodes.

    Jobs take idle slots first, as a placement does: otherwise a job that could start on an idle spare node would cause
    a stop, or a job could be chosen that cannot start before the next pass. Of idle slots, they take those on spare
    nodes last. Of the others, they take those on spare nodes first, because fewer jobs can use these.
    """

    __slots__ = ("_all", "_all_spares", "_idle", "_idle_spares")

    def __init__(self, idle: int, movable: int, idle_spares: int = 0, movable_spares: int = 0) -> None:
        self._idle, self._idle_spares = idle, idle_spares
        self._all, self._all_spares = idle + movable, idle_spares + movable_spares

    def __bool__(self) -> bool:
        """Return whether any slot is left."""
        return self._all > 0 or self._all_spares > 0

    def most(self, borrows: bool) -> int:
        """Return the number of slots that a pending job could use. borrows: whether it may use spare nodes."""
        return max(self._all, 0) + (max(self._all_spares, 0) if borrows else 0)

    def idle(self, borrows: bool) -> int:
        """Return how many of these slots are idle."""
        return max(self._idle, 0) + (max(self._idle_spares, 0) if borrows else 0)

    def take(self, slots: int, borrows: bool) -> None:
        """Give this number of slots, at most ``most(borrows)``, to a pending job."""
        if borrows:
            on_spares = min(max(slots - max(self._idle, 0), 0), max(self._all_spares, 0))
            self._idle_spares -= on_spares
            self._all_spares -= on_spares
            slots -= on_spares
        self._idle -= slots
        self._all -= slots

    def has(self, slots: int, spares: int) -> bool:
        """Return whether a running gang's slots, some of them on spare nodes, were not given to others."""
        return slots - spares <= max(self._all, 0) and spares <= max(self._all_spares, 0)

    def keep(self, slots: int, spares: int) -> None:
        """Leave a running gang its slots, for which ``has`` is true."""
        self._all -= slots - spares
        self._all_spares -= spares
        self._idle = min(self._idle, self._all)
        self._idle_spares = min(self._idle_spares, self._all_spares)


def rooms_of(index: SchedulingIndex, running: list[Job], movable: list[Job]) -> list[Room]:
    """Return for each GPU type the slots that the pass may give: idle ones, and those of gangs that may be stopped."""
    idle, spare_idle = list(index.capacity.slots_of), list(index.capacity.spare_slots_of)
    held, spare_held = [0] * len(idle), [0] * len(idle)
    for job in running:
        if job.stop_reason is None:
            for number, slots, spares in counted(index, job):
                idle[number] -= slots - spares
                spare_idle[number] -= spares
    for job_id, claim in index.claims.items():
        if job_id not in index.held:
            for number, slots, spares in _by_type(index, claim):
                idle[number] -= slots - spares
                spare_idle[number] -= spares
    for job in movable:
        for number, slots, spares in counted(index, job):
            held[number] += slots - spares
            spare_held[number] += spares
    return [Room(*counts) for counts in zip(idle, held, spare_idle, spare_held, strict=True)]


def counted(index: SchedulingIndex, job: Job) -> list[tuple[int, int, int]]:
    """Count the running gang's slots of each GPU type, and those of them on spare nodes. Slots on unavailable nodes and
    on nodes on probation do not count."""
    if job.guest_of:  # the slots count for the jobs that it joined
        return []
    slots: Collection[Slot] = [rank.slot for rank in job.ranks]
    if index.sharers and in_parts(index.policy, job.spec):
        # A slot counts for the first job on it, and once for all of its MIG instances.
        slots = {slot for slot in slots if index.sharers.get(slot, (job.job_id,))[0] == job.job_id}
    return _by_type(index, slots)


def _by_type(index: SchedulingIndex, slots: Collection[Slot]) -> list[tuple[int, int, int]]:
    plan, capacity = index.plan, index.capacity
    all_alike = len(plan.topology.type_names) == 1 and not capacity.spares and not capacity.unusable
    if all_alike and not any(plan.slots_in[Tier.PROBATION :: TIERS]):
        return [(0, len(slots), 0)]
    numbers, pools = plan.topology.number, plan.pool
    counts: dict[int, list[int]] = {}
    for slot in slots:
        pool = pools[numbers[slot.node]] if slot.node in numbers else NOWHERE
        if pool != NOWHERE and pool % TIERS != Tier.PROBATION:
            of_type = counts.setdefault(pool // TIERS, [0, 0])
            of_type[0] += 1
            of_type[1] += pool % TIERS == Tier.SPARE
    return [(number, all_of_them, spares) for number, (all_of_them, spares) in counts.items()]
