"""Small random cluster that applies the cycle's decisions and independently checks the scheduling invariants.

The checks use the actions and the attempts that really run, not the cycle's own state:

=====================  =================================================================================================
all or nothing         a start has one distinct, existing, free slot for each rank that the gang may have
timeouts               time alone leads to a decision only at a registered timeout; an idle cycle changes nothing
no slot twice          no slot is assigned while another attempt runs on it, or reserved for two gangs
sharing                jobs on one slot are all shareable, as few as the node allows, and fit in memory and share
quota                  a queue with all queues below it holds at most its limit, or its quota if it may not borrow
GPU types              quotas of each type, after trades, add up to the slots; no gang is stopped for another queue
                       while its own queue holds no more than its quota of the gang's type
reservation            the head's reservation moves back only for outside reasons (a verdict, a lost node, a
                       cancellation, an overrun, a freeze, a policy change), never because of backfilled jobs
no starvation          of equal priority, starved jobs go before all others
power budget           no start and no rise of a limit lets the GPUs draw more than the budget, whatever agents have
                       already set; wanted limits exceed it only if all are the lowest
quarantine is bounded  verdicts alone never quarantine more nodes than the caps of the cluster and of a rack allow
spares                 only preemptible gangs, and gangs that were moved there, start on a spare
frozen                 no gang starts, and only operators change the state of a node
no harm                an attempt that is not restartable is stopped only for a cancellation, its own failure or a late
                       start; nothing else is stopped while actions are frozen
=====================  =================================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from scheduler_feedback import cycle
from scheduler_feedback.core.actions import StartGang, StopGang
from scheduler_feedback.core.cluster import NodeState
from scheduler_feedback.core.codec import decode_event, decode_state, encode_event, encode_state
from scheduler_feedback.core.events import (
    AttemptEnded,
    AttemptRunning,
    Event,
    FirstStep,
    FreezeSet,
    NodeCommand,
    NodeCommanded,
    NodeSeen,
    PolicySet,
    PowerSeen,
    RankExit,
    RankSeen,
    Submitted,
    Tick,
    VerdictJudged,
    as_seen,
)
from scheduler_feedback.core.job import Job, JobKind, JobSpec, JobState, Slot, StopReason
from scheduler_feedback.core.mig import MODELS
from scheduler_feedback.core.power import SlotPower
from scheduler_feedback.core.state import Backfilling, Estimates, Mode, Order, Policy, Queue, Sizes, State
from scheduler_feedback.journal.replay import replay
from scheduler_feedback.policies.gpu_types.type_trades import own_slots
from scheduler_feedback.policies.index.held_slots import claimed_ranks
from scheduler_feedback.policies.index.scheduling_index import index_of
from scheduler_feedback.policies.power.account import account_of
from scheduler_feedback.policies.power.limits import wanted_limits
from scheduler_feedback.policies.queue.placement import attempt_speed
from tests.cluster.scheduling_rules import (
    check_books,
    check_claims,
    check_index,
    check_instances,
    check_metrics,
    check_start,
    check_timeouts,
)

SECOND = 1_000_000_000
START_NS = 1_700_000_000 * SECOND

DERIVED = 7
"""Cycles between two checks of the metrics, because the check takes longer than a cycle."""

SETTLED = 16
"""Cycles between two checks that an evaluation of everything decides nothing more."""

LEAST_WATTS, MOST_WATTS, IDLE_WATTS = 100.0, 240.0, 30.0
"""Power limits and idle power of each GPU."""

_HARMLESS = (Submitted, AttemptRunning, Tick, FirstStep)
"""Events after which a reservation must not move back, as well as ends of jobs without a stop request."""


@dataclass
class Living:
    """Running attempt, which ends at ends_ns with exit code `code`.

    began_ns: start of its work. warm_ns: duration of its restart. seen: whether it was reported as running.
    """

    slots: tuple[Slot, ...]
    began_ns: int
    ends_ns: int
    code: int
    kind: JobKind
    warm_ns: int = 0
    seen: bool = False
    stopping: StopGang | None = None
    mig_starts: tuple[int, ...] = ()


@dataclass
class Ordeal:
    """Random cluster that checks the invariants. sizes: slots of each node. types: number of GPU types, in turn.
    true_seconds: work of each job at full size."""

    sizes: tuple[int, ...]
    policy: Policy
    racks: int = 0
    types: int = 1
    jobs_per_slot: int = 1
    slot_memory_mib: int = 0
    index_every: int = 1
    """Cycles between two comparisons of the index with one that is built again, which takes as long as two cycles, and
    between two evaluations of the reason why a job waits, which takes a third of the time with many jobs."""
    mig_models: tuple[str, ...] = ()
    """GPU models of the nodes, in turn; '' for one that cannot be divided. Empty: none can."""
    now_ns: int = START_NS
    state: State = field(init=False)
    alive: dict[tuple[str, int], Living] = field(default_factory=dict)
    owner: dict[Slot, tuple[str, ...]] = field(default_factory=dict)
    left_seconds: dict[str, float] = field(default_factory=dict)
    codes: dict[str, int] = field(default_factory=dict)
    journal: list[tuple[int, list[Event], cycle.Outcome]] = field(default_factory=list)
    snapshot: bytes = b""
    promised: tuple[str, int, int, int] | None = None
    ends: dict[str, int] = field(default_factory=dict)
    submitted: int = 0
    cycles: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    same_settings: bool = True
    limits: dict[Slot, float] = field(default_factory=dict)
    """Power limit of each GPU, as its agent last reported it."""
    settable: dict[str, bool] = field(default_factory=dict)
    """Whether the agent of each node sets power limits."""

    def __post_init__(self) -> None:
        self.state = State(policy=self.policy)
        self.snapshot = encode_state(self.state)
        self.cycle(*(self.node(number) for number in range(len(self.sizes))))
        for number, slots in enumerate(self.sizes):
            self.settable[f"n{number}"] = True
            self.limits |= {Slot(f"n{number}", slot): MOST_WATTS for slot in range(slots)}
        if self.policy.power_budget_watts:
            self.report_power(range(len(self.sizes)), True)

    # --- actions -----------------------------------------------------------------------------------------------------

    def node(self, number: int, present: bool = True) -> NodeSeen:
        rack = f"r{number % self.racks}" if self.racks else ""
        gpu_type = f"t{number % self.types}" if self.types > 1 else ""
        name = f"n{number}"
        return NodeSeen(
            name,
            self.sizes[number],
            machine=name,
            rack=rack,
            present=present,
            gpu_type=gpu_type,
            jobs_per_slot=self.jobs_per_slot,
            slot_memory_mib=self.slot_memory_mib,
            mig_profiles=MODELS.get(self.mig_models[number % len(self.mig_models)], ()) if self.mig_models else (),
        )

    def submit(self, *wanted: tuple[JobSpec, float, int], also: tuple[Event, ...] = ()) -> list[str]:
        """Submit jobs (specification, seconds of work, exit code) and other events in one cycle. Return the jobs'
        ids."""
        events: list[Event] = []
        for spec, true_seconds, code in wanted:
            self.submitted += 1
            job_id = f"j{self.submitted}"
            for member in [job_id, *(f"{job_id}.{index}" for index in range(spec.array_size))]:
                self.left_seconds[member], self.codes[member] = true_seconds, code
            events.append(Submitted(job_id, spec))
        if len(wanted) > 1:
            self.counts["cycles with many submissions"] = self.counts.get("cycles with many submissions", 0) + 1
        self.cycle(*also, *events)
        return [event.job_id for event in events if isinstance(event, Submitted)]

    def report_power(self, numbers: Iterable[int], confirms: bool, settable: bool | None = None) -> None:
        """Report the GPUs of these nodes. confirms: whether their agents have set the wanted limits."""
        index, events = index_of(self.state), []
        wanted = wanted_limits(self.state, account_of(self.state, index), index)
        for number in numbers:
            name = f"n{number}"
            self.settable[name] = self.settable[name] if settable is None else settable
            slots = []
            for slot in range(self.sizes[number]):
                place = Slot(name, slot)
                if confirms and self.settable[name]:
                    self.limits[place] = (wanted.get(name, ()) or (LEAST_WATTS,) * 9)[slot] or LEAST_WATTS
                elif not self.settable[name]:
                    self.limits[place] = MOST_WATTS
                limit = self.limits[place]
                slots.append(SlotPower(LEAST_WATTS, MOST_WATTS, limit, IDLE_WATTS, self.settable[name]))
            events.append(PowerSeen(name, tuple(slots)))
        self.cycle(*events)

    def seen(self) -> None:
        """Report every attempt as running that was not reported yet."""
        new = [key for key, living in self.alive.items() if not living.seen]
        for key in new:
            self.alive[key].seen = True
        if new:
            self.cycle(*(self._running(*key) for key in new))

    def _running(self, job_id: str, attempt: int) -> AttemptRunning:
        slots = self.alive[job_id, attempt].slots
        return AttemptRunning(job_id, attempt, tuple(RankSeen(n, s.node, s.slot, 9, 9) for n, s in enumerate(slots)))

    def advance(self, seconds: float) -> None:
        """Advance the time. A cycle runs at each end of an attempt, at each timeout, and at the end."""
        until_ns = self.now_ns + round(seconds * SECOND)
        for _ in range(500):
            ends_ns = min((living.ends_ns for living in self.alive.values()), default=until_ns)
            wake_ns = cycle.next_wake_ns(self.state)
            next_ns = min(until_ns, ends_ns, wake_ns if wake_ns is not None and wake_ns > self.now_ns else until_ns)
            self.now_ns = max(self.now_ns, next_ns)
            ended = [key for key, living in self.alive.items() if living.ends_ns <= self.now_ns]
            self.cycle(*([self.end(*key) for key in ended] or [Tick()]))
            self.seen()
            if self.now_ns >= until_ns and not any(one.ends_ns <= self.now_ns for one in self.alive.values()):
                return

    def end(self, job_id: str, attempt: int, code: int | None = None, started: bool = True) -> AttemptEnded:
        """Remove the attempt. Return the event that reports its end."""
        living = self.vanish(job_id, attempt)
        stop, code = living.stopping, living.code if code is None else code
        if living.kind is JobKind.TRAINING and started:
            self._count_work(job_id, living)
        job = self.state.jobs[job_id]
        known = self.policy.estimates is not Estimates.LIMIT and started and living.kind is JobKind.TRAINING
        total = job.spec.exact_seconds
        return AttemptEnded(
            job_id,
            attempt,
            tuple(RankExit(rank, code) for rank in range(len(living.slots))),
            started=started,
            reason="" if started else "no such program",
            ended_wall_ns=self.now_ns,
            signalled=stop is not None,
            why=stop.why.value if stop is not None else "",
            done_seconds=total - self.left_seconds[job_id] if known and total is not None else None,
        )

    def vanish(self, job_id: str, attempt: int) -> Living:
        """Remove the attempt without a report, and return it."""
        living = self.alive.pop((job_id, attempt))
        for slot in dict.fromkeys(living.slots):
            left = tuple(one for one in self.owner[slot] if one != job_id)
            if left:
                self.owner[slot] = left
            else:
                del self.owner[slot]
        return living

    def progress(self, job_id: str, attempt: int) -> float:
        """Save the job's work until now. Return it in seconds."""
        living = self.alive[job_id, attempt]
        self._count_work(job_id, living)
        living.warm_ns = max(living.warm_ns - (self.now_ns - living.began_ns), 0)
        living.began_ns = self.now_ns
        total = self.state.jobs[job_id].spec.exact_seconds
        assert total is not None
        return total - self.left_seconds[job_id]

    def _count_work(self, job_id: str, living: Living) -> None:
        """Update the job's saved work. A job that is not restartable saves nothing."""
        job = self.state.jobs[job_id]
        if not job.spec.restartable:
            return
        passed = max(min(self.now_ns, living.ends_ns) - living.began_ns - living.warm_ns, 0) / 1e9
        self.left_seconds[job_id] = max(self.left_seconds[job_id] - passed * self._speed(job, living.slots), 0.0)

    def _warms(self, job: Job) -> bool:
        """Return whether a restart adds to the run time: not if estimates are limits, which include restarts."""
        return job.attempt > 1 and self.policy.estimates is not Estimates.LIMIT

    def _speed(self, job: Job, slots: tuple[Slot, ...]) -> float:
        gpu_type = self.state.nodes[slots[0].node].gpu_type
        of_type = self.policy.throughput.get("", {}).get(gpu_type, 1.0)
        return of_type if self.policy.estimates is Estimates.LIMIT else len(slots) / job.spec.ranks * of_type

    # --- a cycle, applied and checked --------------------------------------------------------------------------------

    def cycle(self, *events: Event) -> cycle.Outcome:
        reported = [decode_event(encode_event(event)) for event in events]
        nodes = self._nodes()
        frozen_before, by_type = self.state.frozen, self._held_by_type()
        drawn = self._watts_by_slot()
        outcome = cycle.run(self.state, reported, self.now_ns)
        self.cycles += 1
        if outcome.changed:
            self.journal.append((self.now_ns, reported, outcome))
        for event in events:
            if isinstance(event, PolicySet):
                self.policy, self.same_settings = event.policy, False
        for action in outcome.actions:
            if isinstance(action, StartGang):
                self._start(action)
            else:
                self._stop(action, frozen_before and self.state.frozen)
        check_books(self.state, self.cycles, self.index_every)
        check_claims(self.state, self.owner)
        self._check_quota(any(isinstance(event, PolicySet) for event in events))
        self._check_types(outcome, by_type)
        self._check_power(drawn)
        self._check_order()
        self._check_observed()
        self._check_frozen(frozen_before and self.state.frozen, nodes, events)
        self._check_quarantine({name for name, node in nodes.items() if node[0] is NodeState.QUARANTINE}, events)
        self._check_reservation(events, outcome, nodes == self._nodes())
        if self.cycles % self.index_every == 0:
            check_index(self.state)
        if self.cycles % DERIVED == 0:
            check_metrics(self.state)
        if self.cycles % SETTLED == 0 and self.state.idle and self.settles():
            check_timeouts(self.state, 0, True)
        for entry in outcome.entries:
            self.counts[entry.kind] = self.counts.get(entry.kind, 0) + 1
        return outcome

    def _start(self, action: StartGang) -> None:
        job, slots = self.state.jobs[action.job_id], action.placement
        check_start(self.state, action, self.owner)
        for slot in dict.fromkeys(slots):
            node = self.state.nodes[slot.node]
            lent = not node.spare or (job.spec.preemptible and job.spec.restartable) or job.spec.pinned_node is not None
            kept = "its reserved slots" in action.reason  # since before the node became a spare, or to move there
            assert lent or kept, f"{action.job_id} is lent a spare, and may not be stopped"
            self.owner[slot] = (*self.owner.get(slot, ()), action.job_id)
        assert not any(key[0] == action.job_id for key in self.alive), f"{action.job_id} starts twice"
        probe = job.spec.kind is JobKind.PROBE
        warm = job.spec.restart_cost_seconds if self._warms(job) else 0.0
        seconds = 2.0 if probe else warm + self.left_seconds[action.job_id] / self._speed(job, slots)
        code = 0 if probe else self.codes[action.job_id]
        ends_ns = self.now_ns + max(round(seconds * SECOND), 1)
        self.alive[action.job_id, action.attempt] = Living(
            slots, self.now_ns, ends_ns, code, job.spec.kind, round(warm * SECOND), mig_starts=action.mig_starts
        )
        self._check_instances()

    def _check_instances(self) -> None:
        """Check the MIG instances of all running attempts."""
        found: dict[Slot, list[tuple[str, int]]] = {}
        for (job_id, _), living in self.alive.items():
            for slot, start in zip(living.slots, living.mig_starts, strict=False):
                found.setdefault(slot, []).append((self.state.jobs[job_id].spec.mig_profile, start))
        check_instances(self.state, found)

    def _stop(self, action: StopGang, frozen: bool) -> None:
        spec = self.state.jobs[action.job_id].spec
        own = (StopReason.CANCEL, StopReason.RANK_FAILED, StopReason.START_FAILED)
        observing = self.policy.mode is Mode.OBSERVE and self.same_settings
        assert not observing or action.why in own, f"{action.job_id} is stopped ({action.why}) in observe mode"
        assert spec.restartable or action.why in own, f"{action.job_id} is stopped, but is not restartable"
        if action.why is StopReason.PREEMPT:
            assert spec.preemptible, f"{action.job_id} is preempted, but not preemptible"
        assert not frozen or action.why is StopReason.CANCEL, f"{action.job_id} is stopped while actions are frozen"
        living = self.alive.get((action.job_id, action.attempt))
        if living is not None and living.stopping is None:
            living.stopping = action
            saved_ns = self.now_ns + round(min(action.grace_seconds, 1.0) * SECOND)
            if saved_ns < living.ends_ns:
                living.ends_ns, living.code = saved_ns, 143

    # --- what must hold ----------------------------------------------------------------------------------------------

    def _check_quota(self, new_policy: bool) -> None:
        """Check limits against running attempts and reserved slots. After a policy change, an excess may not grow."""
        if not self.policy.queues:
            return
        queues = {queue.name: queue for queue in self.policy.queues}
        taken = {job_id: len(living.slots) for (job_id, _), living in self.alive.items()}
        for job in self.state.jobs.values():
            if job.claim:
                taken[job.job_id] = max(taken.get(job.job_id, 0), claimed_ranks(job, job.claim))
        held = dict.fromkeys(queues, 0)
        for job_id, slots in taken.items():
            name = self.state.jobs[job_id].spec.queue
            while name in queues:
                held[name] += slots
                name = queues[name].parent
        for name, queue in queues.items():
            most = _most(queue)
            grown = not new_policy and held[name] > self.held.get(name, 0)
            assert not grown or held[name] <= most, f"queue {name} holds {held[name]} slots of {most}"
        self.held = held

    def _held_by_type(self) -> dict[tuple[str, str], int]:
        """Return the slots that each queue with a quota holds, or has reserved, by (queue, GPU type)."""
        found: dict[tuple[str, str], int] = {}
        for job in self.state.jobs.values() if self.state.policy.queues else ():
            held = [rank.slot for rank in job.ranks] if job.state.holds_slots else []
            for slot in job.claim if len(job.claim) > len(held) else held:
                key = self._owner_of(job), self.state.nodes[slot.node].gpu_type
                found[key] = found.get(key, 0) + 1
        return found

    def _watts_by_slot(self) -> dict[Slot, float]:
        """Return the limit that the scheduler wants for the GPU of each busy slot; 0 if it has chosen none."""
        found: dict[Slot, float] = {}
        known = self.state.power or self.state.policy.power_budget_watts
        for job in self.state.jobs.values() if known else ():
            for rank in job.ranks if job.state.holds_slots else ():
                found[rank.slot] = max(found.get(rank.slot, 0.0), job.power_limit_watts)
        return found

    def _drawn(self, wanted: dict[Slot, float], confirmed: bool) -> float:
        """Return what the reported GPUs may draw. wanted: limits of the busy ones. confirmed: agents may not have set
        them yet."""
        total = 0.0
        for node, slots in self.state.power.items():
            for number, one in enumerate(slots):
                limit = wanted.get(Slot(node, number))
                if limit is None:
                    total += one.idle_watts
                elif not one.settable:
                    total += one.limit_watts
                else:
                    limit = min(max(limit, one.least_watts), one.most_watts)
                    total += max(limit, one.limit_watts) if confirmed else limit
        return total

    def _check_power(self, before: dict[Slot, float]) -> None:
        """Check the power budget. before: wanted limits of busy GPUs before the cycle."""
        budget = self.state.policy.power_budget_watts
        if not budget or self.state.policy.mode is Mode.OBSERVE:
            return
        after = self._watts_by_slot()
        most = max(budget, self._drawn({slot: limit for slot, limit in before.items() if slot in after}, True))
        drawn = self._drawn(after, True)
        assert drawn <= most + 1e-3, f"the GPUs may draw {drawn} W of {budget} W, and {most} W before"
        if not self.state.frozen and self._drawn(after, False) > budget + 1e-3:
            assert self._drawn(dict.fromkeys(after, 0.0), False) > budget - 100.0, "limits could be lower"
        self.counts["cycles with a power budget"] = self.counts.get("cycles with a power budget", 0) + 1

    def _owner_of(self, job: Job) -> str:
        queues, name = {queue.name: queue for queue in self.state.policy.queues}, job.spec.queue
        while name in queues and queues[name].quota is None:
            name = queues[name].parent
        return name if name in queues else ""

    def _check_types(self, outcome: cycle.Outcome, before: dict[tuple[str, str], int]) -> None:
        """Check the division of GPU types. before: slots by (queue, GPU type) before the cycle."""
        state = self.state
        if not state.type_shares:
            assert not state.type_trades
            return
        quotas = {queue.name: queue.quota for queue in state.policy.queues if queue.quota is not None}
        own = own_slots(quotas, state.type_slots)
        assert all(sum(own[name].values()) == quota for name, quota in quotas.items()) or sum(quotas.values()) > sum(
            state.type_slots.values()
        ), "each queue owns its quota"
        for one in state.type_trades:
            for name, sign in ((one.seller, -1), (one.buyer, 1)):
                own[name][one.fast] += sign * one.fast_slots
                own[name][one.slow] -= sign * one.slow_slots
        after = {name: {kind: count for kind, count in held.items() if count} for name, held in own.items()}
        assert after == state.type_shares, "quotas of each type change only through trades"
        assert all(count > 0 for held in after.values() for count in held.values())
        reserved = self._held_by_type()
        self.counts["divisions with trades"] = self.counts.get("divisions with trades", 0) + bool(state.type_trades)
        for action in outcome.actions:
            if not isinstance(action, StopGang) or action.why is not StopReason.PREEMPT:
                continue
            victim = state.jobs[action.job_id]
            first = state.jobs.get(action.reason.partition("preempted; ")[2].partition(" ")[0])
            owner = self._owner_of(victim)
            if not owner or first is None or self._owner_of(first) == owner or first.overdue:
                continue
            kinds = {state.nodes[rank.slot.node].gpu_type for rank in victim.ranks}
            held = {kind: max(before.get((owner, kind), 0), reserved.get((owner, kind), 0)) for kind in kinds}
            assert any(held[kind] > after[owner].get(kind, 0) for kind in kinds), (
                f"{action.job_id} is stopped for {first.job_id}, and its queue {owner} holds only its own"
            )

    def _check_order(self) -> None:
        line = index_of(self.state).line.order
        if self.policy.order is Order.FIFO or not line or self.state.frozen:
            return
        bound_ns = round(self.policy.starvation_seconds * SECOND)
        waiting = [self.state.jobs[key[-1]] for key in line]
        first: Job | None = None
        for job in waiting:
            since_ns = job.submitted_ns + job.run_ns
            if self.policy.order is Order.ROUND_ROBIN and job.attempt_ended_ns is not None:
                since_ns = job.attempt_ended_ns
            if since_ns + bound_ns > self.now_ns:
                if first is None or first.spec.priority > job.spec.priority:
                    first = job
            elif first is not None:
                assert first.spec.priority != job.spec.priority, f"{job.job_id} starves behind {first.job_id}"

    def _check_observed(self) -> None:
        """Check that observe mode applies no decision, and decides once for each verdict."""
        if self.policy.mode is Mode.OBSERVE and self.same_settings:
            decisions = self.state.decisions
            assert not any(decision.applied for decision in decisions)
            assert len({one.verdict_id for one in decisions}) == len(decisions), "once for each verdict"

    def _check_frozen(
        self, frozen: bool, before: dict[str, tuple[NodeState, bool, bool, float]], events: tuple[Event, ...]
    ) -> None:
        """Check that only operators change node states while actions are frozen."""
        if not frozen or any(
            isinstance(event, NodeCommanded | VerdictJudged | NodeSeen | PolicySet) for event in events
        ):
            return
        assert {name: node[0] for name, node in before.items()} == {n.name: n.state for n in self.state.nodes.values()}

    def _check_quarantine(self, standing: set[str], events: tuple[Event, ...]) -> None:
        if any(isinstance(event, NodeCommanded | VerdictJudged | NodeSeen) for event in events):
            return
        nodes = self.state.nodes
        out = {name for name, node in nodes.items() if node.state is NodeState.QUARANTINE}
        # A node confirmed by an operator may be quarantined later, after the rejection of another verdict or a freeze.
        fresh = {name for name in out - standing if self.state.judged.get(nodes[name].verdict_id) is not True}
        for name in fresh:
            most = max(1, int(self.policy.quarantine_max_fraction * len(nodes)))
            assert len(out) <= most, f"{len(out)} nodes are in quarantine, {most} are allowed"
            if rack := nodes[name].rack:
                inside = {other.name for other in nodes.values() if other.rack == rack}
                most = max(1, int(self.policy.quarantine_max_rack_fraction * len(inside)))
                assert len(out & inside) <= most, f"{len(out & inside)} nodes of rack {rack} are in quarantine"

    def _nodes(self) -> dict[str, tuple[NodeState, bool, bool, float]]:
        return {name: (n.state, n.present, n.spare, n.slowdown) for name, n in self.state.nodes.items()}

    def _check_reservation(self, events: tuple[Event, ...], outcome: cycle.Outcome, same_nodes: bool) -> None:
        """Check that backfilled jobs do not delay the head's reserved start."""
        before, state = self.promised, self.state
        stopped = any(isinstance(action, StopGang) for action in outcome.actions)
        asked = any(job.stop_reason is not None for job in state.jobs.values())
        harmless = same_nodes and all(isinstance(event, _HARMLESS) or _is_plain_end(event) for event in events)
        exact = self.policy.estimates is not Estimates.HISTORY and not state.verdicts
        # An opportunistic job whose host has ended counts with its own end until the head needs its slots.
        exact = exact and not any(
            job.spec.opportunistic and job.state.holds_slots and not job.guest_of for job in state.jobs.values()
        )
        overrun = self._has_overrun()
        before_ends, self.ends = self.ends, {one.job_id: one.at_ns for one in index_of(state).ends}
        # A gang counts with speeds that were reported at random while it is alone, and with assumed ones beside others.
        overrun |= bool(state.speeds) and any(
            self.ends[one] > before_ends.get(one, self.ends[one]) for one in self.ends
        )
        # A later job may go before it by the order; that is no backfill.
        overtaken = before is not None and any(
            entry.kind == "started" and entry.subject != before[0] for entry in outcome.entries
        )
        head = state.reserved_for
        self.promised = None
        # A verdict may have taken nodes after the reservation, so that the head no longer fits the cluster.
        if head is not None and state.reserved_from_ns is not None and head in index_of(state).line:
            self.promised = (head, state.jobs[head].attempt, *self._reserved_ns(head))
        if before is None or not harmless or not exact or stopped or asked or overrun or overtaken or state.frozen:
            return
        if state.policy.power_budget_watts:
            return  # limits change the ends of running gangs, and jobs may wait for watts, or until agents report them
        job = state.jobs.get(before[0])
        if job is not None and 0 < job.awaited_until_ns <= self.now_ns:
            return  # its patience with faster GPU types has ended
        if self.policy.backfill is not Backfilling.EASY or job is None or job.attempt != before[1]:
            return
        self.counts["promises"] = self.counts.get("promises", 0) + 1
        if head == before[0] and self.promised is not None:
            later = min(now - was for now, was in zip(self.promised[2:], before[2:], strict=True))
            assert later <= 0, f"{head} is delayed by {later / 1e9} s"
        elif job.state is JobState.PENDING and index_of(state).line.order[0][-1] == before[0]:
            assert self.now_ns <= before[2], f"{before[0]} should have started, and waits"

    def _reserved_ns(self, head: str) -> tuple[int, int]:
        """Return the head's reserved start and its expected end; with one GPU type, the start twice.

        With several types, the head is delayed only if both are later. It may change to a type on which it starts later
        and ends earlier, or, if a job ends earlier than expected, to one on which it starts earlier and ends later.
        """
        state = self.state
        assert state.reserved_from_ns is not None
        if self.types == 1:
            return state.reserved_from_ns, state.reserved_from_ns
        gpu_type, job = state.nodes[state.reserved_slots[0].node].gpu_type, state.jobs[head]
        length_ns = index_of(state).line.places[head].length_ns
        ranks = job.spec.min_ranks or job.spec.ranks
        takes_ns = round(length_ns / attempt_speed(state.policy, job, gpu_type, ranks, index_of(state).plan.learnt))
        return state.reserved_from_ns, state.reserved_from_ns + takes_ns

    def _has_overrun(self) -> bool:
        """Return whether an attempt runs longer than the cycle can expect: past its limit, or slowed."""
        ends = {release.job_id: release.at_ns for release in index_of(self.state).ends}
        for (job_id, _), living in self.alive.items():
            job = self.state.jobs[job_id]
            if living.ends_ns > ends.get(job_id, living.ends_ns) + 1e6:
                return True  # for example, since a speed that was reported at random
            limit = job.spec.time_limit_seconds or self.policy.default_time_limit_seconds
            if job.spec.restartable:  # work that was lost again does not count against the limit
                limit -= (job.limit_used_ns or job.run_ns) / 1e9
            given = self.policy.throughput.get("", {}).get(self.state.nodes[living.slots[0].node].gpu_type, 1.0)
            limit /= given
            if living.kind is JobKind.PROBE or job.claim or job.retries:
                return True
            if self.state.speeds and job.speed > given * len(job.ranks) / job.spec.ranks + 1e-9:
                return True  # speeds are reported at random here, and this one is too high
            expected = job.spec.exact_seconds if self.policy.estimates is Estimates.EXACT else limit
            if expected is None or self.codes[job_id] or (living.ends_ns - living.began_ns) / 1e9 > limit + 1e-3:
                return True
        return False

    # --- killed and replayed -----------------------------------------------------------------------------------------

    def kill(self, snapshot_first: bool) -> None:
        """Kill the controller. The state that is restored from the journal must be equal, and is used from now on."""
        assert decode_state(encode_state(self.state)) == self.state
        if snapshot_first:
            self.snapshot, self.journal = encode_state(self.state), []
        events = [(now_ns, reported) for now_ns, reported, _ in self.journal]
        state, outcomes = replay(decode_state(self.snapshot), events)
        for (now_ns, reported, was), again in zip(self.journal, outcomes, strict=True):
            assert (was.actions, was.entries) == (again.actions, again.entries), f"at {now_ns} after {reported}"
        assert without_clock(state) == without_clock(self.state)
        if not snapshot_first:
            self.snapshot, self.journal = encode_state(state), []
        self.state, self.promised = state, None

    def nothing_by_time_alone(self, seconds: float, evaluate_all: bool) -> None:
        """Check that time without events leads to a decision only at a registered timeout."""
        self.counts["timeouts checked"] = self.counts.get("timeouts checked", 0) + 1
        check_timeouts(self.state, round(seconds * SECOND), evaluate_all)

    def rest(self) -> None:
        """Check that repeated cycles without events soon change only the time."""
        for _ in range(20):
            if not self.cycle(Tick()).changed and self.state.idle:
                break
        before = decode_state(encode_state(self.state))
        outcome = self.cycle(Tick())
        assert not outcome.changed and not outcome.actions and not outcome.entries, (outcome, self.state.idle)
        before.cycle += 1
        assert self.state == before

    def settles(self) -> bool:
        """Return whether another evaluation at the same time must decide nothing. The order `themis` changes with
        time."""
        return self.policy.order is not Order.THEMIS

    def _observations(self) -> tuple[Event, ...]:
        """Return what the backend reports after a restart."""
        seen = [self._running(*key) for key, living in self.alive.items() if living.seen]
        nodes = [as_seen(node) for node in self.state.nodes.values()]
        ended = [
            AttemptEnded(job.job_id, job.attempt, tuple(RankExit(rank.rank, rank.exit_code) for rank in job.ranks))
            for job in self.state.jobs.values()
            if job.attempt and not job.state.holds_slots
        ]
        return (*seen, *nodes, *ended)

    def observe_again(self) -> None:
        """Check that repeated reports of the backend, as after a restart, change nothing."""
        self.rest()
        if self.state.type_shares:
            return  # any event may lead to other trades, because jobs have reported speeds since the last ones
        # Its order changes with time, and so does the value of sizes. An event applies the present ones.
        if self.policy.order is Order.THEMIS or self.policy.sizes is not Sizes.IDLE:
            self.cycle(*self._observations())
            self.rest()
        before = decode_state(encode_state(self.state))
        outcome = self.cycle(*self._observations())
        # Elastic gangs seen running may start another preemption pass. It stops no gang; in observe mode or while
        # frozen it may log another proposal first. The reason why a gang is not moved changes with time.
        proposed = [one for one in outcome.entries if one.kind == "stay" or (one.kind == "preempt" and not one.applied)]
        assert not outcome.actions and proposed == list(outcome.entries), outcome.entries
        if proposed:
            assert self.policy.mode is Mode.OBSERVE or self.state.frozen or proposed[0].kind == "stay"
            return
        if before.planned_ns != self.state.planned_ns:  # the pass computed the urgency of running gangs again
            for job in before.jobs.values():
                if job.state.holds_slots:
                    job.urgency = self.state.jobs[job.job_id].urgency
                    job.appraise_ns = self.state.jobs[job.job_id].appraise_ns
        before.planned_ns, before.replan_owed = self.state.planned_ns, self.state.replan_owed
        before.sized_ns = self.state.sized_ns  # the sizes were chosen again, with the same result
        # GPU types were compared again, with the same result; under `themis` the order changes with time, for example.
        before.types_ns, before.types_inputs = self.state.types_ns, self.state.types_inputs
        was, now = without_clock(before), without_clock(self.state)
        changed = [name for name in State.__struct_fields__ if getattr(was, name) != getattr(now, name)]
        assert not changed, changed

    def explain(self, job_id: str) -> None:
        """Check that explaining why a job is pending changes nothing."""
        before = encode_state(self.state)
        explanation = cycle.explain(self.state, job_id)
        assert explanation is not None
        job = self.state.jobs[job_id]
        assert bool(explanation.binds) == (job.state is JobState.PENDING and job.spec.kind is not JobKind.PROBE), job
        assert explanation.why
        assert encode_state(self.state) == before

    def end_well(self) -> None:
        """Check that without further faults every job ends, or has a reason why it cannot."""
        check_index(self.state)
        self.cycle(FreezeSet(False), *(self.node(number) for number in range(len(self.sizes))))
        self.cycle(*(NodeCommanded(name, NodeCommand.RELEASE) for name in self.state.nodes))
        last_ns = self.state.now_ns + 300_000 * SECOND
        while self.state.now_ns < last_ns:
            if self.policy.power_budget_watts:
                self.report_power(range(len(self.sizes)), True, settable=True)
            if all(job.state.ended or job.state is JobState.PENDING for job in self.state.jobs.values()):
                self.advance(0.1)
            if all(job.state.ended for job in self.state.jobs.values()):
                return
            wakes_ns = cycle.next_wake_ns(self.state)
            if not self.alive and self.state.idle and (wakes_ns is None or wakes_ns > last_ns):
                break
            self.advance(300.0)
        for job in self.state.jobs.values():
            if not job.state.ended:
                assert job.state is JobState.PENDING, f"{job.job_id} never ends"
                binds = cycle.explain(self.state, job.job_id)
                assert binds is not None
                assert binds.binds in ("capacity", "limit", "dependency"), f"{job.job_id} never starts: {binds}"
        assert not self.alive


def _is_plain_end(event: Event) -> bool:
    return isinstance(event, AttemptEnded) and event.started and not event.why


def _most(queue: Queue) -> int:
    limits = [limit for limit in (queue.limit, None if queue.borrow else queue.quota) if limit is not None]
    return min(limits, default=1 << 60)


def without_clock(state: State) -> State:
    """Return a copy of the state without derived values, which an idle cycle may change and the journal may omit."""
    copy = decode_state(encode_state(state))
    copy.now_ns = copy.cycle = 0
    copy.idle = False
    copy.reserved_for, copy.reserved_from_ns, copy.reserved_nodes, copy.reserved_slots = None, None, {}, []
    for job in copy.jobs.values():
        job.expected_start_ns = None
        if copy.policy.order is Order.THEMIS and job.state is JobState.PENDING:
            job.urgency, job.appraise_ns = 0.0, 0  # as of now: urgency changes with time
    return copy
