"""Tracked jobs: the queue, and the groups and timeouts of the jobs and nodes that a cycle evaluates.

This is the part of the scheduling index that reads the state; ``scheduling_index`` adds the methods that change it.
"""

from __future__ import annotations

from heapq import heappop, heappush

from scheduler_feedback.core.cluster import Node, NodeState, tier_of
from scheduler_feedback.core.durations import nanoseconds
from scheduler_feedback.core.job import Job, JobKind, JobSpec, JobState, Slot
from scheduler_feedback.core.state import Backfilling, Order, State
from scheduler_feedback.policies.cells.virtual_cluster import uses_cells
from scheduler_feedback.policies.index.held_slots import HeldSlots, claimed_ranks
from scheduler_feedback.policies.index.runtime_estimate import remaining_ns
from scheduler_feedback.policies.intake.dependencies import Dependencies
from scheduler_feedback.policies.queue import order
from scheduler_feedback.policies.queue.order import las, round_robin
from scheduler_feedback.policies.queue.pending_line import WaitingLine
from scheduler_feedback.policies.queue.placement import Shape, relaxes_ns, shape_of
from scheduler_feedback.policies.shares.declared_parts import may_divide, part_of
from scheduler_feedback.policies.speeds.learnt_memory import has_outgrown
from scheduler_feedback.policies.speeds.learnt_speeds import learnt_of

_HOLDING = frozenset({JobState.STARTING, JobState.RUNNING, JobState.STOPPING})
_ENDED = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED})
_NONE: tuple[Slot, ...] = ()

_BEHIND_ALL = frozenset({Backfilling.NONE, Backfilling.CONSERVATIVE})
"""Backfill rules with which any pending job may become able to start when a job ahead of it leaves the queue."""


class TrackedJobs(HeldSlots):
    """Queue, groups and timeouts of the jobs and nodes of one state. The constructor documents the attributes."""

    __slots__ = (
        "_groups",
        "_starved",
        "appointed",
        "claimants",
        "dependencies",
        "doubtful",
        "elastic",
        "ended",
        "excluders",
        "fresh",
        "hopeless",
        "line",
        "opportunists",
        "outgrown",
        "overdue",
        "power_limited",
        "probes",
        "released",
        "running",
        "starved",
        "stepping",
        "steps_changed",
        "stoppable_due",
        "timeouts",
        "unheld",
        "unsettled",
    )

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self.line = WaitingLine()
        """Pending jobs that may start, in scheduling order."""
        self.claimants: set[str] = set()
        """Ids of pending jobs with slots reserved for their restart."""
        self.probes: set[str] = set()
        """Ids of pending probes."""
        self.opportunists: set[str] = set()
        """Ids of pending opportunistic jobs. They are not in the queue, so they delay no other job."""
        self.doubtful: set[str] = set()
        """Names of nodes that are not healthy."""
        self.running: set[str] = set()
        """Ids of jobs in state running."""
        self.elastic: set[str] = set()
        """Ids of the elastic, restartable gangs that hold slots."""
        self.excluders: set[str] = set()
        """Ids of jobs that must not use certain nodes."""
        self.unheld: set[str] = set()
        """Ids of pending jobs that are too large for the nodes, even empty ones, or for the limits of their queue."""
        self.hopeless: set[str] = set()
        """Ids of jobs with a dependency that can no longer be met."""
        self._groups: tuple[set[str], ...] = (self.claimants, self.probes, self.stopping, self.running, self.excluders)
        self.outgrown: set[str] = set()
        """Ids of the jobs that hold slots and have been measured to use more device memory than is planned for them."""
        self.overdue: set[str] = set()
        """Ids of pending and active jobs that were put ahead of other jobs because they have waited too long."""
        self.power_limited: set[str] = set()
        """Ids of running jobs whose GPUs have a power limit."""
        self._groups += (self.unheld, self.hopeless, self.elastic, self.overdue, self.opportunists, self.outgrown)
        self.stepping: set[str] = set()
        """Ids of running jobs with measured steps that use uplinks, for time shifts."""
        self.steps_changed: set[str] = set()
        """Names of the uplinks of gangs that were measured, or have left, in this cycle."""
        self._groups += (self.power_limited, self.stepping)
        self.starved: list[tuple[int, str]] = []
        """Heap of (submission, job id) of jobs that have waited past the starvation bound and are not overdue yet."""
        self._starved: set[str] = set()
        self.ended: list[tuple[int, str]] = []
        """Ended jobs as (time of the end, job id)."""
        self.timeouts: list[tuple[int, str]] = []
        """Heap of timeouts of single jobs and nodes: (instant, job id; '' for a node)."""
        self.fresh: set[str] = set()
        """Ids of jobs that were added to the queue since the last scheduling pass."""
        self.released: set[str] = set()
        """Ids of jobs that were added to the queue in this cycle because a job that they depend on changed."""
        self.unsettled = False
        """Whether nodes have changed since the last call of ``settle``."""
        self.appointed = False
        """Whether the spare nodes were chosen after the last change of nodes."""
        self.stoppable_due = False
        """Whether a gang's minimum run time or cooldown has ended in this cycle."""
        self.dependencies = Dependencies(state)
        for node in state.nodes.values():
            self._watch(node)
        for job in state.jobs.values():
            self.dependencies.add(job)
        for job in state.jobs.values():
            self._add(job)
        self.ended.sort()
        for job_id in sorted(self.regrouped):
            self._drop_ends(job_id)
            self._expect(state.jobs[job_id])
        self.regrouped = set()
        self.update_expected_restarts(self.claimants)
        if state.idle:
            self.grown = self.changed = False
            self.fresh = set()

    # --- nodes -------------------------------------------------------------------------------------------------------

    def _capacity_changed(self) -> None:
        self.openings = None  # room on slots depends on the nodes
        self.capacity_or_none = None
        self.clusters_or_none = None
        self.grown = self.changed = self.unsettled = True
        self.appointed = False

    def settle(self) -> None:
        """Update which pending jobs are too large for the cluster, after a change of nodes."""
        if not self.unsettled:
            return
        self.unsettled = False
        jobs, capacity = self.state.jobs, self.capacity
        moved = [job_id for job_id in self.unheld if self.could_ever_start(jobs[job_id])]
        for kind in self.line.kinds.values():
            members = [key[-1] for bucket in kind.buckets.values() for key in bucket.keys]
            if not capacity.could_hold(jobs[members[0]], kind.shape):
                moved += members
        for job_id in sorted(moved):
            self._update(jobs[job_id])

    def _watch(self, node: Node) -> None:
        if node.state is NodeState.HEALTHY:
            self.doubtful.discard(node.name)
        else:
            self.doubtful.add(node.name)
            if node.until_ns is not None:
                heappush(self.timeouts, (node.until_ns, ""))

    # --- jobs --------------------------------------------------------------------------------------------------------

    def _update(self, job: Job) -> None:
        """Update the index after a change of the job."""
        others: list[str] = []
        if self.dependencies.dependents or job.array_of:
            others = list(self.dependencies.changed(job))  # ``_update_alone`` uses them
        self._update_alone(job)
        for job_id in others:
            other = self.state.jobs[job_id]
            if other.state is JobState.PENDING and other is not job:
                waited = job_id not in self.line
                self._update_alone(other)
                if waited and job_id in self.line:
                    self.released.add(job_id)

    def _update_alone(self, job: Job) -> None:
        job_id = job.job_id
        partners = self.partners(job_id)
        held, claim = self.held.pop(job_id, _NONE), self.claims.pop(job_id, _NONE)
        if held or claim:
            self._uncross(job, held)
            self._free(job, held, claim)
        if job_id in self.line:
            self.line.remove(job_id)
            self.fresh.discard(job_id)
            gave_up = job.state not in _HOLDING and self.policy.backfill in _BEHIND_ALL
            if gave_up or self.state.reserved_for == job_id:
                self.changed = True
        if self.openings is not None:
            self.openings.leave(job_id)
        for group in self._groups:
            if group:
                group.discard(job_id)
        if job_id in self.ends_of or job_id in self.own_ends:
            self._drop_ends(job_id)
        self._add(job)
        self._expect_again({*partners, *self.partners(job_id)})
        if self.disputes:
            self.congestion_changed()

    def _add(self, job: Job) -> None:
        job_id, state = job.job_id, job.state
        if state in _ENDED:
            if job.ended_ns is not None:
                self.ended.append((job.ended_ns, job_id))
            return
        if job.excluded_nodes:
            self.excluders.add(job_id)
        if job.overdue:
            self.overdue.add(job_id)
        if job.stop_reason is not None:
            self.stopping.add(job_id)
        if job.not_before_ns > self.state.now_ns:
            heappush(self.timeouts, (job.not_before_ns, job_id))
        if job.claim:
            self.claims[job_id] = tuple(job.claim)
        if state in _HOLDING:
            self._hold(job)
        elif job.spec.kind is JobKind.PROBE:
            self.probes.add(job_id)
        elif job.claim:
            self.claimants.add(job_id)
        elif self.dependencies.blocks(job):
            if self.dependencies.hopeless(job) is not None:
                self.hopeless.add(job_id)
        elif job.spec.opportunistic:
            self.opportunists.add(job_id)
            if self.openings is not None:
                self.openings.enter(job, (job.submitted_ns, job_id))
            self.grown = True
        else:
            self._line_up(job)
        if job.claim:
            if self.plan_or_none is not None:
                self.plan_or_none.hold(job.claim)
            held = len(job.ranks) if state in _HOLDING else 0
            self.shares.use(job.spec.queue, max(claimed_ranks(job, job.claim) - held, 0))
            if claimed_ranks(job, job.claim) > held:
                self._count_types(job, job.claim)
            self.changed = True
        if job.claim or state in _HOLDING:
            self._expect(job)

    def _hold(self, job: Job) -> None:
        self._take(job, tuple([rank.slot for rank in job.ranks]))
        if job.power_limit_watts:
            self.power_limited.add(job.job_id)
        if job.step_times is not None:
            self.stepping.add(job.job_id)
        if job.state is JobState.RUNNING:
            self.running.add(job.job_id)
        if has_outgrown(job):
            self.outgrown.add(job.job_id)
        if (job.spec.min_ranks is not None or job.spec.max_ranks is not None) and job.spec.restartable:
            self._hold_elastic(job)
        if self.policy.preempt and self.policy.order is Order.LAS:
            self._expect_fall(job)
        if (ends_ns := self._slice_ends_ns(job)) is not None and (self.policy.preempt or uses_cells(self.policy)):
            heappush(self.timeouts, (ends_ns, job.job_id))
        for at_ns in self._stoppable_ns(job):
            if at_ns > self.state.now_ns:
                heappush(self.timeouts, (at_ns, job.job_id))
        if job.attempt_started_ns is not None:
            policy = self.policy
            if job.state is JobState.STARTING and policy.start_seconds:
                at_ns = job.attempt_started_ns + nanoseconds(policy.start_seconds)
                heappush(self.timeouts, (at_ns, job.job_id))
            elif job.state is JobState.RUNNING and job.spec.kind is JobKind.PROBE:
                at_ns = job.attempt_started_ns + nanoseconds(policy.probe_timeout_seconds)
                heappush(self.timeouts, (at_ns, job.job_id))

    def _hold_elastic(self, job: Job) -> None:
        """Record an elastic gang, and set a timeout for when it may be resized."""
        self.elastic.add(job.job_id)
        at_ns = self._resizable_ns(job)
        if at_ns > self.state.now_ns:
            heappush(self.timeouts, (at_ns, job.job_id))

    def _least_run_ns(self, job: Job) -> int:
        """Return when the attempt reaches its minimum run time."""
        policy = self.policy
        least = policy.min_run_seconds if job.spec.min_run_seconds is None else job.spec.min_run_seconds
        return (job.attempt_started_ns or 0) + nanoseconds(least)

    def _stoppable_ns(self, job: Job) -> tuple[int, ...]:
        """Return when the gang's minimum run time ends and, if the gang has been moved, when its migration cooldown
        ends.

        Empty if the gang is not restartable.
        """
        if not job.spec.restartable or job.attempt_started_ns is None:
            return ()
        if job.last_migration_ns is None:
            return (self._least_run_ns(job),)
        cooldown_ns = nanoseconds(self.policy.migration_cooldown_seconds)
        return (self._least_run_ns(job), job.last_migration_ns + cooldown_ns)

    def note_pending(self) -> None:
        """Record at the end of a cycle whether jobs are pending, and when the last pending job has gone."""
        waits = bool(self.line.order) or bool(self.claimants)
        if self.state.waits and not waits:
            self.state.emptied_ns = self.state.now_ns
            for job_id in self.elastic:
                heappush(self.timeouts, (self._resizable_ns(self.state.jobs[job_id]), job_id))
        self.state.waits = waits

    def _patience_seconds(self, job: Job, ranks: int) -> float:
        """Return how many seconds no job must have been pending before the gang may get more than `ranks` ranks.

        Then the faster progress is expected to save more time than the restart costs.
        """
        most = job.spec.max_ranks or job.spec.ranks
        moving = job.spec.stop_seconds + job.spec.restart_cost_seconds + job.spec.reshard_seconds
        return (1 + self.policy.migration_margin) * moving * most / (most - ranks) if most > ranks else 0.0

    def _resizable_ns(self, job: Job) -> int:
        """Return when the gang may grow: after its minimum run time and cooldown, and a long enough idle period."""
        policy = self.policy
        at_ns = self._least_run_ns(job)
        if job.last_migration_ns is not None:
            at_ns = max(at_ns, job.last_migration_ns + nanoseconds(policy.migration_cooldown_seconds))
        return max(at_ns, self.state.emptied_ns + nanoseconds(self._patience_seconds(job, len(job.ranks))))

    def _slice_ends_ns(self, job: Job) -> int | None:
        """Return when the gang's time slice ends; None in other orders than ``round-robin``."""
        return round_robin.slice_ends_ns(self.state, job) if self.policy.order is Order.ROUND_ROBIN else None

    def _expect_fall(self, job: Job) -> None:
        """Set a timeout for the time when the job moves to the next level of the order ``las``."""
        at_ns = las.falls_ns(self.state, job)
        if at_ns is not None:
            heappush(self.timeouts, (at_ns, job.job_id))

    def _line_up(self, job: Job) -> None:
        shape = shape_of(job)
        if self.policy.divides:
            shape = (*shape, part_of(job) if may_divide(job.spec) else None)
        if not self.could_ever_start(job, shape):
            self.unheld.add(job.job_id)
            return
        key = order.key_of(self.state, job)
        starves_ns = order.starves_ns(self.state, job)
        if starves_ns is not None and starves_ns > self.state.now_ns:
            heappush(self.timeouts, (starves_ns, job.job_id))
        elif starves_ns is not None and self.policy.starvation_share < 1:
            self._starve(job)
        for at_ns in (job.awaited_until_ns, self._relaxes_ns(job) or 0):
            if at_ns > self.state.now_ns:
                heappush(self.timeouts, (at_ns, job.job_id))
        queue = job.spec.queue if self.shares.limited else ""
        self.line.add(job.job_id, key, shape, queue, remaining_ns(self.policy, job))
        if self.openings is not None:
            self.openings.enter(job, key)
        self.fresh.add(job.job_id)
        if self.line.order[0] is key or self.state.reserved_for is None or self.shares.limited:
            self.changed = True  # the job may get the reservation

    def _relaxes_ns(self, job: Job) -> int | None:
        if not self.policy.level_patience_seconds:
            return None
        return relaxes_ns(self.policy, job, learnt_of(self.state), remaining_ns(self.policy, job))

    def _starve(self, job: Job) -> None:
        if not job.overdue and job.job_id not in self._starved:
            self._starved.add(job.job_id)
            heappush(self.starved, (job.submitted_ns, job.job_id))

    def could_ever_start(self, job: Job, shape: Shape | None = None) -> bool:
        """Return whether the job would fit on the available nodes and into its queue's limits if nothing else ran."""
        least = job.spec.min_ranks or job.spec.ranks
        if self.shares.limited and self.shares.never(job.spec.queue, least) is not None:
            return False
        if job.spec.mig_profile and not self.places_instances():
            return False
        return self.capacity.could_hold(job, shape) and self.has_memory(job.spec)

    def places_instances(self) -> bool:
        """Return whether the policy places MIG instances. Virtual clusters (cells) consist of whole slots."""
        return self.policy.mig and not uses_cells(self.policy)

    def has_memory(self, spec: JobSpec) -> bool:
        """Return whether a slot that the job may use is large enough for its device memory, or of unknown memory.

        It counts only if the rule of `Policy.sharing` divides slots.
        """
        needed = spec.slot_memory_mib if self.policy.sharing.divides and may_divide(spec) else 0
        if not needed:
            return True
        nodes = (node for node in self.state.nodes.values() if tier_of(node) is not None)
        able = (node for node in nodes if not spec.gpu_types or node.gpu_type in spec.gpu_types)
        return any(not node.slot_memory_mib or node.slot_memory_mib >= needed for node in able)

    def correct_expected_ends(self, now_ns: int) -> None:
        """Move expected ends that have passed to a later time.

        They are the ends of running jobs that run longer than estimated, and of jobs whose reserved slots are not free
        yet.
        """
        ends = self.ends
        while ends and ends[0].at_ns <= now_ns:
            self.update_expected_end(self.state.jobs[ends[0].job_id])
        past: set[str] = set()
        while (first := self.first_own_end()) is not None and first[0] <= now_ns:
            past.add(heappop(self.own_due)[1])
        for job_id in sorted(past):
            self.update_expected_end(self.state.jobs[job_id])
        if self.claimants:
            self.update_expected_restarts(self.claimants)

    # --- timeouts ----------------------------------------------------------------------------------------------------

    def due(self, now_ns: int) -> list[str]:
        """Return the ids of the jobs ('' for nodes) with timeouts that have expired since the last call."""
        found: list[str] = []
        self.stoppable_due = False
        timeouts = self.timeouts
        while timeouts and timeouts[0][0] <= now_ns:
            at_ns, job_id = heappop(timeouts)
            found.append(job_id)
            job = self.state.jobs.get(job_id)
            if job is not None and self._still_counts(job, at_ns):
                if job_id in self.line:
                    self._update(job)
                self.grown = self.changed = True
        return found

    def _still_counts(self, job: Job, at_ns: int) -> bool:
        """Return whether the job's timeout at at_ns still applies, so that a decision may change at that time.

        Outdated timeouts are not removed from the index; this check skips them.
        """
        if (
            job.job_id in self.line or job.job_id in self.claimants or job.job_id in self.opportunists
        ):  # a pause or patience has ended, or it has starved
            timers = (job.not_before_ns, job.awaited_until_ns, self._relaxes_ns(job))
            return at_ns in (*timers, order.starves_ns(self.state, job))
        if job.job_id not in self.held:
            return False
        weighed = bool(self.line.order or self.state.verdicts)
        if weighed and at_ns in self._stoppable_ns(job):
            self.stoppable_due = True
            return True
        falls = self.policy.order is Order.LAS and at_ns == las.falls_ns(self.state, job)
        idle = job.job_id in self.elastic and not self.state.waits
        sliced = bool(self.line.order) and at_ns == self._slice_ends_ns(job)
        return falls or sliced or (idle and at_ns == self._resizable_ns(job))

    def first_starved(self) -> Job | None:
        """Return the earliest submitted job past the starvation bound that is not overdue yet."""
        while self.starved:
            job_id = self.starved[0][1]
            job = self.state.jobs.get(job_id)
            if job is not None and job_id in self.line and not job.overdue:
                return job
            heappop(self.starved)
            self._starved.discard(job_id)
        return None

    def most_ranks(self, job: Job) -> int | None:
        """Return the maximum number of ranks with which the job may start now; None: the number that the job asks for.

        The limits of its queue can reduce the number, and the power budget that of an elastic job. An elastic job that
        is the only pending job can get more, after a long enough idle period.
        """
        found, most = self._most_ranks_of_queue(job), self.capacity.most
        if most is None or job.spec.min_ranks is None or (job.spec.ranks if found is None else found) <= most:
            return found
        return most

    def _most_ranks_of_queue(self, job: Job) -> int | None:
        spec = job.spec
        alone = (
            spec.max_ranks is not None
            and spec.restartable
            and len(self.line) == 1
            and not self.claimants
            and self.idle_seconds() >= self._patience_seconds(job, spec.ranks)
        )
        if not self.shares.limited:
            return spec.max_ranks if alone else None
        left = self.shares.left(spec.queue)
        most = spec.max_ranks if alone and spec.max_ranks is not None else spec.ranks
        if left is not None and left < most:
            return left
        return most if alone else None
