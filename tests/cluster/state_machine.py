"""Hypothesis state machine on ``Ordeal``: actions of users, operators, detectors and the cluster in any order.

``tests/policies/test_state_machine.py`` runs a few steps with each test run; ``python -m benchmarks.invariants`` runs
millions.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from msgspec import structs

from scheduler_feedback.core.cluster import Level
from scheduler_feedback.core.events import (
    ActionFailed,
    AttemptUnknown,
    CancelRequested,
    Event,
    FirstStep,
    FreezeSet,
    LatencyMeasured,
    MemoryMeasured,
    NodeCommand,
    NodeCommanded,
    PolicySet,
    Progressed,
    RankFailed,
    SharedSpeed,
    SpeedMeasured,
    Tick,
    VerdictJudged,
)
from scheduler_feedback.core.job import After, Dependency, Group, Job, JobSpec, JobState, Packing
from scheduler_feedback.core.state import (
    Backfilling,
    Cell,
    Estimates,
    Mode,
    Order,
    Policy,
    Queue,
    Sharing,
    Sizes,
    TypeQuotas,
)
from scheduler_feedback.core.verdict import Abstention, Cause, Cleared, Kind, Verdict
from scheduler_feedback.policies.index.scheduling_index import index_of
from tests.cluster.random_cycles import Ordeal

QUEUES = (Queue("all"), Queue("a", "all", quota=4, borrow=False), Queue("b", "all", weight=2.0, limit=6), Queue("c"))
QUOTAS = (Queue("a", quota=4), Queue("b", quota=3), Queue("c"), Queue("elsewhere", limit=0))
CELLS = (
    (Queue("a", cells={Cell.NODE: 1, Cell.PAIR: 1}), Queue("b", cells={Cell.GPU: 3}), Queue("c")),
    (Queue("all", cells={Cell.RACK: 1}), Queue("a", "all"), Queue("b", cells={Cell.NODE: 2}), Queue("c", limit=4)),
)
PROBE = ("probe",)

POLICIES = st.builds(
    Policy,
    mode=st.sampled_from([Mode.ACT, Mode.ACT, Mode.ACT, Mode.OBSERVE]),
    default_time_limit_seconds=st.just(100.0),
    migration_cooldown_seconds=st.sampled_from([0.0, 20.0]),
    expected_persistence_seconds=st.sampled_from([60.0, 1800.0]),
    suspect_seconds=st.just(30.0),
    quarantine_seconds=st.just(40.0),
    quarantine_max_seconds=st.just(400.0),
    quarantine_slowdown=st.sampled_from([1.5, 3.0]),
    probation_seconds=st.just(30.0),
    start_timeout_seconds=st.sampled_from([0.0, 20.0]),
    probe_timeout_seconds=st.just(50.0),
    probe_command=st.sampled_from([PROBE, PROBE, ()]),
    order=st.sampled_from([*Order, Order.FIFO, Order.FAIR]),
    backfill=st.sampled_from([*Backfilling, Backfilling.EASY]),
    preempt=st.booleans(),
    replan_seconds=st.sampled_from([0.0, 7.0]),
    min_run_seconds=st.sampled_from([0.0, 10.0]),
    starvation_seconds=st.sampled_from([60.0, 1e6]),
    las_thresholds=st.just((20.0, 200.0)),
    slice_seconds=st.sampled_from([9.0, 40.0]),
    preempt_gain=st.sampled_from([1.2, 3.0]),
    queues=st.sampled_from([(), QUEUES, QUOTAS, *CELLS]),
    type_quotas=st.sampled_from([TypeQuotas.ALIKE, TypeQuotas.OWN, TypeQuotas.TRADED, TypeQuotas.TRADED]),
    trade_seconds=st.sampled_from([0.0, 20.0]),
    uplink_slowdown=st.sampled_from([0.0, 0.2]),
    uplink_rails=st.sampled_from([1, 2, 3]),
    network_classes=st.sampled_from([0, 3]),
    time_shifts=st.sampled_from([False, False, True]),
    spare_nodes=st.sampled_from([0, 0, 1]),
    spare_level=st.sampled_from([Level.RACK, Level.SPINE]),
    defragmentation_moves=st.sampled_from([0, 2, 4]),
    level_patience_seconds=st.sampled_from([0.0, 0.0, 20.0]),
    type_patience=st.sampled_from([0.0, 0.5, 1.0]),
    sharing=st.sampled_from(
        [*Sharing, Sharing.GANDIVA, Sharing.GANDIVA, Sharing.ANTMAN, Sharing.ANTMAN, Sharing.MUXFLOW, Sharing.FGD]
    ),
    pair_speeds=st.sampled_from([{}, {}, {"w": {"w": 0.8, "v": 0.3}, "v": {"w": 0.9}}]),
    learn_speeds=st.sampled_from([True, True, True, False]),
    learnt_memory=st.sampled_from([True, True, False]),
    sizes=st.sampled_from([Sizes.IDLE, *Sizes]),
    sizes_seconds=st.sampled_from([0.0, 30.0]),
    dataset_cache_gib=st.sampled_from([0.0, 0.0, 25.0]),
    power_budget_watts=st.sampled_from([0.0, 0.0, 500.0, 900.0, 2000.0]),
    mig=st.sampled_from([True, True, False]),
    ended_jobs_kept=st.sampled_from([3, 10_000]),
)

SMALL = st.integers(0, 7)

SPECS = st.builds(
    JobSpec,
    name=st.just("job"),
    command=st.just(("train",)),
    ranks=st.integers(1, 8),
    queue=st.sampled_from(["a", "b", "c", "elsewhere"]),
    user=st.sampled_from(["ann", "bob"]),
    grace_seconds=st.just(2.0),
    restart_cost_seconds=st.sampled_from([0.0, 5.0]),
    max_retries=st.sampled_from([0, 1]),
    priority=st.sampled_from([0, 0, 0, 1]),
    packing=st.sampled_from([Packing.PACK, Packing.PACK, Packing.SPREAD]),
    required_level=st.sampled_from([None, None, None, Level.NODE, Level.RACK]),
    preferred_level=st.sampled_from([None, None, Level.RACK]),
    checkpoint_interval_seconds=st.sampled_from([None, 7.0]),
    workload=st.sampled_from(["", "v", "w"]),
    slot_memory_mib=st.sampled_from([0, 10, 30, 50]),
    slot_share=st.sampled_from([0.0, 0.0, 0.4, 0.7]),
    stages=st.sampled_from([(), (1.0, 2.0, 3.0), (3.0, 1.0, 1.0)]),
)
TRAITS = st.fixed_dictionaries(
    {
        "restartable": st.booleans(),
        "preemptible": st.booleans(),
        "elastic": st.sampled_from([0, 0, 1, 2]),
        "layouts": st.sampled_from([False, False, True]),
        "after": st.sampled_from([None, None, None, *After]),
        "array": st.sampled_from([0, 0, 0, 0, 3]),
        "launcher": st.sampled_from([False, False, False, True]),
        "shareable": st.sampled_from([False, False, True]),
        "opportunistic": st.sampled_from([False, False, True]),
        "serves": st.sampled_from([False, False, True]),
        "mig": st.sampled_from(["", "", "", "1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]),
    }
)


TRAININGS = st.tuples(SPECS, TRAITS, st.integers(2, 90), st.sampled_from([1.0, 1.0, 0.6]), SMALL)
"""(specification, traits, seconds of work, true share of them, whether it exits with 0)."""

ORDINARY = st.tuples(
    st.sampled_from([1, 1, 1, 2]),
    st.sampled_from(["a", "b", "c", "elsewhere"]),
    st.integers(1, 200),
    st.sampled_from([None, None, 0.5, 2.0]),
    st.booleans(),
    st.sampled_from([0, 0, 0, 2, 5]),
    st.booleans(),
)
"""(ranks, queue, seconds of work, limit as a share of the work, fails, array size, depends on the previous job)."""


def shaped(spec: JobSpec, traits: dict[str, Any], seconds: float, before: int) -> JobSpec:
    """Return the specification with further fields that depend on each other, in a valid combination."""
    changes: dict[str, Any] = {
        "restartable": traits["restartable"],
        "preemptible": traits["preemptible"] and traits["restartable"],
        "exact_seconds": seconds,
        "time_limit_seconds": seconds,
    }
    if traits["mig"]:
        changes |= {"mig_profile": traits["mig"], "slot_memory_mib": 0, "slot_share": 0.0}
        changes |= {"required_level": None, "preferred_level": None}
        traits = traits | {"elastic": 0, "launcher": False}
    elif traits["shareable"]:
        changes["shareable"] = True
        changes["opportunistic"] = traits["opportunistic"] and changes["preemptible"]
        changes["latency_objective_seconds"] = 0.1 if traits["serves"] and not changes["opportunistic"] else 0.0
    if traits["elastic"] and not traits["launcher"] and not traits["shareable"]:
        changes |= {"min_ranks": max(spec.ranks // 2, 1), "max_ranks": spec.ranks * traits["elastic"]}
        if traits["layouts"]:
            least, most = changes["min_ranks"], changes["max_ranks"]
            sizes = {least, spec.ranks, most, *(size for size in (2, 4, 8) if least <= size <= most)}
            changes |= {"sizes": tuple(sorted(sizes)), "reshard_seconds": 3.0}
    if traits["launcher"] and spec.ranks > 2:
        changes["groups"] = (Group("launcher", 1), Group("worker", spec.ranks - 1, same_node=spec.ranks < 5))
    if traits["after"] is not None and before:
        changes["after"] = (Dependency(f"j{before}", traits["after"]),)
    if traits["array"]:
        changes |= {"array_size": traits["array"], "array_parallel": 2}
    return structs.replace(spec, **changes)


class Invariants(RuleBasedStateMachine):
    """Rules of the state machine; ``Ordeal`` checks after every cycle. steps: number of rules run in this process.
    index_every: `Ordeal.index_every`."""

    index_every = 1
    steps = 0
    cycles = 0
    counts: dict[str, int] = {}  # noqa: RUF012 - shared by all machines, for the summary of a run

    def __init__(self) -> None:
        super().__init__()
        self.world = Ordeal((1,), Policy())
        self.calm = False

    @initialize(
        sizes=st.lists(st.integers(1, 4), min_size=2, max_size=6),
        policy=POLICIES,
        estimates=st.sampled_from([*Estimates, Estimates.EXACT]),
        racks=st.sampled_from([0, 2]),
        types=st.sampled_from([1, 1, 2, 3]),
        jobs_per_slot=st.sampled_from([1, 2, 2, 4]),
        memory=st.sampled_from([0, 0, 60]),
        mig=st.sampled_from([(), ("A100-80GB",), ("A100-80GB", "", "H100-80GB"), ("A100-40GB", "A100-80GB")]),
        calm=st.booleans(),
    )
    def begin(
        self,
        sizes: list[int],
        policy: Policy,
        estimates: Estimates,
        racks: int,
        types: int,
        jobs_per_slot: int,
        memory: int,
        mig: tuple[str, ...],
        calm: bool,
    ) -> None:
        """Create a cluster. calm: nothing fails and run times are known, so every reservation must be met."""
        if types > 1:
            policy = replace(policy, throughput={"": {"t0": 1.0, "t1": 0.25, "t2": 1.5}})
        self.calm = calm
        if calm:
            known = Estimates.LIMIT if estimates is Estimates.HISTORY else estimates
            policy = replace(policy, estimates=known, backfill=Backfilling.EASY, preempt=False, mode=Mode.ACT)
            policy = replace(policy, power_budget_watts=0.0)  # limits change run times
        else:
            policy = replace(policy, estimates=estimates)
        self.world = Ordeal(tuple(sizes), policy, racks, types, jobs_per_slot, memory, self.index_every, mig)

    def teardown(self) -> None:
        if sys.exc_info()[0] is not None:  # report the original failure, not its consequences
            return
        self.world.end_well()
        Invariants.cycles += self.world.cycles
        for kind, count in self.world.counts.items():
            Invariants.counts[kind] = Invariants.counts.get(kind, 0) + count

    def _pick(self, items: Any, number: int) -> Any:
        Invariants.steps += 1
        items = list(items)
        return items[number % len(items)] if items else None

    def _held(self, number: int) -> str | None:
        found: str | None = self._pick(
            (j.job_id for j in self.world.state.jobs.values() if j.state.holds_slots), number
        )
        return found

    # --- users -------------------------------------------------------------------------------------------------------

    @rule(trainings=st.lists(TRAININGS, max_size=4), others=st.lists(ORDINARY, max_size=5), leaving=SMALL)
    def submit(
        self,
        trainings: list[tuple[JobSpec, dict[str, Any], int, float, int]],
        others: list[tuple[Any, ...]],
        leaving: int,
    ) -> None:
        """Submit jobs of every kind in one cycle. Sometimes a job is cancelled or fails in the same cycle."""
        Invariants.steps += 1
        wanted: list[tuple[JobSpec, float, int]] = []
        exact = self.world.policy.estimates is Estimates.EXACT
        for number, (spec, traits, seconds, share, sound) in enumerate(trainings):
            made = shaped(spec, traits, float(seconds), self.world.submitted + number)
            wanted.append((made, seconds * (1.0 if exact else share), 0 if sound or self.calm else 1))
        wanted += [self._ordinary(len(wanted) + number, *one) for number, one in enumerate(others)]
        self.world.submit(*wanted, also=self._leaves(leaving))

    def _ordinary(
        self,
        before: int,
        ranks: int,
        queue: str,
        seconds: int,
        limit: float | None,
        fails: bool,
        array: int,
        after: bool,
    ) -> tuple[JobSpec, float, int]:
        """Return a job without gangwatch options: mostly one rank, no progress reports, no known run time."""
        spec = JobSpec(
            "ordinary", ("python", "work.py"), ranks, queue=queue, array_size=array, grace_seconds=2.0,
            time_limit_seconds=None if limit is None or self.calm else limit * seconds,
            after=(Dependency(f"j{self.world.submitted + before}", After.ENDED),) if after else (),
        )  # fmt: skip
        if self.calm:  # run times are known
            spec = structs.replace(spec, time_limit_seconds=float(seconds), exact_seconds=float(seconds))
        return spec, float(seconds), int(fails and not self.calm)

    def _leaves(self, number: int) -> tuple[Event, ...]:
        """In one of four cycles with submissions, return the end of a running job: cancelled or failed."""
        job_id = self._held(number)
        if self.calm or number >= 2 or job_id is None or not self._lives(job_id):
            return ()
        if number:
            return (CancelRequested(job_id),)
        return (self.world.end(job_id, self.world.state.jobs[job_id].attempt, 137),)

    @rule(
        gangs=st.lists(st.tuples(st.integers(1, 6), st.integers(2, 90)), min_size=2, max_size=8),
        stops=st.booleans(),
        shares=st.booleans(),
        leftovers=st.booleans(),
        together=st.booleans(),
        seconds=st.sampled_from([0.0, 1.0, 7.0, 30.0]),
    )
    def rush(
        self,
        gangs: list[tuple[int, int]],
        stops: bool,
        shares: bool,
        leftovers: bool,
        together: bool,
        seconds: float,
    ) -> None:
        """Submit many jobs at once, because most problems need a full cluster and a queue."""
        Invariants.steps += len(gangs)
        plain = [
            (
                JobSpec(
                    "plain", ("train",), ranks, queue="c", time_limit_seconds=float(length),
                    exact_seconds=float(length), grace_seconds=2.0, restartable=stops, preemptible=stops,
                    shareable=shares, opportunistic=shares and stops and leftovers and length % 3 == 0,
                    latency_objective_seconds=0.1 if shares and length % 3 == 1 else 0.0,
                    slot_memory_mib=10 + length % 30, slot_share=(0.0, 0.3, 0.6)[ranks % 3], workload="vw"[length % 2],
                    stages=(length % 5 + 1.0, 3.0, 1.0), dataset="xyz"[length % 3], dataset_gib=10.0,
                ),
                float(length),
                0,
            )
            for ranks, length in gangs
        ]  # fmt: skip
        for batch in [plain] if together else [[one] for one in plain]:
            self.world.submit(*batch)
        self.world.seen()
        self.world.advance(seconds)

    @precondition(lambda self: self.world.policy.mig and self.world.mig_models)
    @rule(
        jobs=st.lists(
            st.tuples(
                st.sampled_from(["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb", ""]),
                st.integers(1, 4),
                st.integers(2, 90),
            ),
            min_size=2,
            max_size=8,
        ),
        stops=st.booleans(),
        seconds=st.sampled_from([0.0, 1.0, 7.0, 30.0]),
    )
    def divide(self, jobs: list[tuple[str, int, int]], stops: bool, seconds: float) -> None:
        """Submit jobs in MIG instances and whole slots, more than fit."""
        Invariants.steps += len(jobs)
        for name, ranks, length in jobs:
            spec = JobSpec(
                "part", ("train",), ranks, queue="c", time_limit_seconds=float(length), exact_seconds=float(length),
                grace_seconds=2.0, restartable=stops, preemptible=stops, mig_profile=name,
            )  # fmt: skip
            self.world.submit((spec, float(length), 0))
        self.world.seen()
        self.world.advance(seconds)

    @precondition(lambda self: not self.calm)
    @rule(number=SMALL)
    def cancel(self, number: int) -> None:
        if (job_id := self._pick(self.world.state.jobs, number)) is not None:
            self.world.cycle(CancelRequested(job_id))

    # --- the cluster -------------------------------------------------------------------------------------------------

    @rule()
    def run(self) -> None:
        Invariants.steps += 1
        self.world.seen()

    @rule(seconds=st.sampled_from([0.0, 0.5, 3.0, 15.0, 41.0, 90.0]))
    def advance(self, seconds: float) -> None:
        Invariants.steps += 1
        self.world.advance(seconds)

    @rule()
    def tick(self) -> None:
        Invariants.steps += 1
        self.world.cycle(Tick())

    @precondition(lambda self: not self.calm)
    @rule(number=SMALL, code=st.sampled_from([1, 137]))
    def fail(self, number: int, code: int) -> None:
        """Let a rank of a running gang exit with an error."""
        if (job_id := self._held(number)) is not None and self._lives(job_id):
            self.world.cycle(RankFailed(job_id, self.world.state.jobs[job_id].attempt, 0, code))

    @precondition(lambda self: not self.calm)
    @rule(number=SMALL, started=st.booleans())
    def crash(self, number: int, started: bool) -> None:
        """End all ranks of a gang at once."""
        if (job_id := self._held(number)) is not None and self._lives(job_id):
            self.world.cycle(self.world.end(job_id, self.world.state.jobs[job_id].attempt, 137, started))

    @precondition(lambda self: not self.calm)
    @rule(number=SMALL)
    def refuse(self, number: int) -> None:
        job_id = self._held(number)
        if job_id is None or not self._lives(job_id):
            return
        job = self.world.state.jobs[job_id]
        if job.state is JobState.STARTING:
            self._vanish(job_id, job.attempt)
        self.world.cycle(ActionFailed(job.action_id, job_id, "no more processes"))

    @precondition(lambda self: not self.calm)
    @rule(number=SMALL)
    def lose(self, number: int) -> None:
        """Let the backend report that it has no record of an attempt."""
        if (job_id := self._held(number)) is not None and self._lives(job_id):
            attempt = self.world.state.jobs[job_id].attempt
            self._vanish(job_id, attempt)
            self.world.cycle(AttemptUnknown(job_id, attempt))

    def _lives(self, job_id: str) -> bool:
        return (job_id, self.world.state.jobs[job_id].attempt) in self.world.alive

    def _vanish(self, job_id: str, attempt: int) -> None:
        self.world.vanish(job_id, attempt)

    @rule(number=SMALL)
    def first_step(self, number: int) -> None:
        if (job_id := self._held(number)) is not None:
            self.world.cycle(FirstStep(job_id, self.world.state.jobs[job_id].attempt, 1, self.world.now_ns))

    @rule(number=SMALL)
    def progress(self, number: int) -> None:
        job_id = self._held(number)
        if job_id is None or not self._lives(job_id) or self.world.policy.estimates is Estimates.LIMIT:
            return
        job = self.world.state.jobs[job_id]
        if job.spec.restartable and job.spec.exact_seconds is not None:
            reported = self.world.progress(job_id, job.attempt)
            self.world.cycle(Progressed(job_id, job.attempt, reported))

    @precondition(lambda self: not self.calm)
    @rule(number=SMALL, speed=st.sampled_from([0.3, 0.6, 0.95]))
    def measure_shared(self, number: int, speed: float) -> None:
        """Report the speed of a gang that shares slots."""
        job_id = self._held(number)
        if job_id is None or not self._lives(job_id):
            return
        partners = tuple(index_of(self.world.state).partners(job_id))
        self.world.cycle(SharedSpeed(job_id, self.world.state.jobs[job_id].attempt, partners, speed))

    @precondition(lambda self: not self.calm)
    @rule(number=SMALL, seconds=st.sampled_from([0.0, 0.01, 0.04, 0.07, 0.2]), busy=st.sampled_from([0.0, 0.3, 0.9]))
    def latency(self, number: int, seconds: float, busy: float) -> None:
        """Report the latency of a service; of other jobs, it is ignored."""
        job_id = self._pick(self._services(), number)
        if job_id is not None and self._lives(job_id):
            self.world.cycle(LatencyMeasured(job_id, self.world.state.jobs[job_id].attempt, seconds, busy))

    @precondition(lambda self: not self.calm and self.world.policy.sharing is Sharing.MUXFLOW)
    @rule(
        ranks=st.integers(1, 3),
        guests=st.lists(st.integers(1, 2), min_size=1, max_size=3),
        latencies=st.lists(st.sampled_from([0.01, 0.01, 0.03, 0.2]), min_size=1, max_size=4),
        seconds=st.sampled_from([0.0, 1.0, 15.0]),
    )
    def lend(self, ranks: int, guests: list[int], latencies: list[float], seconds: float) -> None:
        """Submit a service and opportunistic jobs, and let all services report the same latencies."""
        Invariants.steps += 1 + len(guests) + len(latencies)
        service = JobSpec(
            "service", ("serve",), ranks, queue="c", time_limit_seconds=90.0, exact_seconds=90.0, grace_seconds=2.0,
            shareable=True, latency_objective_seconds=0.1, slot_memory_mib=10, workload="v", priority=1,
        )  # fmt: skip
        self.world.submit((service, 90.0, 0))
        for number in guests:
            guest = JobSpec(
                "guest", ("train",), number, queue="c", time_limit_seconds=40.0, exact_seconds=40.0, grace_seconds=2.0,
                shareable=True, opportunistic=True, restartable=True, preemptible=True, slot_memory_mib=20,
                workload="w",
            )  # fmt: skip
            self.world.submit((guest, 40.0, 0))
        for latency in latencies:
            self.world.seen()
            for number in range(len(self._services())):
                self.latency(number, latency, 0.2)
            self.world.advance(seconds)

    def _services(self) -> list[str]:
        jobs = self.world.state.jobs.values()
        return [one.job_id for one in jobs if one.spec.latency_objective_seconds and one.state.holds_slots]

    @rule(
        number=SMALL,
        share=st.floats(0.01, 20.0),
        seconds=st.sampled_from([0.0, 10.0, 600.0]),
        waits=st.sampled_from([None, 0.0, 0.3, 1.0]),
    )
    def speed(self, number: int, share: float, seconds: float, waits: float | None) -> None:
        """Report a speed. share: relative to one in proportion to the ranks. waits: share of the time in waits."""
        if (job_id := self._held(number)) is not None:
            job = self.world.state.jobs[job_id]
            self.world.cycle(SpeedMeasured(job_id, job.attempt, share * len(job.ranks), seconds, "", waits))

    @precondition(lambda self: self.world.state.policy.time_shifts)
    @rule(
        numbers=st.lists(SMALL, min_size=1, max_size=4),
        interval=st.sampled_from([0.0, 0.2, 1.0]),
        waits=st.sampled_from([None, 0.02, 0.3, 0.6]),
        delay=st.sampled_from([0.0, 0.0, 0.05]),
    )
    def step_times(self, numbers: list[int], interval: float, waits: float | None, delay: float) -> None:
        """Report the step times of gangs, over the last 10 s."""
        for number in numbers:
            if (job_id := self._held(number)) is not None:
                job = self.world.state.jobs[job_id]
                network = None if waits is None else waits * interval / 2
                self.world.cycle(
                    SpeedMeasured(job_id, job.attempt, 1.0, 10.0, "steps", waits, interval, network, delay * interval)
                )

    @precondition(lambda self: self.world.state.policy.power_budget_watts)
    @rule(number=SMALL, all_of_them=st.booleans(), confirms=st.sampled_from([True, True, True, False]),
          settable=st.sampled_from([None, None, None, True, False]))  # fmt: skip
    def power(self, number: int, all_of_them: bool, confirms: bool, settable: bool | None) -> None:
        """Let agents report power limits: the wanted ones, old ones, or none."""
        Invariants.steps += 1
        count = len(self.world.sizes)
        numbers = range(count) if all_of_them else [number % count]
        self.world.report_power(numbers, confirms, None if all_of_them and settable is False else settable)

    @precondition(lambda self: not self.calm)
    @rule(numbers=st.lists(st.tuples(SMALL, st.sampled_from([0, 4, 9, 21, 40, 58, 70])), min_size=1, max_size=4))
    def memory(self, numbers: list[tuple[int, int]]) -> None:
        """Report the device memory of running gangs: mostly what they declare or less, sometimes more than is left."""
        for number, mib in numbers:
            if (job_id := self._held(number)) is not None:
                self.world.cycle(MemoryMeasured(job_id, self.world.state.jobs[job_id].attempt, mib))

    @precondition(lambda self: not self.calm and self._shares_memory())
    @rule(
        declared=st.lists(st.sampled_from([0, 0, 0, 20]), min_size=4, max_size=4),
        first=st.sampled_from([4, 9, 15]),
        peaks=st.lists(st.sampled_from([9, 15, 22, 30, 45]), min_size=2, max_size=8),
        opportunistic=st.booleans(),
        seconds=st.sampled_from([0.0, 1.0, 15.0]),
    )
    def recur(self, declared: list[int], first: int, peaks: list[int], opportunistic: bool, seconds: float) -> None:
        """Fill the cluster with jobs of one class, measure them, let others of the class join them, and let some grow.

        declared: memory of the jobs, in turn; 0: none. first: measured memory before others join.
        """
        Invariants.steps += 2 + len(peaks)
        slots = sum(self.world.sizes)
        for number, count in enumerate((slots, min(slots, 8))):
            jobs = [
                JobSpec(
                    "again", ("train",), 1, queue="c", user="ann", workload="m", time_limit_seconds=60.0,
                    exact_seconds=60.0, grace_seconds=2.0, shareable=True, restartable=True, preemptible=one % 3 > 0,
                    opportunistic=opportunistic and number == 1 and one % 3 > 1, slot_memory_mib=declared[one % 4],
                    slot_share=0.1 * (one % 2),
                )
                for one in range(count)
            ]  # fmt: skip
            self.world.submit(*((spec, 60.0, 0) for spec in jobs))
            self.world.seen()
            if not number:
                self.world.cycle(*(MemoryMeasured(one.job_id, one.attempt, first) for one in self._recurring()[:4]))
                self.world.seen()
        for number, peak in enumerate(peaks):
            together = [one for one in self._recurring() if index_of(self.world.state).partners(one.job_id)]
            if together:
                job = together[number % len(together)]
                self.world.cycle(MemoryMeasured(job.job_id, job.attempt, peak))
                self.world.seen()
            self.world.advance(seconds)

    def _recurring(self) -> list[Job]:
        return [one for one in self.world.state.jobs.values() if one.state.holds_slots and one.spec.workload == "m"]

    def _shares_memory(self) -> bool:
        """Return whether jobs may share slots whose device memory is known."""
        world = self.world
        shares = world.policy.sharing is not Sharing.NONE and not any(queue.cells for queue in world.policy.queues)
        return shares and world.slot_memory_mib > 0 and world.jobs_per_slot > 1

    @precondition(lambda self: not self.calm)
    @rule(number=SMALL, shown=st.booleans())
    def run_out_of_memory(self, number: int, shown: bool) -> None:
        """Let a gang fail, perhaps with output that shows that the device memory was full."""
        if (job_id := self._held(number)) is not None and self._lives(job_id):
            ended = self.world.end(job_id, self.world.state.jobs[job_id].attempt, 1)
            self.world.cycle(structs.replace(ended, out_of_memory=shown))

    @precondition(lambda self: not self.calm)
    @rule(number=SMALL, present=st.booleans())
    def node_seen(self, number: int, present: bool) -> None:
        """Remove a node, or bring it back. Attempts on it continue."""
        Invariants.steps += 1
        self.world.cycle(self.world.node(number % len(self.world.sizes), present))

    # --- operators ---------------------------------------------------------------------------------------------------

    @precondition(lambda self: not self.calm)
    @rule(number=SMALL, command=st.sampled_from([NodeCommand.RELEASE, *NodeCommand]))
    def command(self, number: int, command: NodeCommand) -> None:
        if (node := self._pick(self.world.state.nodes, number)) is not None:
            self.world.cycle(NodeCommanded(node, command, drain=number % 2 == 1))

    @precondition(lambda self: not self.calm)
    @rule(frozen=st.sampled_from([True, False, False]))
    def freeze(self, frozen: bool) -> None:
        Invariants.steps += 1
        self.world.cycle(FreezeSet(frozen))

    @precondition(lambda self: self.world.state.verdicts)
    @rule(number=SMALL, confirmed=st.booleans())
    def judge(self, number: int, confirmed: bool) -> None:
        self.world.cycle(VerdictJudged(self._pick(self.world.state.verdicts, number), confirmed))

    @precondition(lambda self: not self.calm)
    @rule(policy=POLICIES)
    def reload_settings(self, policy: Policy) -> None:
        """Reload other settings, with the same kind of estimates."""
        Invariants.steps += 1
        self.world.cycle(PolicySet(replace(policy, estimates=self.world.policy.estimates)))

    @rule(
        seconds=st.one_of(st.sampled_from([1e-9, 0.25, 7.0, 10.0, 20.0, 30.0, 40.0, 60.0]), st.floats(0.0, 2000.0)),
        evaluate_all=st.booleans(),
    )
    def wait(self, seconds: float, evaluate_all: bool) -> None:
        """Check that time alone leads to no decision without a registered timeout."""
        Invariants.steps += 1
        self.world.nothing_by_time_alone(seconds, evaluate_all and self.world.settles())

    @rule()
    def rest(self) -> None:
        Invariants.steps += 1
        self.world.rest()

    @rule()
    def observe_again(self) -> None:
        Invariants.steps += 1
        self.world.observe_again()

    @rule(number=SMALL)
    def ask(self, number: int) -> None:
        if (job_id := self._pick(self.world.state.jobs, number)) is not None:
            self.world.explain(job_id)

    # --- detectors ---------------------------------------------------------------------------------------------------

    @precondition(lambda self: not self.calm)
    @rule(
        number=SMALL,
        other=SMALL,
        slowdown=st.floats(1.0, 6.0),
        kind=st.sampled_from([Kind.STRAGGLER, Kind.STRAGGLER, Kind.STRAGGLER, *Kind]),
        cause=st.sampled_from([Cause.COMPUTE, Cause.CPU_CONTENTION, Cause.UNKNOWN, Cause.POWER]),
        confidence=st.sampled_from([0.99, 0.99, 0.5]),
        since=st.sampled_from([5, 200]),
        named=st.booleans(),
    )
    def verdict(
        self, number: int, other: int, slowdown: float, kind: Kind, cause: Cause, confidence: float, since: int,
        named: bool,
    ) -> None:  # fmt: skip
        job_id = self._held(number)
        if job_id is None:
            return
        world, job = self.world, self.world.state.jobs[job_id]
        rank = other % len(job.ranks)
        aggressor = self._held(other) or ""
        world.cycle(
            Verdict(
                verdict_id=f"v{world.cycles}",
                kind=kind,
                gang=job_id,
                attempt=job.attempt,
                rank=rank,
                node=job.ranks[rank].slot.node,
                cause=cause,
                confidence=confidence,
                slowdown=slowdown,
                step_seconds_before=1.0,
                step_seconds_now=slowdown,
                first_wall_ns=world.now_ns - since * 1_000_000_000,
                last_wall_ns=world.now_ns,
                aggressor=aggressor if named and kind is Kind.INTERFERENCE and aggressor != job_id else "",
            )
        )

    @precondition(lambda self: not self.calm)
    @rule(number=SMALL, rank=SMALL, slowdown=st.sampled_from([1.3, 2.0, 5.0]))
    def accuse(self, number: int, rank: int, slowdown: float) -> None:
        """Report a verdict with high confidence, of a kind that moves gangs and quarantines nodes."""
        self.verdict(number, rank, slowdown, Kind.STRAGGLER, Cause.COMPUTE, 0.99, 5, named=False)

    @precondition(lambda self: self.world.state.verdicts)
    @rule(number=SMALL)
    def clear(self, number: int) -> None:
        verdict = self._pick(self.world.state.verdicts.values(), number)
        self.world.cycle(Cleared(verdict.verdict_id, verdict.gang, self.world.now_ns, "it runs at normal speed"))

    @precondition(lambda self: self.world.state.jobs)
    @rule(number=SMALL)
    def abstain(self, number: int) -> None:
        job_id = self._pick(self.world.state.jobs, number)
        self.world.cycle(Abstention(job_id, 1, None, self.world.now_ns, "too much load"))

    # --- the controller ----------------------------------------------------------------------------------------------

    @rule(snapshot_first=st.booleans())
    def kill(self, snapshot_first: bool) -> None:
        Invariants.steps += 1
        self.world.kill(snapshot_first)
