"""Making room: elastic gangs grow and shrink, and gangs move so that another fits, each only if it pays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler_feedback import cycle
from scheduler_feedback.core.actions import StartGang, StopGang
from scheduler_feedback.core.cluster import Level
from scheduler_feedback.core.events import FreezeSet, Progressed
from scheduler_feedback.core.job import JobState, Packing, StopReason
from scheduler_feedback.core.state import Estimates, Mode, Policy, Queue
from scheduler_feedback.policies.index.scheduling_index import index_of
from tests.cluster.cycle_world import SECOND, World

_POLICY = Policy(migration_cooldown_seconds=100.0)
_ELASTIC: dict[str, Any] = {
    "restartable": True,
    "grace_seconds": 4.0,
    "restart_cost_seconds": 6.0,
    "min_ranks": 2,
    "max_ranks": 8,
    "time_limit_seconds": 1000.0,
}
_MOVABLE: dict[str, Any] = {"restartable": True, "grace_seconds": 4.0, "restart_cost_seconds": 6.0}


def restart(world: World, job_id: str) -> StartGang:
    """Let the gang save and exit. Return the action that starts it again."""
    (start,) = [a for a in world.end(job_id, 75, signalled=True).actions if a.job_id == job_id]
    assert isinstance(start, StartGang)
    world.running()
    return start


def kinds(world: World, job_id: str, *wanted: str) -> list[str]:
    return [kind for kind in world.entry_kinds(job_id) if kind in wanted]


# --- growing ---------------------------------------------------------------------------------------------------------


def test_an_elastic_gang_alone_starts_with_its_maximum() -> None:
    world = World({f"n{i}": 4 for i in range(3)})
    job_id = world.submit(4, 10_000.0, **_ELASTIC)
    assert len(world.state.jobs[job_id].ranks) == 8
    assert world.state.jobs[job_id].speed == 2.0


def test_an_elastic_gang_soon_after_a_wait_starts_with_its_requested_ranks() -> None:
    """If another job may soon need the idle slots, they are not worth a restart."""
    world = World({"n0": 8}, _POLICY)
    full = world.submit(8, 100.0, time_limit_seconds=100.0)
    world.running()
    world.advance(10.0)
    waiting = world.submit(2, 5.0, time_limit_seconds=5.0)
    world.end(full, 0)
    world.running()
    world.advance(6.0)
    assert world.job_state(waiting) is JobState.COMPLETED
    elastic = world.submit(4, 10_000.0, **_ELASTIC)
    assert len(world.state.jobs[elastic].ranks) == 4
    world.end(elastic, 0)
    world.advance(100.0)
    later = world.submit(4, 10_000.0, **_ELASTIC)
    assert len(world.state.jobs[later].ranks) == 8


def two_gangs(policy: Policy = _POLICY, **spec: Any) -> tuple[World, str, str]:
    """Return eight slots, all in use: a gang of four, and an elastic gang that got only four."""
    world = World({"n0": 4, "n1": 4}, policy)
    other = world.submit(4, 200.0, time_limit_seconds=200.0)
    elastic = world.submit(4, 10_000.0, **(_ELASTIC | spec))
    world.running()
    assert len(world.state.jobs[elastic].ranks) == 4
    return world, elastic, other


def test_an_elastic_gang_grows_into_idle_slots() -> None:
    world, elastic, other = two_gangs()
    world.advance(50.0)
    world.end(other, 0)
    job = world.state.jobs[elastic]
    assert (job.state, job.stop_reason) == (JobState.STOPPING, StopReason.RESIZE)
    assert len(job.claim) == 8, "the slots are reserved until it restarts"
    start = restart(world, elastic)
    assert (len(start.placement), start.spec.ranks) == (8, 8)
    assert kinds(world, elastic, "grow", "started", "pending", "running") == [
        "started",
        "running",
        "grow",
        "pending",
        "started",
        "running",
    ]
    entry = next(entry for entry in world.entries if entry.kind == "grow")
    assert "no pending job needs" in entry.text and dict(entry.detail)["ranks"] == "4 -> 8"


@pytest.mark.parametrize(
    "changes",
    [
        {"restartable": False},
        {"restart_cost_seconds": 600.0},  # half of the remaining 950 s would be saved
        {"max_ranks": 4},
        {"min_run_seconds": 100.0},
    ],
)
def test_a_gang_does_not_grow_if_it_may_not_or_gains_less_than_it_pays(changes: dict[str, Any]) -> None:
    world, elastic, other = two_gangs(**changes)
    world.advance(50.0)
    world.end(other, 0)
    assert world.state.jobs[elastic].stop_reason is None


def test_a_gang_grows_after_its_cooldown_without_an_event() -> None:
    world, elastic, other = two_gangs(replace(_POLICY, start_timeout_seconds=0.0), min_run_seconds=100.0)
    world.advance(50.0)
    world.end(other, 0)
    wake_ns = cycle.next_wake_ns(world.state)
    assert wake_ns == world.started[elastic] + 100 * SECOND
    world.advance(50.0)
    assert world.state.jobs[elastic].stop_reason is StopReason.RESIZE


def test_a_gang_grows_only_after_an_idle_period_worth_a_restart() -> None:
    """4 s to save and 6 s to restart, from 4 to 8 ranks: it pays if the slots are idle for 1.2 x 10 x 8 / 4 = 24 s."""
    world, elastic, other = two_gangs(replace(_POLICY, start_timeout_seconds=0.0))
    waiting = world.submit(4, 20.0, time_limit_seconds=20.0)
    world.running()
    world.advance(50.0)
    world.end(other, 0)
    assert world.job_state(waiting) is JobState.STARTING
    world.running()
    world.advance(20.0)
    assert world.job_state(waiting) is JobState.COMPLETED
    assert world.state.jobs[elastic].stop_reason is None, "a job waited 20 s ago"
    grows_ns = world.started[waiting] + 24 * SECOND
    while world.state.jobs[elastic].stop_reason is None:
        wake_ns = cycle.next_wake_ns(world.state, world.now_ns)
        assert wake_ns is not None and wake_ns < grows_ns + 4 * SECOND
        world.now_ns = wake_ns
        world.cycle()
    assert world.now_ns >= grows_ns
    assert world.state.jobs[elastic].stop_reason is StopReason.RESIZE


def test_slots_that_a_job_waits_for_are_not_idle() -> None:
    world, elastic, other = two_gangs()
    waiting = world.submit(8, 100.0, time_limit_seconds=100.0)
    world.advance(50.0)
    world.end(other, 0)
    assert world.state.jobs[elastic].stop_reason is None
    assert world.state.reserved_for == waiting


def test_a_gang_does_not_grow_beyond_its_queue_s_limit() -> None:
    world, elastic, other = two_gangs(replace(_POLICY, queues=(Queue("q", limit=6),)), queue="q")
    world.advance(50.0)
    world.end(other, 0)
    assert len(world.state.jobs[elastic].claim) == 6
    late = world.submit(1, 50.0, queue="q", time_limit_seconds=50.0)
    assert world.job_state(late) is JobState.PENDING, "the future slots of the larger gang already count"


def test_nothing_grows_while_frozen_or_in_observe_mode() -> None:
    world, elastic, other = two_gangs(replace(_POLICY, mode=Mode.OBSERVE))
    world.advance(50.0)
    world.end(other, 0)
    world.advance(10.0)
    assert world.state.jobs[elastic].stop_reason is None
    assert [entry.applied for entry in world.entries if entry.kind == "grow"] == [False], "logged once"
    world, elastic, other = two_gangs()
    world.cycle(FreezeSet(True))
    world.end(other, 0)
    assert world.state.jobs[elastic].stop_reason is None
    world.cycle(FreezeSet(False))
    assert world.state.jobs[elastic].stop_reason is StopReason.RESIZE


def test_a_larger_gang_is_expected_to_end_sooner_and_its_work_counts_more() -> None:
    world = World({"n0": 8}, replace(_POLICY, estimates=Estimates.EXACT))
    elastic = world.submit(4, 10_000.0, **_ELASTIC, exact_seconds=1000.0)
    world.running()
    (release,) = index_of(world.state).ends
    assert release.at_ns == world.started[elastic] + 500 * SECOND
    world.advance(100.0)
    world.cycle(Progressed(elastic, 1, 200.0))
    (release,) = index_of(world.state).ends
    assert release.at_ns == world.started[elastic] + 500 * SECOND
    world.end(elastic, 75)
    assert world.state.jobs[elastic].done_seconds == 200.0


# --- shrinking -------------------------------------------------------------------------------------------------------


def test_an_elastic_gang_shrinks_for_a_pending_job() -> None:
    world = World({"n0": 4, "n1": 4}, _POLICY)
    elastic = world.submit(4, 10_000.0, **_ELASTIC)
    world.running()
    assert len(world.state.jobs[elastic].ranks) == 8
    waiting = world.submit(4, 300.0, time_limit_seconds=300.0)
    job = world.state.jobs[elastic]
    assert (job.stop_reason, len(job.claim)) == (StopReason.RESIZE, 4), "it keeps what no pending job needs"
    assert len(world.state.jobs[waiting].claim) == 4
    assert "its reserved slots" in cycle.why_waits(world.state, world.state.jobs[waiting])
    outcome = world.end(elastic, 75, signalled=True)
    assert sorted((a.job_id, len(a.placement)) for a in outcome.actions if isinstance(a, StartGang)) == [
        (elastic, 4),
        (waiting, 4),
    ]
    assert kinds(world, elastic, "shrink") == ["shrink"]
    assert kinds(world, waiting, "room-made") == ["room-made"]
    text = next(entry.text for entry in world.entries if entry.kind == "shrink")
    assert waiting in text and "4 of its 8 ranks" in text


@pytest.mark.parametrize(("others", "kept"), [((), 6), ((1,), 5), ((2, 1), 3), ((8,), 2)])
def test_a_shrinking_gang_keeps_the_slots_that_no_pending_job_needs(others: tuple[int, ...], kept: int) -> None:
    world = World({"n0": 4, "n1": 4}, _POLICY)
    elastic = world.submit(4, 10_000.0, **_ELASTIC)
    world.running()
    world.cycle(FreezeSet(True))
    for ranks in (2, *others):
        world.submit(ranks, 300.0, time_limit_seconds=300.0)
    world.cycle(FreezeSet(False))
    job = world.state.jobs[elastic]
    assert (job.stop_reason, len(job.claim)) == (StopReason.RESIZE, kept)


def test_free_slots_that_the_first_job_uses_are_not_taken_from_the_gang() -> None:
    world = World({"n0": 4, "n1": 4, "n2": 1}, _POLICY)
    elastic = world.submit(4, 10_000.0, **_ELASTIC)
    world.running()
    waiting = world.submit(3, 300.0, time_limit_seconds=300.0, packing=Packing.SPREAD)
    assert {slot.node for slot in world.state.jobs[waiting].claim} == {"n0", "n1", "n2"}
    assert len(world.state.jobs[elastic].claim) == 6


def test_no_gang_shrinks_for_a_wait_that_costs_less_than_its_restart() -> None:
    world = World({"n0": 4, "n1": 4}, _POLICY)
    elastic = world.submit(4, 100.0, **(_ELASTIC | {"time_limit_seconds": 15.0}))
    world.running()
    waiting = world.submit(4, 300.0, time_limit_seconds=300.0)
    assert world.state.jobs[elastic].stop_reason is None
    assert world.state.reserved_for == waiting


def test_all_pending_jobs_count_in_the_gain_of_a_shrink() -> None:
    """One pending rank is not worth the restart of eight ranks; four pending ranks are."""
    world = World({"n0": 4, "n1": 4}, _POLICY)
    elastic = world.submit(8, 10_000.0, **(_ELASTIC | {"time_limit_seconds": 30.0, "min_ranks": 4}))
    world.running()
    for number in range(4):
        assert world.state.jobs[elastic].stop_reason is None, number
        world.submit(1, 300.0, time_limit_seconds=300.0)
    assert world.state.jobs[elastic].stop_reason is StopReason.RESIZE


def test_only_restartable_gangs_shrink_and_only_to_their_minimum() -> None:
    for changes in ({"min_ranks": 6}, {"restartable": False, "min_ranks": 2, "max_ranks": 8}):
        world = World({"n0": 4, "n1": 4}, _POLICY)
        elastic = world.submit(8, 10_000.0, **(_ELASTIC | changes))
        world.running()
        world.submit(4, 300.0, time_limit_seconds=300.0)
        assert world.state.jobs[elastic].stop_reason is None


# --- defragmentation -------------------------------------------------------------------------------------------------


def fragmented_cluster(policy: Policy = _POLICY, **spec: Any) -> tuple[World, list[str], str]:
    """Return three nodes of four slots, with two gangs of two on each.

    One gang ends on each of two nodes: four slots are free, on two nodes.
    """
    world = World({f"n{i}": 4 for i in range(3)}, policy)
    gangs = [world.submit(2, 1000.0, **(_MOVABLE | {"time_limit_seconds": 1000.0} | spec)) for _ in range(6)]
    world.running()
    world.advance(10.0)
    world.end(gangs[0], 0)
    world.end(gangs[2], 0)
    waiting = world.submit(4, 500.0, time_limit_seconds=500.0, required_level=Level.NODE)
    return world, gangs, waiting


def test_a_gang_moves_so_that_another_fits_into_one_node() -> None:
    world, gangs, waiting = fragmented_cluster()
    moved = [job_id for job_id in gangs if world.state.jobs[job_id].stop_reason is StopReason.MIGRATE]
    assert len(moved) == 1 and world.state.jobs[moved[0]].migrations == 1
    assert len({slot.node for slot in world.state.jobs[waiting].claim}) == 1
    outcome = world.end(moved[0], 75, signalled=True)
    assert {a.job_id for a in outcome.actions if isinstance(a, StartGang)} == {moved[0], waiting}
    assert len(world.nodes_of(waiting)) == 1
    entry = next(entry for entry in world.entries if entry.kind == "defragment")
    assert waiting in entry.text and "fits into one node" in entry.text
    assert dict(entry.detail)["level"] == "node"


def test_explain_says_that_no_single_domain_has_enough_free_slots() -> None:
    world, _, waiting = fragmented_cluster(restartable=False)
    explanation = cycle.explain(world.state, waiting)
    assert explanation is not None and explanation.binds == "slots"
    assert not any(isinstance(action, StopGang) for outcome in world.outcomes for action in outcome.actions)


@pytest.mark.parametrize(
    ("policy", "spec"),
    [
        (_POLICY, {"restart_cost_seconds": 2000.0}),
        (replace(_POLICY, defragmentation_moves=0), {}),
        (replace(_POLICY, mode=Mode.OBSERVE), {}),
        (replace(_POLICY, min_run_seconds=1000.0), {}),
        (_POLICY, {"time_limit_seconds": 12.0}),
    ],
)
def test_no_gang_moves_if_it_does_not_pay_or_is_not_configured(policy: Policy, spec: dict[str, Any]) -> None:
    world, _, waiting = fragmented_cluster(policy, **spec)
    assert not any(job.stop_reason for job in world.state.jobs.values())
    assert world.job_state(waiting) is JobState.PENDING
    reported = [entry for entry in world.entries if entry.kind == "defragment"]
    assert [entry.applied for entry in reported] == ([False] if policy.mode is Mode.OBSERVE else [])


def test_racks_are_cleared_too_and_the_cheapest_gangs_go() -> None:
    """Two racks have two nodes of two slots each; one slot on each node is free. One rack has costly gangs, the
    other cheap."""
    world = World({f"n{i}": 2 for i in range(4)}, _POLICY, racks=2)
    gangs: dict[str, list[str]] = {"dear": [], "cheap": [], "short": []}
    for kind, cost in (("dear", 90.0), ("dear", 90.0), ("cheap", 6.0), ("cheap", 6.0)):
        gangs[kind].append(world.submit(1, 1000.0, **(_MOVABLE | {"restart_cost_seconds": cost})))
        gangs["short"].append(world.submit(1, 20.0, time_limit_seconds=20.0))
    world.running()
    world.advance(5.0)
    for job_id in gangs["short"]:
        world.end(job_id, 0)
    waiting = world.submit(3, 900.0, time_limit_seconds=900.0, required_level=Level.RACK)
    assert world.state.jobs[waiting].claim
    moving = [job.job_id for job in world.state.jobs.values() if job.stop_reason is StopReason.MIGRATE]
    assert len(moving) == 1 and moving[0] in gangs["cheap"]


def test_a_gang_that_has_grown_moves_with_its_present_size() -> None:
    world = World({f"n{i}": 4 for i in range(3)}, _POLICY)
    job_id = world.submit(4, 10_000.0, **_ELASTIC)
    world.running()
    world.advance(50.0)
    assert len(world.state.jobs[job_id].ranks) == 8
    world.cycle(world.verdict(job_id, rank=0))
    assert world.state.jobs[job_id].stop_reason is StopReason.MIGRATE
    assert len(world.state.jobs[job_id].claim) == 8
