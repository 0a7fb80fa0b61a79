"""Reclaim: a queue below its quota gets back what others borrow; only from those that may be stopped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler_feedback.core.actions import StartGang
from scheduler_feedback.core.job import JobState, StopReason
from scheduler_feedback.core.state import Estimates, Mode, Order, Policy, Queue
from scheduler_feedback.policies.ledger import ledger_of
from tests.feedback.world import World

_POLICY = Policy(
    order=Order.FAIR,
    estimates=Estimates.HISTORY,
    preempt=True,
    preempt_gain=1e9,  # so that nothing but a quota stops anybody
    queues=(Queue("owner", quota=4), Queue("guest", quota=2), Queue("free")),
)
_GUEST: dict[str, Any] = {"queue": "guest", "restartable": True, "preemptible": True, "grace_seconds": 2.0}


def full(policy: Policy = _POLICY, **spec: Any) -> tuple[World, list[str]]:
    """Six slots, all held by three gangs of two of the guest's queue, which may hold two."""
    world = World({"n0": 2, "n1": 2, "n2": 2}, policy)
    guests = [world.submit(2, 1000.0, **(_GUEST | spec)) for _ in range(3)]
    world.running()
    return world, guests


def stopped(world: World) -> set[str]:
    return {job.job_id for job in world.state.jobs.values() if job.stop_reason is StopReason.PREEMPT}


def test_a_queue_below_its_quota_gets_back_what_is_borrowed() -> None:
    world, guests = full()
    waiting = world.submit(2, 100.0, queue="owner")
    assert len(stopped(world)) == 1 and stopped(world) <= set(guests)
    (victim,) = stopped(world)
    outcome = world.end(victim, 75, signalled=True)
    assert waiting in {action.job_id for action in outcome.actions if isinstance(action, StartGang)}
    text = next(entry.text for entry in world.entries if entry.kind == "reclaim")
    assert "queue owner is below its quota" in text and victim in text


def test_nobody_is_taken_below_its_own_quota() -> None:
    world, _ = full()
    world.submit(4, 100.0, queue="owner")
    assert len(stopped(world)) == 2, "four of the six are borrowed"
    world, _ = full(replace(_POLICY, queues=(Queue("owner", quota=6), Queue("guest", quota=2))))
    world.submit(6, 100.0, queue="owner")
    assert not stopped(world), "two of the six are the guest's own, so room for six can not be made"


@pytest.mark.parametrize(
    ("queue", "spec"),
    [
        ("owner", {"preemptible": False}),
        ("owner", {"min_run_seconds": 500.0}),
        ("free", {}),
        ("guest", {}),
    ],
)
def test_nothing_is_reclaimed_without_a_quota_or_from_those_that_may_not_be_stopped(
    queue: str, spec: dict[str, Any]
) -> None:
    world, _ = full(**spec)
    waiting = world.submit(2, 100.0, queue=queue)
    assert not stopped(world) and world.job_state(waiting) is JobState.PENDING


def test_what_goes_beyond_the_quota_waits() -> None:
    world, _ = full()
    world.submit(5, 100.0, queue="owner")
    assert not stopped(world)


def test_observe_mode_only_says_so() -> None:
    world, _ = full(replace(_POLICY, mode=Mode.OBSERVE))
    world.submit(2, 100.0, queue="owner")
    assert not stopped(world)
    world.advance(1.0)
    assert [entry.applied for entry in world.entries if entry.kind == "reclaim"] == [False], "told once"


def test_those_that_wait_stand_as_their_queue_does_though_little_has_changed_of_themselves() -> None:
    """The queue that has used most stands last from the next renewal on, and so do all that wait in it."""
    world = World({"n0": 2}, replace(_POLICY, queues=(Queue("a"), Queue("b")), preempt=False))
    world.submit(2, 100_000.0, queue="a")
    world.running()
    for queue in ("a", "b"):
        world.submit(2, 100.0, queue=queue)

    def waiting() -> list[str]:
        return [world.state.jobs[key[-1]].spec.queue for key in ledger_of(world.state).line.order]

    assert waiting() == ["a", "b"]
    for _ in range(4):
        world.advance(900.0)  # the world holds the line against what a new controller would have
    assert waiting() == ["b", "a"]
