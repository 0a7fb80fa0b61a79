"""Moves of guests to idle slots: which guests move, and when it pays (Gandiva's migration)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler_feedback.core.cluster import Tier
from scheduler_feedback.core.events import PolicySet
from scheduler_feedback.core.job import JobState, Slot, StopReason
from scheduler_feedback.core.state import Mode, Policy, Sharing
from scheduler_feedback.policies.index.scheduling_index import index_of
from scheduler_feedback.policies.sharing import guest_moves
from tests.cluster.cycle_world import World
from tests.policies.test_sharing import SHARED, measure, slots_of

POLICY = Policy(sharing=Sharing.GANDIVA, default_time_limit_seconds=10_000.0)
LONG: dict[str, Any] = SHARED | {"time_limit_seconds": 4000.0, "restart_cost_seconds": 20.0, "grace_seconds": 1.0}


def _world(policy: Policy = POLICY, guest: dict[str, Any] | None = None) -> tuple[World, str, str, str]:
    """Return a cluster of two slots: a job on n0, and two jobs that share n1."""
    world = World({"n0": 1, "n1": 1}, policy, jobs_per_slot=2)
    other = world.submit(1, 300.0, time_limit_seconds=300.0)
    world.running()
    host = world.submit(1, 3000.0, **(LONG | {"workload": "a"}))
    world.running()
    joined = world.submit(1, 3000.0, **(LONG | {"workload": "b"} | (guest or {})))
    world.running()
    assert world.state.jobs[joined].guest_of == (host,)
    return world, other, host, joined


def _measured(world: World, host: str, guest: str, theirs: float, mine: float) -> None:
    measure(world, host, theirs)
    measure(world, guest, mine)


def test_a_guest_moves_to_idle_slots_once_the_gain_exceeds_the_cost() -> None:
    world, other, host, guest = _world()
    _measured(world, host, guest, 0.7, 0.6)
    world.submit(1, 10.0, time_limit_seconds=10.0)  # it waits for n0
    world.end(other, 0)
    world.running()
    idle_ns = world.state.emptied_ns
    assert idle_ns == world.now_ns, "the last pending job has started"
    world.advance(15.0)
    assert index_of(world.state).plan.free(Tier.HEALTHY) == 1
    assert world.state.jobs[guest].stop_reason is None, "no job has been pending for too short a time"
    for _ in range(300):
        if world.state.jobs[guest].stop_reason is not None:
            break
        world.advance(1.0)
    # 0.4 + 0.3 lost per second: 21 s (20 s to restart, 1 s of grace) x 1.2 / 0.7 = 36 s after the last pending job
    assert world.state.jobs[guest].stop_reason is StopReason.MIGRATE
    assert 36.0 <= (world.now_ns - idle_ns) / 1e9 < 43.0
    text = next(one.text for one in world.entries if one.kind == "guest-moves")
    assert "will continue alone on n0:0: it runs at 0.60 of its speed beside" in text and host in text
    for _ in range(5):
        world.advance(1.0)
        world.running()
    job = world.state.jobs[guest]
    assert (job.state, job.guest_of, slots_of(world, guest)) == (JobState.RUNNING, (), [Slot("n0", 0)])
    assert world.job_state(host) is JobState.RUNNING and index_of(world.state).partners(host) == []


@pytest.mark.parametrize(
    ("changes", "measured"),
    [
        ({}, False),
        ({"frozen": True}, True),
        ({"pending": True}, True),
        ({"no idle slot": True}, True),
        ({"switched off": True}, True),
    ],
)
def test_it_stays(changes: dict[str, bool], measured: bool) -> None:
    world, other, host, guest = _world()
    if measured:
        _measured(world, host, guest, 0.7, 0.6)
    world.state.frozen = "frozen" in changes
    if "switched off" in changes:
        world.cycle(PolicySet(replace(POLICY, move_guests=False)))
    if "pending" in changes:
        world.submit(2, 10.0)
    if "no idle slot" not in changes:
        world.end(other, 0)
    for _ in range(100):
        world.advance(1.0)
        world.running()
    assert (world.state.jobs[guest].attempt, world.state.jobs[guest].guest_of) == (1, (host,))


def test_a_pair_without_a_loss_stays() -> None:
    world, other, host, guest = _world()
    _measured(world, host, guest, 1.0, 1.0)
    world.end(other, 0)
    world.advance(900.0)
    assert world.state.jobs[guest].guest_of == (host,)
    assert list(guest_moves.timeouts(world.state, index_of(world.state))) == []


def test_observe_mode_only_says_so() -> None:
    world, other, host, guest = _world(replace(POLICY, mode=Mode.OBSERVE))
    _measured(world, host, guest, 0.7, 0.6)
    world.end(other, 0)
    for _ in range(100):
        world.advance(1.0)
    assert world.state.jobs[guest].stop_reason is None
    texts = [one.text for one in world.entries if one.kind == "guest-moves"]
    assert len(texts) == 1 and texts[0].startswith("would continue alone on n0:0")


def test_an_opportunistic_guest_starts_again_on_the_idle_slots() -> None:
    policy = replace(POLICY, sharing=Sharing.ANTMAN)
    world, other, host, guest = _world(policy, {"opportunistic": True})
    _measured(world, host, guest, 1.0, 0.3)
    world.end(other, 0)
    for _ in range(120):
        world.advance(1.0)
        world.running()
    job = world.state.jobs[guest]
    assert (job.guest_of, slots_of(world, guest)) == ((), [Slot("n0", 0)])


def test_a_guest_whose_restart_is_too_expensive_does_not_hold_up_another() -> None:
    world = World({"n0": 1, "n1": 1, "n2": 1}, POLICY, jobs_per_slot=2)
    other = world.submit(1, 300.0, time_limit_seconds=300.0)
    world.running()
    hosts = [world.submit(1, 3000.0, **(LONG | {"workload": "a"})) for _ in range(2)]
    world.running()
    guests = []
    for name, cost in (("b", 3000.0), ("c", 20.0)):
        guests.append(world.submit(1, 3000.0, **(LONG | {"workload": name, "restart_cost_seconds": cost})))
        world.running()
    expensive, cheap = guests
    assert sorted(world.state.jobs[one].guest_of for one in guests) == [(one,) for one in sorted(hosts)]
    for guest, speed in ((expensive, 0.4), (cheap, 0.6)):
        _measured(world, world.state.jobs[guest].guest_of[0], guest, 0.7, speed)
    world.submit(1, 10.0, time_limit_seconds=10.0)  # it waits for n0
    world.end(other, 0)
    world.running()
    for _ in range(120):
        if world.state.jobs[cheap].stop_reason is not None:
            break
        world.advance(1.0)
    assert world.state.jobs[cheap].stop_reason is StopReason.MIGRATE
    assert world.state.jobs[expensive].stop_reason is None
