"""Round robin (Gandiva's time slicing): gangs run in turn, and the job that has waited longest goes first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gangwatch.configuration.notices import notices
from scheduler_feedback import cycle
from scheduler_feedback.core.job import JobState
from scheduler_feedback.core.state import Order, Policy, State
from scheduler_feedback.policies.queue import order
from scheduler_feedback.policies.queue.order.round_robin import slice_ends_ns
from tests.cluster.cycle_world import World
from tests.cluster.makers import NOW_NS, SECOND, job_of, running

POLICY = Policy(order=Order.ROUND_ROBIN, preempt=True, slice_seconds=60.0)
MOVABLE: dict[str, Any] = {"restartable": True, "preemptible": True, "grace_seconds": 1.0}


def _states(world: World, *names: str) -> str:
    return "".join("R" if world.job_state(name) is JobState.RUNNING else "-" for name in names)


def _pass(world: World, seconds: int) -> None:
    for _ in range(seconds):
        world.advance(1.0)
        world.running()


def test_gangs_run_in_turn() -> None:
    world = World({"n0": 2}, POLICY)
    jobs = [world.submit(2, 1000.0, **MOVABLE) for _ in range(3)]
    world.running()
    seen = []
    for _ in range(7):
        seen.append(_states(world, *jobs))
        _pass(world, 63)
    assert seen == ["R--", "-R-", "--R", "R--", "-R-", "--R", "R--"]


def test_a_gang_within_its_slice_is_not_stopped() -> None:
    world = World({"n0": 2}, POLICY)
    first = world.submit(2, 1000.0, **MOVABLE)
    world.running()
    world.submit(2, 1000.0, **MOVABLE)
    _pass(world, 58)
    assert world.state.jobs[first].stop_reason is None
    _pass(world, 5)
    assert world.state.jobs[first].attempt_ended_ns is not None
    assert any("its time slice of 60 s has ended" in one.text for one in world.entries if one.kind == "preempt")


def test_a_gang_with_long_restarts_has_longer_slices() -> None:
    """With slices shorter than its restarts, a gang would never progress."""
    world = World({"n0": 2}, POLICY)
    first = world.submit(2, 1000.0, **MOVABLE, restart_cost_seconds=30.0)
    world.running()
    world.submit(2, 1000.0, **MOVABLE)
    _pass(world, 148)
    assert world.state.jobs[first].stop_reason is None
    _pass(world, 5)
    assert world.state.jobs[first].attempt_ended_ns is not None
    assert any("its time slice of 2 min has ended" in one.text for one in world.entries if one.kind == "preempt")


def test_a_gang_past_its_slice_runs_on_while_no_job_waits_and_leaves_for_the_next_one() -> None:
    world = World({"n0": 2}, POLICY)
    first = world.submit(2, 1000.0, **MOVABLE)
    world.running()
    world.advance(200.0)
    assert world.job_state(first) is JobState.RUNNING
    second = world.submit(2, 1000.0, **MOVABLE)
    world.advance(2.0)
    world.running()
    assert _states(world, first, second) == "-R"


def test_a_gang_that_may_not_be_stopped_keeps_its_slots() -> None:
    world = World({"n0": 2}, POLICY)
    first = world.submit(2, 1000.0)
    world.running()
    second = world.submit(2, 10.0, **MOVABLE)
    world.advance(300.0)
    assert (world.job_state(first), world.job_state(second)) == (JobState.RUNNING, JobState.PENDING)


def test_the_order_of_keys() -> None:
    """Gangs within their slice, the longest wait, then gangs past their slice."""
    within, past = running("within", 59.0), running("past", 60.0)
    waited = job_of("waited", submitted_ns=NOW_NS - 90 * SECOND, attempt_ended_ns=NOW_NS - 2 * SECOND)
    new = job_of("new", submitted_ns=NOW_NS - SECOND)
    state = State(policy=POLICY, now_ns=NOW_NS, jobs={job.job_id: job for job in (past, new, waited, within)})
    names = sorted(state.jobs, key=lambda job_id: order.key_of(state, state.jobs[job_id]))
    assert names == ["within", "waited", "new", "past"]
    assert slice_ends_ns(state, past) == NOW_NS
    assert slice_ends_ns(state, new) is None


def test_a_wide_job_starts_once_it_starves_and_leaves_after_its_slice() -> None:
    """The slices of the other gangs never end together."""
    world = World({"n0": 4}, replace(POLICY, starvation_seconds=300.0))
    for _ in range(4):
        world.submit(1, 5000.0, **MOVABLE)
        world.running()
        _pass(world, 15)
    wide = world.submit(4, 5000.0, **MOVABLE)
    for _ in range(4):
        world.submit(1, 5000.0, **MOVABLE)
    _pass(world, 280)
    assert world.state.jobs[wide].attempt == 0
    _pass(world, 30)
    assert world.job_state(wide) is JobState.RUNNING
    _pass(world, 65)
    assert world.job_state(wide) is JobState.PENDING


@pytest.mark.parametrize(("preempt", "count"), [(True, 0), (False, 1)])
def test_the_order_without_preemption_gets_a_notice(preempt: bool, count: int) -> None:
    found = notices(replace(POLICY, preempt=preempt), 1)
    assert len(found) == count
    assert all("policy.preempt = true" in one for one in found)


def test_the_explanation_of_a_waiting_job_says_when_the_next_slice_ends() -> None:
    world = World({"n0": 2}, POLICY)
    world.submit(2, 1000.0, **MOVABLE)
    world.running()
    waits = world.submit(2, 1000.0, **MOVABLE)
    world.advance(15.0)
    found = cycle.explain(world.state, waits)
    assert found is not None
    assert found.why.endswith("; the next time slice of a running gang ends in 45 s")
    assert found.expected_start_ns is None, "expected run times say nothing about turns"


def test_gangs_that_may_not_be_stopped_have_no_slice() -> None:
    world = World({"n0": 2}, POLICY)
    world.submit(2, 1000.0)
    world.running()
    waits = world.submit(2, 1000.0, **MOVABLE)
    found = cycle.explain(world.state, waits)
    assert found is not None and "time slice" not in found.why
