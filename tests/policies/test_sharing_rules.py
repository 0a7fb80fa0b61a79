"""Rules for shared slots: the arithmetic of each, and opportunistic jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler_feedback import cycle
from scheduler_feedback.core.cluster import Level
from scheduler_feedback.core.events import SharedSpeed
from scheduler_feedback.core.job import JobSpec, JobState
from scheduler_feedback.core.state import Mode, Policy, Queue, Sharing, State
from scheduler_feedback.policies.index.scheduling_index import drop_index, index_of
from scheduler_feedback.policies.sharing.case import combined, pays
from scheduler_feedback.policies.sharing.interference_model import fit, predicted_speed
from scheduler_feedback.policies.sharing.muri import iteration_seconds
from scheduler_feedback.policies.sharing.pair_speeds import assumed_speed, learn, speed_beside
from scheduler_feedback.policies.sharing.sjf_bsbf import saved_seconds
from tests.cluster.cycle_world import World
from tests.policies.test_sharing import SHARED

ANTMAN = Policy(sharing=Sharing.ANTMAN)
LEFTOVER: dict[str, Any] = SHARED | {"opportunistic": True, "workload": "o"}


def test_a_pair_pays_if_it_does_more_together_and_nobody_stands_still() -> None:
    assert combined(4, 0.9, 2, 0.6) == pytest.approx((4 * 0.9 + 2 * 0.6) / 4)
    assert pays(1, 0.6, 1, 0.5, 1.0)
    assert not pays(1, 0.5, 1, 0.4, 1.0)
    assert not pays(1, 1.0, 1, 0.1, 1.0), "the guest would wait for the end of the host"
    assert pays(1, 1.0, 1, 0.1, 0.0), "0 keeps any pair"


def test_sharing_saves_completion_time_by_hand() -> None:
    # Alone 100 s each, one after the other: 100 + 200. Together at 0.8: both end after 125 s.
    assert saved_seconds(100.0, 0.8, 100.0, 0.8) == pytest.approx(300.0 - 250.0)
    # The short guest ends after 10 / 0.5 = 20 s; the host has done 10 s of work by then and needs 90 s more.
    assert saved_seconds(100.0, 0.5, 10.0, 0.5) == pytest.approx((100 + 110) - (20 + 20 + 90))
    # With other slots free in 1 s, sharing loses.
    assert saved_seconds(100.0, 0.5, 10.0, 0.5, wait=1.0) < 0


def test_stages_overlap_in_the_best_order() -> None:
    one, other = (3.0, 1.0, 1.0), (1.0, 3.0, 1.0)
    assert iteration_seconds((one,)) == 5.0
    # By hand: with offset 1, the phases last max(3, 1), max(1, 1), max(1, 3); with offset 2, max(3, 3), 1, 1.
    assert iteration_seconds((one, other)) == 5.0
    assert iteration_seconds((one, one, one, one)) == 12.0, "four jobs on three resources: one idles in each phase"
    assert iteration_seconds(((2.0, 0.0, 0.0), (0.0, 0.0, 2.0))) == 2.0, "they use different resources at once"


def test_the_model_finds_effects_that_add_up() -> None:
    sensitivity = {"a": 1.0, "b": 0.8, "c": 0.6}
    pressure = {"a": 0.9, "b": 0.7, "c": 0.95}
    table = {
        one: {other: sensitivity[one] * pressure[other] for other in pressure if (one, other) != ("c", "b")}
        for one in sensitivity
    }
    assert fit(table).speed("c", "b") == pytest.approx(0.42, abs=0.1)
    assert fit({}).speed("x", "y") == pytest.approx(0.5)


def test_measured_speeds_replace_given_ones_and_are_averaged() -> None:
    state = State(policy=Policy(pair_speeds={"a": {"b": 0.9}}))
    one, other = JobSpec("1", ("t",), 1, workload="a"), JobSpec("2", ("t",), 1, workload="b")
    assert speed_beside(state, one, (other,)) == 0.9
    assert predicted_speed(state, one, other) == 0.9
    learn(state, one, other, 0.5)
    learn(state, one, other, 0.7)
    assert speed_beside(state, one, (other,)) == pytest.approx(0.6)
    assert speed_beside(state, other, (one,)) is None
    assert assumed_speed(state, other, (one,)) == 0.5


@pytest.mark.parametrize("best_first", [True, False])
def test_a_guest_joins_the_host_beside_which_the_pair_gains_most(best_first: bool) -> None:
    speeds = {"guest": {"good": 0.9, "bad": 0.6}, "good": {"guest": 0.9}, "bad": {"guest": 0.6}}
    world = World({"n0": 1, "n1": 1}, Policy(sharing=Sharing.GANDIVA, pair_speeds=speeds), jobs_per_slot=2)
    workloads = ("good", "bad") if best_first else ("bad", "good")
    hosts = {workload: world.submit(1, 500.0, **SHARED, workload=workload) for workload in workloads}
    world.running()
    guest = world.submit(1, 500.0, **SHARED, workload="guest")
    world.running()
    assert world.state.jobs[guest].guest_of == (hosts["good"],)


# --- opportunistic jobs ----------------------------------------------------------------------------------------------


def world_with_host() -> tuple[World, str, str]:
    world = World({"n0": 1}, ANTMAN, jobs_per_slot=2)
    host = world.submit(1, 500.0, **SHARED, workload="h")
    world.running()
    guest = world.submit(1, 500.0, **LEFTOVER)
    world.running()
    assert world.state.jobs[guest].guest_of == (host,)
    return world, host, guest


def test_an_opportunistic_job_that_slows_its_host_by_more_than_two_per_cent_leaves() -> None:
    world, host, guest = world_with_host()
    world.cycle(SharedSpeed(host, 1, (guest,), 0.985))
    assert world.state.jobs[guest].stop_reason is None
    world.cycle(SharedSpeed(host, 1, (guest,), 0.90))
    text = next(entry.text for entry in world.entries if entry.subject == guest and entry.kind == "separate")
    assert text == f"is separated from {host}: {host} runs at 0.94 of its speed alone"
    world.advance(3.0)
    assert world.job_state(guest) is JobState.PENDING and world.job_state(host) is JobState.RUNNING


def test_an_opportunistic_job_delays_no_pending_job() -> None:
    world, host, guest = world_with_host()
    assert world.state.reserved_for is None
    waiting = world.submit(1, 50.0, time_limit_seconds=50.0)
    ends = [release.at_ns for release in index_of(world.state).ends]
    assert ends == [world.state.reserved_from_ns], "the slot is released at the end of the host"
    world.end(host, 0)
    assert world.state.jobs[guest].stop_reason is not None
    world.advance(2.0)
    assert world.job_state(waiting) is JobState.RUNNING


def test_an_opportunistic_job_uses_idle_slots_and_says_why_it_waits() -> None:
    world = World({"n0": 1}, ANTMAN)
    first = world.submit(1, 500.0, **LEFTOVER)
    assert world.job_state(first) is JobState.STARTING
    second = world.submit(1, 500.0, **LEFTOVER)
    found = cycle.explain(world.state, second)
    assert found is not None
    assert found.why == "opportunistic: waits for 1 slot of shareable jobs, or that no other job needs"


@pytest.mark.parametrize("mode", Mode)
def test_in_observe_mode_an_opportunistic_job_keeps_its_slots_and_nothing_is_reserved(mode: Mode) -> None:
    world = World({"n0": 1}, replace(ANTMAN, mode=mode))
    first = world.submit(1, 500.0, **LEFTOVER)
    world.running()
    waiting = world.submit(1, 500.0, workload="h")
    assert (world.state.jobs[first].stop_reason is not None) == bool(world.state.jobs[waiting].claim)
    assert bool(world.state.jobs[waiting].claim) == (mode is Mode.ACT)


def test_observe_mode_reports_once_that_a_job_would_leave_for_several_others() -> None:
    world = World({"n0": 3}, replace(ANTMAN, mode=Mode.OBSERVE))
    first = world.submit(3, 500.0, **LEFTOVER)
    world.running()
    head, *_ = (world.submit(1, 500.0, workload="h") for _ in range(3))
    for _ in range(2):
        drop_index(world.state)  # evaluate all jobs again, as after a restart
        world.cycle()
    told = [entry.text for entry in world.entries if (entry.subject, entry.kind) == (first, "preempt")]
    assert told == [f"would be preempted for {head}"]


def test_opportunistic_jobs_leave_the_head_before_others_are_backfilled() -> None:
    world = World({"n0": 2}, ANTMAN, jobs_per_slot=2)
    host = world.submit(2, 500.0, **SHARED)
    world.running()
    guest = world.submit(1, 500.0, **LEFTOVER)
    world.running()
    head = world.submit(2, 50.0, time_limit_seconds=50.0)
    small = world.submit(1, 10.0, time_limit_seconds=10.0)
    world.end(host, 0)
    assert world.state.jobs[guest].stop_reason is not None and len(world.state.jobs[head].claim) == 2
    assert world.job_state(small) is JobState.PENDING, "a start now would delay the head"


def test_an_opportunistic_job_waits_neither_for_its_level_nor_for_jobs_at_their_limit() -> None:
    policy = replace(ANTMAN, level_patience_seconds=1e6, queues=(Queue("full", limit=0), Queue("all")))
    world = World({"n0": 1, "n1": 1}, policy)
    world.submit(1, 50.0, queue="full")
    spread = world.submit(2, 50.0, **LEFTOVER, queue="all", preferred_level=Level.NODE)
    assert world.job_state(spread) is JobState.STARTING
