"""Backfill: which jobs are candidates, in which order, and no slot is assigned twice."""

from __future__ import annotations

import pytest

from scheduler_feedback.core.cluster import Level, Node, NodeState, Tier
from scheduler_feedback.core.events import AttemptEnded, NodeCommand, NodeCommanded, RankExit, Submitted
from scheduler_feedback.core.job import Group, JobSpec, JobState, Slot
from scheduler_feedback.core.state import Backfilling, Estimates, Policy
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.index.slot_plan import Plan
from scheduler_feedback.policies.nodes.quarantine import others_want, quarantine
from scheduler_feedback.policies.queue.backfill import Backfill, Reservation, candidates, only
from scheduler_feedback.policies.queue.pending_line import WaitingLine
from scheduler_feedback.policies.queue.placement import shape_of, waits_for_healthy
from tests.cluster.cycle_world import World
from tests.cluster.makers import NOW_NS, SECOND, job_of

# --- candidates ------------------------------------------------------------------------------------------------------


def queue_of(**jobs: tuple[int, int]) -> WaitingLine:
    """Return a queue of jobs, each (ranks, expected seconds), in the order of their names."""
    line = WaitingLine()
    for name, (ranks, seconds) in jobs.items():
        line.add(name, (0, name), shape_of(job_of(name, ranks=ranks)), "q", seconds * SECOND)
    return line


MIXED = {"a": (2, 10), "b": (6, 10), "c": (2, 100), "d": (1, 300), "e": (2, 20), "f": (2, 100), "g": (2, 101)}


def candidates_of(line: WaitingLine, free: int, unreserved: int, window: float | None) -> str:
    window_ns = None if window is None else round(window * SECOND)
    return "".join(key[-1] for key, _, _, _ in candidates(line, free, unreserved, window_ns))


@pytest.mark.parametrize(
    ("free", "unreserved", "window", "names"),
    [
        (8, 8, 50.0, "abcdefg"),
        (8, 8, None, "abcdefg"),
        (4, 8, 50.0, "acdefg"),  # six do not fit into the free slots
        (4, 1, 50.0, "ade"),  # one slot is free next to the reserved ones: only short jobs may take the others
        (4, 1, 100.0, "acdef"),
        (4, 0, 50.0, "ae"),
        (4, 0, 9.0, ""),
        (4, 0, None, "acdefg"),  # every job is short
        (1, 1, 50.0, "d"),
        (0, 0, 50.0, ""),
    ],
)
def test_candidates_are_jobs_that_may_fit_for_their_run_time(
    free: int, unreserved: int, window: float | None, names: str
) -> None:
    assert candidates_of(queue_of(**MIXED), free, unreserved, window) == names


def test_a_kind_without_room_yields_no_more_candidates() -> None:
    names = ""
    for key, kind, length_ns, chance in candidates(queue_of(**MIXED), 8, 8, 50 * SECOND):
        names += key[-1]
        assert length_ns == MIXED[key[-1]][1] * SECOND
        if kind.ranks == 2:
            chance.short = False
    assert names == "abd"
    names = ""
    for key, kind, _, chance in candidates(queue_of(**MIXED), 8, 8, 50 * SECOND):
        names += key[-1]
        if kind.ranks == 2:
            chance.long = False
    assert names == "abde", "its short jobs may still find room"


def test_a_started_job_leaves_the_queue_and_no_later_job_is_skipped() -> None:
    line = queue_of(**dict.fromkeys("abcdef", (2, 100)))
    names = ""
    for key, _, _, _ in candidates(line, 8, 8, 50 * SECOND):
        names += key[-1]
        if key[-1] in "abdf":
            line.remove(key[-1])
    assert (names, [key[-1] for key in line.order]) == ("abcdef", ["c", "e"])


def test_only_yields_the_given_jobs_that_fit_into_free_slots() -> None:
    line = queue_of(**MIXED)
    found = [key[-1] for key, _, _, _ in only(line, ["g", "b", "a", "unknown"], 4)]
    assert found == ["a", "g"]
    assert [key[-1] for key, _, _, _ in only(line, ["a", "b"], 2)] == ["a"]


# --- assigned slots --------------------------------------------------------------------------------------------------


def backfill_of(free: int, reserved: int) -> tuple[Backfill, Plan]:
    plan = Plan([Node("n0", free)])
    slots = tuple(Slot("n0", number) for number in range(reserved))
    return Backfill(plan, Reservation("head", NOW_NS + 50 * SECOND, slots), NOW_NS), plan


def test_slots_of_a_backfilled_job_are_taken_for_short_and_long_jobs() -> None:
    for order in ("short first", "long first", "short after unreserved"):
        backfill, plan = backfill_of(6, 3)
        if order == "short after unreserved":
            assert backfill.unreserved.free(Tier.HEALTHY) == 3
        assert backfill.window_ns == 50 * SECOND
        taken: list[Slot] = []
        steps = [backfill.place_short, backfill.place_unreserved]
        for place in steps if order.startswith("short") else reversed(steps):
            found = place(Policy(), job_of("j", ranks=1))
            assert found is not None
            taken += found[0]
        assert len(set(taken)) == 2
        assert plan.free(Tier.HEALTHY) == 4
        assert backfill.unreserved.free(Tier.HEALTHY) + len(set(taken) - {Slot("n0", n) for n in range(3)}) == 3


def test_only_short_jobs_use_reserved_slots() -> None:
    backfill, plan = backfill_of(4, 3)
    assert backfill.place_unreserved(Policy(), job_of("j", ranks=2)) is None
    assert plan.free(Tier.HEALTHY) == 4
    found = backfill.place_short(Policy(), job_of("j", ranks=2))
    assert found is not None and found[1] == "it is expected to end before the start of head"
    backfill, plan = backfill_of(4, 3)
    found = backfill.place_unreserved(Policy(), job_of("j", ranks=1))
    assert found == ((Slot("n0", 3),), "it uses no slot reserved for head")
    assert plan.free(Tier.HEALTHY) == 3


# --- slow nodes and the queue ----------------------------------------------------------------------------------------


def test_a_gang_with_placement_requirements_may_reserve_slow_nodes() -> None:
    """Enough healthy slots in the cluster do not imply enough of them within one domain."""
    slow = Node("n2", 2, slowdown=2.0)
    slow.state = NodeState.SUSPECT
    plan = Plan([Node("n0", 2), Node("n1", 2), slow])
    assert waits_for_healthy(plan, job_of("j", ranks=4), None)
    assert not waits_for_healthy(plan, job_of("j", ranks=5), None)
    assert not waits_for_healthy(plan, job_of("j", ranks=2, required_level=Level.NODE), None)
    assert not waits_for_healthy(plan, job_of("j", ranks=2, groups=(Group("a", 2, same_node=True),)), None)
    assert not waits_for_healthy(plan, job_of("j", ranks=3, excluded_nodes=("n0",)), None)
    assert not waits_for_healthy(Plan([Node("n0", 4)]), job_of("j", ranks=2), None), "none is slow"


def test_a_slow_node_is_wanted_once_a_job_that_gains_from_it_has_waited() -> None:
    world = World({"n0": 2, "n1": 2})
    world.submit(4, 10_000.0, time_limit_seconds=10_000.0)
    world.running()
    node = world.state.nodes["n0"]
    node.slowdown = 1.1
    world.submit(2, 10.0, time_limit_seconds=10.0)
    assert not others_want(world.state, node), "it was just submitted"
    world.state.now_ns += SECOND
    assert others_want(world.state, node)
    world.now_ns = world.state.now_ns
    world.submit(2, 5000.0, time_limit_seconds=5000.0)
    assert others_want(world.state, node), "another new job of the same shape changes nothing"


def test_a_node_that_the_cap_keeps_in_use_is_used_last() -> None:
    world = World({f"n{i}": 2 for i in range(4)}, Policy(quarantine_max_fraction=0.25))
    world.cycle(NodeCommanded("n0", NodeCommand.QUARANTINE, "eve"))
    node = world.state.nodes["n1"]
    node.state = NodeState.PROBATION
    context = CycleContext(world.state, world.now_ns)
    assert not quarantine(context, node, "slow again", "v")
    assert (node.state.value, node.until_ns, node.reason, node.backoff) == ("suspect", None, "slow again", 0)
    assert quarantine(context, node, "slow again", "v", capped=False)
    assert (node.state.value, node.backoff) == ("quarantine", 1)


# --- ends of attempts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("expected", "counted"), [(40.0, 40.0), (-5.0, 0.0), (500.0, 60.0)])
def test_the_end_reported_by_the_shim_is_bounded_by_start_and_now(expected: float, counted: float) -> None:
    world = World({"n0": 2})
    job_id = world.submit(2, 1000.0)
    world.running()
    began_ns = world.now_ns
    world.now_ns += 60 * SECOND
    world.alive.clear()
    exits = (RankExit(0, 0), RankExit(1, 0))
    world.cycle(AttemptEnded(job_id, 1, exits, ended_wall_ns=began_ns + round(expected * SECOND)))
    job = world.state.jobs[job_id]
    assert (job.state, job.attempt_ended_ns) == (JobState.COMPLETED, began_ns + round(counted * SECOND))
    assert job.run_ns == round(counted * SECOND)


def test_a_job_that_fits_on_no_nodes_now_keeps_no_free_slots_in_a_conservative_plan() -> None:
    """benchmarks.invariants, seed 8600030: it did, until it would no longer have ended before the head's start.

    The second job needs both slots of a node; one of each is free.
    """
    world = World({"n0": 2, "n1": 2}, Policy(backfill=Backfilling.CONSERVATIVE, estimates=Estimates.EXACT))
    first = [world.submit(1, seconds, exact_seconds=seconds) for seconds in (80.0, 1.0, 100.0, 1.0)]
    world.running()
    for job in (first[1], first[3]):
        world.end(job)
    world.cycle(
        *(
            Submitted(name, JobSpec(name, ("train",), ranks, exact_seconds=seconds, required_level=level))
            for name, ranks, seconds, level in (
                ("a", 4, 10.0, None),
                ("b", 2, 50.0, Level.NODE),
                ("c", 1, 30.0, None),
            )
        )
    )
    assert [world.job_state(name) for name in ("a", "b", "c")] == [
        JobState.PENDING,
        JobState.PENDING,
        JobState.STARTING,
    ]
