"""MuxFlow: services lend their slots to opportunistic jobs while they keep their latency objective."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from scheduler_feedback import cycle
from scheduler_feedback.core.actions import StartGang
from scheduler_feedback.core.events import CancelRequested, FreezeSet, LatencyMeasured, SharedSpeed, SpeedMeasured
from scheduler_feedback.core.job import JobSpec, JobState
from scheduler_feedback.core.state import Mode, Policy, Sharing
from scheduler_feedback.policies.intake.job_admission import malformed, over_limit
from scheduler_feedback.policies.sharing.matching import matched
from tests.cluster.cycle_world import World

MUXFLOW = Policy(sharing=Sharing.MUXFLOW)
SERVICE: dict[str, Any] = {"shareable": True, "time_limit_seconds": 5000.0, "latency_objective_seconds": 0.1}
OFFLINE: dict[str, Any] = {
    "shareable": True, "opportunistic": True, "restartable": True, "preemptible": True, "grace_seconds": 5.0,
    "time_limit_seconds": 500.0,
}  # fmt: skip
QUIET = 0.01
"""Latency in seconds of a service with hardly any load: a tenth of the objective."""


def world_of(services: int = 1, policy: Policy = MUXFLOW, **changes: Any) -> tuple[World, list[str]]:
    """Return a cluster of which services hold all slots, one on each node."""
    world = World({f"n{number}": 1 for number in range(services)}, policy, jobs_per_slot=2, **changes)
    found = [world.submit(1, 5000.0, **SERVICE, workload=f"s{number}") for number in range(services)]
    world.running()
    return world, found


def measure(world: World, job_id: str, seconds: float, busy: float = 0.1) -> cycle.Outcome:
    return world.cycle(LatencyMeasured(job_id, world.state.jobs[job_id].attempt, seconds, busy))


def said(world: World, job_id: str, kind: str) -> list[str]:
    return [entry.text for entry in world.entries if entry.subject == job_id and entry.kind == kind]


def test_an_offline_job_joins_a_service_once_its_latency_is_known() -> None:
    world, (service,) = world_of()
    guest = world.submit(1, 100.0, **OFFLINE, workload="t")
    assert world.job_state(guest) is JobState.PENDING
    (start,) = measure(world, service, QUIET).actions
    assert isinstance(start, StartGang) and start.spec.slot_share == 0.9 == world.state.jobs[guest].slot_part
    assert world.state.jobs[guest].guest_of == (service,)
    (text,) = said(world, guest, "shares")
    assert text.endswith(
        f"shares n0:0 with {service}: {service} answers in 10 ms of 100 ms; the guest gets 90% of each slot and is "
        f"predicted to run at 0.45 of its speed alone; separated if {service} answers in more than 80 ms"
    )


@pytest.mark.parametrize(("seconds", "busy", "joins"), [(0.03, 0.1, True), (0.04, 0.1, False), (0.03, 0.6, False)])
def test_it_joins_only_if_the_expected_latency_is_far_below_the_objective(
    seconds: float, busy: float, joins: bool
) -> None:
    """With unknown speeds, 90 % of the slot would slow the service to 0.55 of its speed: 30 ms become 60 ms, and 40 ms
    become 80 ms."""
    world, (service,) = world_of()
    guest = world.submit(1, 100.0, **OFFLINE)
    measure(world, service, seconds, busy)
    assert (world.job_state(guest) is JobState.STARTING) is joins


@pytest.mark.parametrize(("busy", "part"), [(0.0, 0.9), (0.3, 0.7), (0.32, 0.65)])
def test_a_guest_gets_what_the_requests_leave_of_the_slot(busy: float, part: float) -> None:
    world, (service,) = world_of()
    guest = world.submit(1, 100.0, **OFFLINE)
    measure(world, service, QUIET, busy)
    assert world.state.jobs[guest].slot_part == part


def test_a_service_recalls_its_slots_before_its_objective_is_broken() -> None:
    world, (service,) = world_of()
    guest = world.submit(1, 100.0, **OFFLINE)
    measure(world, service, QUIET)
    world.running()
    measure(world, service, 0.079)
    assert world.state.jobs[guest].stop_reason is None
    measure(world, service, 0.081)
    why = f"{service} answers in 81 ms, more than 80 ms of its objective of 100 ms"
    assert said(world, guest, "separate") == [f"is separated from {service}: {why}"]
    assert said(world, service, "recalls") == [f"recalls its slots from {guest}: {why}"]
    world.advance(2.0)
    assert world.job_state(guest) is JobState.PENDING and world.job_state(service) is JobState.RUNNING
    found = cycle.explain(world.state, guest)
    assert found is not None
    assert found.why == (
        "opportunistic: waits for 1 slot of a shareable service whose latency is far below its objective, or that no "
        "other job needs"
    )
    measure(world, service, QUIET)
    assert world.state.jobs[guest].guest_of == (service,)


def test_explain_names_the_latency_and_what_the_guest_uses() -> None:
    world, (service,) = world_of()
    why = lambda job_id: (found := cycle.explain(world.state, job_id)) and found.why  # noqa: E731
    assert why(service).endswith("; its latency is not measured yet")
    guest = world.submit(1, 100.0, **OFFLINE)
    measure(world, service, QUIET)
    world.running()
    assert why(service).endswith("; answers in 10 ms of 100 ms; lends its slots below 60 ms")
    uses = f"; uses up to 90% of the slots of {service}, until {service} answers in more than 80 ms"
    assert why(guest).endswith(uses)


def test_in_observe_mode_and_while_frozen_no_slot_is_recalled() -> None:
    world, (service,) = world_of(policy=replace(MUXFLOW, mode=Mode.OBSERVE))
    guest = world.submit(1, 100.0, **OFFLINE)
    measure(world, service, QUIET)
    world.running()
    measure(world, service, 0.2)
    assert world.state.jobs[guest].stop_reason is None and said(world, service, "recalls") == []
    assert said(world, guest, "separate")[0].startswith(f"would be separated from {service}")
    world, (service,) = world_of()
    guest = world.submit(1, 100.0, **OFFLINE)
    measure(world, service, QUIET)
    world.running()
    world.cycle(FreezeSet(True))
    measure(world, service, 0.2)
    assert world.state.jobs[guest].stop_reason is None


def test_speeds_are_stored_as_if_the_guest_had_the_whole_slot() -> None:
    """Requests take 9 ms alone and 12 ms beside a guest with 90 % of the slot: 0.75 of the speed."""
    world, (service,) = world_of()
    guest = world.submit(1, 100.0, **OFFLINE, workload="t")
    measure(world, service, 0.01, busy=0.1)
    world.running()
    measure(world, service, 0.016, busy=0.25)
    world.cycle(SharedSpeed(guest, 1, (service,), 0.45))
    assert world.state.pair_speeds["s0"]["t"] == pytest.approx(1 - 0.25 / 0.9)
    assert world.state.pair_speeds["t"]["s0"] == pytest.approx(0.5)


def test_a_guest_joins_a_service_once_its_slot_is_no_longer_reserved() -> None:
    world = World({"n0": 2}, MUXFLOW, jobs_per_slot=2)
    service = world.submit(1, 5000.0, **SERVICE, workload="s0")
    world.submit(1, 9000.0, time_limit_seconds=9000.0)
    world.running()
    wide = world.submit(2, 100.0)
    assert world.state.reserved_for == wide and len(world.state.reserved_slots) == 2
    guest = world.submit(1, 100.0, **OFFLINE, workload="t")
    measure(world, service, QUIET)
    assert world.job_state(guest) is JobState.PENDING
    world.cycle(CancelRequested(wide))
    assert world.job_state(guest) is JobState.STARTING


def test_a_guest_that_hardly_runs_leaves_and_does_not_return() -> None:
    world, (service,) = world_of()
    guest = world.submit(1, 100.0, **OFFLINE, workload="t")
    measure(world, service, QUIET)
    world.running()
    world.cycle(SharedSpeed(guest, 1, (service,), 0.1))
    assert said(world, guest, "separate") == [f"is separated from {service}: it runs at 0.10 of its speed alone"]
    world.advance(2.0)
    measure(world, service, QUIET)
    assert world.job_state(guest) is JobState.PENDING


def test_one_bad_pair_is_no_prediction_for_other_workloads() -> None:
    policy = replace(MUXFLOW, pair_speeds={"s0": {"t": 0.1}, "t": {"s0": 0.1}})
    world, (service,) = world_of(policy=policy)
    guests = [world.submit(1, 100.0, **OFFLINE, workload=name) for name in ("t", "u")]
    measure(world, service, QUIET)
    assert [world.job_state(one) for one in guests] == [JobState.PENDING, JobState.STARTING]


def test_guests_and_services_are_matched_by_the_sum_of_their_speeds() -> None:
    """Both prefer the first service. The one that loses most on the other gets it."""
    harmless = {"t0": 1.0, "t1": 1.0}
    speeds = {"t0": {"s0": 0.9, "s1": 0.8}, "t1": {"s0": 0.85, "s1": 0.4}, "s0": harmless, "s1": harmless}
    world, services = world_of(2, replace(MUXFLOW, pair_speeds=speeds))
    guests = [world.submit(1, 100.0, **OFFLINE, workload=f"t{number}") for number in (0, 1)]
    world.cycle(*(LatencyMeasured(one, 1, QUIET, 0.1) for one in services))
    assert [world.state.jobs[one].guest_of for one in guests] == [(services[1],), (services[0],)]


def test_other_reports_and_jobs_without_an_objective_are_ignored() -> None:
    world, (service,) = world_of()
    guest = world.submit(1, 100.0, **OFFLINE)
    for event in (
        LatencyMeasured("nobody", 1, QUIET, 0.1), LatencyMeasured(service, 7, QUIET, 0.1),
        LatencyMeasured(service, 1, float("nan"), 0.1), LatencyMeasured(service, 1, -1.0, 0.1),
        LatencyMeasured(guest, 0, QUIET, 0.1),
    ):  # fmt: skip
        world.cycle(event)
    assert world.state.jobs[service].latency_seconds is None and world.job_state(guest) is JobState.PENDING


def test_the_rate_of_requests_is_no_speed() -> None:
    world, (service,) = world_of()
    world.cycle(SpeedMeasured(service, 1, 500.0, 60.0, "steps"))
    assert not world.state.speeds and world.state.jobs[service].speed == 1.0


def test_a_new_attempt_of_a_service_has_no_latency_yet() -> None:
    world = World({"n0": 1}, MUXFLOW, jobs_per_slot=2)
    service = world.submit(1, 500.0, exit_code=1, max_retries=1, **SERVICE)
    world.running()
    measure(world, service, QUIET)
    world.end(service, 1)
    world.advance(10.0)
    assert (world.state.jobs[service].attempt, world.state.jobs[service].latency_seconds) == (2, None)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"latency_objective_seconds": -1.0}, "its latency objective is -1 s"),
        ({"latency_objective_seconds": float("inf")}, "its latency objective is inf s"),
        ({"latency_objective_seconds": 0.1, "opportunistic": True}, "an opportunistic job has no latency objective"),
    ],
)
def test_invalid_objectives_are_refused(changes: dict[str, Any], why: str) -> None:
    spec = JobSpec("s", ("serve",), 1, shareable=True, restartable=True, preemptible=True)
    assert malformed(spec) is None
    assert why in (malformed(structs.replace(spec, **changes)) or "")
    guest = structs.replace(spec, opportunistic=True)
    assert over_limit(MUXFLOW, guest) is None and over_limit(Policy(), guest) is not None


@pytest.mark.parametrize(
    ("gains", "pairs"),
    [
        ([], {}),
        ([{}], {}),
        ([{"a": 1.0}, {"a": 2.0}], {1: "a"}),
        ([{"a": 0.9, "b": 0.8}, {"a": 0.85, "b": 0.4}], {0: "b", 1: "a"}),
        ([{"a": 1.0, "b": 1.0}, {"b": 1.0}, {"a": 0.5}], {0: "a", 1: "b"}),
    ],
)
def test_matching(gains: list[dict[str, float]], pairs: dict[int, str]) -> None:
    assert matched(gains) == pairs
