"""Preferred levels with a delay timer: a job waits for slots within its level for a limited time."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from scheduler_feedback import cycle
from scheduler_feedback.core.cluster import Level
from scheduler_feedback.core.job import After, Dependency, JobState
from scheduler_feedback.core.state import Backfilling, MeasuredSpeed, Policy, Sizes
from tests.cluster.cycle_world import SECOND, START_NS, World

PATIENT = Policy(level_patience_seconds=60.0)
TOGETHER: dict[str, Any] = {"preferred_level": Level.NODE, "time_limit_seconds": 500.0}


def spread(policy: Policy = PATIENT) -> World:
    """Return two nodes of two slots, each with one free slot: jobs pinned to them use the others for 100 s."""
    world = World({"n0": 2, "n1": 2}, policy)
    for name in ("n0", "n1"):
        world.submit(1, 100.0, time_limit_seconds=100.0, pinned_node=name)
    world.running()
    return world


def test_a_job_waits_for_its_level_and_then_uses_any_slots() -> None:
    world = spread()
    job_id = world.submit(2, 500.0, **TOGETHER)
    assert world.job_state(job_id) is JobState.PENDING
    found = cycle.explain(world.state, job_id)
    assert found is not None and found.binds == "level"
    assert found.why == "waits for 2 slots within one node; uses any slots in 60 s"
    assert cycle.next_wake_ns(world.state) == START_NS + 60 * SECOND
    world.advance(60.0)
    assert world.nodes_of(job_id) == {"n0", "n1"}
    assert "relaxed" in world.entry_kinds(job_id)


def test_a_job_that_another_start_lets_in_may_have_waited_long_enough() -> None:
    """benchmarks.invariants, seed 6550017"""
    world = World({"n0": 2, "n1": 1, "n2": 1}, replace(PATIENT, sizes=Sizes.SPEEDUP, sizes_seconds=0.0))
    first = world.submit(2, 100.0, time_limit_seconds=100.0)
    second = world.submit(2, 500.0, after=(Dependency(first, After.OK),), min_ranks=2, restartable=True)
    third = world.submit(2, 500.0, after=(Dependency(second, After.STARTED),), **TOGETHER)
    world.running()
    world.advance(90.0)
    world.end(first, 0)
    assert world.nodes_of(second) == {"n0"} and not world.state.idle, "another cycle follows at once"
    world.cycle()
    assert world.nodes_of(third) == {"n1", "n2"}


def test_a_job_starts_within_its_level_as_soon_as_it_fits() -> None:
    world = spread()
    job_id = world.submit(2, 500.0, **TOGETHER)
    world.advance(30.0)
    world.end("j-000001", 0)
    assert world.nodes_of(job_id) == {"n0"}
    assert "relaxed" not in world.entry_kinds(job_id)
    assert not world.state.jobs[job_id].relaxed


def test_without_patience_a_preference_never_waits() -> None:
    world = spread(Policy())
    assert world.job_state(world.submit(2, 500.0, **TOGETHER)) is JobState.STARTING


def test_a_job_that_never_fits_into_its_level_does_not_wait() -> None:
    world = World({"n0": 2, "n1": 2}, PATIENT)
    job_id = world.submit(3, 500.0, **TOGETHER)
    assert world.nodes_of(job_id) == {"n0", "n1"}
    (text,) = [entry.text for entry in world.entries if entry.subject == job_id and entry.kind == "relaxed"]
    assert text == "does not fit into one node; uses any slots"


def test_other_jobs_use_the_slots_meanwhile() -> None:
    world = spread()
    waits = world.submit(2, 500.0, **TOGETHER)
    small = world.submit(1, 30.0, time_limit_seconds=30.0)
    assert world.job_state(small) is JobState.STARTING and world.job_state(waits) is JobState.PENDING


def test_the_timer_begins_again_with_each_wait() -> None:
    world = spread(Policy(level_patience_seconds=60.0, backfill=Backfilling.NONE))
    job_id = world.submit(2, 500.0, max_retries=1, **TOGETHER)
    world.advance(60.0)
    assert world.nodes_of(job_id) == {"n0", "n1"}
    world.running()
    world.end(job_id, 1)
    assert world.job_state(job_id) is JobState.PENDING
    assert not world.state.jobs[job_id].relaxed


def test_an_infinite_patience_never_relaxes_a_level_that_exists() -> None:
    world = spread(Policy(level_patience_seconds=math.inf))
    job_id = world.submit(2, 500.0, **TOGETHER)
    world.advance(90.0)
    assert world.job_state(job_id) is JobState.PENDING and "relaxed" not in world.entry_kinds(job_id)
    found = cycle.explain(world.state, job_id)
    assert found is not None and found.binds == "level"
    world.advance(20.0)
    assert len(world.nodes_of(job_id)) == 1


@pytest.mark.parametrize(("apart", "waits"), [(1.0, False), (0.98, False), (0.5, True)])
def test_the_learnt_cost_of_distance_limits_the_wait(apart: float, waits: bool) -> None:
    """The class was measured on one node and on two. If it loses little on two, the job starts there early."""
    world = spread()
    near = MeasuredSpeed("", 2, 0, math.log(2.0), 8.0, 1)
    far = MeasuredSpeed("", 2, 1, math.log(2.0 * apart), 8.0, 1)
    world.state.speeds["ann|bert"] = [near, far]
    job_id = world.submit(2, 500.0, **TOGETHER, user="ann", workload="bert")
    world.advance(1.0)
    if apart == 1.0:
        assert world.nodes_of(job_id) == {"n0", "n1"}
        return
    world.advance(20.0)
    assert (world.job_state(job_id) is JobState.PENDING) is waits
    world.advance(60.0)
    assert world.nodes_of(job_id) == {"n0", "n1"}, "never longer than the setting"
    (text,) = [entry.text for entry in world.entries if entry.subject == job_id and entry.kind == "relaxed"]
    assert "by measured speeds, it takes" in text


def test_without_measurements_of_a_wider_level_the_setting_counts() -> None:
    world = spread()
    world.state.speeds["ann|bert"] = [MeasuredSpeed("", 2, 0, 0.0, 8.0, 1)]
    job_id = world.submit(2, 500.0, **TOGETHER, user="ann", workload="bert")
    world.advance(59.0)
    assert world.job_state(job_id) is JobState.PENDING
    world.advance(1.0)
    assert world.nodes_of(job_id) == {"n0", "n1"}
