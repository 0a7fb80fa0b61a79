"""Held slots: slots that gangs hold, reserved slots, free slots, and the times when slots are expected to be freed.

This is the part of the scheduling index about slots; ``scheduling_index`` adds the queue and the timeouts.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from scheduler_feedback.core.job import Job, JobState, Slot
from scheduler_feedback.core.mig import named
from scheduler_feedback.core.state import Policy, State
from scheduler_feedback.policies.cells.virtual_cluster import VirtualCluster, virtual_clusters
from scheduler_feedback.policies.index import uplink_loss
from scheduler_feedback.policies.index.queue_shares import Shares
from scheduler_feedback.policies.index.runtime_estimate import Release, job_releases
from scheduler_feedback.policies.index.slot_plan import Crossing, Plan
from scheduler_feedback.policies.power.gpus import most_ranks, never_fits
from scheduler_feedback.policies.queue.placement import Capacity, pods_on
from scheduler_feedback.policies.speeds.learnt_speeds import class_of, learnt_of

if TYPE_CHECKING:
    from scheduler_feedback.policies.shares.slot_parts import SlotParts
    from scheduler_feedback.policies.sharing.openings import Openings

_NONE: tuple[Slot, ...] = ()

_ALL_SLICES = (1 << 32) - 1
"""Memory slices of an instance whose profile the node does not report any more: no other instance fits beside it."""


def claimed_ranks(job: Job, claim: Sequence[Slot]) -> int:
    """Return how many slots a job with these reserved slots counts for the limits of its queue: one per rank."""
    return job.spec.ranks if claim and job.spec.mig_profile else len(claim)


class HeldSlots:
    """Held, reserved and free slots of one state. The constructor documents the attributes."""

    __slots__ = (
        "capacity_or_none",
        "changed",
        "claims",
        "clusters_or_none",
        "disputes",
        "divided",
        "ends",
        "ends_of",
        "grown",
        "held",
        "openings",
        "own_due",
        "own_ends",
        "parts",
        "plan_or_none",
        "policy",
        "regrouped",
        "sharers",
        "shares",
        "state",
        "stopping",
        "touched",
    )

    def __init__(self, state: State) -> None:
        self.state = state
        self.policy: Policy = state.policy
        self.plan_or_none: Plan | None = None
        self.capacity_or_none: Capacity | None = None
        self.clusters_or_none: dict[str, VirtualCluster] | None = None
        self.held: dict[str, tuple[Slot, ...]] = {}
        """Slots that active attempts hold, by job id."""
        self.claims: dict[str, tuple[Slot, ...]] = {}
        """Slots that are reserved for the next attempt of a job, by job id."""
        self.ends: list[Release] = []
        """Times when slots are expected to be freed, the earliest first."""
        self.ends_of: dict[str, list[Release]] = {}
        self.own_ends: dict[str, int] = {}
        """Expected ends of jobs that share slots. Their slots are released at the latest end of all jobs on them."""
        self.own_due: list[tuple[int, str]] = []
        """Heap of (end, job id) of `own_ends`. It may contain ends that have changed since."""
        self.stopping: set[str] = set()
        """Ids of the jobs that are to be stopped."""
        self.grown = True
        """Whether an older pending job may be able to start: slots became free, a node came back, a pause ended."""
        self.changed = True
        """Whether the reservation of the head must be computed again."""
        self.disputes = False
        """Whether a verdict of interference between two gangs is active."""
        self.shares = Shares(state.policy)
        if self.shares.types is not None:
            self.shares.types.entitled = state.type_shares
        """Number of slots that each queue holds, and the limits of the queues."""
        self.sharers: dict[Slot, tuple[str, ...]] = {}
        """Ids of the jobs on each slot that a shareable job holds."""
        self.divided: dict[Slot, int] = {}
        """Memory slices that MIG instances occupy, as a bit mask, of each slot with such instances."""
        self.regrouped: set[str] = set()
        """Ids of jobs on whose slots another job has started or ended."""
        self.touched: set[str] = set()
        """Ids of shareable jobs that have started, stopped or changed their partners since ``openings`` was updated."""
        self.openings: Openings | None = None
        """Which running jobs pending jobs may join (``sharing.openings``); None: not needed yet."""
        self.parts: SlotParts | None = None
        """Parts of slots that are left (``shares.slot_parts``); None: not needed yet."""

    # --- jobs that share slots ---------------------------------------------------------------------------------------

    def partners(self, job_id: str) -> list[str]:
        """Return the ids of the jobs that hold a slot of this job, too, sorted."""
        if not self.sharers:
            return []
        sharers = self.sharers
        found = {other for slot in self.held.get(job_id, _NONE) for other in sharers.get(slot, ())}
        found.discard(job_id)
        return sorted(found)

    def freed_by(self, job: Job, slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
        """Return the slots that are free once the job has left. Its guests leave with it; other jobs stay."""
        if not self.sharers or not job.spec.joins_slots:
            return slots
        jobs = self.state.jobs
        return tuple(
            slot
            for slot in slots
            if all(one == job.job_id or job.job_id in jobs[one].guest_of for one in self.sharers.get(slot, ()))
        )

    def _join(self, job: Job, slots: tuple[Slot, ...]) -> None:
        self.touched.add(job.job_id)
        if self.parts is not None:
            self.parts.touch(slots)
        for slot in dict.fromkeys(slots):
            others = self.sharers.get(slot, ())
            self.sharers[slot] = tuple(sorted((*others, job.job_id)))
            if others:
                self.touched.update(others)
                self.regrouped |= {job.job_id, *others}
            if job.mig_starts:
                self._divide(slot)

    def _divide(self, slot: Slot) -> None:
        """Update the memory slices that MIG instances occupy on the slot's GPU."""
        node, busy = self.state.nodes.get(slot.node), 0
        for job_id in self.sharers.get(slot, ()):
            job = self.state.jobs[job_id]
            profile = None if node is None else named(node.mig_profiles, job.spec.mig_profile)
            for held, start in zip(self.held.get(job_id, _NONE), job.mig_starts, strict=False):
                if held == slot:
                    busy |= _ALL_SLICES if profile is None else profile.mask(start)
        if busy:
            self.divided[slot] = busy
        else:
            self.divided.pop(slot, None)

    def _part(self, job: Job, slots: tuple[Slot, ...]) -> set[Slot]:
        """Remove the job from its slots, and return the slots that other jobs still hold."""
        kept: set[Slot] = set()
        self.touched.add(job.job_id)
        if self.parts is not None:
            self.parts.touch(slots)
        for slot in dict.fromkeys(slots):
            others = tuple(one for one in self.sharers.get(slot, ()) if one != job.job_id)
            if others:
                self.touched.update(others)
                self.sharers[slot] = others
                self.regrouped |= {job.job_id, *others}
                kept.add(slot)
            else:
                self.sharers.pop(slot, None)
            if slot in self.divided:
                self._divide(slot)
        return kept

    @property
    def plan(self) -> Plan:
        """Return the free slots. Slots that are reserved for a restart are not free."""
        if self.plan_or_none is None:
            busy = (slot for slots in (*self.held.values(), *self.claims.values()) for slot in slots)
            self.plan_or_none = Plan(self.state.nodes.values(), busy)
            self.plan_or_none.uplink_slowdown = self.policy.uplink_slowdown
            self.plan_or_none.rails = self.policy.uplink_rails
            if self.policy.dataset_cache_gib:
                self.plan_or_none.datasets = self.state.datasets
            self.plan_or_none.learnt = learnt_of(self.state)
            self.plan_or_none.shares = self.shares
            if self.policy.learn_speeds:
                self.plan_or_none.traffic = self.state.traffic
            for job_id, slots in self.held.items():
                self._cross(self.state.jobs[job_id], slots)
            if self.plan_or_none.topology.free:
                for job_id, slots in self.held.items():
                    self._note_start(self.state.jobs[job_id], slots)
            self.congestion_changed()
        return self.plan_or_none

    def _note_start(self, job: Job, slots: tuple[Slot, ...]) -> None:
        """Count the starting gang's use of other resources on nodes that have not been reported since its start."""
        plan = self.plan_or_none
        if plan is None or not plan.topology.free or not job.spec.requests or job.state is not JobState.STARTING:
            return
        numbers, nodes = plan.topology.number, self.state.nodes
        for name, pods in pods_on(job.spec, slots).items():
            if (number := numbers.get(name)) is None or number not in plan.topology.free:
                continue
            if (job.attempt_started_ns or 0) >= nodes[name].reported_ns:
                plan.note_start(job.job_id, number, pods, job.spec.requests)

    def vacate(self, job: Job, slots: Iterable[Slot] | None = None) -> None:
        """Make the running gang's slots and its other resources free in the plan, until the caller rolls the plan back.

        slots: only these, all of whole pods; None: all of them.
        """
        plan, all_slots = self.plan, tuple(rank.slot for rank in job.ranks)
        given = all_slots if slots is None else tuple(slots)
        plan.give(self.freed_by(job, given))
        self._leave(job, given)

    def stay(self, job: Job) -> None:
        """Revoke ``vacate`` for all slots of the gang."""
        slots = tuple(rank.slot for rank in job.ranks)
        self.plan.hold(slots)
        self._leave(job, slots, 0)

    def _leave(self, job: Job, slots: tuple[Slot, ...], part: int = 1) -> None:
        plan = self.plan
        if not plan.topology.free or not job.spec.requests:
            return
        for name, pods in pods_on(job.spec, slots).items():
            if (number := plan.topology.number.get(name)) is not None:
                plan.leave(job.job_id, number, pods * part, job.spec.requests)

    def _forget_start(self, job_id: str, slots: Iterable[Slot]) -> None:
        """Stop counting the gang's use of other resources, because the next report of its nodes includes it."""
        plan = self.plan_or_none
        if plan is not None and plan.unreported:
            numbers = plan.topology.number
            if plan.forget_start(job_id, {numbers[slot.node] for slot in slots if slot.node in numbers}):
                self.grown = self.changed = True

    def _cross(self, job: Job, slots: tuple[Slot, ...]) -> None:
        """Add the gang to every uplink that it uses."""
        plan = self.plan_or_none
        if plan is None or not (self.policy.uplink_slowdown or self.policy.time_shifts):
            return
        for domain, rails in uplink_loss.rails_of(plan, slots).items():
            gang = Crossing(class_of(job.job_id, job.spec), len(slots), rails)
            plan.crossing.setdefault(domain, {})[job.job_id] = gang

    def _uncross(self, job: Job, slots: tuple[Slot, ...]) -> None:
        """Remove the gang from every uplink that it uses."""
        plan = self.plan_or_none
        if plan is None or not plan.crossing:
            return
        for domain in uplink_loss.crossed(plan, slots):
            if (gangs := plan.crossing.get(domain)) is not None:
                gangs.pop(job.job_id, None)
                if not gangs:
                    del plan.crossing[domain]

    def congestion_changed(self) -> None:
        """Update the uplink costs after a change of an interference verdict, or of a gang that it names."""
        if self.plan_or_none is not None:
            self.disputes = any(verdict.aggressor for verdict in self.state.verdicts.values())
            self.plan_or_none.congested = uplink_loss.congested(self.state, self.plan_or_none) if self.disputes else {}

    @property
    def capacity(self) -> Capacity:
        """Return the capacity of the nodes as if no job were running."""
        if self.capacity_or_none is None:
            exceeds, most = partial(never_fits, self.state), most_ranks(self.state)
            self.capacity_or_none = Capacity(self.state.nodes, exceeds, most)
        return self.capacity_or_none

    @property
    def clusters(self) -> dict[str, VirtualCluster]:
        """Return the virtual clusters of the queues with cells, by queue, and that of all other queues."""
        if self.clusters_or_none is None:
            self.clusters_or_none = virtual_clusters(self.state)
        return self.clusters_or_none

    def _take(self, job: Job, slots: tuple[Slot, ...]) -> None:
        """Record that the job's attempt holds these slots."""
        self.held[job.job_id] = slots
        self._cross(job, slots)
        self._note_start(job, slots)
        if self.plan_or_none is not None:
            self.plan_or_none.hold(slots)
        if job.spec.joins_slots:
            self._join(job, slots)
        self.shares.use(job.spec.queue, len(slots))
        self._count_types(job, slots)
        self.changed = True

    def _count_types(self, job: Job, slots: Iterable[Slot]) -> None:
        """Count the slots by GPU type for the quota of the job's queue."""
        if self.shares.types is not None:
            self.shares.types.hold(job.job_id, self.shares.owner(job.spec.queue), slots, self.state.nodes)

    def _free(self, job: Job, held: tuple[Slot, ...], claim: tuple[Slot, ...]) -> None:
        freed = (*held, *claim) if claim else held
        if job.spec.joins_slots and (shared := self._part(job, held)):
            freed = tuple(slot for slot in freed if slot not in shared)
        if self.claims:
            # Slots that are reserved for another gang stay taken.
            kept = {slot for slots in self.claims.values() for slot in slots}
            freed = tuple(slot for slot in freed if slot not in kept)
        if self.plan_or_none is not None:
            self.plan_or_none.give(freed)
            self._forget_start(job.job_id, held)
            if claim:  # a gang that is being stopped may still hold reserved slots
                for other in self.stopping:
                    self.plan_or_none.hold(self.held.get(other, _NONE))
        self.shares.use(job.spec.queue, -max(len(held), claimed_ranks(job, claim)))
        if self.shares.types is not None:
            self.shares.types.release(job.job_id)
        self.grown = self.changed = True

    def is_clear(self, claim: Iterable[Slot]) -> bool:
        """Return whether the reserved slots `claim` are free: no gang that is being stopped still holds one of them."""
        wanted = set(claim)
        return all(wanted.isdisjoint(self.held.get(job_id, _NONE)) for job_id in self.stopping)

    def most_ranks_instead(self, job: Job) -> int | None:
        """Return the maximum number of ranks of the running job after a restart; None: the number that it asks for.

        Its present slots count as free for the limit of its queue.
        """
        most = max(job.spec.ranks, len(job.ranks))  # a gang that has grown may keep its size
        if self.capacity.most is not None and job.spec.min_ranks is not None and self.capacity.most < most:
            most = max(self.capacity.most, job.spec.min_ranks)
        left = self.shares.left(job.spec.queue) if self.shares.limited else None
        if left is not None:
            return min(left + len(job.ranks), most)
        return most if most != job.spec.ranks else None

    def idle_seconds(self) -> float:
        """Return for how many seconds no job has been pending; 0 if a job is pending.

        Policies assume that the idle period will last as long again.
        """
        return 0.0 if self.state.waits else (self.state.now_ns - self.state.emptied_ns) / 1e9

    # --- expected ends -----------------------------------------------------------------------------------------------

    def _expect(self, job: Job) -> None:
        found = job_releases(self.state, job, self.state.now_ns, self._clear_ns(job))
        if self.sharers and job.spec.joins_slots:
            if found and self.partners(job.job_id):
                self.own_ends[job.job_id] = found[-1].at_ns
                heappush(self.own_due, (found[-1].at_ns, job.job_id))
            if job.mig_starts:
                found = [one for release in found for one in self._releases_by_slot(release)]
            else:
                found = [one for one in map(self._release_of_all, found) if one.slots]
        if found:
            self.ends_of[job.job_id] = found
            for release in found:
                insort(self.ends, release)

    def first_own_end(self) -> tuple[int, str] | None:
        """Return the earliest expected end of a job that shares slots, with the job's id; None if there is none."""
        due = self.own_due
        while due and self.own_ends.get(due[0][1]) != due[0][0]:
            heappop(due)
        return due[0] if due else None

    def _release_of_all(self, release: Release) -> Release:
        """Return the release of a job's slots at the latest end of all jobs on them.

        A slot that several jobs hold is in the release of the first one by id only, so that it counts once.
        Opportunistic jobs do not count beside others, because they leave when their slots are needed.
        """
        own = self.held.get(release.job_id, _NONE)
        slots = tuple(
            slot
            for slot in dict.fromkeys(release.slots)
            if slot not in own or self.sharers.get(slot, (release.job_id,))[0] == release.job_id
        )
        if not slots:
            return Release(release.at_ns, release.job_id, slots)  # another job on the slots releases them
        jobs = self.state.jobs
        ends = [] if jobs[release.job_id].spec.opportunistic else [release.at_ns]
        for other in self.partners(release.job_id):
            if not jobs[other].spec.opportunistic:
                found = job_releases(self.state, jobs[other], self.state.now_ns)
                ends += [one.at_ns for one in found if not set(one.slots).isdisjoint(release.slots)]
        return Release(max(ends, default=release.at_ns), release.job_id, slots)

    def _releases_by_slot(self, release: Release) -> list[Release]:
        """Return the releases of the GPUs of a job in MIG instances, each at the latest end of all jobs on it.

        A GPU is in the releases of the first job on it by id only, so that it counts once.
        """
        own, jobs = self.held.get(release.job_id, _NONE), self.state.jobs
        at: dict[int, list[Slot]] = {}
        for slot in dict.fromkeys(release.slots):
            here = self.sharers.get(slot, ()) if slot in own else ()
            if here and here[0] != release.job_id:
                continue
            ends = [release.at_ns]
            for other in here[1:]:
                found = job_releases(self.state, jobs[other], self.state.now_ns)
                ends += [one.at_ns for one in found if slot in one.slots]
            at.setdefault(max(ends), []).append(slot)
        return [Release(at_ns, release.job_id, tuple(slots)) for at_ns, slots in sorted(at.items())]

    def _clear_ns(self, job: Job) -> int:
        """Return when the pending job's reserved slots are expected to be free; 0 if no gang holds any of them."""
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
        self.own_ends.pop(job_id, None)
        for release in self.ends_of.pop(job_id, ()):
            index = bisect_left(self.ends, release)
            del self.ends[index]

    def update_expected_end(self, job: Job) -> None:
        """Update the job's expected end, after a change of its speed, progress or verdicts."""
        partners = self.partners(job.job_id)
        if job.job_id in self.ends_of or partners:
            self._expect_again({job.job_id, *partners})
            self.grown = self.changed = True

    def _expect_again(self, job_ids: set[str]) -> None:
        """Update the expected ends of these jobs, and of all that share slots with one whose own end has changed."""
        waiting, known = sorted(job_ids), set(job_ids)
        while waiting:
            job_id = waiting.pop()
            before = self.own_ends.get(job_id)
            self._drop_ends(job_id)
            self._expect(self.state.jobs[job_id])
            if before is not None and self.own_ends.get(job_id) != before:
                more = [one for one in self.partners(job_id) if one not in known]
                known.update(more)
                waiting += more

    def update_expected_restarts(self, claimants: Iterable[str]) -> None:
        """Update the expected ends of pending jobs, after a change of the gangs that still hold their reserved slots.

        claimants: ids of pending jobs with reserved slots.
        """
        for job_id in sorted(claimants):
            before = self.ends_of.get(job_id)
            self._drop_ends(job_id)
            self._expect(self.state.jobs[job_id])
            if self.ends_of.get(job_id) != before:
                self.grown = self.changed = True
