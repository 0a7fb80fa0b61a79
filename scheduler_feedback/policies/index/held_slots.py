"""Held slots: the slots that gangs hold or have reserved, free slots, and expected releases.

This is the part of the scheduling index about slots; ``scheduling_index`` adds the queue and the timeouts.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from scheduler_feedback.core.job import Job, JobState, Slot
from scheduler_feedback.core.state import Policy, State
from scheduler_feedback.policies.index import uplink_loss
from scheduler_feedback.policies.index.queue_shares import Shares
from scheduler_feedback.policies.index.runtime_estimate import Release, job_releases
from scheduler_feedback.policies.index.slot_plan import Plan
from scheduler_feedback.policies.queue.placement import Capacity

_NONE: tuple[Slot, ...] = ()


class HeldSlots:
    """Slots of one state, by job. The attributes are documented in the constructor."""

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
        """Slots that jobs hold, by job."""
        self.claims: dict[str, tuple[Slot, ...]] = {}
        """Slots reserved for restarts, by job."""
        self.ends: list[Release] = []
        """Expected releases, in order of time."""
        self.ends_of: dict[str, list[Release]] = {}
        self.stopping: set[str] = set()
        """Jobs with a stop reason."""
        self.grown = True
        """Whether an older pending job may be able to start: slots became free, a node came back, a pause ended."""
        self.changed = True
        """Whether the reservation must be computed again."""
        self.disputes = False
        """Whether a verdict of interference between two gangs is active."""
        self.shares = Shares(state.policy)
        """Slots that each queue holds."""

    @property
    def plan(self) -> Plan:
        """Return the free slots: not held by an attempt, and not reserved for a restart."""
        if self.plan_or_none is None:
            busy = (slot for slots in (*self.held.values(), *self.claims.values()) for slot in slots)
            self.plan_or_none = Plan(self.state.nodes.values(), busy)
            self.plan_or_none.uplink_slowdown = self.policy.uplink_slowdown
            for slots in self.held.values():
                self._cross(slots, 1)
            self.congestion_changed()
        return self.plan_or_none

    def _cross(self, slots: tuple[Slot, ...], more: int) -> None:
        """Count a gang on the uplinks that it crosses, if ``uplink_slowdown`` is set."""
        plan = self.plan_or_none
        if plan is None or not self.policy.uplink_slowdown:
            return
        for domain in uplink_loss.crossed(plan, slots):
            plan.crossing[domain] = plan.crossing.get(domain, 0) + more
            if not plan.crossing[domain]:
                del plan.crossing[domain]

    def congestion_changed(self) -> None:
        """Update uplink costs after a verdict of interference, or one of its gangs, has come or gone."""
        if self.plan_or_none is not None:
            self.disputes = any(verdict.aggressor for verdict in self.state.verdicts.values())
            self.plan_or_none.congested = uplink_loss.congested(self.state, self.plan_or_none) if self.disputes else {}

    @property
    def capacity(self) -> Capacity:
        """Return what the nodes could hold if they were empty."""
        if self.capacity_or_none is None:
            self.capacity_or_none = Capacity(self.state.nodes)
        return self.capacity_or_none

    def _take(self, job: Job, slots: tuple[Slot, ...]) -> None:
        """Record that the attempt holds these slots."""
        self.held[job.job_id] = slots
        self._cross(slots, 1)
        if self.plan_or_none is not None:
            self.plan_or_none.hold(slots)
        self.shares.use(job.spec.queue, len(slots))
        self.changed = True

    def _free(self, job: Job, held: tuple[Slot, ...], claim: tuple[Slot, ...]) -> None:
        freed = (*held, *claim) if claim else held
        if self.claims:
            # Slots that are reserved for another gang stay taken.
            kept = {slot for slots in self.claims.values() for slot in slots}
            freed = tuple(slot for slot in freed if slot not in kept)
        if self.plan_or_none is not None:
            self.plan_or_none.give(freed)
            if claim:  # a gang that is being stopped may still hold reserved slots
                for other in self.stopping:
                    self.plan_or_none.hold(self.held.get(other, _NONE))
        self.shares.use(job.spec.queue, -max(len(held), len(claim)))
        self.grown = self.changed = True

    def is_clear(self, claim: Iterable[Slot]) -> bool:
        """Return whether no attempt holds any of the reserved slots. Only gangs that are being stopped can."""
        wanted = set(claim)
        return all(wanted.isdisjoint(self.held.get(job_id, _NONE)) for job_id in self.stopping)

    def most_ranks_instead(self, job: Job) -> int | None:
        """Return ``most_ranks`` as if the running job had released its slots, for a restart of the job."""
        most = max(job.spec.ranks, len(job.ranks))  # a gang that has grown may keep its size
        left = self.shares.left(job.spec.queue) if self.shares.limited else None
        if left is not None:
            return min(left + len(job.ranks), most)
        return most if most > job.spec.ranks else None

    def idle_seconds(self) -> float:
        """Return for how long no job has been pending; 0 if one is.

        This time is expected to last as long again. By the rule of ski rental, the loss is then at most twice that of
        the best decision.
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
        """Return when the gangs on a pending job's reserved slots are expected to end; 0 if there are none."""
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
        """Update the job's expected end, after a change of its speed, progress or verdicts."""
        if job.job_id in self.ends_of:
            self._drop_ends(job.job_id)
            self._expect(job)
            self.grown = self.changed = True

    def update_expected_restarts(self, claimants: Iterable[str]) -> None:
        """Update the expected ends of pending jobs with reserved slots, if the gangs on those slots end later."""
        for job_id in sorted(claimants):
            before = self.ends_of.get(job_id)
            self._drop_ends(job_id)
            self._expect(self.state.jobs[job_id])
            if self.ends_of.get(job_id) != before:
                self.grown = self.changed = True
