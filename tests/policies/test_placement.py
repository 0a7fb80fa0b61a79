"""Placement, reservation and admission: single functions on small clusters."""

from __future__ import annotations

import math

import pytest

from scheduler_feedback.core.cluster import Node, NodeState
from scheduler_feedback.core.events import Submitted
from scheduler_feedback.core.job import Group, Job, JobKind, JobSpec, JobState, Slot
from scheduler_feedback.core.state import State
from scheduler_feedback.policies.index.runtime_estimate import Release, loss_seconds
from scheduler_feedback.policies.index.slot_plan import Plan
from scheduler_feedback.policies.intake.job_admission import admit_check
from scheduler_feedback.policies.queue.backfill import reserve
from scheduler_feedback.policies.queue.order import queue
from scheduler_feedback.policies.queue.placement import Capacity, place, where
from tests.cluster.cycle_world import SECOND, World


def job(ranks: int, excluded: tuple[str, ...] = (), **spec: object) -> Job:
    return Job("j", JobSpec("j", ("x",), ranks, **spec), JobState.PENDING, 0, excluded_nodes=excluded)  # type: ignore[arg-type]


def busy(**used: int) -> list[Slot]:
    return [Slot(node, slot) for node, count in used.items() for slot in range(count)]


def nodes(**states: tuple[int, NodeState]) -> list[Node]:
    return [Node(name, slots, state=state) for name, (slots, state) in states.items()]


H, S, P, Q = NodeState.HEALTHY, NodeState.SUSPECT, NodeState.PROBATION, NodeState.QUARANTINE


@pytest.mark.parametrize(
    ("used", "ranks", "expected"),
    [
        ({"a": 0, "b": 2, "c": 3}, 1, "c:3"),  # the fullest node that fits: large holes are kept
        ({"a": 0, "b": 2, "c": 3}, 2, "b:2,3"),
        ({"a": 0, "b": 2, "c": 3}, 3, "a:0,1,2"),
        ({"a": 0, "b": 2, "c": 3}, 5, "a:0,1,2,3 c:3"),  # two nodes, and the last rank on the tightest one
        ({"a": 0, "b": 2, "c": 3}, 6, "a:0,1,2,3 b:2,3"),
        ({"a": 0, "b": 2, "c": 3}, 7, "a:0,1,2,3 b:2,3 c:3"),
        ({"a": 0, "b": 2, "c": 3}, 8, None),
        ({"a": 1, "b": 1, "c": 1}, 3, "a:1,2,3"),  # ties are broken by name
    ],
)
def test_fewest_nodes_then_the_tightest_fit(used: dict[str, int], ranks: int, expected: str | None) -> None:
    plan = Plan(nodes(c=(4, H), b=(4, H), a=(4, H)), busy(**used))
    placed = place(plan, job(ranks))
    assert (None if placed is None else where(placed)) == expected


def test_a_job_that_does_not_fit_leaves_the_plan_unchanged() -> None:
    plan = Plan(nodes(a=(2, H), b=(2, S)))
    assert place(plan, job(5)) is None
    assert (plan.free_on("a"), plan.free_on("b"), plan.checkpoint()) == (2, 2, 0)


def test_suspect_nodes_are_used_last_and_only_for_what_healthy_ones_cannot_hold() -> None:
    cluster = nodes(a=(4, S), b=(2, H), c=(2, H))
    assert where(place(Plan(cluster), job(4)) or ()) == "b:0,1 c:0,1", "two healthy nodes before one suspect"
    assert where(place(Plan(cluster), job(5)) or ()) == "a:0 b:0,1 c:0,1"
    assert place(Plan(cluster), job(5), suspects=False) is None


def test_a_node_on_probation_takes_only_single_node_gangs() -> None:
    cluster = nodes(a=(4, P), b=(2, H))
    assert where(place(Plan(cluster), job(4)) or ()) == "a:0,1,2,3"
    assert where(place(Plan(cluster), job(2)) or ()) == "b:0,1", "healthy first"
    assert place(Plan(cluster), job(5)) is None
    assert where(place(Plan(nodes(a=(2, P), b=(2, S))), job(2)) or ()) == "a:0,1", "probation before suspect"


def test_unavailable_nodes_take_nothing() -> None:
    cluster = nodes(a=(4, Q), b=(4, NodeState.MAINTENANCE))
    assert place(Plan(cluster), job(1)) is None
    assert place(Plan([Node("c", 4, present=False)]), job(1)) is None


def test_excluded_and_pinned_nodes() -> None:
    cluster = nodes(a=(2, H), b=(2, H))
    assert where(place(Plan(cluster), job(2, excluded=("a",))) or ()) == "b:0,1"
    assert place(Plan(cluster), job(3, excluded=("a",))) is None
    assert where(place(Plan(cluster), job(1, pinned_node="b")) or ()) == "b:0"
    assert place(Plan(cluster), job(1, excluded=("b",), pinned_node="b")) is None
    assert place(Plan(nodes(b=(2, Q))), job(1, pinned_node="b")) is None


@pytest.mark.parametrize(
    ("ranks", "excluded", "pinned", "holds"),
    [
        (6, (), None, True),
        (7, (), None, False),
        (4, ("b",), None, True),
        (6, ("b",), None, False),
        (5, ("a",), None, True),  # alone on the node on probation
        (5, ("a", "p"), None, False),
        (2, (), "b", True),
        (3, (), "b", False),
        (1, (), "q", False),
        (1, (), "nowhere", False),
    ],
)
def test_the_capacity_of_an_empty_cluster(
    ranks: int, excluded: tuple[str, ...], pinned: str | None, holds: bool
) -> None:
    cluster = {node.name: node for node in nodes(a=(4, H), b=(2, S), p=(5, P), q=(9, Q))}
    wanted = job(ranks, excluded, pinned_node=pinned)
    assert Capacity(cluster).could_hold(wanted) is holds
    assert (place(Plan(cluster.values()), wanted) is not None) is holds, "an empty plan gives the same"


# --- reservation and backfill ----------------------------------------------------------------------------------------


def test_the_reservation_is_at_the_earliest_instant_that_frees_a_valid_place() -> None:
    plan = Plan(nodes(a=(2, H), b=(2, H), p=(2, P)), busy(a=2, b=2, p=2))
    ends = [
        Release(
            5 * SECOND, "x", (Slot("p", 0), Slot("p", 1))
        ),  # enough slots, but on probation: no place for two nodes
        Release(10 * SECOND, "y", (Slot("a", 0), Slot("a", 1))),
        Release(20 * SECOND, "z", (Slot("b", 0), Slot("b", 1))),
    ]
    kept = reserve(plan, ends, job(3), 0)
    assert kept is not None
    assert (kept.from_ns, where(kept.slots)) == (20 * SECOND, "a:0,1 b:0")
    alone = reserve(plan, ends, job(2), 0)
    assert alone is not None
    assert (alone.from_ns, where(alone.slots)) == (5 * SECOND, "p:0,1")
    assert reserve(plan, ends, job(5), 0) is None
    assert plan.free_on("a") == 0 and plan.checkpoint() == 0, "the plan is unchanged"


def test_a_reservation_is_not_before_the_job_s_next_try() -> None:
    waiting = job(1)
    waiting.not_before_ns = 7 * SECOND
    kept = reserve(Plan(nodes(a=(1, H))), [], waiting, 0)
    assert kept is not None and kept.from_ns == 7 * SECOND


def test_short_jobs_may_use_reserved_slots_and_long_ones_only_others() -> None:
    """Three nodes of two slots; two slots are held for 100 s.

    Five slots are then reserved for the head, so one slot is not.
    """
    world = World({"a": 2, "b": 2, "c": 2})
    world.submit(2, time_limit_seconds=100.0)
    head = world.submit(5, time_limit_seconds=100.0)
    assert where(world.state.reserved_slots) == "a:0,1 b:0,1 c:0"
    jobs = {
        "k1-wide": (2, 101.0),
        "k2-long": (1, 101.0),
        "k3-short": (2, 100.0),
        "k4-last": (1, 1.0),
        "k5-none": (1, 1.0),
    }
    world.cycle(
        *(Submitted(name, JobSpec(name, ("x",), ranks, time_limit_seconds=s)) for name, (ranks, s) in jobs.items())
    )
    placed = {name: where(rank.slot for rank in world.state.jobs[name].ranks) for name in jobs}
    assert placed == {"k1-wide": "", "k2-long": "c:1", "k3-short": "b:0,1", "k4-last": "c:0", "k5-none": ""}
    why = {entry.subject: entry.text for entry in world.entries if entry.kind == "backfilled"}
    assert why["k2-long"].endswith(f"it uses no slot reserved for {head}")
    assert why["k3-short"].endswith(f"it is expected to end before the start of {head}")


@pytest.mark.parametrize(
    "jobs",
    [
        ((1, 500.0), (3, 50.0), (1, 500.0)),
        ((1, 500.0), (2, 50.0), (1, 50.0), (1, 500.0)),
        ((1, 50.0), (1, 500.0), (3, 50.0), (1, 500.0), (1, 50.0)),
    ],
)
def test_jobs_submitted_in_one_cycle_never_share_a_slot(jobs: tuple[tuple[int, float], ...]) -> None:
    """Long jobs get unreserved slots and short jobs reserved ones, from the same set of free slots in one pass."""
    world = World({"a": 4, "b": 4})
    world.submit(3, time_limit_seconds=100.0)
    world.submit(6, time_limit_seconds=100.0)
    world.cycle(  # the world checks that no slot is assigned twice
        *(Submitted(f"j{n}", JobSpec("j", ("t",), r, time_limit_seconds=s)) for n, (r, s) in enumerate(jobs))
    )
    started = [rank.slot for job in world.state.jobs.values() for rank in job.ranks]
    assert len(started) == len(set(started)) >= 7


def test_the_queue_is_first_come_first_served_after_moving_gangs() -> None:
    state = State()
    for name, submitted_ns, claim in (("b", 5, []), ("a", 5, []), ("late", 9, [Slot("n", 0)]), ("c", 1, [])):
        state.jobs[name] = Job(name, JobSpec(name, ("x",), 1), JobState.PENDING, submitted_ns, claim=claim)
    state.jobs["gone"] = Job("gone", JobSpec("gone", ("x",), 1), JobState.FAILED, 0)
    state.jobs["probe"] = Job("probe", JobSpec("probe", ("x",), 1, kind=JobKind.PROBE), JobState.PENDING, 0)
    assert [waiting.job_id for waiting in queue(state)] == ["late", "c", "a", "b"]


@pytest.mark.parametrize(
    ("slowdown", "remaining", "persistence", "loss"),
    [
        (1.1, 9000.0, math.inf, 900.0),  # 15 minutes lost after 2.5 hours at 1.10: the worked example of the notes
        (2.0, 100.0, 1000.0, 100.0),
        (2.0, 5000.0, 1000.0, 500.0),  # a fault of 1000 s at half speed costs 500 s
        (math.inf, 100.0, 60.0, 60.0),  # a stopped rank costs exactly the time of the stop
        (1.0, 100.0, 60.0, 0.0),
        (0.9, 100.0, 60.0, 0.0),
        (2.0, 0.0, 60.0, 0.0),
    ],
)
def test_cost_of_staying(slowdown: float, remaining: float, persistence: float, loss: float) -> None:
    assert loss_seconds(slowdown, remaining, persistence) == pytest.approx(loss)


# --- admission -------------------------------------------------------------------------------------------------------


def cluster(*slots: int) -> State:
    return State(nodes={f"n{i}": Node(f"n{i}", count) for i, count in enumerate(slots)})


def spec(**changes: object) -> JobSpec:
    return JobSpec(**({"name": "a", "command": ("x",), "ranks": 1} | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "ranks", "answer"),
    [
        (cluster(2, 2, 2, 2), 12, "asks for 12 ranks; this cluster can hold at most 8 (4 nodes x 2 slots)"),
        (cluster(2, 3), 6, "asks for 6 ranks; this cluster can hold at most 5 (2 nodes)"),
        (cluster(2, 3), 5, None),
        (cluster(), 1, "asks for 1 rank; this cluster has no nodes"),
    ],
)
def test_a_gang_larger_than_the_cluster_is_refused_with_the_largest_possible(
    state: State, ranks: int, answer: str | None
) -> None:
    assert admit_check(state, spec(ranks=ranks)) == answer


def test_quarantined_nodes_count_for_admission_and_absent_ones_do_not() -> None:
    state = cluster(2, 2)
    state.nodes["n0"].state = Q
    assert admit_check(state, spec(ranks=4)) is None
    state.nodes["n1"].present = False
    assert "at most 2" in (admit_check(state, spec(ranks=4)) or "")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ranks": 0}, "asks for 0 ranks"),
        ({"ranks": -3}, "asks for -3 ranks"),
        ({"command": ()}, "the command is empty"),
        ({"command": ("",)}, "the command is empty"),
        ({"command": ("x", "a\0b")}, "argument 1 of the command contains a NUL"),
        ({"command": ("x", "\udcff")}, "argument 1 of the command is not valid text"),
        ({"checkpoint_signal": "SIGNONE"}, "'SIGNONE' is not a signal"),
        ({"checkpoint_signal": "SIG_DFL"}, "'SIG_DFL' is not a signal"),
        ({"checkpoint_signal": "SIGKILL"}, "cannot be caught"),
        ({"time_limit_seconds": 0.0}, "time limit is 0 s"),
        ({"time_limit_seconds": math.nan}, "time limit is nan s"),
        ({"time_limit_seconds": math.inf}, "time limit is inf s"),
        ({"grace_seconds": -1.0}, "grace is -1 s"),
        ({"restart_cost_seconds": math.inf}, "restart cost is inf s"),
        ({"max_retries": -1}, "number of retries is -1"),
        ({"environment": {"A=B": "c"}}, "'A=B' is not a valid name"),
        ({"environment": {"A": "\0"}}, "the value of the variable A"),
        ({"ranks": 4, "min_ranks": -1}, "its minimum is -1 ranks; it must be at least 1"),
        ({"ranks": 4, "min_ranks": 5}, "asks for 4 ranks, fewer than its minimum of 5"),
        ({"ranks": 4, "max_ranks": 3}, "asks for 4 ranks, more than its maximum of 3"),
        ({"ranks": 3, "groups": (Group("launcher", 1), Group("worker", 1))}, "2 ranks in total, but it asks for 3"),
        ({"ranks": 2, "groups": (Group("a", 2),), "min_ranks": 1}, "has a fixed size"),
        ({"ranks": 2, "groups": (Group("a", 2), Group("b", 0))}, "at least 1 rank"),
        ({"array_size": -1}, "the size of an array"),
        ({"preemptible": True}, "preemptible needs restartable"),
        ({"checkpoint_cost_seconds": math.nan}, "the checkpoint cost is nan s"),
        ({"throughput": {"H100": 0.0}}, "the throughput on H100 is 0"),
        ({"kind": JobKind.PROBE}, "kind probe"),
        ({"pinned_node": "n9"}, "on node n9, which this cluster does not have"),
        ({"pinned_node": "n0", "ranks": 3}, "node n0 can hold at most 2"),
    ],
)
def test_an_invalid_job_is_refused_with_a_reason(changes: dict[str, object], words: str) -> None:
    assert words in (admit_check(cluster(2, 2), spec(**changes)) or "")
