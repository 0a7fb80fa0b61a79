"""Timeouts: a decision that becomes possible only because time passes is made without another event.

Cycles run only at registered timeouts (``at_timeouts``). ``tests/cluster/state_machine.py`` (``wait``) checks that no
decision in random clusters lacks its timeout.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler_feedback import cycle
from scheduler_feedback.core.actions import StopGang
from scheduler_feedback.core.cluster import Level
from scheduler_feedback.core.events import ActionFailed, CancelRequested, FreezeSet, Tick
from scheduler_feedback.core.job import JobState, StopReason
from scheduler_feedback.core.state import FAIR_POLICY, Estimates, Order, Policy, Queue
from scheduler_feedback.policies.index.evaluation_times import next_evaluation_ns
from tests.cluster.cycle_world import SECOND, World
from tests.cluster.scheduling_rules import check_timeouts

_QUOTAS = (Queue("owner", quota=8), Queue("guest", quota=8))
_GUEST: dict[str, Any] = {
    "queue": "guest",
    "restartable": True,
    "preemptible": True,
    "grace_seconds": 2.0,
    "time_limit_seconds": 86400.0,
}


def at_timeouts(world: World, seconds: float) -> float | None:
    """Let time pass with a cycle at each registered timeout only. Return when a gang is first stopped; None if
    never."""
    began_ns = world.now_ns
    while (wake_ns := cycle.next_wake_ns(world.state, world.now_ns)) is not None:
        if wake_ns - began_ns > seconds * SECOND:
            break
        world.now_ns = wake_ns
        world.cycle(Tick())
        if any(job.stop_reason is not None for job in world.state.jobs.values()):
            return (world.now_ns - began_ns) / SECOND
    return None


def borrowed(policy: Policy, *sizes: int, **spec: Any) -> World:
    """Return a cluster of sixteen slots, all held by gangs of queue guest, whose quota is eight."""
    world = World({f"n{i}": 4 for i in range(4)}, policy)
    for ranks in sizes:
        world.submit(ranks, 86400.0, **(_GUEST | spec))
    world.running()
    return world


@pytest.mark.parametrize("replan_seconds", [0.0, 60.0])
@pytest.mark.parametrize("after_seconds", [0.0, 4.0])
def test_a_quota_is_returned_once_the_minimum_run_time_has_passed(replan_seconds: float, after_seconds: float) -> None:
    policy = replace(FAIR_POLICY, preempt_gain=1e9, min_run_seconds=15.0, replan_seconds=replan_seconds, queues=_QUOTAS)
    world = borrowed(policy, 8, 8)
    if after_seconds:
        world.advance(after_seconds)
    world.submit(8, 100.0, queue="owner", time_limit_seconds=100.0)
    assert at_timeouts(world, 3600.0) == pytest.approx(15.0 - after_seconds)


def test_the_second_job_of_a_queue_need_not_wait_for_the_next_preemption_pass() -> None:
    world = borrowed(replace(FAIR_POLICY, preempt_gain=1e9, min_run_seconds=0.0, queues=_QUOTAS), 4, 4, 4, 4)
    world.advance(100.0)
    owners = [world.submit(4, 100.0, queue="owner", time_limit_seconds=100.0) for _ in range(2)]
    world.advance(3.0)
    assert {job_id for job_id in owners if world.state.jobs[job_id].claim or world.state.jobs[job_id].attempt} == set(
        owners
    )


@pytest.mark.parametrize("estimates", [Estimates.HISTORY, Estimates.LIMIT])
def test_an_elastic_gang_shrinks_for_a_wait_that_has_become_long_enough(estimates: Estimates) -> None:
    """Shrinking costs 2 s of 16 ranks, with a margin of a fifth; 8 slots make up for that within 5 s of waiting."""
    world = World({f"n{i}": 4 for i in range(4)}, replace(FAIR_POLICY, estimates=estimates))
    elastic = world.submit(
        16, 86400.0, restartable=True, grace_seconds=2.0, restart_cost_seconds=0.0, time_limit_seconds=86400.0,
        min_ranks=4, max_ranks=16,
    )  # fmt: skip
    world.running()
    world.advance(3600.0)
    waiting = world.submit(8, 6000.0, time_limit_seconds=6000.0)
    if estimates is Estimates.HISTORY:
        assert at_timeouts(world, 3600.0) == pytest.approx(5.0)
    assert world.state.jobs[elastic].stop_reason is StopReason.RESIZE
    world.advance(5.0)
    assert world.job_state(waiting) is not JobState.PENDING


def test_gangs_move_together_for_a_wait_that_has_become_long_enough() -> None:
    policy = Policy(estimates=Estimates.HISTORY, migration_cooldown_seconds=100.0)
    movable: dict[str, Any] = {"restartable": True, "grace_seconds": 4.0, "restart_cost_seconds": 6.0}
    world = World({f"n{i}": 4 for i in range(3)}, policy)
    gangs = [world.submit(2, 10_000.0, time_limit_seconds=10_000.0, **movable) for _ in range(6)]
    world.running()
    world.advance(10.0)
    world.end(gangs[0], 0)
    world.end(gangs[2], 0)
    world.submit(4, 500.0, time_limit_seconds=500.0, required_level=Level.NODE)
    assert not any(job.stop_reason for job in world.state.jobs.values()), "no job has waited yet"
    moved = at_timeouts(world, 3600.0)
    assert moved is not None and moved < 10.0


def test_a_deferred_preemption_pass_is_run_later() -> None:
    """A short job is submitted 20 s after the last pass. Passes are 60 s apart, so the long gang stops 40 s later."""
    policy = Policy(order=Order.SRTF, estimates=Estimates.EXACT, preempt=True, replan_seconds=60.0)
    spec: dict[str, Any] = {"restartable": True, "preemptible": True, "grace_seconds": 2.0}
    world = World({"n0": 4}, policy)
    world.submit(4, 10_000.0, exact_seconds=10_000.0, **spec)
    world.running()
    world.submit(4, 9000.0, exact_seconds=9000.0, **spec)
    passed_ns = world.state.planned_ns
    world.advance((passed_ns - world.now_ns) / SECOND + 20.0)
    world.submit(4, 50.0, exact_seconds=50.0)
    assert at_timeouts(world, 3600.0) == pytest.approx(40.0)


def test_a_gang_past_its_usual_run_time_is_preempted_without_an_event() -> None:
    """All jobs of its kind ran for about 100 s. The longer it runs, the longer it is expected to need."""
    policy = replace(FAIR_POLICY, min_run_seconds=0.0, replan_seconds=0.0, preempt_gain=3.0)
    world = World({"n0": 4}, policy)
    for _ in range(30):
        done = world.submit(4, 100.0, time_limit_seconds=1e6, user="ann")
        world.running()
        world.advance(100.0)
        assert world.job_state(done) is JobState.COMPLETED
    world.submit(4, 1e6, time_limit_seconds=1e6, user="ann", restartable=True, preemptible=True, grace_seconds=2.0)
    world.running()
    world.advance(60.0)
    world.submit(4, 100.0, time_limit_seconds=1e6, user="ann")
    assert not any(job.stop_reason for job in world.state.jobs.values())
    assert at_timeouts(world, 1e5) is not None


def test_the_stop_of_a_cancelled_gang_is_repeated_while_frozen() -> None:
    world = World({"n0": 4})
    job_id = world.submit(4, 1000.0, time_limit_seconds=1000.0)
    world.running()
    outcome = world.cycle(FreezeSet(True), CancelRequested(job_id))
    (stop,) = outcome.actions
    world.alive[job_id, 1].ends_ns = world.now_ns + 10_000 * SECOND
    world.cycle(ActionFailed(stop.action_id, job_id, "no more processes"))
    wake_ns = cycle.next_wake_ns(world.state, world.now_ns)
    assert wake_ns == world.now_ns + 5 * SECOND
    world.now_ns = wake_ns
    assert [type(action) for action in world.cycle(Tick()).actions] == [StopGang]


@pytest.mark.parametrize("seconds", [0.0, 0.5, 1.0, 7.9, 8.0, 8.5, 9.0, 100.0, 86400.0, 1e7])
def test_evaluations_come_every_second_and_then_after_an_eighth_more_each_time(seconds: float) -> None:
    since_ns = 1_700_000_000 * SECOND
    now_ns = since_ns + round(seconds * SECOND)
    next_ns = next_evaluation_ns(since_ns, now_ns)
    assert now_ns < next_ns <= now_ns + max(SECOND, (now_ns - since_ns) // 8) + 1
    for between in (now_ns + (next_ns - now_ns) // 2, next_ns - 1):
        assert next_evaluation_ns(since_ns, between) == next_ns, "it does not depend on the time of the call"


def test_the_check_of_random_worlds_detects_a_policy_without_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = replace(FAIR_POLICY, preempt_gain=1e9, min_run_seconds=15.0, queues=_QUOTAS)
    world = borrowed(policy, 8, 8)
    world.advance(4.0)
    world.submit(8, 100.0, queue="owner", time_limit_seconds=100.0)
    world.cycle(Tick())
    check_timeouts(world.state, 20 * SECOND, evaluate_all=True)
    monkeypatch.setattr("scheduler_feedback.policies.index.timeouts.registered", lambda state, index: iter(()))
    with pytest.raises(AssertionError, match="the next timeout is none"):
        check_timeouts(world.state, 20 * SECOND, evaluate_all=True)
