"""Gangs with layouts for some numbers of ranks only: no other number is ever started, and a change has its cost."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_feedback.core.actions import StartGang
from scheduler_feedback.core.job import Group, Job, JobSpec, JobState, RankRecord, Slot
from scheduler_feedback.core.state import Policy, Sizes
from scheduler_feedback.policies.intake.job_admission import malformed
from scheduler_feedback.policies.sizes.options import sizes_of
from scheduler_feedback.sim.job_trace import Trace, TraceJob
from scheduler_feedback.sim.simulated_nodes import grid
from scheduler_feedback.sim.simulation import Simulation
from tests.cluster.cycle_world import World

SPEC = JobSpec("job", ("train",), 4, min_ranks=2, max_ranks=8, sizes=(2, 4, 8), restartable=True)
LAYOUTS: dict[str, Any] = {"min_ranks": 2, "max_ranks": 8, "sizes": (2, 4, 8), "restartable": True}


def started(world: World) -> list[int]:
    actions = [action for outcome in world.outcomes for action in outcome.actions]
    return [len(action.placement) for action in actions if isinstance(action, StartGang)]


@pytest.mark.parametrize(("ranks", "most"), [(1, 0), (2, 2), (3, 2), (4, 4), (7, 4), (8, 8), (100, 8)])
def test_the_largest_layout_is_used(ranks: int, most: int) -> None:
    assert SPEC.size_at_most(ranks) == most
    assert SPEC.sizes_between(3, ranks) == [size for size in (4, 8) if size < ranks]


def test_without_sizes_a_gang_has_whole_groups() -> None:
    spec = JobSpec("job", ("train",), 4, min_ranks=2, max_ranks=8, groups=(Group("a", 2), Group("a", 2)))
    assert spec.size_at_most(7) == 6 and list(spec.sizes_between(2, 7)) == [2, 4, 6]


@pytest.mark.parametrize(("free", "ranks"), [(8, 8), (7, 4), (4, 4), (3, 2), (2, 2), (1, None)])
def test_a_gang_starts_with_a_layout_that_fits(free: int, ranks: int | None) -> None:
    world = World({"n0": 8})
    if free < 8:
        world.submit(8 - free, 500.0)
    job = world.submit(4, 500.0, **LAYOUTS)
    assert world.job_state(job) is (JobState.PENDING if ranks is None else JobState.STARTING)
    assert ranks is None or len(world.state.jobs[job].ranks) == ranks


@pytest.mark.parametrize(("idle", "ranks"), [(2, 4), (3, 4), (4, 8), (5, 8)])
def test_a_gang_grows_to_a_layout_only(idle: int, ranks: int) -> None:
    world = World({"n0": 4 + idle}, Policy(default_time_limit_seconds=1e6))
    world.submit(idle, 300.0)
    world.submit(4, 1e5, restart_cost_seconds=1.0, grace_seconds=1.0, **LAYOUTS)
    world.running()
    for _ in range(20):
        world.advance(600.0)
    assert started(world) == [idle, 4] + [8] * (ranks == 8)


def test_a_costly_layout_is_not_changed() -> None:
    world = World({"n0": 8}, Policy(default_time_limit_seconds=1e6))
    world.submit(4, 300.0)
    world.submit(4, 1e5, restart_cost_seconds=1.0, grace_seconds=1.0, reshard_seconds=1e5, **LAYOUTS)
    world.running()
    for _ in range(20):
        world.advance(600.0)
    assert started(world) == [4, 4]


def test_a_gang_shrinks_to_a_layout_for_a_pending_job() -> None:
    world = World({"n0": 8}, Policy(default_time_limit_seconds=1e5))
    elastic = world.submit(8, 1e5, restart_cost_seconds=1.0, grace_seconds=1.0, **LAYOUTS)
    world.running()
    world.advance(600.0)
    world.submit(1, 1e4)
    world.advance(600.0)
    assert len(world.state.jobs[elastic].ranks) == 4, "seven have no layout"


@pytest.mark.parametrize("sizes", [Sizes.SPEEDUP, Sizes.REMAINING, Sizes.GOODPUT])
def test_joint_choices_use_layouts_only(sizes: Sizes) -> None:
    world = World({"n0": 8, "n1": 8}, Policy(sizes=sizes, sizes_seconds=0.0, default_time_limit_seconds=1e5))
    for _ in range(3):
        world.submit(4, 2e4, restart_cost_seconds=1.0, grace_seconds=1.0, **LAYOUTS)
        world.running()
    for _ in range(10):
        world.advance(900.0)
    assert set(started(world)) <= {2, 4, 8}
    job = Job("j", SPEC, JobState.RUNNING, 0, ranks=[RankRecord(n, Slot("n0", n)) for n in range(4)])
    assert sizes_of(job, 8) == [2, 4, 8]


def test_a_change_of_the_layout_takes_its_time_in_simulation() -> None:
    spec = JobSpec("a", ("train",), 4, restart_cost_seconds=10.0, grace_seconds=0.0, **LAYOUTS)
    other = JobSpec("b", ("train",), 4, time_limit_seconds=100.0)
    ends = []
    for seconds in (0.0, 50.0):
        jobs = (
            TraceJob("b", 1, 0, 100.0, other),
            TraceJob("a", 2, 0, 20_000.0, replace_spec(spec, reshard_seconds=seconds)),
        )
        engine = Simulation(Trace("t", jobs, ()), grid(1, 8), Policy(default_time_limit_seconds=1e5)).engine()
        engine.run()
        course = engine.courses["a"]
        assert course.starts == 2 and course.ranks == 8 and course.ended_ns is not None
        ends.append(course.ended_ns / 1e9)
    assert 50.0 <= ends[1] - ends[0] < 200.0


def replace_spec(spec: JobSpec, **changes: Any) -> JobSpec:
    from msgspec.structs import replace as replaced

    return replaced(spec, **changes)


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({}, None),
        ({"sizes": (4, 2, 8)}, "its sizes are 4, 2, 8; they must be different numbers in ascending order"),
        ({"sizes": (2, 8)}, "asks for 4 ranks, which is none of its sizes 2, 8"),
        ({"sizes": (2, 4)}, "its sizes are 2, 4, so its minimum is 2 and its maximum 4 ranks"),
        ({"groups": (Group("a", 4),)}, "a gang with sizes has no groups"),
        ({"reshard_seconds": -1.0}, "the reshard cost is -1 s; it cannot be less than 0"),
    ],
)
def test_sizes_are_checked(changes: dict[str, Any], wrong: str | None) -> None:
    found = malformed(replace_spec(SPEC, **changes))
    assert found is None if wrong is None else found is not None and found.startswith(wrong)
