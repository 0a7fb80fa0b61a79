"""Measured speeds of jobs that share slots, from step times."""

from __future__ import annotations

from scheduler_feedback.controller.reports.shared_speeds import STEPS, TRIAL_NS, SharedSpeeds
from scheduler_feedback.core.events import SharedSpeed
from scheduler_feedback.core.state import Policy, Sharing
from tests.cluster.cycle_world import SECOND, World
from tests.policies.test_sharing import SHARED


def world_of(sharing: Sharing = Sharing.GANDIVA) -> tuple[World, str]:
    world = World({"n0": 1}, Policy(sharing=sharing), jobs_per_slot=2)
    host = world.submit(1, 5000.0, **SHARED, workload="a")
    world.running()
    return world, host


def test_both_speeds_are_measured_once_the_step_times_alone_are_known() -> None:
    world, host = world_of()
    seconds = {host: 0.5}
    speeds = SharedSpeeds(seconds.get)
    assert speeds.measure(world.state, 0) == []
    assert speeds.measure(world.state, round(STEPS * 0.5 * SECOND)) == []  # alone: it is the reference
    guest = world.submit(1, 5000.0, **SHARED, workload="a")  # of the same workload, so its time alone is known
    world.running()
    seconds |= {host: 0.8, guest: 1.0}
    now_ns = 100 * SECOND
    assert speeds.measure(world.state, now_ns) == []
    assert speeds.measure(world.state, now_ns + TRIAL_NS - SECOND) == [], "too early"
    found = speeds.measure(world.state, now_ns + TRIAL_NS)
    assert found == [SharedSpeed(host, 1, (guest,), 0.625), SharedSpeed(guest, 1, (host,), 0.5)]
    assert speeds.measure(world.state, now_ns + 2 * TRIAL_NS) == [], "once for each group"


def test_steps_from_before_the_group_do_not_count() -> None:
    world, host = world_of()
    seconds = {host: 10.0}
    speeds = SharedSpeeds(seconds.get)
    speeds.measure(world.state, 0)
    speeds.measure(world.state, 200 * SECOND)
    guest = world.submit(1, 5000.0, **SHARED, workload="a")
    world.running()
    seconds[guest] = 20.0
    speeds.measure(world.state, 300 * SECOND)
    assert speeds.measure(world.state, 300 * SECOND + TRIAL_NS) == []
    assert [one.job_id for one in speeds.measure(world.state, 300 * SECOND + 16 * 10 * SECOND)] == [host]


def test_a_job_that_was_never_seen_alone_is_not_measured() -> None:
    world, host = world_of()
    guest = world.submit(1, 5000.0, **SHARED, workload="b")
    world.running()
    speeds = SharedSpeeds({host: 0.5, guest: 0.5}.get)
    speeds.measure(world.state, 0)
    assert speeds.measure(world.state, 100 * SECOND) == []


def test_jobs_without_steps_and_other_policies_are_not_measured() -> None:
    world, _ = world_of()
    assert SharedSpeeds({}.get).measure(world.state, 0) == []
    off, _ = world_of(Sharing.NONE)
    assert SharedSpeeds({}.get).measure(off.state, 0) == []
