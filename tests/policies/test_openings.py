"""Openings: kept comparisons of pending and running jobs equal new ones, and are not made again without a change.

``World`` compares the kept ones with new ones after every cycle (``scheduling_rules.check_openings``).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler_feedback.core.events import CancelRequested
from scheduler_feedback.core.job import JobState
from scheduler_feedback.core.state import Policy, Queue, Sharing
from scheduler_feedback.policies.index.scheduling_index import index_of
from scheduler_feedback.policies.sharing import gandiva, guests
from scheduler_feedback.policies.sharing.case import Case, Chance
from tests.cluster.cycle_world import World
from tests.policies.test_sharing import SHARED, measure

GANDIVA = Policy(sharing=Sharing.GANDIVA)
LOSES = replace(GANDIVA, pair_speeds={"a": {"b": 0.2}, "b": {"a": 0.2, "b": 0.2}})


def test_jobs_that_do_not_suit_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def chance(case: Case) -> Chance | None:
        asked.append(case.host.job_id)
        return gandiva.chance(case)

    monkeypatch.setitem(guests.RULES, Sharing.GANDIVA, chance)
    world = World({"n0": 8}, LOSES, jobs_per_slot=2)
    for _ in range(8):
        world.submit(1, 500.0, **(SHARED | {"workload": "a"}))
    world.running()
    waiting = [world.submit(1, 500.0, **(SHARED | {"workload": "b"})) for _ in range(5)]
    index = index_of(world.state)
    monkeypatch.undo()  # new openings of the check are not counted
    assert index.openings is not None
    before = len(asked)
    for _ in range(20):
        world.submit(8, 10.0)  # changes the queue only
    assert all(world.job_state(one) is JobState.PENDING for one in waiting)
    kept = [one for one in asked[before:] if one]
    assert len(kept) == 0, f"compared again without a change: {kept}"
    assert 0 < before <= 40, f"alike jobs are compared once for each new index: {before}"


def test_a_measurement_changes_the_openings_of_jobs_of_the_same_workloads() -> None:
    policy = replace(GANDIVA, queues=(Queue("q", limit=1),))
    world = World({"n0": 2}, policy, jobs_per_slot=2)
    hosts = [world.submit(1, 500.0, **(SHARED | {"workload": "a"})) for _ in range(2)]
    world.running()
    guest, other = (world.submit(1, 500.0, queue="q", **(SHARED | {"workload": "b"})) for _ in range(2))
    world.running()
    assert world.state.jobs[guest].guest_of == (hosts[0],)
    assert world.job_state(other) is JobState.PENDING, "its queue is at its limit, though the second host is free"
    measure(world, guest, 0.3)
    measure(world, hosts[0], 0.3)
    world.cycle()
    world.end(guest, signalled=True)
    assert world.job_state(other) is JobState.PENDING, "the pair of workloads was measured to lose"
    world.end(hosts[1])
    assert world.job_state(guest) is not JobState.PENDING or world.job_state(other) is not JobState.PENDING


def test_a_cycle_tries_a_bounded_number_of_kinds_and_later_ones_get_their_turn() -> None:
    names = [f"k{number}" for number in range(70)]
    loses = {"w": dict.fromkeys(names, 0.1), **{name: {"w": 0.1} for name in names}}
    world = World({"n0": 2}, replace(GANDIVA, pair_speeds=loses), jobs_per_slot=2)
    world.submit(1, 100.0, time_limit_seconds=100.0)  # its slot is reserved for the head
    world.submit(1, 500.0, **(SHARED | {"workload": "w"}))
    world.running()
    for name in names:
        world.submit(1, 500.0, **(SHARED | {"workload": name}))
    suits = world.submit(1, 500.0, **(SHARED | {"workload": "new"}))
    assert world.job_state(suits) is JobState.PENDING, "64 kinds before it do not suit"
    pending = [job_id for job_id, job in world.state.jobs.items() if job.state is JobState.PENDING]
    for job_id in pending[:10]:
        world.cycle(CancelRequested(job_id))
    world.submit(1, 500.0)  # the next pass
    assert world.state.jobs[suits].guest_of, "now it is among the first 64 kinds"
