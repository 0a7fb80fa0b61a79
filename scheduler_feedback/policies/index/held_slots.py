"""Holdings: what gangs hold and have a claim to, what is free, and when more is expected to be.

The half of the ledger that is about slots; ``Ledger`` adds who waits and what is due.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from scheduler_feedback.core.job import Job, JobState, Slot
from scheduler_feedback.core.slot_plan import Plan
from scheduler_feedback.core.state import Policy, State
from scheduler_feedback.policies.index import uplink_loss
from scheduler_feedback.policies.index.queue_shares import Shares
from scheduler_feedback.policies.index.runtime_estimate import Release, job_releases
from scheduler_feedback.policies.queue.placement import Capacity

_NONE: tuple[Slot, ...] = ()


class Holdings:
    """Slots of one state, by job.

    held, claims: slots by job. ends: what is expected to become free, in order of time. stopping: jobs with a stop
    reason. shares: what each queue holds. disputes: whether a verdict stands that two gangs disturb each other.
    grown: whether since the last look at the line something has happened that may let an older one start: slots came
    free, a node came back, a pause has ended. changed: whether anything has happened that decides a reservation.
    """

    __slots__ = (
        "capacity_or_none",
        "changed",
        "claims",
        "disputes",
        "ends",
        "ends_of",
        "grown",
        "held",
        "plan_or_none",
        "policy",
        "shares",
        "state",
        "stopping",
    )

    def __init__(self, state: State) -> None:
        self.state = state
        self.policy: Policy = state.policy
        self.plan_or_none: Plan | None = None
        self.capacity_or_none: Capacity | None = None
        self.held: dict[str, tuple[Slot, ...]] = {}
        self.claims: dict[str, tuple[Slot, ...]] = {}
        self.ends: list[Release] = []
        self.ends_of: dict[str, list[Release]] = {}
        self.stopping: set[str] = set()
        self.grown = self.changed = True
        self.disputes = False
        self.shares = Shares(state.policy)

    @property
    def plan(self) -> Plan:
        """The free slots: what no attempt holds and no gang on the move has a claim to."""
        if self.plan_or_none is None:
            busy = (slot for slots in (*self.held.values(), *self.claims.values()) for slot in slots)
            self.plan_or_none = Plan(self.state.nodes.values(), busy)
            self.plan_or_none.uplink_slowdown = self.policy.uplink_slowdown
            for slots in self.held.values():
                self._cross(slots, 1)
            self.congestion_changed()
        return self.plan_or_none

    def _cross(self, slots: tuple[Slot, ...], more: int) -> None:
        """Gangs that lie in several domains are counted on their uplinks, where those cost anything."""
        plan = self.plan_or_none
        if plan is None or not self.policy.uplink_slowdown:
            return
        for domain in uplink_loss.crossed(plan, slots):
            plan.crossing[domain] = plan.crossing.get(domain, 0) + more
            if not plan.crossing[domain]:
                del plan.crossing[domain]

    def congestion_changed(self) -> None:
        """A verdict of interference has come or gone, or one of the two gangs has."""
        if self.plan_or_none is not None:
            self.disputes = any(verdict.aggressor for verdict in self.state.verdicts.values())
            self.plan_or_none.congested = uplink_loss.congested(self.state, self.plan_or_none) if self.disputes else {}

    @property
    def capacity(self) -> Capacity:
        """What the nodes could hold if nothing ran on them."""
        if self.capacity_or_none is None:
            self.capacity_or_none = Capacity(self.state.nodes)
        return self.capacity_or_none

    def _take(self, job: Job, slots: tuple[Slot, ...]) -> None:
        """The attempt holds these slots from now on."""
        self.held[job.job_id] = slots
        self._cross(slots, 1)
        if self.plan_or_none is not None:
            self.plan_or_none.hold(slots)
        self.shares.use(job.spec.queue, len(slots))
        self.changed = True

    def _free(self, job: Job, held: tuple[Slot, ...], claim: tuple[Slot, ...]) -> None:
        freed = (*held, *claim) if claim else held
        if self.claims:
            # What another gang has a claim to stays taken.
            kept = {slot for slots in self.claims.values() for slot in slots}
            freed = tuple(slot for slot in freed if slot not in kept)
        if self.plan_or_none is not None:
            self.plan_or_none.give(freed)
            if claim:  # a claim may lie on slots that the one to be stopped still holds
                for other in self.stopping:
                    self.plan_or_none.hold(self.held.get(other, _NONE))
        self.shares.use(job.spec.queue, -max(len(held), len(claim)))
        self.grown = self.changed = True

    def is_clear(self, claim: Iterable[Slot]) -> bool:
        """Whether no attempt holds any of the slots: none but one that is to stop ever can."""
        wanted = set(claim)
        return all(wanted.isdisjoint(self.held.get(job_id, _NONE)) for job_id in self.stopping)

    def most_ranks_instead(self, job: Job) -> int | None:
        """``most_ranks``, were the running job to be started anew in place of what it holds."""
        most = max(job.spec.ranks, len(job.ranks))  # one that has grown may stay as large
        left = self.shares.left(job.spec.queue) if self.shares.limited else None
        if left is not None:
            return min(left + len(job.ranks), most)
        return most if most > job.spec.ranks else None

    def idle_seconds(self) -> float:
        """How long nobody has waited for room; 0 where somebody does.

        It is expected to stay so for as long again: who waits until as much is lost as a move costs never loses more
        than twice what the best decision would (the rule of ski rental).
        """
        return 0.0 if self.state.waits else (self.state.now_ns - self.state.emptied_ns) / 1e9

    # --- expected ends -----------------------------------------------------------------------------------------------

    def _expect(self, job: Job) -> None:
        found = job_releases(self.state, job, self.state.now_ns, self._clear_ns(job))
        if found:
            self.ends_of[job.job_id] = found
            for release in found:
                insort(self.ends, release)

    def _clear_ns(self, job: Job) -> int:
        """When the gangs on the slots of a waiting job's claim are expected to have gone; 0 where there are none."""
        if not job.claim or job.state is not JobState.PENDING:
            return 0
        claim = set(job.claim)
        return max(
            (
                end.at_ns
                for job_id in self.stopping
                if job_id != job.job_id and not claim.isdisjoint(self.held.get(job_id, _NONE))
                for end in self.ends_of.get(job_id, ())
                if not claim.isdisjoint(end.slots)
            ),
            default=0,
        )

    def _drop_ends(self, job_id: str) -> None:
        for release in self.ends_of.pop(job_id, ()):
            index = bisect_left(self.ends, release)
            del self.ends[index]

    def update_expected_end(self, job: Job) -> None:
        """What is known of the job's speed has changed: when it is expected to end."""
        if job.job_id in self.ends_of:
            self._drop_ends(job.job_id)
            self._expect(job)
            self.grown = self.changed = True

    def update_expected_restarts(self, claimants: Iterable[str]) -> None:
        """Update when waiting jobs with a claim are expected to end, where the gangs on their slots end later."""
        for job_id in sorted(claimants):
            before = self.ends_of.get(job_id)
            self._drop_ends(job_id)
            self._expect(self.state.jobs[job_id])
            if self.ends_of.get(job_id) != before:
                self.grown = self.changed = True
