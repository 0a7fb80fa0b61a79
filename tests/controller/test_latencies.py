"""Latencies of services, from the steps that they report: one step is one request."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler_feedback.controller.reports.latencies import LEAST_REQUESTS, Latencies, latency_of
from scheduler_feedback.core.events import LatencyMeasured
from scheduler_feedback.core.state import Policy, Sharing
from scheduler_feedback.core.telemetry.steps.latency_reports import CHANGE, REPEAT_NS, WINDOW_NS
from scheduler_feedback.core.telemetry.steps.step_ring import Requests, StepRing
from tests.cluster.cycle_world import SECOND, World
from tests.policies.test_muxflow import OFFLINE, SERVICE


def requests(seconds: float, busy: float, count: int = 100, ranks: int = 1) -> Requests:
    """Return requests of equal length; the ranks are busy for this share of the time."""
    ends = np.arange(1, count + 1)[:, None] * np.full((1, ranks), seconds / busy) - seconds * (1 / busy - 1)
    return Requests(np.round(ends * 1e9).astype(np.int64), np.full((count, ranks), seconds))


def world_of(sharing: Sharing = Sharing.MUXFLOW) -> tuple[World, str]:
    world = World({"n0": 1}, Policy(sharing=sharing), jobs_per_slot=2)
    service = world.submit(1, 5000.0, **SERVICE)
    world.running()
    return world, service


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("busy", [0.25, 0.5, 1.0])
def test_the_latency_has_the_wait_for_earlier_requests(busy: float, ranks: int) -> None:
    seconds, found = latency_of(requests(0.01, busy, ranks=ranks))
    assert found == pytest.approx(busy, abs=0.02)
    assert seconds == pytest.approx(0.01 / max(1 - found, 0.01))


def test_the_ranks_are_busy_from_the_begin_of_the_first_request() -> None:
    """Two requests of 10 ms, with 10 ms between them: 20 ms of 30 ms."""
    _, busy = latency_of(Requests(np.array([[10_000_000], [30_000_000]]), np.array([[0.01], [0.01]])))
    assert busy == pytest.approx(2 / 3)


def test_a_latency_is_reported_after_a_window_and_again_only_after_a_change() -> None:
    world, service = world_of()
    known = {service: requests(0.01, 0.2)}
    latencies = Latencies(known.get)
    assert latencies.measure(world.state, 0) == [] == latencies.measure(world.state, WINDOW_NS - 1)
    (report,) = latencies.measure(world.state, WINDOW_NS)
    assert report == LatencyMeasured(service, 1, pytest.approx(0.0125, rel=0.02), pytest.approx(0.2, abs=0.02))
    assert latencies.measure(world.state, 2 * WINDOW_NS) == []
    known[service] = requests(0.01 * (1 + 2 * CHANGE), 0.2)
    assert len(latencies.measure(world.state, 3 * WINDOW_NS)) == 1
    assert latencies.measure(world.state, 3 * WINDOW_NS + REPEAT_NS - 1) == []
    assert len(latencies.measure(world.state, 3 * WINDOW_NS + REPEAT_NS)) == 1


def test_a_latency_beside_a_new_guest_is_reported() -> None:
    world, service = world_of()
    latencies = Latencies({service: requests(0.01, 0.2)}.get)
    latencies.measure(world.state, 0)
    (alone,) = latencies.measure(world.state, WINDOW_NS)
    guest = world.submit(1, 100.0, **OFFLINE)
    world.cycle(alone)
    world.running()
    assert world.state.jobs[guest].guest_of == (service,)
    assert latencies.measure(world.state, 2 * WINDOW_NS) == [], "the steps are from before the guest's start"
    assert len(latencies.measure(world.state, 3 * WINDOW_NS)) == 1


def test_few_requests_other_rules_and_ended_services_are_not_reported() -> None:
    world, service = world_of()
    few = Latencies({service: requests(0.01, 0.2, LEAST_REQUESTS - 1)}.get)
    none = Latencies({}.get)
    for latencies in (few, none):
        latencies.measure(world.state, 0)
        assert latencies.measure(world.state, WINDOW_NS) == []
    other, name = world_of(Sharing.ANTMAN)
    assert Latencies({name: requests(0.01, 0.2)}.get).measure(other.state, WINDOW_NS) == []
    latencies = Latencies({service: requests(0.01, 0.2)}.get)
    latencies.measure(world.state, 0)
    world.end(service, 0)
    assert latencies.measure(world.state, WINDOW_NS) == []


def test_a_request_is_a_step_without_its_waits_and_the_time_before_it() -> None:
    ring = StepRing(1)
    ring.add_rank()
    for number in range(5):  # every 100 ms, 20 ms each, of which 5 ms are a wait
        start_ns = number * 100_000_000
        ring.finish(0, number, start_ns, 20_000_000, 5_000_000, start_ns + SECOND, None, None)
    found = ring.requests(np.array([0]), newest=3)
    assert found is not None
    assert found.seconds[:, 0] == pytest.approx([0.015] * 3)
    assert np.diff(found.end_ns[:, 0]).tolist() == [100_000_000] * 2
    assert StepRing(1).requests(np.array([0]), newest=3) is None
