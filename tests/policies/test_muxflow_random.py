"""Random services, guests and latencies on ``Ordeal``, which checks the scheduler's invariants after every cycle."""

from __future__ import annotations

import random

from scheduler_feedback.core.events import CancelRequested, FreezeSet, LatencyMeasured, NodeCommand, NodeCommanded
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.core.state import Estimates, Order, Policy, Sharing
from tests.cluster.random_cycles import Ordeal

ACTIONS = 120


def _service(chance: random.Random) -> tuple[JobSpec, float, int]:
    seconds = float(chance.choice([60, 400, 400]))
    spec = JobSpec(
        "service", ("serve",), chance.choice([1, 1, 2]), time_limit_seconds=seconds, exact_seconds=seconds,
        grace_seconds=2.0, shareable=True, latency_objective_seconds=0.1, slot_memory_mib=chance.choice([10, 30]),
        workload=chance.choice("ab"), restartable=chance.random() < 0.3,
    )  # fmt: skip
    return spec, seconds, 0


def _guest(chance: random.Random) -> tuple[JobSpec, float, int]:
    seconds = float(chance.choice([10, 40, 90]))
    spec = JobSpec(
        "guest", ("train",), chance.choice([1, 1, 1, 2]), time_limit_seconds=seconds, exact_seconds=seconds,
        grace_seconds=2.0, shareable=True, opportunistic=True, restartable=True, preemptible=True,
        slot_memory_mib=chance.choice([10, 30, 50]), workload=chance.choice("tuv"),
    )  # fmt: skip
    return spec, seconds, 0


def _plain(chance: random.Random) -> tuple[JobSpec, float, int]:
    seconds = float(chance.choice([10, 40]))
    spec = JobSpec(
        "plain", ("train",), chance.choice([1, 2, 4]), time_limit_seconds=seconds, exact_seconds=seconds,
        grace_seconds=2.0,
    )  # fmt: skip
    return spec, seconds, 0


def run(seed: int) -> dict[str, int]:
    """Run one world, and return how many log entries of each kind it has."""
    chance = random.Random(f"muxflow {seed}")
    policy = Policy(
        sharing=Sharing.MUXFLOW, estimates=chance.choice([Estimates.EXACT, Estimates.LIMIT]),
        order=chance.choice([Order.FIFO, Order.SJF, Order.FAIR]),
    )  # fmt: skip
    world = Ordeal((2, 2, 3), policy, types=chance.choice([1, 1, 2]), jobs_per_slot=2, slot_memory_mib=60)
    for _ in range(ACTIONS):
        number = chance.random()
        if number < 0.12:
            world.submit(_service(chance))
        elif number < 0.35:
            world.submit(_guest(chance))
        elif number < 0.40:
            world.submit(_plain(chance))
        elif number < 0.65:
            serving = [one for one in world.state.jobs.values() if one.spec.latency_objective_seconds]
            events = [
                LatencyMeasured(
                    one.job_id, one.attempt, chance.choice([0.01, 0.02, 0.05, 0.07, 0.2]), chance.random() * 0.7
                )
                for one in serving
                if one.state.holds_slots and chance.random() < 0.6
            ]
            world.seen()
            world.cycle(*events)
        elif number < 0.85:
            world.advance(chance.choice([0.5, 3.0, 15.0]))
        elif number < 0.90:
            world.nothing_by_time_alone(chance.choice([1.0, 30.0, 500.0]), chance.random() < 0.5)
        elif number < 0.93:
            world.kill(snapshot_first=chance.random() < 0.5)
        elif number < 0.95:
            world.observe_again()
        elif number < 0.97:
            frozen = not world.state.frozen
            world.cycle(FreezeSet(frozen))
        elif number < 0.985:
            world.cycle(NodeCommanded(chance.choice(sorted(world.state.nodes)), NodeCommand.RELEASE))
        else:
            world.cycle(CancelRequested(chance.choice(sorted(world.state.jobs) or ["none"])))
    world.cycle(FreezeSet(False))
    world.end_well()
    return world.counts


def test_no_invariant_is_broken() -> None:
    """Six worlds. Most of them lend and recall slots; otherwise the test would check nothing of it."""
    counts = [run(seed) for seed in range(6)]
    assert sum(one.get("shares", 0) for one in counts) > 30
    assert sum(one.get("recalls", 0) for one in counts) > 3
