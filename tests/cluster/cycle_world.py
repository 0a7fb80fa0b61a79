"""Small simulated cluster for tests of the cycle: it applies actions, ends jobs, and checks the invariants.

The test sets the time, and the run time and exit code of each attempt. Attempts are reported as by a real backend:
late, and again after a restart.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler_feedback import cycle
from scheduler_feedback.core.actions import Entry, StartGang
from scheduler_feedback.core.codec import decode_state, encode_state
from scheduler_feedback.core.events import (
    AttemptEnded,
    AttemptRunning,
    Event,
    NodeSeen,
    RankExit,
    RankSeen,
    Submitted,
    Tick,
)
from scheduler_feedback.core.job import JobSpec, JobState, Slot, StopReason
from scheduler_feedback.core.state import Policy, State
from scheduler_feedback.core.verdict import Cause, Kind, Verdict
from tests.cluster.scheduling_rules import check_books, check_claims, check_index, check_start

SECOND = 1_000_000_000
START_NS = 1_700_000_000 * SECOND


@dataclass
class Attempt:
    placement: tuple[Slot, ...]
    ends_ns: int
    exit_code: int = 0


@dataclass
class World:
    """Simulated cluster.

    nodes: slots by name. true_seconds: actual run time of a job (default: its limit, or 100 s). racks: number of racks;
    0 if racks are unknown.
    """

    nodes: dict[str, int]
    policy: Policy = field(default_factory=Policy)
    now_ns: int = START_NS
    true_seconds: dict[str, float] = field(default_factory=dict)
    exit_codes: dict[str, int] = field(default_factory=dict)
    alive: dict[tuple[str, int], Attempt] = field(default_factory=dict)
    started: dict[str, int] = field(default_factory=dict)
    journal: list[tuple[int, list[Event]]] = field(default_factory=list)
    outcomes: list[cycle.Outcome] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    submitted: int = 0
    round_trips: bool = True
    racks: int = 0
    jobs_per_slot: int = 1
    slot_memory_mib: int = 0

    def __post_init__(self) -> None:
        self.state = State(policy=self.policy)
        self.initial = decode_state(encode_state(self.state))
        self.cycle(*(self._node(number, *one) for number, one in enumerate(self.nodes.items())))

    def _node(self, number: int, name: str, slots: int) -> NodeSeen:
        rack, many, memory = self._rack(number), self.jobs_per_slot, self.slot_memory_mib
        return NodeSeen(name, slots, rack=rack, jobs_per_slot=many, slot_memory_mib=memory)

    def _rack(self, number: int) -> str:
        return f"r{number % self.racks}" if self.racks else ""

    # --- actions of tests --------------------------------------------------------------------------------------------

    def submit(self, ranks: int, true_seconds: float | None = None, exit_code: int = 0, **spec: object) -> str:
        """Submit a job in a cycle of its own. Return its id."""
        self.submitted += 1
        job_id = f"j-{self.submitted:06d}"
        if true_seconds is not None:
            self.true_seconds[job_id] = true_seconds
        self.exit_codes[job_id] = exit_code
        self.cycle(Submitted(job_id, JobSpec(job_id, ("train",), ranks, **spec)))  # type: ignore[arg-type]
        return job_id

    def submit_all(self, *jobs: tuple[int, float, float]) -> None:
        """Submit jobs (ranks, time limit, actual run time in seconds) in one cycle."""
        events = []
        for ranks, limit, seconds in jobs:
            self.submitted += 1
            job_id = f"j-{self.submitted:06d}"
            self.true_seconds[job_id] = seconds
            events.append(Submitted(job_id, JobSpec(job_id, ("train",), ranks, time_limit_seconds=limit)))
        if events:
            self.cycle(*events)

    def cycle(self, *events: Event) -> cycle.Outcome:
        outcome = cycle.run(self.state, events, self.now_ns)
        self.journal.append((self.now_ns, list(events)))
        self.outcomes.append(outcome)
        self.entries.extend(outcome.entries)
        for action in outcome.actions:
            if isinstance(action, StartGang):
                self._check_start(action)
                self._start(action)
            elif (attempt := self.alive.get((action.job_id, action.attempt))) is not None:
                attempt.ends_ns = min(attempt.ends_ns, self.now_ns + SECOND)
                attempt.exit_code = 75 if action.why in (StopReason.MIGRATE, StopReason.PREEMPT) else 143
        self._check()
        return outcome

    def running(self) -> cycle.Outcome:
        return self.cycle(*(self._seen(*key) for key in self.alive))

    def advance(self, seconds: float) -> None:
        """Let time pass. A cycle runs at each end of an attempt, and at the end."""
        until_ns = self.now_ns + round(seconds * SECOND)
        while (next_ns := min((a.ends_ns for a in self.alive.values()), default=until_ns + 1)) <= until_ns:
            self.now_ns = max(self.now_ns, next_ns)
            self.cycle(*self._take_ended())
            self.running()
        self.now_ns = until_ns
        self.cycle(Tick())

    def end(self, job_id: str, *codes: int, signalled: bool = False) -> cycle.Outcome:
        """End the newest attempt now. codes: one exit code for all ranks, or one for each."""
        job = self.state.jobs[job_id]
        self.alive.pop((job_id, job.attempt), None)
        every = codes * job.spec.ranks if len(codes) == 1 else codes
        exits = tuple(RankExit(rank, code) for rank, code in enumerate(every))
        return self.cycle(AttemptEnded(job_id, job.attempt, exits, ended_wall_ns=self.now_ns, signalled=signalled))

    def verdict(self, job_id: str, rank: int = 0, **changes: object) -> Verdict:
        """Report a verdict on a rank of the job's newest attempt. Fields that are not given have plausible values."""
        job = self.state.jobs[job_id]
        fields: dict[str, object] = {
            "verdict_id": f"{job_id}.{job.attempt}.{rank}@{self.now_ns}",
            "kind": Kind.STRAGGLER,
            "gang": job_id,
            "attempt": job.attempt,
            "rank": rank,
            "node": job.ranks[rank].slot.node,
            "cause": Cause.CPU_CONTENTION,
            "confidence": 0.99,
            "slowdown": 2.0,
            "step_seconds_before": 0.1,
            "step_seconds_now": 0.2,
            "first_wall_ns": self.now_ns - 5 * SECOND,
            "last_wall_ns": self.now_ns,
        }
        return Verdict(**(fields | changes))  # type: ignore[arg-type]

    def job_state(self, job_id: str) -> JobState:
        return self.state.jobs[job_id].state

    def nodes_of(self, job_id: str) -> set[str]:
        return {rank.slot.node for rank in self.state.jobs[job_id].ranks}

    def entry_kinds(self, subject: str) -> list[str]:
        """Return the kinds of the log entries about a subject, in order."""
        return [entry.kind for entry in self.entries if entry.subject == subject]

    # --- behaviour of the cluster ------------------------------------------------------------------------------------

    def _start(self, action: StartGang) -> None:
        limit = action.spec.time_limit_seconds or 100.0
        seconds = self.true_seconds.get(action.job_id, limit)
        code = self.exit_codes.get(action.job_id, 0)
        self.alive[(action.job_id, action.attempt)] = Attempt(
            action.placement, self.now_ns + round(seconds * SECOND), code
        )
        self.started.setdefault(action.job_id, self.now_ns)

    def _seen(self, job_id: str, attempt: int) -> AttemptRunning:
        placement = self.alive[(job_id, attempt)].placement
        ranks = tuple(RankSeen(rank, s.node, s.slot, 1000 + rank, 77) for rank, s in enumerate(placement))
        return AttemptRunning(job_id, attempt, ranks)

    def _take_ended(self) -> list[Event]:
        gone = [key for key, attempt in self.alive.items() if attempt.ends_ns <= self.now_ns]
        events: list[Event] = []
        for job_id, number in gone:
            attempt = self.alive.pop((job_id, number))
            exits = tuple(RankExit(rank, attempt.exit_code) for rank in range(len(attempt.placement)))
            events.append(AttemptEnded(job_id, number, exits, ended_wall_ns=attempt.ends_ns))
        return events

    # --- the rules ---------------------------------------------------------------------------------------------------

    def _owners(self) -> dict[Slot, tuple[str, ...]]:
        found: dict[Slot, tuple[str, ...]] = {}
        for (job_id, _), attempt in self.alive.items():
            for slot in dict.fromkeys(attempt.placement):
                found[slot] = (*found.get(slot, ()), job_id)
        return found

    def _check_start(self, action: StartGang) -> None:
        check_start(self.state, action, self._owners())

    def _check(self) -> None:
        check_books(self.state)
        for (job_id, attempt), living in self.alive.items():
            job = self.state.jobs[job_id]
            if job.attempt == attempt and job.state.holds_slots:
                assert tuple(rank.slot for rank in job.ranks) == living.placement
        check_claims(self.state, self._owners())
        if self.round_trips:
            assert decode_state(encode_state(self.state)) == self.state
            check_index(self.state)
