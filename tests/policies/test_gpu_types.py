"""GPU types: pending jobs wait for a faster type if they then end earlier, and gangs move to idle faster ones."""

from __future__ import annotations

import math
from typing import Any

import pytest

from scheduler_feedback import cycle
from scheduler_feedback.core.actions import StartGang, StopGang
from scheduler_feedback.core.cluster import Level, Node
from scheduler_feedback.core.events import (
    AttemptEnded,
    AttemptRunning,
    CancelRequested,
    Event,
    NodeSeen,
    RankExit,
    Submitted,
    Tick,
)
from scheduler_feedback.core.job import JobSpec, JobState, Slot
from scheduler_feedback.core.mig import MODELS
from scheduler_feedback.core.state import Backfilling, Estimates, Mode, Order, Policy, State
from scheduler_feedback.policies.gpu_types.type_backlog import TypeBacklog
from scheduler_feedback.policies.index.runtime_estimate import Release, left_at_full_speed_ns
from scheduler_feedback.policies.index.scheduling_index import drop_index, index_of
from scheduler_feedback.policies.index.slot_plan import Plan

SECOND = 1_000_000_000
BEGIN_NS = 1_700_000_000 * SECOND
SPEEDS = {"fast": 1.0, "slow": 0.25}


class Cluster:
    """One node of two slots for each GPU type; the jobs run for as long as they are expected to."""

    def __init__(self, types: tuple[str, ...] = ("fast", "slow"), **policy: Any) -> None:
        chosen: dict[str, Any] = {"order": Order.FIFO, "estimates": Estimates.EXACT, "throughput": {"": SPEEDS}}
        self.state = State(policy=Policy(**(chosen | policy)))
        self.seconds = 0.0
        self.outcomes: list[cycle.Outcome] = []
        self.cycle(*(NodeSeen(name, 2, machine=name, gpu_type=name) for name in types))

    def cycle(self, *events: Event) -> cycle.Outcome:
        now_ns = BEGIN_NS + round(self.seconds * SECOND)
        outcome = cycle.run(self.state, events, now_ns)
        self.outcomes.append(outcome)
        started = [action for action in outcome.actions if isinstance(action, StartGang)]
        if started:
            cycle.run(self.state, [AttemptRunning(one.job_id, one.attempt, ()) for one in started], now_ns)
        return outcome

    def submit(self, job_id: str, seconds: float, ranks: int = 1, **spec: Any) -> None:
        fields: dict[str, Any] = {"exact_seconds": seconds, "grace_seconds": 0.0, "restart_cost_seconds": 10.0}
        self.cycle(Submitted(job_id, JobSpec(job_id, ("train",), ranks, **(fields | spec))))

    def end(self, job_id: str, code: int = 0, **fields: Any) -> cycle.Outcome:
        job = self.state.jobs[job_id]
        exits = tuple(RankExit(rank.rank, code) for rank in job.ranks)
        return self.cycle(AttemptEnded(job_id, job.attempt, exits, **fields))

    def type_of(self, job_id: str) -> str:
        """Return the GPU type on which the job runs; '' if it is pending."""
        job = self.state.jobs[job_id]
        return job.ranks[0].slot.node if job.state.holds_slots else ""

    def said(self, job_id: str, kind: str) -> list[str]:
        entries = [entry for outcome in self.outcomes for entry in outcome.entries]
        return [entry.text for entry in entries if entry.subject == job_id and entry.kind == kind]


def busy(seconds: float, **policy: Any) -> Cluster:
    """Return a cluster whose fast GPUs are in use for this long, and whose slow GPUs are free."""
    world = Cluster(**policy)
    world.submit("first", seconds, 2)
    assert world.type_of("first") == "fast"
    return world


def test_a_job_waits_for_a_faster_type_if_it_then_ends_earlier() -> None:
    """On slow GPUs it would take 400 s; on fast ones it ends after 50 + 100 s."""
    world = busy(50.0)
    world.submit("long", 100.0)
    assert world.type_of("long") == ""
    assert world.said("long", "awaits-type") == [
        "waits for fast, although slow is free: expected to start in 50 s and to end 4 min earlier; waits 5 min at most"
    ]
    world.seconds = 50.0
    (start,) = world.end("first").actions
    assert world.type_of("long") == "fast"
    assert isinstance(start, StartGang) and start.reason.endswith("waited for a faster GPU type and starts on fast")


def test_a_job_uses_a_slow_type_if_it_ends_earlier_there() -> None:
    """It takes 400 s on slow GPUs, and the fast ones are busy for 310 s: the wait is longer than the 300 s it saves."""
    world = busy(310.0)
    world.submit("long", 100.0)
    assert world.type_of("long") == "slow"
    assert not world.said("long", "awaits-type")


def test_jobs_ahead_count_for_the_wait() -> None:
    """Each job alone would wait for the fast GPUs. The last would have to wait for three others."""
    world = busy(50.0)
    for name in ("j2", "j3", "j4"):
        world.submit(name, 100.0, 2)
    assert [world.type_of(name) for name in ("j2", "j3", "j4")] == ["", "", ""]
    world.submit("j5", 100.0, 2)
    assert world.type_of("j5") == "slow", "behind three others it would start after 350 s"


def test_a_job_that_uses_a_slow_type_does_not_lengthen_the_wait_for_the_fast_one() -> None:
    """The first of two jobs ends earlier on slow GPUs. The second then gets the fast ones after 310 s."""
    world = busy(310.0)
    specs = {name: JobSpec(name, ("train",), 2, exact_seconds=100.0) for name in ("a", "b")}
    cycle.run(world.state, [Submitted(name, spec) for name, spec in specs.items()], BEGIN_NS)
    plan = index_of(world.state).plan
    slow = 1 << plan.topology.type_names.index("slow")
    assert (world.type_of("a"), world.type_of("b")) == ("slow", "")
    assert plan.declined["b"] == (slow, BEGIN_NS + 310 * SECOND)


@pytest.mark.parametrize(
    "policy",
    [
        {"type_patience": 0.0},
        {"throughput": {}},
        {"backfill": Backfilling.NONE},
        {"order": Order.THEMIS},
        {"order": Order.SRTF, "preempt": True},
        {"types": ("slow", "slower"), "throughput": {"": {}}},
    ],
)
def test_the_rule_is_off(policy: dict[str, Any]) -> None:
    world = Cluster(**policy)
    world.submit("first", 50.0, 2)
    world.submit("long", 100.0)
    assert world.type_of("long") not in ("", world.type_of("first"))


def test_time_alone_changes_no_choice() -> None:
    """Two slots of the slow type are free, but on two nodes, and the job needs one node.

    It would end on them after 400 s if it could start now, and on fast GPUs after 331 + 100 s. As of 45 s later, the
    fast GPUs would seem better, although nothing has happened.
    """
    world = Cluster(defragmentation_moves=0)
    world.cycle(NodeSeen("slow too", 2, machine="slow too", gpu_type="slow"))
    world.submit("first", 330.0, 2, gpu_types=("fast",))
    for name in ("a", "b", "c", "d"):
        world.submit(name, 5000.0, gpu_types=("slow",))
    nodes = {}
    for name in ("a", "b", "c", "d"):
        nodes.setdefault(world.type_of(name), name)
    for name in nodes.values():
        world.end(name)
    world.submit("head", 1.0, 2, gpu_types=("fast",))  # the start of the first job is known exactly
    world.submit("long", 100.0, 2, required_level=Level.NODE)
    assert world.type_of("long") == ""
    declined = index_of(world.state).plan.declined["long"][0]
    world.seconds = 45.0
    wake_ns = cycle.next_wake_ns(world.state)
    assert wake_ns is not None and wake_ns > BEGIN_NS + 45 * SECOND
    drop_index(world.state)
    outcome = world.cycle(Tick())
    assert not outcome.entries and not outcome.changed
    assert index_of(world.state).plan.declined["long"][0] == declined


def test_a_wait_that_was_expected_wrongly_ends() -> None:
    """The fast GPUs stay busy. After the 300 s that they would have saved, the job starts on slow ones by itself."""
    world = Cluster()
    world.submit("first", 50.0, 2, time_limit_seconds=50.0)
    world.submit("long", 100.0)
    while world.type_of("long") == "":
        wake_ns = cycle.next_wake_ns(world.state)
        assert wake_ns is not None
        world.seconds = (wake_ns - BEGIN_NS) / SECOND
        assert world.seconds <= 300.0
        world.cycle(Tick())
    assert (world.type_of("long"), world.seconds) == ("slow", 300.0)


def test_patience_is_a_share_of_the_time_that_is_saved() -> None:
    """The wait of 50 s is less than half of the 300 s that the fast type saves, and more than a tenth."""
    for patience, expected in ((0.5, ""), (0.1, "slow")):
        world = busy(50.0, type_patience=patience)
        world.submit("long", 100.0)
        assert world.type_of("long") == expected


def test_a_job_that_declines_a_type_leaves_it_to_others() -> None:
    """The head waits for fast GPUs. A job that gains nothing from them starts on slow ones behind it."""
    world = busy(50.0)
    world.submit("long", 100.0)
    world.submit("other", 100.0, throughput={"slow": 1.0})
    assert (world.type_of("long"), world.type_of("other")) == ("", "slow")
    assert world.state.reserved_for == "long"
    assert {slot.node for slot in world.state.reserved_slots} == {"fast"}


def test_a_short_job_on_a_slow_type_does_not_delay_the_head() -> None:
    """It would end before the head's reservation on fast GPUs, but not on the slow ones that the head needs."""
    world = Cluster()
    world.submit("first", 100.0, 1, gpu_types=("slow",))
    world.submit("head", 100.0, 2, gpu_types=("slow",))
    world.submit("busy", 1000.0, 2, gpu_types=("fast",))
    world.submit("short", 350.0, 1, gpu_types=("slow",))
    assert world.state.reserved_for == "head"
    assert world.type_of("short") == "", "on slow GPUs it takes 1400 s, and the head can start after 400 s"


def test_a_type_without_a_large_enough_node_is_not_awaited() -> None:
    """A group needs two slots on one node. The fast nodes have one slot each."""
    world = Cluster(types=("slow",))
    world.cycle(*(NodeSeen(f"f{number}", 1, machine=f"f{number}", gpu_type="fast") for number in range(2)))
    world.submit("first", 50.0, 2, gpu_types=("fast",))
    world.submit("long", 100.0, 2, required_level="node")
    assert world.type_of("long") == "slow"


def test_fast_slots_that_become_free_on_several_nodes_are_not_awaited_by_a_job_that_needs_one_node() -> None:
    """benchmarks.invariants, seed 7400041: the first job counted two slots of different nodes, and waited longer."""
    world = Cluster(types=("slow",), throughput={"": {"f": 1.0, "slow": 0.25}})
    world.cycle(*(NodeSeen(name, 2, machine=name, gpu_type="f") for name in ("f1", "f2")))
    for name, node, seconds in (("a", "f1", 30.0), ("b", "f1", 500.0), ("c", "f2", 30.0), ("d", "f2", 500.0)):
        world.submit(name, seconds)
        assert world.type_of(name) == node
    world.submit("head", 100.0, 2, required_level=Level.NODE)
    assert world.type_of("head") == "slow"
    world.submit("wide", 100.0, 2)
    assert index_of(world.state).plan.declined["wide"][1] == BEGIN_NS + 30 * SECOND


def divisible(*nodes: tuple[str, str, bool]) -> Cluster:
    """Return a cluster of nodes (name, GPU type, whether MIG can divide its two GPUs)."""
    world = Cluster(types=(), mig=True)
    for name, gpu_type, mig in nodes:
        profiles = MODELS["A100-80GB"] if mig else ()
        world.cycle(NodeSeen(name, 2, machine=name, gpu_type=gpu_type, mig_profiles=profiles))
    return world


def test_a_type_without_the_mig_profile_is_not_awaited() -> None:
    """A job waited for ever for GPUs that MIG cannot divide, beside others that were free."""
    world = divisible(("f", "fast", False), ("s", "slow", True))
    world.submit("job", 7200.0, 2, mig_profile="3g.40gb")
    assert world.type_of("job") == "s"


def test_free_fast_gpus_that_the_job_must_not_use_do_not_count() -> None:
    world = divisible(("f1", "fast", False), ("f2", "fast", True), ("s", "slow", True))
    world.submit("first", 3600.0, 2, mig_profile="7g.80gb")
    assert world.type_of("first") == "f2"
    world.submit("short", 100.0, 2, mig_profile="7g.80gb")
    assert world.type_of("short") == "s", "f1 is free, but has no such instance"
    world.end("short")
    world.submit("long", 7200.0, 2, mig_profile="7g.80gb")
    assert world.type_of("long") == "" and world.said("long", "awaits-type")[0].endswith("waits 6.0 h at most")


def test_fast_gpus_that_the_job_must_not_use_are_not_awaited_either() -> None:
    """A job waited for the end of another one on GPUs that have no such instance."""
    world = divisible(("f1", "fast", False), ("f2", "fast", True), ("s", "slow", True))
    world.submit("first", 100_000.0, 2, mig_profile="7g.80gb")
    world.submit("second", 50.0, 2, gpu_types=("fast",))
    assert (world.type_of("first"), world.type_of("second")) == ("f2", "f1")
    world.submit("job", 100.0, 2, mig_profile="7g.80gb")
    assert world.type_of("job") == "s"


def test_slots_that_do_not_count_are_left_out_at_each_instant() -> None:
    backlog = TypeBacklog(Plan(()), (), 0)
    backlog.free_ns = [[0, 0, 5, 5, 9, 12]]
    assert [backlog.start_ns(0, ranks) for ranks in (1, 2, 3, 4, 5, 6, 7)] == [0, 0, 5, 5, 9, 12, None]
    barred = TypeBacklog(Plan(()), (), 0)
    barred.free_ns = [[0, 5, 9]]
    assert [backlog.start_ns(0, ranks, barred) for ranks in (1, 2, 3, 4)] == [0, 5, 12, None]
    barred.free_ns = [[0, 0, 5, 5, 9]]
    assert backlog.start_ns(0, 1, barred) == 12
    barred.free_ns = [[0, 0, 5, 5, 9, 12]]
    assert backlog.start_ns(0, 1, barred) is None


def test_slots_of_spare_nodes_count_for_jobs_that_may_borrow_them() -> None:
    """benchmarks.invariants, seed 7500022: a job that could borrow a spare waited for another type, and ended later."""
    nodes = [Node("a", 2, gpu_type="x"), Node("b", 3, gpu_type="x", spare=True), Node("c", 1, gpu_type="x", spare=True)]
    plan = Plan(nodes)
    taken = [*plan.take("a", 2), *plan.take("b", 2)]
    ends = [Release(at, "j", (slot,)) for at, slot in zip((5, 7, 6, 9), taken, strict=True)]
    backlog = TypeBacklog(plan, sorted(ends), 0)
    assert [backlog.start_ns(0, ranks) for ranks in (1, 2, 3)] == [5, 7, None]
    assert [backlog.start_ns(0, ranks, borrows=True) for ranks in range(1, 8)] == [0, 0, 5, 6, 7, 9, None]
    barred = TypeBacklog(plan, sorted(ends), 0, plan.topology.bits[plan.topology.number["b"]])
    assert [backlog.start_ns(0, ranks, barred, borrows=True) for ranks in range(1, 5)] == [0, 5, 7, None]
    backlog.take(0, 3, 5, 20, borrows=True)
    assert backlog.free_ns == [[7, 20]] and backlog.spare_ns == [[6, 9, 20, 20]]
    backlog.take(0, 1, 7, 30)
    assert backlog.free_ns == [[20, 30]]


def test_instances_that_fit_on_one_gpu_await_one_gpu() -> None:
    world = divisible(("f", "fast", True), ("s", "slow", True))
    world.submit("first", 3600.0, gpu_types=("fast",))
    world.submit("job", 7200.0, 2, mig_profile="3g.40gb")
    assert world.type_of("job") == "f", "the second fast GPU holds both instances"


def test_the_wait_is_explained() -> None:
    world = busy(50.0)
    world.submit("long", 100.0)
    found = cycle.explain(world.state, "long")
    assert found is not None
    assert found.binds == "type"
    assert found.why == (
        "waits for fast, because it is expected to end earlier than on the slower GPUs that are free; expected to "
        "start in 50 s; after 5 min it also uses slower GPUs"
    )
    assert found.expected_start_ns == BEGIN_NS + 50 * SECOND
    assert "with slow as its only GPU type, it could start now" in found.what_would_change_it


def test_a_preempting_job_takes_fast_slots_that_it_waits_for() -> None:
    """Free slow slots do not stop it from taking those of a far longer gang, because it cannot use them."""
    world = Cluster(order=Order.FAIR, preempt=True, preempt_gain=2.0)
    world.submit("first", 100_000.0, 2, restartable=True, preemptible=True)
    world.seconds = 100.0
    world.submit("short", 100.0, gpu_types=("fast",))
    assert [action.job_id for action in world.outcomes[-1].actions if isinstance(action, StopGang)] == ["first"]


def test_an_infinite_patience_waits_for_ten_years_at_most() -> None:
    world = busy(50.0, type_patience=math.inf)
    world.submit("long", 100.0)
    job = world.state.jobs["long"]
    assert (world.type_of("long"), job.awaited_until_ns) == ("", BEGIN_NS + 10 * 365 * 86_400 * SECOND)


# --- moves -----------------------------------------------------------------------------------------------------------


def test_the_time_left_of_a_gang_does_not_jump_at_its_start_or_stop() -> None:
    """benchmarks.invariants, seed 7900014: on slow GPUs a running gang had more time left than a pending one.

    So it was stopped for another job as soon as it had started, and went ahead of that job as soon as it was pending.
    """
    world = Cluster(types=("slow",), estimates=Estimates.LIMIT, order=Order.SRTF, preempt=True, min_run_seconds=0.0)
    fields: dict[str, Any] = {"restartable": True, "preemptible": True, "grace_seconds": 2.0}
    specs = {
        name: JobSpec(name, ("train",), 2, time_limit_seconds=seconds, **fields)
        for name, seconds in (("a", 100.0), ("b", 60.0))
    }
    world.cycle(Submitted("a", specs["a"]))

    def left_seconds() -> float:
        job = world.state.jobs["a"]
        return left_at_full_speed_ns(world.state.policy, job, BEGIN_NS + round(world.seconds * SECOND)) / SECOND

    assert left_seconds() == pytest.approx(100.0)
    world.seconds = 100.0
    assert left_seconds() == pytest.approx(75.0), "it runs at a quarter of the speed that its limit assumes"
    world.cycle(Submitted("b", specs["b"]))
    assert world.state.jobs["a"].stop_reason is not None
    world.end("a", 143, signalled=True)
    assert left_seconds() == pytest.approx(75.0) and world.type_of("b") == "slow"
    world.seconds = 150.0
    world.end("b")
    assert world.type_of("a") == "slow" and left_seconds() == pytest.approx(75.0)
    (release,) = index_of(world.state).ends
    assert release.at_ns == BEGIN_NS + round((150.0 + 4 * 75.0) * SECOND)


def on_slow(pending: bool = False, **policy: Any) -> Cluster:
    """Return a cluster in which a restartable gang runs on slow GPUs, and the fast ones have just become free."""
    world = busy(1000.0, **policy)
    world.submit(
        "slow one", 2000.0, 2, restartable=True, gpu_types=("slow", "fast"), throughput={"fast": 1.0, "slow": 0.9}
    )
    assert world.type_of("slow one") == "slow"
    if pending:
        world.submit("pending", 100.0, 2, gpu_types=("slow",))
        assert world.state.jobs["pending"].state is JobState.PENDING
    world.seconds = 500.0
    world.end("first")
    return world


def test_a_gang_moves_to_idle_faster_gpus() -> None:
    """No job was ever pending, so the idle time is expected to last."""
    world = on_slow()
    assert world.said("slow one", "faster-type") == [
        "will continue on fast instead of slow: no pending job needs the idle slots"
    ]
    world.end("slow one", 75, signalled=True, done_seconds=500.0)
    assert world.type_of("slow one") == "fast"


def test_a_gang_moves_only_after_an_idle_time_that_pays() -> None:
    """A move costs 10 s, so 12 s must be saved: a tenth of 120 s without pending jobs."""
    world = on_slow(pending=True)
    world.cycle(CancelRequested("pending"))
    while not world.said("slow one", "faster-type"):
        wake_ns = cycle.next_wake_ns(world.state, BEGIN_NS + round(world.seconds * SECOND))
        assert wake_ns is not None
        world.seconds = (wake_ns - BEGIN_NS) / SECOND
        world.cycle(Tick())
    assert 620.0 < world.seconds < 635.0, "the interval between two evaluations grows by an eighth"


@pytest.mark.parametrize(
    "policy", [{"mode": Mode.OBSERVE}, {"migration_margin": 1e9}, {"resize_horizon_seconds": 100.0}]
)
def test_a_gang_does_not_move_in_vain(policy: dict[str, Any]) -> None:
    world = on_slow(**policy)
    for seconds in range(510, 2500, 10):
        world.seconds = float(seconds)
        world.cycle(Tick())
    assert not any(isinstance(action, StopGang) for outcome in world.outcomes for action in outcome.actions)
    said = world.said("slow one", "faster-type")
    assert said == (
        ["would continue on fast instead of slow: no pending job needs the idle slots"] if "mode" in policy else []
    )


def test_a_gang_stays_while_a_job_is_pending() -> None:
    world = on_slow(pending=True)
    for seconds in range(510, 2000, 10):
        world.seconds = float(seconds)
        world.cycle(Tick())
    assert not world.said("slow one", "faster-type")


def test_a_gang_stays_if_a_job_is_submitted_in_the_same_cycle() -> None:
    world = busy(1000.0)
    world.submit("slow one", 2000.0, 2, restartable=True, throughput={"fast": 1.0, "slow": 0.9})
    world.seconds = 500.0
    first = world.state.jobs["first"]
    exits = tuple(RankExit(rank.rank, 0) for rank in first.ranks)
    spec = JobSpec("other", ("train",), 2, gpu_types=("slow",))
    world.cycle(AttemptEnded("first", 1, exits), Submitted("other", spec))
    assert world.type_of("slow one") == "slow"
    assert not world.said("slow one", "faster-type")


def test_a_head_starts_earlier_on_a_slower_type_if_a_job_there_ends_earlier_than_expected() -> None:
    """It has slots on the fast type from second 60. The job on the slow type ends at 10 instead of 300."""
    world = Cluster(type_patience=0.0)
    world.submit("fast one", 60.0, 2, gpu_types=("fast",))
    world.submit("slow one", 75.0, 1, gpu_types=("slow",))
    world.submit("short one", 10.0, 1, gpu_types=("slow",))
    world.submit("head", 50.0, 2)
    state = world.state
    assert (state.reserved_for, state.reserved_from_ns) == ("head", BEGIN_NS + 60 * SECOND)
    assert state.reserved_nodes == {"fast": 2}
    world.seconds = 10.0
    world.end("slow one")
    assert (state.reserved_from_ns, state.reserved_nodes) == (BEGIN_NS + 40 * SECOND, {"slow": 2})


# --- backlog ---------------------------------------------------------------------------------------------------------


def test_the_backlog_counts_slots_by_type() -> None:
    nodes = [NodeSeen("a", 2, gpu_type="x"), NodeSeen("b", 2, gpu_type="y")]
    state = State()
    cycle.run(state, nodes, BEGIN_NS)
    plan: Plan = index_of(state).plan
    taken = plan.take("a", 1)
    x, y = (plan.topology.type_names.index(name) for name in ("x", "y"))
    backlog = TypeBacklog(plan, [Release(BEGIN_NS + 5, "j", taken)], BEGIN_NS)
    assert [backlog.start_ns(x, ranks) for ranks in (1, 2, 3)] == [BEGIN_NS, BEGIN_NS + 5, None]
    assert backlog.start_ns(y, 2) == backlog.now_ns
    backlog.take(y, 1, BEGIN_NS, BEGIN_NS + 9)
    assert [backlog.start_ns(y, ranks) for ranks in (1, 2)] == [BEGIN_NS, BEGIN_NS + 9]
    backlog.take(y, 1, BEGIN_NS + 9, BEGIN_NS + 20)
    assert backlog.start_ns(y, 1) == BEGIN_NS, "the slot that is free earlier stays free"
    assert TypeBacklog(plan, [Release(BEGIN_NS + 5, "j", (Slot("gone", 0),))], BEGIN_NS).start_ns(x, 2) is None
