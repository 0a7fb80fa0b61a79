"""Jobs that share slots: who joins whom, in which dimensions they must fit, and when they separate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler_feedback import cycle
from scheduler_feedback.core.events import SharedSpeed
from scheduler_feedback.core.job import JobSpec, JobState, Slot, StopReason
from scheduler_feedback.core.state import Mode, Order, Policy, Sharing
from scheduler_feedback.core.verdict import Kind
from scheduler_feedback.policies.index.scheduling_index import index_of
from scheduler_feedback.policies.intake.job_admission import malformed, over_limit
from tests.cluster.cycle_world import World

GANDIVA = Policy(sharing=Sharing.GANDIVA)
SHARED: dict[str, Any] = {
    "shareable": True, "restartable": True, "preemptible": True, "time_limit_seconds": 500.0, "grace_seconds": 5.0,
}  # fmt: skip


def world_of(policy: Policy = GANDIVA, slots: int = 1, **changes: Any) -> World:
    return World({"n0": slots}, policy, jobs_per_slot=changes.pop("jobs_per_slot", 2), **changes)


def slots_of(world: World, job_id: str) -> list[Slot]:
    return [rank.slot for rank in world.state.jobs[job_id].ranks]


def pair(policy: Policy = GANDIVA, **spec: Any) -> tuple[World, str, str]:
    """Return two jobs on the only slot: the host, of workload a, and its guest, of workload b."""
    world = world_of(policy)
    host = world.submit(1, 500.0, **(SHARED | {"workload": "a"}))
    world.running()
    guest = world.submit(1, 500.0, **(SHARED | {"workload": "b"} | spec))
    world.running()
    return world, host, guest


def measure(world: World, job_id: str, speed: float) -> cycle.Outcome:
    job = world.state.jobs[job_id]
    return world.cycle(SharedSpeed(job_id, job.attempt, tuple(index_of(world.state).partners(job_id)), speed))


def test_a_shareable_job_joins_another_one_and_says_so() -> None:
    world, host, guest = pair()
    assert slots_of(world, host) == slots_of(world, guest) == [Slot("n0", 0)]
    assert world.state.jobs[guest].guest_of == (host,)
    text = next(entry.text for entry in world.entries if entry.subject == guest and entry.kind == "shares")
    assert f"shares n0:0 with {host}: not measured yet; separated if below 1x" in text


def test_a_job_that_was_submitted_while_the_host_started_joins_it_once_it_runs() -> None:
    world = world_of()
    host = world.submit(1, 500.0, **SHARED)
    guest = world.submit(1, 500.0, **SHARED)
    assert world.job_state(guest) is JobState.PENDING
    world.running()
    assert world.state.jobs[guest].guest_of == (host,)


@pytest.mark.parametrize(
    ("host", "guest", "changes"),
    [
        ({"shareable": False}, {}, {}),
        ({}, {"shareable": False}, {}),
        ({}, {"preemptible": False}, {}),
        ({}, {}, {"jobs_per_slot": 1}),
        ({}, {}, {"policy": Policy()}),
        ({"slot_memory_mib": 50}, {"slot_memory_mib": 40}, {"slot_memory_mib": 80}),
        ({"slot_memory_mib": 50}, {}, {"slot_memory_mib": 80}),
        ({"slot_share": 0.7}, {"slot_share": 0.5}, {}),
    ],
    ids=["host", "guest", "not-preemptible", "node", "policy", "memory", "memory-unknown", "share"],
)
def test_jobs_that_may_not_share_or_do_not_fit_wait(
    host: dict[str, Any], guest: dict[str, Any], changes: dict[str, Any]
) -> None:
    world = world_of(changes.pop("policy", GANDIVA), **changes)
    world.submit(1, 500.0, **(SHARED | host))
    world.running()
    assert world.job_state(world.submit(1, 500.0, **(SHARED | guest))) is JobState.PENDING


def test_jobs_that_fit_in_memory_and_share_share() -> None:
    world = world_of(slot_memory_mib=80)
    world.submit(1, 500.0, **SHARED, slot_memory_mib=50, slot_share=0.6)
    world.running()
    assert world.job_state(world.submit(1, 500.0, **SHARED, slot_memory_mib=30, slot_share=0.4)) is JobState.STARTING


def test_no_third_job_joins_if_two_are_allowed() -> None:
    world, _, _ = pair()
    assert world.job_state(world.submit(1, 500.0, **SHARED)) is JobState.PENDING


@pytest.mark.parametrize(("most", "third"), [(2, JobState.PENDING), (3, JobState.STARTING)])
def test_groups_are_no_larger_than_the_node_allows(most: int, third: JobState) -> None:
    world = world_of(Policy(sharing=Sharing.MURI), jobs_per_slot=most)
    states = []
    for stages in ((3.0, 0.1, 0.1), (0.1, 3.0, 0.1), (0.1, 0.1, 3.0)):
        states.append(world.job_state(world.submit(1, 500.0, **SHARED, stages=stages)))
        world.running()
    assert states == [JobState.STARTING, JobState.STARTING, third]


def test_free_slots_go_before_shared_ones() -> None:
    world = world_of(slots=2)
    one, other = (world.submit(1, 500.0, **SHARED) for _ in range(2))
    assert slots_of(world, one) != slots_of(world, other)


def test_a_slot_is_free_only_after_its_last_job() -> None:
    world, host, guest = pair()
    waiting = world.submit(1, 10.0, time_limit_seconds=10.0)
    world.end(host, 0)
    assert world.state.jobs[guest].guest_of == () and world.job_state(waiting) is JobState.PENDING
    assert "alone" in world.entry_kinds(guest)
    world.end(guest, 0)
    assert world.job_state(waiting) is JobState.STARTING


def test_the_head_is_reserved_the_slot_after_both_jobs() -> None:
    world, _, _ = pair()
    waiting = world.submit(1, 10.0, time_limit_seconds=10.0)
    latest = max(release.at_ns for release in index_of(world.state).ends)
    assert world.state.reserved_for == waiting and world.state.reserved_from_ns == latest


def test_no_guest_joins_slots_that_are_reserved_for_the_head() -> None:
    world = world_of()
    world.submit(1, 500.0, **SHARED)
    world.running()
    world.submit(1, 10.0, time_limit_seconds=10.0)  # the head, which shares nothing
    assert world.job_state(world.submit(1, 500.0, **SHARED)) is JobState.PENDING


def test_a_pair_that_interferes_is_separated_and_not_tried_again() -> None:
    world, host, guest = pair()
    measure(world, guest, 0.4)
    assert world.state.jobs[guest].stop_reason is None, "one of two speeds is not enough"
    measure(world, host, 0.5)
    assert world.state.jobs[guest].stop_reason is StopReason.PREEMPT
    text = next(entry.text for entry in world.entries if entry.subject == guest and entry.kind == "separate")
    assert text == f"is separated from {host}: measured 0.90x together (0.50 and 0.40 of their speeds alone)"
    world.advance(5.0)
    assert world.job_state(guest) is JobState.PENDING and world.job_state(host) is JobState.RUNNING
    assert world.job_state(world.submit(1, 500.0, **SHARED, workload="b")) is JobState.PENDING


def test_a_pair_that_gains_stays_and_its_speeds_count_for_expected_ends() -> None:
    world, host, guest = pair()
    measure(world, guest, 0.7)
    measure(world, host, 0.9)
    assert world.state.jobs[guest].stop_reason is None
    assert (world.state.jobs[host].speed, world.state.jobs[guest].speed) == (0.9, 0.7)
    world.end(host, 0)
    assert world.state.jobs[guest].speed == 1.0
    assert world.state.pair_speeds == {"a": {"b": 0.9}, "b": {"a": 0.7}}


def test_a_measurement_of_another_group_is_ignored() -> None:
    world, host, _ = pair()
    world.cycle(SharedSpeed(host, 1, ("j-000077",), 0.1))
    world.cycle(SharedSpeed(host, 1, (), 0.1))
    assert world.state.pair_speeds == {}


def test_observe_mode_only_reports_the_separation() -> None:
    world, host, guest = pair(replace(GANDIVA, mode=Mode.OBSERVE))
    measure(world, guest, 0.4)
    measure(world, host, 0.5)
    assert world.state.jobs[guest].stop_reason is None
    assert [entry.applied for entry in world.entries if entry.kind == "separate"] == [False]


def test_a_verdict_of_interference_separates_the_pair() -> None:
    world, host, guest = pair()
    found = world.verdict(host, kind=Kind.INTERFERENCE, aggressor=guest, slowdown=2.5)
    world.cycle(found)
    assert world.state.jobs[guest].stop_reason is StopReason.PREEMPT
    text = next(entry.text for entry in world.entries if entry.subject == guest and entry.kind == "separate")
    assert f"{host} runs 2.50 times as long" in text
    world.advance(5.0)
    assert world.job_state(guest) is JobState.PENDING


def test_a_weak_verdict_or_a_small_slowdown_separates_nobody() -> None:
    world, host, guest = pair()
    world.cycle(world.verdict(host, kind=Kind.INTERFERENCE, aggressor=guest, slowdown=2.5, confidence=0.5))
    world.cycle(world.verdict(host, kind=Kind.INTERFERENCE, aggressor=guest, slowdown=1.2))
    assert world.state.jobs[guest].stop_reason is None


def test_guests_leave_with_a_host_that_is_preempted() -> None:
    policy = replace(GANDIVA, order=Order.FAIR, preempt=True, preempt_gain=1.0)
    world, host, guest = pair(policy)
    urgent = world.submit(1, 10.0, time_limit_seconds=10.0, priority=0)
    for _ in range(10):
        world.advance(1.0)
        if world.job_state(urgent) is not JobState.PENDING:
            break
    assert world.job_state(urgent) is not JobState.PENDING
    assert {world.job_state(host), world.job_state(guest)} == {JobState.PENDING}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"opportunistic": True}, "opportunistic needs shareable"),
        ({"opportunistic": True, "shareable": True}, "opportunistic needs preemptible"),
        ({"shareable": True, "min_ranks": 1}, "a fixed number of ranks"),
        ({"slot_memory_mib": -1}, "cannot be less than 0"),
        ({"slot_share": 1.5}, "must be from 0 to 1"),
        ({"stages": (0.0, 0.0)}, "not all 0"),
    ],
)
def test_invalid_requests_are_refused_with_the_reason(spec: dict[str, Any], words: str) -> None:
    assert words in (malformed(JobSpec("a", ("train",), 1, **spec)) or "")


def test_an_opportunistic_job_needs_the_rule_of_antman() -> None:
    spec = JobSpec("a", ("train",), 1, shareable=True, opportunistic=True, restartable=True, preemptible=True)
    assert "have the operator set sharing to antman" in (over_limit(Policy(), spec) or "")
    assert over_limit(Policy(sharing=Sharing.ANTMAN), spec) is None
