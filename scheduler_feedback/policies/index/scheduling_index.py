"""Scheduling index: values derived from the state, and the methods that change jobs, nodes and verdicts.

The index holds free slots, the queue order, expected ends of running gangs, and timeouts, so that no cycle scans all
jobs or nodes. All of them follow from the state alone. ``index_of`` builds the index if a state has none (a new state,
or one read from a snapshot). Afterwards only the methods below assign the fields on which the index depends
(``JOB_FIELDS`` and so on), so that index and state always agree. The index contains no decisions: an old and a newly
built index of the same state lead to the same decisions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappush

from scheduler_feedback.core.cluster import Node, NodeState
from scheduler_feedback.core.durations import nanoseconds
from scheduler_feedback.core.events import NodeSeen
from scheduler_feedback.core.job import (
    Job,
    JobKind,
    JobSpec,
    JobState,
    RankRecord,
    Slot,
    StepTimes,
    StopReason,
    TimeShift,
)
from scheduler_feedback.core.power import SlotPower
from scheduler_feedback.core.state import Order, Policy, Sharing, State
from scheduler_feedback.core.verdict import Verdict
from scheduler_feedback.policies.data.dataset_cache import forget
from scheduler_feedback.policies.index.runtime_estimate import type_speed, work_done
from scheduler_feedback.policies.index.tracked_jobs import TrackedJobs
from scheduler_feedback.policies.queue import order
from scheduler_feedback.policies.queue.order import fair, las
from scheduler_feedback.policies.speeds.learnt_memory import grown_mib, has_outgrown, learnt_mib, planned_mib
from scheduler_feedback.policies.speeds.learnt_speeds import learnt_of

JOB_FIELDS = frozenset(
    {
        *("spec", "state", "attempt", "ranks", "claim", "stop_reason", "submitted_ns", "attempt_started_ns"),
        *("stopping_ns", "ended_ns", "not_before_ns", "last_migration_ns", "run_ns", "done_seconds"),
        *("progress_ns", "limit_used_ns"),
        *("speed", "excluded_nodes", "overdue", "estimate_seconds", "urgency", "level", "turn", "array_of"),
        *("awaited_type", "awaited_until_ns", "relaxed", "guest_of", "learnt_mib", "peak_mib", "alone"),
        *("power_limit_watts", "power_speed", "mig_starts", "step_times"),
    }
)
"""Fields of a job on which the index depends."""

NODE_FIELDS = frozenset(
    {
        *("name", "slots", "state", "until_ns", "present", "slowdown", "spare", "refuses", "limits", "free"),
        *("reported_ns", "gpu_type", "spine", "rack", "rail", "island", "island_slots"),
        *("jobs_per_slot", "slot_memory_mib", "mig_profiles"),
    }
)
"""Fields of a node on which the index depends."""

STATE_FIELDS = frozenset({"policy", "jobs", "nodes", "verdicts", "waits", "emptied_ns", "queue_turns", "power"})
"""Fields of the state on which the index depends."""


def index_of(state: State) -> SchedulingIndex:
    """Return the scheduling index of the state. Build it if the state has none, or if the policy was replaced."""
    index = state.__dict__.get("index")
    if not isinstance(index, SchedulingIndex) or index.policy is not state.policy:
        if isinstance(index, SchedulingIndex):  # evaluate all pending jobs again
            state.idle = False
        index = state.__dict__["index"] = SchedulingIndex(state)
    return index


def free_derived(state: State) -> None:
    """Delete the index and the other derived values of a copy of the state that a newer copy has replaced.

    The index and the state refer to each other, so they would wait for Python's garbage collector, which stops all
    threads. ``index_of`` builds the index again if a reader still needs it.
    """
    state.__dict__.clear()


def drop_index(state: State) -> None:
    """Drop the index after code has changed jobs or nodes directly; ``index_of`` builds it again."""
    state.__dict__.pop("index", None)
    state.idle = False


class SchedulingIndex(TrackedJobs):
    """Index of the jobs and nodes of one state. Its methods change jobs and nodes and keep the index up to date."""

    __slots__ = ()

    # --- the cluster -------------------------------------------------------------------------------------------------

    def set_policy(self, policy: Policy) -> None:
        """Replace the policy, and evaluate all pending jobs again."""
        if policy is self.policy:
            return
        self.state.policy = policy
        self.state.idle = False
        if not policy.dataset_cache_gib:
            self.state.datasets = {}
        self.state.type_slots = {}  # the types are divided among the queues again
        for job in self.state.jobs.values():
            if job.state is JobState.PENDING:
                job.learnt_mib = learnt_mib(self.state, job)
        regrouped = self.regrouped
        TrackedJobs.__init__(self, self.state)  # in place: the cycle context refers to this index
        self.regrouped = regrouped

    def evaluate_all(self) -> None:
        """Request that this cycle evaluates all pending jobs again."""
        self.grown = self.changed = True

    def mark_evaluated(self) -> None:
        """Record that all pending jobs have been evaluated in this cycle."""
        self.grown = self.changed = False
        self.fresh = set()

    def add_verdict(self, verdict: Verdict) -> None:
        """Activate the verdict, or replace an active one with the same id."""
        self.state.verdicts[verdict.verdict_id] = verdict
        self._verdict_changed(verdict)

    def remove_verdict(self, verdict: Verdict) -> None:
        """Remove the verdict from the active verdicts."""
        del self.state.verdicts[verdict.verdict_id]
        self._verdict_changed(verdict)

    def _verdict_changed(self, verdict: Verdict) -> None:
        if verdict.aggressor:
            self.congestion_changed()
        if (job := self.state.jobs.get(verdict.gang)) is not None:
            self.update_expected_end(job)

    # --- nodes -------------------------------------------------------------------------------------------------------

    def report_node(self, event: NodeSeen) -> None:
        """Apply a backend's report of a node; add the node if it is new. An absent node keeps its size and place."""
        node = self.state.nodes.get(event.node)
        new = node is None
        if node is None:
            node = self.state.nodes[event.node] = Node(event.node, event.slots, since_ns=self.state.now_ns)
        node.present = event.present
        if event.present:
            node.slots, node.devices, node.machine = event.slots, event.devices, event.machine
            node.spine, node.rack, node.rail, node.island = event.spine, event.rack, event.rail, event.island
            node.gpu_type, node.island_slots = event.gpu_type, event.island_slots
            node.refuses, node.queues, node.limits = event.refuses, event.queues, event.limits
            node.free, node.reported_ns = event.free, self.state.now_ns
            node.jobs_per_slot, node.slot_memory_mib = event.jobs_per_slot, event.slot_memory_mib
            if node.mig_profiles != event.mig_profiles:
                node.mig_profiles = event.mig_profiles
                for slot in [slot for slot in self.divided if slot.node == node.name]:
                    self._divide(slot)
            self._topology_changed()
        if not new:
            self._node_changed(node)

    def set_node_state(
        self, node: Node, state: NodeState, until_ns: int | None, reason: str = "", verdict_id: str = ""
    ) -> None:
        """Change the node's state. until_ns: when the new state may end; None if only an event ends it."""
        node.state, node.since_ns, node.until_ns = state, self.state.now_ns, until_ns
        node.reason, node.verdict_id = reason, verdict_id
        self._node_changed(node)

    def recover_node(self, node: Node) -> None:
        """Make the node healthy, reset its slowdown, and remove it from the excluded nodes of all jobs."""
        node.slowdown = 1.0
        self.set_node_state(node, NodeState.HEALTHY, None)
        self._allow(node)

    def set_until(self, node: Node, until_ns: int | None) -> None:
        """Change the time at which the node's present state may end; None if only an event ends it."""
        node.until_ns = until_ns
        self._node_changed(node)

    def set_slowdown(self, node: Node, slowdown: float) -> None:
        """Change the slowdown that the node is expected to cause to a gang."""
        if slowdown != node.slowdown:
            node.slowdown = slowdown
            self._node_changed(node)

    def set_spare(self, node: Node, spare: bool) -> None:
        """Make the node a spare node, or make it an ordinary node again. A spare is reserved for gangs that leave a bad
        node."""
        node.spare = spare
        self._node_changed(node)
        self.appointed = True  # only the spares themselves have changed

    def remove_node(self, node: Node) -> None:
        """Remove the node, also from the excluded nodes of all jobs. No job may hold slots of it."""
        self._allow(node)
        del self.state.nodes[node.name]
        forget(self.state, node.name)
        self.doubtful.discard(node.name)
        self._topology_changed()

    def _topology_changed(self) -> None:
        self.plan_or_none = None
        learnt_of(self.state).forget()  # the narrowest placement depends on the sizes of the nodes
        self._capacity_changed()

    def _node_changed(self, node: Node) -> None:
        self._watch(node)
        if self.plan_or_none is not None:
            self.plan_or_none.change(node)
        self._capacity_changed()

    def _allow(self, node: Node) -> None:
        """Remove the node from the excluded nodes of every job."""
        for job_id in sorted(self.excluders):
            job = self.state.jobs[job_id]
            if node.name in job.excluded_nodes:
                job.excluded_nodes = tuple(name for name in job.excluded_nodes if name != node.name)
                self._update(job)

    # --- jobs: queue -------------------------------------------------------------------------------------------------

    def add_job(self, job: Job) -> None:
        """Add a new job. A pending job that is not a probe gets an expected run time and a place in the queue."""
        self.state.jobs[job.job_id] = job
        job.learnt_mib = learnt_mib(self.state, job)
        if job.state is JobState.PENDING and job.spec.kind is not JobKind.PROBE:
            if self.policy.order is Order.LAS:
                las.enter(self.state, job)
            fair.appraise(self.state, job, self.state.now_ns)
        if job.spec.after or job.array_of:
            self.dependencies.add(job)
        if self.dependencies.dependents or job.array_of:
            self._update(job)
        else:
            self._add(job)

    def add_probe(self, node: Node, probe: Job) -> None:
        """Add a probe of the quarantined node. From then on only the result of the probe ends the quarantine."""
        node.probe_job, node.until_ns = probe.job_id, None
        self.add_job(probe)

    def set_overdue(self, job: Job) -> None:
        """Put the pending job ahead of other jobs because it has waited too long."""
        job.overdue = True
        self._update(job)

    def relax(self, job: Job) -> None:
        """Let the pending job use placements that are wider than its preferred level."""
        job.relaxed = True
        self._update(job)

    def await_type(self, job: Job, gpu_type: str, until_ns: int) -> None:
        """Record the GPU type that the pending job waits for, and until when at most. gpu_type: '' for none."""
        job.awaited_type = gpu_type
        if until_ns != job.awaited_until_ns:
            job.awaited_until_ns = until_ns
            heappush(self.timeouts, (until_ns, job.job_id))

    def appraise(self, job: Job, key: tuple[object, ...] | None = None, least_change: float = 0.0) -> None:
        """Update the job's expected run time, and its urgency, by which pending jobs are sorted.

        key: present sort key of a pending job, else None. A pending job keeps its old values if its urgency changes by
        at most the share least_change (0.1 for a tenth).
        """
        urgency, estimate = job.urgency, job.estimate_seconds
        fair.appraise(self.state, job, self.state.now_ns)
        if key is None:
            return
        little = estimate is not None and abs(job.urgency - urgency) <= least_change * abs(urgency)
        if little:
            job.urgency, job.estimate_seconds = urgency, estimate
        if not little or order.key_of(self.state, job) != key:
            self._update(job)

    def demote(self, running: Iterable[Job]) -> None:
        """Move running jobs that have used enough GPU-seconds to the next level of the order ``las`` (least attained
        service)."""
        for job in las.demote(self.state, running, self.state.now_ns):
            self._expect_fall(job)

    def take_turns(self, chosen: Iterable[Job], stopped: Sequence[Job]) -> None:
        """Sort jobs after a preemption pass, within their level of the order ``las`` (least attained service).

        chosen: jobs that get slots; they come first. stopped: jobs that lose their slots; they come next.
        """
        for job in las.take_turns(self.state, chosen, stopped):
            self._update(job)

    def reserve(self, job: Job, slots: Iterable[Slot]) -> None:
        """Reserve slots for the pending job's next attempt, one per rank. If `slots` is empty, release the job's
        reservation."""
        job.claim = list(slots)
        self._update(job)

    # --- jobs: attempts ----------------------------------------------------------------------------------------------

    def start(
        self,
        job: Job,
        slots: Sequence[Slot],
        action_id: str,
        speed: float,
        guest_of: tuple[str, ...] = (),
        part: float = 0.0,
        mig_starts: tuple[int, ...] = (),
    ) -> None:
        """Start the job's next attempt, rank n on slots[n].

        speed: relative to the speed that the estimates assume. guest_of: ids of the jobs that hold these slots and
        share them with the attempt. part, mig_starts: see `Job.slot_part` and `Job.mig_starts`.
        """
        job.state, job.attempt = JobState.STARTING, job.attempt + 1
        job.ranks = [RankRecord(rank, slot) for rank, slot in enumerate(slots)]
        job.attempt_started_ns = self.state.now_ns
        job.started_ns = self.state.now_ns if job.started_ns is None else job.started_ns
        job.first_step_ns = None
        job.claim, job.failure, job.not_before_ns = [], "", 0
        job.expected_start_ns, job.appraise_ns = None, 0
        job.proposed, job.action_id, job.speed = "", action_id, speed
        job.awaited_type, job.awaited_until_ns, job.relaxed = "", 0, False
        job.guest_of, job.slot_part, job.mig_starts = guest_of, part, mig_starts
        job.peak_mib, job.learnt_mib = 0, self._at_most_slot(job.learnt_mib, slots)
        job.latency_seconds, job.alone_request_seconds, job.busy = None, None, 0.0
        job.power_limit_watts, job.power_speed, job.power_floor_watts, job.power_set_ns = 0.0, 1.0, 0.0, 0
        self._forget_steps(job)
        self._update(job)

    def _at_most_slot(self, mib: int, slots: Iterable[Slot]) -> int:
        """Return a learnt need, at most the device memory of the slots: a job that may need more uses them alone."""
        known = [node.slot_memory_mib for slot in slots if (node := self.state.nodes.get(slot.node)) is not None]
        return min([mib, *(one for one in known if one)])

    def measure_memory(self, job: Job, mib: int) -> None:
        """Record the largest device memory of a rank of the running attempt, in MiB."""
        job.peak_mib = mib
        self._note_memory(job)

    def plan_memory(self, job: Job) -> None:
        """Plan the device memory of the job by what its class has learnt.

        A job beside others keeps its plan, unless it has outgrown it and the slot has room for more.
        """
        needed = learnt_mib(self.state, job)
        if job.state is JobState.PENDING:
            if needed != job.learnt_mib:
                job.learnt_mib = needed
                self._update(job)
        elif job.state.holds_slots:
            self._plan_held(job, needed)

    def _plan_held(self, job: Job, needed: int) -> None:
        """Plan the memory of a job that holds slots, if it has them alone or has outgrown its plan."""
        least = grown_mib(job.peak_mib) if has_outgrown(job) else 0
        needed = max(needed, least)
        if not needed:
            return
        partners, held = self.partners(job.job_id), self.held.get(job.job_id, ())
        if partners and not least:
            return
        if partners:
            room = min([needed, *(room for slot in held if (room := self._room_mib(job, slot)) is not None)])
            needed = room if room >= least else 0
        else:
            needed = self._at_most_slot(needed, held)
        if needed and needed != job.learnt_mib:
            job.learnt_mib = needed
            self._note_memory(job)
            self.evaluate_all()  # other jobs may join it

    def _room_mib(self, job: Job, slot: Slot) -> int | None:
        """Return the device memory that the other jobs on a slot leave for the job; None if the slot's is unknown."""
        node = self.state.nodes.get(slot.node)
        if node is None or not node.slot_memory_mib:
            return None
        others = [self.state.jobs[one] for one in self.sharers.get(slot, ()) if one != job.job_id]
        return node.slot_memory_mib - sum(max(planned_mib(one), one.peak_mib) for one in others)

    def _note_memory(self, job: Job) -> None:
        held = self.held.get(job.job_id, ())
        self.touched.update((job.job_id, *self.partners(job.job_id)))
        if self.parts is not None:
            self.parts.touch(held)
        if has_outgrown(job):
            self.outgrown.add(job.job_id)
        else:
            self.outgrown.discard(job.job_id)

    def keep_alone(self, job: Job) -> None:
        """Record that the job shares no slots from now on. The caller must call ``requeue`` or ``end`` next."""
        job.alone = True

    def report_steps(self, job: Job, times: StepTimes | None) -> None:
        """Record the measured steps of a running gang; None to forget them."""
        job.step_times = times
        if times is None:
            self.stepping.discard(job.job_id)
        else:
            self.stepping.add(job.job_id)
            self.steps_changed.update(times.uplinks)

    def shift_steps(self, job: Job, shift: TimeShift | None) -> None:
        """Change the time shift of a running gang; None for none."""
        job.time_shift = shift

    def _forget_steps(self, job: Job) -> None:
        """Forget the measured steps of an attempt and its time shift, because it begins or has ended."""
        if job.step_times is not None:
            self.steps_changed.update(job.step_times.uplinks)
            self.stepping.discard(job.job_id)
        job.step_times, job.time_shift, job.shift_again_ns = None, None, 0

    def set_power_limit(self, job: Job, watts: float, speed: float) -> None:
        """Change the power limit of the running gang's GPUs, and its speed. watts: 0 for no limit. speed: relative to
        the highest limit."""
        if job.power_limit_watts:
            job.power_set_ns = self.state.now_ns
        job.power_limit_watts = watts
        (self.power_limited.add if watts else self.power_limited.discard)(job.job_id)
        if speed == job.power_speed:
            return
        if job.spec.restartable and job.attempt_started_ns is not None:
            job.done_seconds, job.progress_ns = work_done(job, self.state.now_ns), self.state.now_ns
        job.speed, job.power_speed = job.speed / job.power_speed * speed, speed
        self.update_expected_end(job)

    def set_power_floor(self, job: Job, watts: float) -> None:
        """Set the lowest power limit that the running gang should get."""
        job.power_floor_watts = watts

    def report_power(self, node: str, slots: tuple[SlotPower, ...], capacity: bool) -> None:
        """Apply a report of the power of a node's GPUs. capacity: whether it changes which gangs could ever start."""
        if slots:
            self.state.power[node] = slots
        else:
            self.state.power.pop(node, None)
        if capacity:
            self._capacity_changed()
        elif self.claimants:
            self.evaluate_all()

    def share_again(self, job: Job, guest_of: tuple[str, ...], speed: float) -> None:
        """Update a running job after a change of the jobs on its slots, or of its measured speed beside them.

        guest_of: the jobs that it joined and that still hold its slots. speed: relative to the speed that the estimates
        assume.
        """
        job.guest_of = guest_of
        self.touched.add(job.job_id)
        speed *= job.power_speed
        if speed != job.speed:
            if job.spec.restartable and job.attempt_started_ns is not None:
                job.done_seconds, job.progress_ns = work_done(job, self.state.now_ns), self.state.now_ns
            job.speed = speed
        self.update_expected_end(job)

    def run(self, job: Job, ranks: list[RankRecord] | None) -> None:
        """Record that all ranks run. ranks: the ranks that the backend reported; None if it reported none."""
        if ranks is not None:
            job.ranks = ranks
        if job.state is JobState.STARTING:
            job.state, job.excluded_nodes = JobState.RUNNING, ()
        elif ranks is None:
            return
        if self.held.get(job.job_id) != tuple([rank.slot for rank in job.ranks]):
            self._update(job)
        elif job.state is JobState.RUNNING:
            self._note_running(job)

    def _note_running(self, job: Job) -> None:
        self.running.add(job.job_id)
        self.touched.add(job.job_id)
        self._forget_start(job.job_id, self.held.get(job.job_id, ()))
        levels = self.policy.defragmentation_moves and job.spec.restartable and self.line.needs_level()
        hosts = job.spec.shareable and self.policy.sharing is not Sharing.NONE and not self.policy.sharing.divides
        if job.job_id in self.elastic or levels or hosts:  # it may be resized, moved or joined from now on
            self.grown = True
        if not job.excluded_nodes:
            self.excluders.discard(job.job_id)
        if job.spec.kind is JobKind.PROBE and job.attempt_started_ns is not None:
            at_ns = job.attempt_started_ns + nanoseconds(self.policy.probe_timeout_seconds)
            heappush(self.timeouts, (at_ns, job.job_id))

    def run_external(self, job: Job, spec: JobSpec, attempt: int, placement: Iterable[Slot], began_ns: int) -> None:
        """Record an attempt that another scheduler has started. Its job is new, or had ended before."""
        new = job.job_id not in self.state.jobs
        job.spec, job.state, job.attempt = spec, JobState.RUNNING, attempt
        job.ranks = [RankRecord(rank, slot) for rank, slot in enumerate(placement)]
        job.attempt_started_ns = began_ns
        job.started_ns = began_ns if job.started_ns is None else job.started_ns
        job.ended_ns, job.end_reason, job.failure = None, "", ""
        job.first_step_ns, job.stop_reason, job.action_id = None, None, ""
        job.proposed = ""
        if new:
            self.add_job(job)
        else:
            self.ended = [one for one in self.ended if one[1] != job.job_id]
            self._update(job)

    def report_progress(self, job: Job, done_seconds: float) -> None:
        """Record how much work the running job has done, in seconds at full speed."""
        job.done_seconds, job.progress_ns = done_seconds, self.state.now_ns
        self.update_expected_end(job)

    def correct_speed(self, job: Job, speed: float) -> None:
        """Correct the speed of the running attempt from now on, and evaluate pending jobs and sizes again."""
        if job.spec.restartable:
            job.done_seconds, job.progress_ns = work_done(job, self.state.now_ns), self.state.now_ns
        job.speed = speed * job.power_speed
        self.update_expected_end(job)
        self.evaluate_all()

    def stop(self, job: Job, reason: StopReason, failure: str | None = None) -> None:
        """Record that the attempt is to be stopped. failure: the reason as a sentence; None keeps the last one."""
        job.stop_reason = reason
        job.failure = job.failure if failure is None else failure
        self._note_stopping(job)

    def cancel(self, job: Job, failure: str) -> None:
        """Record that the attempt is to be stopped for good, and release the job's reservation."""
        job.stop_reason, job.failure, job.claim = StopReason.CANCEL, failure, []
        self._update(job)

    def move(
        self,
        job: Job,
        target: Iterable[Slot] = (),
        reason: StopReason = StopReason.MIGRATE,
        failure: str | None = None,
        excluded: tuple[str, ...] | None = None,
    ) -> None:
        """Record that the attempt is to be stopped, and that the job continues on other slots.

        target: slots to reserve for the next attempt; if empty, the job waits in the queue. excluded: names of nodes
        that the job must not use.
        """
        job.stop_reason, job.claim = reason, list(target)
        job.failure = job.failure if failure is None else failure
        job.last_migration_ns = self.state.now_ns
        job.excluded_nodes = job.excluded_nodes if excluded is None else excluded
        self._update(job)

    def request_stop(self, job: Job, action_id: str, again_ns: int) -> None:
        """Record that the backend was asked to stop the gang. again_ns: time at which the request is repeated."""
        job.state = JobState.STOPPING
        job.stopping_ns = self.state.now_ns if job.stopping_ns is None else job.stopping_ns
        job.action_id = action_id
        self.repeat_stop(job, again_ns)

    def repeat_stop(self, job: Job, again_ns: int) -> None:
        """Set the time at which the request to stop the gang is repeated."""
        job.not_before_ns = again_ns
        self._note_stopping(job)

    def _note_stopping(self, job: Job) -> None:
        self.stopping.add(job.job_id)
        self.touched.update((job.job_id, *self.partners(job.job_id)))
        if job.not_before_ns:
            heappush(self.timeouts, (job.not_before_ns, job.job_id))
        if job.state is JobState.STOPPING:
            self.running.discard(job.job_id)
            self.update_expected_end(job)

    def leave_attempt(self, job: Job, ranks: list[RankRecord], ended_ns: int, ran_ns: int, done_seconds: float) -> None:
        """Record the end of the attempt. The caller must call ``requeue`` or ``end`` next, which update the index.

        ranks: the ranks with their exit codes, on the same slots. ran_ns: run time of the attempt, 0 if it does not
        count.
        """
        speed = type_speed(self.policy, job)
        job.ranks, job.attempt_ended_ns = ranks, ended_ns
        job.run_ns += ran_ns
        job.limit_used_ns += round(ran_ns * speed)
        job.done_seconds, job.progress_ns = done_seconds, None
        job.stopping_ns, job.action_id, job.not_before_ns = None, "", 0
        job.power_limit_watts, job.power_speed, job.power_floor_watts = 0.0, 1.0, 0.0
        self._forget_steps(job)

    def requeue(self, job: Job, why: str, not_before_ns: int = 0, keep_claim: bool = True) -> None:
        """Put the job back into the queue. keep_claim: keep the slots that are reserved for its restart."""
        job.state, job.stop_reason, job.failure = JobState.PENDING, None, why
        job.not_before_ns = not_before_ns
        job.claim = job.claim if keep_claim else []
        job.peak_mib, job.learnt_mib = 0, learnt_mib(self.state, job)
        fair.appraise(self.state, job, self.state.now_ns)
        self._update(job)

    def end(self, job: Job, state: JobState, reason: str) -> None:
        """End the job: set its final state and the reason."""
        job.state, job.end_reason, job.ended_ns = state, reason, self.state.now_ns
        job.claim, job.excluded_nodes, job.stop_reason, job.cell_slots = [], (), None, []
        job.expected_start_ns, job.not_before_ns = None, 0
        self._update(job)

    def forget_ended(self, kept: int) -> None:
        """Drop the oldest ended jobs beyond this number, except jobs on which other jobs still depend."""
        extra = len(self.ended) - kept
        self.ended.sort()
        oldest = self.ended[:extra]
        needed = [one for one in oldest if self.dependencies.needed(self.state.jobs[one[1]])]
        self.ended[:extra] = needed
        for one in oldest:
            if one not in needed:
                self.dependencies.forget(self.state.jobs[one[1]])
                del self.state.jobs[one[1]]
