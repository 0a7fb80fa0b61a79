"""Reclaim: a queue below its quota gets slots back that other queues have borrowed, from preemptible gangs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler_feedback.core.actions import StartGang
from scheduler_feedback.core.events import CancelRequested
from scheduler_feedback.core.job import JobState, StopReason
from scheduler_feedback.core.state import Backfilling, Estimates, Mode, Order, Policy, Queue
from scheduler_feedback.policies.index.scheduling_index import index_of
from tests.cluster.cycle_world import SECOND, World

_POLICY = Policy(
    order=Order.FAIR,
    estimates=Estimates.HISTORY,
    preempt=True,
    preempt_gain=1e9,  # so that only a quota causes stops
    queues=(Queue("owner", quota=4), Queue("guest", quota=2), Queue("free")),
)
_GUEST: dict[str, Any] = {"queue": "guest", "restartable": True, "preemptible": True, "grace_seconds": 2.0}


def full(policy: Policy = _POLICY, **spec: Any) -> tuple[World, list[str]]:
    """Return a cluster of six slots, all held by three gangs of queue guest, whose quota is two."""
    world = World({"n0": 2, "n1": 2, "n2": 2}, policy)
    guests = [world.submit(2, 1000.0, **(_GUEST | spec)) for _ in range(3)]
    world.running()
    return world, guests


def stopped(world: World) -> set[str]:
    return {job.job_id for job in world.state.jobs.values() if job.stop_reason is StopReason.PREEMPT}


def test_a_queue_below_its_quota_gets_borrowed_slots_back() -> None:
    world, guests = full()
    waiting = world.submit(2, 100.0, queue="owner")
    assert len(stopped(world)) == 1 and stopped(world) <= set(guests)
    (victim,) = stopped(world)
    outcome = world.end(victim, 75, signalled=True)
    assert waiting in {action.job_id for action in outcome.actions if isinstance(action, StartGang)}
    text = next(entry.text for entry in world.entries if entry.kind == "reclaim")
    assert "queue owner is below its quota" in text and victim in text


def test_no_queue_is_reduced_below_its_quota() -> None:
    world, _ = full()
    world.submit(4, 100.0, queue="owner")
    assert len(stopped(world)) == 2, "four of the six are borrowed"
    world, _ = full(replace(_POLICY, queues=(Queue("owner", quota=6), Queue("guest", quota=2))))
    world.submit(6, 100.0, queue="owner")
    assert not stopped(world), "two of the six are in the guest's quota, so six slots cannot be freed"


def partly_borrowed(*sizes: int, policy: Policy = _POLICY, **spec: Any) -> tuple[World, list[str]]:
    """Return a cluster of sixteen slots held by gangs of queue guest. Queues owner and guest have a quota of eight
    each."""
    queues = (Queue("owner", quota=8), Queue("guest", quota=8))
    world = World({f"n{i}": 4 for i in range(4)}, replace(policy, queues=queues))
    guests = [world.submit(ranks, 1000.0, **(_GUEST | spec)) for ranks in sizes]
    world.running()
    return world, guests


@pytest.mark.parametrize(
    ("sizes", "victims"),
    [
        ((16,), {0}),
        ((12, 4), {0}),  # the gangs of four alone free too little, and continue
        ((10,), {0}),
        ((10, 6), {0}),
        ((4, 4, 8), {0, 1}),  # completely borrowed, so the eight of the quota stay
        ((4, 4, 4, 4), {0, 1}),
        ((9, 1, 1, 1, 1, 1, 1, 1), {0}),  # gangs of one alone do not free eight slots
    ],
)
def test_a_gang_with_quota_and_borrowed_slots_is_stopped_last(sizes: tuple[int, ...], victims: set[int]) -> None:
    world, guests = partly_borrowed(*sizes)
    waiting = world.submit(8, 100.0, queue="owner")
    assert stopped(world) == {guests[number] for number in victims}
    assert len(world.state.jobs[waiting].claim) == 8
    for victim in stopped(world):
        world.end(victim, 75, signalled=True)
    assert world.job_state(waiting) is JobState.STARTING


def test_two_queues_do_not_reclaim_from_each_other_in_turn() -> None:
    world, guests = partly_borrowed(12)
    owners = [world.submit(4, 100_000.0, **(_GUEST | {"queue": "owner"})) for _ in range(2)]
    for _ in range(40):
        world.running()
        world.advance(30.0)
    assert [world.state.jobs[job_id].preemptions for job_id in (*guests, *owners)] == [1, 0, 0]


def test_an_elastic_gang_returns_borrowed_slots() -> None:
    world, (elastic,) = partly_borrowed(16, min_ranks=4, max_ranks=16)
    waiting = world.submit(8, 100.0, queue="owner")
    assert stopped(world) == {elastic}
    world.end(elastic, 75, signalled=True)
    assert world.job_state(waiting) is JobState.STARTING
    assert len(world.state.jobs[elastic].ranks) == 8 and world.job_state(elastic) is JobState.STARTING


def test_a_job_beyond_the_quota_blocks_no_other_of_its_queue() -> None:
    world, _ = partly_borrowed(4, 4, 4, 4)
    wide = world.submit(12, 100.0, queue="owner")
    narrow = world.submit(4, 100.0, queue="owner")
    assert world.state.jobs[narrow].claim and not world.state.jobs[wide].claim
    assert len(stopped(world)) == 1


@pytest.mark.parametrize(
    ("queue", "spec"),
    [
        ("owner", {"preemptible": False}),
        ("owner", {"min_run_seconds": 500.0}),
        ("free", {}),
        ("guest", {}),
    ],
)
def test_nothing_is_reclaimed_without_a_quota_or_from_gangs_that_are_not_preemptible(
    queue: str, spec: dict[str, Any]
) -> None:
    world, _ = full(**spec)
    waiting = world.submit(2, 100.0, queue=queue)
    assert not stopped(world) and world.job_state(waiting) is JobState.PENDING


def test_a_gang_beyond_the_quota_waits() -> None:
    world, _ = full()
    world.submit(5, 100.0, queue="owner")
    assert not stopped(world)


def test_reserved_slots_are_used_only_after_the_gangs_on_them_have_ended() -> None:
    world, _ = partly_borrowed(8, 8)
    waiting = world.submit(8, 100.0, queue="owner")
    (victim,) = stopped(world)
    world.alive[victim, 1].ends_ns = world.now_ns + 1000 * SECOND
    other = world.submit(2, 100.0, queue="guest")  # an event, so that every decision is evaluated again
    world.cycle(CancelRequested(other))
    assert world.state.jobs[waiting].claim and world.job_state(waiting) is JobState.PENDING
    world.end(victim, 75, signalled=True)
    assert world.job_state(waiting) is JobState.STARTING


def test_observe_mode_only_logs_a_reclaim() -> None:
    world, _ = full(replace(_POLICY, mode=Mode.OBSERVE))
    world.submit(2, 100.0, queue="owner")
    assert not stopped(world)
    world.advance(1.0)
    assert [entry.applied for entry in world.entries if entry.kind == "reclaim"] == [False], "logged once"


def test_observe_mode_logs_a_preemption_once() -> None:
    world = World({"n0": 2}, replace(_POLICY, mode=Mode.OBSERVE, preempt_gain=1.1, queues=()))
    long = world.submit(2, 1000.0, time_limit_seconds=1000.0, restartable=True, preemptible=True)
    world.running()
    for _ in range(4):
        world.submit(2, 10.0, time_limit_seconds=10.0)
        world.advance(1.0)
    reported = [entry.text for entry in world.entries if entry.kind == "preempt" and entry.subject == long]
    assert len(reported) == len(set(reported)), reported


def test_pending_jobs_follow_the_order_of_their_queues() -> None:
    """From the next update on, all jobs of the queue with the most usage are last."""
    world = World({"n0": 2}, replace(_POLICY, queues=(Queue("a"), Queue("b")), preempt=False))
    world.submit(2, 100_000.0, queue="a")
    world.running()
    for queue in ("a", "b"):
        world.submit(2, 100.0, queue=queue)

    def waiting() -> list[str]:
        return [world.state.jobs[key[-1]].spec.queue for key in index_of(world.state).line.order]

    assert waiting() == ["a", "b"]
    for _ in range(4):
        world.advance(900.0)  # the world compares the queue with that of a new controller
    assert waiting() == ["b", "a"]


def quota_beside_free_slots(priority: int = 0, quota: int = 2) -> tuple[World, str, str]:
    """Return a cluster of four slots, two of them free. A gang of four is pending, then one of two in queue guest."""
    queues = (Queue("owner", quota=2), Queue("guest", quota=quota))
    policy = replace(_POLICY, backfill=Backfilling.CONSERVATIVE, estimates=Estimates.LIMIT, queues=queues)
    world = World({"n0": 4}, policy)
    world.submit(2, 1000.0, queue="owner", time_limit_seconds=1000.0)
    world.running()
    wide = world.submit(4, 10.0, priority=priority, time_limit_seconds=10.0)
    return world, wide, world.submit(2, 5000.0, queue="guest", time_limit_seconds=5000.0)


def test_a_gang_within_its_quota_does_not_wait_for_slots_reserved_for_others() -> None:
    world, wide, guest = quota_beside_free_slots()
    assert world.job_state(guest) is JobState.STARTING
    assert world.job_state(wide) is JobState.PENDING
    started = [entry.text for entry in world.entries if entry.kind == "started" and entry.subject == guest]
    assert "queue guest is below its quota" in started[0]


def test_a_higher_priority_goes_before_a_quota() -> None:
    world, wide, guest = quota_beside_free_slots(priority=1)
    assert world.job_state(guest) is JobState.PENDING
    world.end(next(job.job_id for job in world.state.jobs.values() if job.spec.queue == "owner"), 0)
    assert world.job_state(wide) is JobState.STARTING and world.job_state(guest) is JobState.PENDING


def test_a_gang_beyond_its_quota_keeps_its_place_in_the_queue() -> None:
    world, wide, _ = quota_beside_free_slots(quota=1)
    assert not [job for job in world.state.jobs.values() if job.spec.queue == "guest" and job.state.holds_slots]
    assert world.job_state(wide) is JobState.PENDING
