"""Backfill: what may start ahead of the head of the queue without delaying it (EASY).

The head gets a reservation: the earliest instant at which running jobs' expected ends free a valid placement for it,
and that placement. Another job may start now if it ends before that instant, or if it uses no slot of that placement.
(Lifka, "The ANL/IBM SP Scheduling System", 1995.) Running jobs that end early move the reservation forward; nothing
that is backfilled ever moves it back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler_feedback.core.job import Job, Slot
from scheduler_feedback.core.plan import Plan
from scheduler_feedback.core.state import Policy
from scheduler_feedback.policies.estimate import Release, remaining_ns
from scheduler_feedback.policies.placement import place


@dataclass(frozen=True, slots=True)
class Reservation:
    """Slots that are kept for a job from an instant on; by rank."""

    job_id: str
    from_ns: int
    slots: tuple[Slot, ...]


def reserve(plan: Plan, releases: Sequence[Release], job: Job, now_ns: int) -> Reservation | None:
    """The earliest reservation for the job, given what is free now and what will be; the plan is left as it was.

    None where even the end of every running job leaves no place.
    """
    mark = plan.checkpoint()
    try:
        at_ns, next_release = max(now_ns, job.not_before_ns), 0
        while True:
            while next_release < len(releases) and releases[next_release].at_ns <= at_ns:
                plan.give(releases[next_release].slots)
                next_release += 1
            if (slots := place(plan, job)) is not None:
                return Reservation(job.job_id, at_ns, slots)
            if next_release == len(releases):
                return None
            at_ns = releases[next_release].at_ns
    finally:
        plan.rollback(mark)


class Backfill:
    """The free slots as jobs behind the head may use them: all of them for a short time, some for as long as they like.

    plan: free slots; beside: those of them that are not reserved. The two are kept in step.
    """

    __slots__ = ("_beside", "_plan", "_reservation")

    def __init__(self, plan: Plan, reservation: Reservation) -> None:
        self._plan = plan
        self._reservation = reservation
        self._beside = plan.copy()
        self._beside.hold(reservation.slots)

    def place(self, policy: Policy, job: Job, now_ns: int) -> tuple[tuple[Slot, ...], str] | None:
        """Slots for the job and why it may have them; None where it would delay the head, or finds no room."""
        if now_ns + remaining_ns(policy, job) <= self._reservation.from_ns:
            slots, why = place(self._plan, job), "it is expected to end before the start of"
            if slots is not None:
                self._beside.hold(slots)
        else:
            slots, why = place(self._beside, job), "it uses no slot reserved for"
            if slots is not None:
                self._plan.hold(slots)
        return None if slots is None else (slots, f"{why} {self._reservation.job_id}")
