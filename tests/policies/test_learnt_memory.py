"""Learnt device memory: the need of a class, jobs that share slots by it, and jobs that grow beyond it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from scheduler_feedback import cycle
from scheduler_feedback.core.codec import encode_state
from scheduler_feedback.core.events import AttemptEnded, FreezeSet, MemoryMeasured, PolicySet, RankExit
from scheduler_feedback.core.job import Job, JobSpec, JobState
from scheduler_feedback.core.state import MeasuredMemory, Mode, Policy, Sharing, State
from scheduler_feedback.journal.replay import replay
from scheduler_feedback.policies.speeds import learnt_memory
from scheduler_feedback.policies.speeds.learnt_memory import MOST_RUNS, MOST_SIZES, need_mib, record
from tests.cluster.cycle_world import World

FGD = Policy(sharing=Sharing.FGD, learnt_memory=True)
GANDIVA = Policy(sharing=Sharing.GANDIVA, learnt_memory=True)


def world_of(policy: Policy = FGD, slots: int = 1, nodes: int = 1, memory: int = 10_000) -> World:
    names = {f"n{number}": slots for number in range(nodes)}
    return World(names, policy, jobs_per_slot=4, slot_memory_mib=memory)


def job_of(world: World, workload: str = "w", **spec: Any) -> str:
    given = {
        "shareable": True, "restartable": True, "preemptible": True, "workload": workload, "user": "ann",
        "time_limit_seconds": 5000.0, "slot_share": 0.1,
    }  # fmt: skip
    found = world.submit(1, 5000.0, **(given | spec))
    world.running()
    return found


def measure(world: World, job_id: str, mib: int) -> None:
    world.cycle(MemoryMeasured(job_id, world.state.jobs[job_id].attempt, mib))
    world.running()


def state_of(world: World, job_id: str) -> JobState:
    return world.state.jobs[job_id].state


def rows(peaks: list[int]) -> MeasuredMemory:
    return MeasuredMemory(1, {f"j{number}": peak for number, peak in enumerate(peaks)}, len(peaks))


# --- the need --------------------------------------------------------------------------------------------------------


def test_more_runs_need_a_smaller_margin_and_a_spread_a_larger_one() -> None:
    margins = [need_mib(rows([10_000] * runs)) / 10_000 for runs in (1, 2, 5, 14, 32)]
    assert margins == sorted(margins, reverse=True)
    for margin, wanted in zip(margins, (1.48, 1.30, 1.15, 1.08, 1.05), strict=True):
        assert wanted - 0.01 <= margin <= wanted + 0.04
    assert need_mib(rows([9000, 10_000, 11_000] * 4)) > 1.1 * need_mib(rows([10_000] * 12))
    assert need_mib(rows([9000, 28_000])) == 56_320, "at most twice the largest, rounded up"
    assert need_mib(rows([5000] * 31 + [20_000])) >= 20_000 * math.exp(0.05), "no need is below a measured peak"


def test_the_need_is_above_almost_all_further_jobs_of_a_class() -> None:
    from random import Random

    chance, below = Random(7), 0
    for _ in range(400):
        seen = [round(10_000 * chance.lognormvariate(0.0, 0.2)) for _ in range(8)]
        below += 10_000 * chance.lognormvariate(0.0, 0.2) > need_mib(rows(seen))
    assert below <= 8


def test_a_job_counts_once_and_the_table_is_bounded() -> None:
    state = State()
    spec = JobSpec("x", ("x",), 1, user="ann", workload="w")
    for number in range(MOST_RUNS + 5):
        job = Job(f"j{number}", spec, JobState.RUNNING, 0)
        assert record(state, job, 100) and not record(state, job, 90)
        assert record(state, job, 120)
    (row,) = state.memory["ann|w"]
    assert len(row.peaks) == MOST_RUNS and row.runs == MOST_RUNS + 5 and "j0" not in row.peaks
    for ranks in range(2, MOST_SIZES + 3):
        record(state, Job("wide", structs.replace(spec, ranks=ranks), JobState.RUNNING, 0), 100)
    assert [row.ranks for row in state.memory["ann|w"]] == list(range(3, MOST_SIZES + 3))


def test_the_oldest_class_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learnt_memory, "MOST_CLASSES", 2)
    state = State()
    for name in ("a", "b", "a", "c"):
        record(
            state, Job(f"j{len(state.memory)}-{name}", JobSpec("x", ("x",), 1, workload=name), JobState.RUNNING, 0), 100
        )
    assert list(state.memory) == ["|a", "|c"]


# --- sharing by it ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [FGD, GANDIVA])
def test_jobs_of_a_measured_class_share_a_slot(policy: Policy) -> None:
    world = world_of(policy)
    first, second = job_of(world), job_of(world)
    assert state_of(world, second) is JobState.PENDING, "nothing is known of the class"
    measure(world, first, 3000)
    assert state_of(world, second) is JobState.RUNNING
    assert world.state.jobs[first].learnt_mib == world.state.jobs[second].learnt_mib == need_mib(rows([3000]))
    third = job_of(world, "other")
    assert state_of(world, third) is JobState.PENDING
    explained = cycle.explain(world.state, second)
    assert explained is not None
    assert explained.memory_in_words == "its memory is learnt: at most 2.9 GiB in 1 run of this class, 4.4 GiB planned"
    assert [(row.ranks, row.largest_mib, row.runs) for row in explained.memory] == [(1, 3000, 1)]
    measure(world, second, 3100)
    assert need_mib(rows([3000, 3100])) < world.state.jobs[second].learnt_mib == need_mib(rows([3000]))


def test_without_the_setting_the_need_is_only_shown() -> None:
    world = world_of(replace(FGD, learnt_memory=False))
    first, second = job_of(world), job_of(world)
    measure(world, first, 3000)
    assert state_of(world, second) is JobState.PENDING
    explained = cycle.explain(world.state, second)
    assert explained is not None and "4.4 GiB would be planned with policy.learnt_memory" in explained.memory_in_words
    world.cycle(PolicySet(FGD))
    assert state_of(world, second) is JobState.PENDING, "the running job keeps its plan"
    measure(world, first, 3100)
    assert state_of(world, second) is not JobState.PENDING


def test_a_declared_value_wins() -> None:
    world = world_of()
    first = job_of(world, slot_memory_mib=6000)
    measure(world, first, 3000)
    second, third = job_of(world, slot_memory_mib=4001), job_of(world)
    assert (world.state.jobs[first].learnt_mib, world.state.jobs[second].learnt_mib) == (0, 0)
    assert state_of(world, second) is JobState.PENDING and state_of(world, third) is JobState.PENDING
    explained = cycle.explain(world.state, first)
    assert explained is not None and explained.memory_in_words.startswith("its memory is declared, 5.9 GiB; measured")


def test_a_need_above_the_device_memory_takes_the_slot_alone() -> None:
    world = world_of(slots=2)
    first = job_of(world)
    measure(world, first, 8000)
    second, third = job_of(world), job_of(world, slot_memory_mib=1000)
    assert state_of(world, second) is JobState.RUNNING and state_of(world, third) is JobState.PENDING
    assert world.state.jobs[second].learnt_mib == 10_000
    explained = cycle.explain(world.state, second)
    assert explained is not None and "uses 0.1 and 10000 MiB (learnt) of n0:1" in explained.why


def test_measurements_of_ended_attempts_and_wrong_values_are_ignored() -> None:
    world = world_of()
    first = job_of(world)
    for event in (MemoryMeasured(first, 7, 100), MemoryMeasured("j-none", 1, 100), MemoryMeasured(first, 1, 0)):
        world.cycle(event)
    world.cycle(MemoryMeasured(first, 1, 1 << 40))
    world.end(first, 0)
    world.cycle(MemoryMeasured(first, 1, 100))
    assert not world.state.memory


TAUGHT = {"workload": "taught", "slot_memory_mib": 0}
"""Job of a class that has learnt 3300 MiB in one run."""


# --- growth ----------------------------------------------------------------------------------------------------------


def pair_of(policy: Policy = FGD, nodes: int = 1, **second: Any) -> tuple[World, str, str]:
    """Return two jobs that share a slot; the class of the first has learnt 3000 MiB in one run."""
    world = world_of(policy, nodes=nodes)
    world.state.memory["ann|taught"] = world.initial.memory["ann|taught"] = [rows([3300])]
    first = job_of(world)
    measure(world, first, 3000)
    world.now_ns += 10**9
    other = job_of(world, **({"workload": "other", "slot_memory_mib": 5000} | second))
    assert state_of(world, other) is JobState.RUNNING
    return world, first, other


def test_a_job_that_outgrows_its_plan_gets_a_larger_one_while_the_slot_has_room() -> None:
    world, first, other = pair_of()
    measure(world, other, 2000)
    measure(world, first, 4700)
    job = world.state.jobs[first]
    assert job.learnt_mib == 5000 and state_of(world, other) is JobState.RUNNING, "as much as is left"
    measure(world, first, 5001)
    assert job.learnt_mib == 5000, "the other job declares the rest"
    third = job_of(world, slot_memory_mib=1)
    assert state_of(world, third) is JobState.PENDING, "no job joins one without a plan"
    assert state_of(world, other) is JobState.RUNNING
    world.end(other, 0)
    world.running()
    assert job.learnt_mib > 5001 and state_of(world, third) is JobState.RUNNING


@pytest.mark.parametrize("policy", [FGD, replace(FGD, sharing=Sharing.MURI)])
def test_no_job_joins_one_without_a_large_enough_plan(policy: Policy) -> None:
    world = world_of(policy)
    first, other = (job_of(world, slot_memory_mib=mib, stages=(1.0, 1.0, 1.0)) for mib in (4500, 1000))
    assert state_of(world, other) is JobState.RUNNING
    measure(world, first, 3000)
    measure(world, other, 5300)
    assert world.state.jobs[other].learnt_mib == 0, "5 % more do not fit"
    third = job_of(world, slot_memory_mib=1000, stages=(1.0, 1.0, 1.0))
    assert state_of(world, third) is JobState.PENDING and world.state.jobs[other].stop_reason is None


@pytest.mark.parametrize("policy", [FGD, GANDIVA])
def test_the_younger_job_leaves_before_the_slot_is_full(policy: Policy) -> None:
    world, first, other = pair_of(policy, **TAUGHT)
    measure(world, other, 4000)
    measure(world, first, 5000)
    assert world.state.jobs[other].stop_reason is None
    measure(world, first, 5009)
    assert world.state.jobs[first].stop_reason is None
    text = "n0:0 has 8.8 GiB of 9.8 GiB in use, and j-000001 uses 4.9 GiB instead of 4.4 GiB"
    assert world.state.jobs[other].stop_reason is not None and text in world.state.jobs[other].failure
    assert world.entry_kinds(other).count("separate") == 1
    world.advance(5.0)
    assert state_of(world, other) is JobState.PENDING and state_of(world, first) is JobState.RUNNING


def test_a_job_within_its_declared_memory_stays_before_an_older_one() -> None:
    world = world_of()
    first = job_of(world, slot_memory_mib=4000, preemptible=False)
    measure(world, first, 3000)
    world.now_ns += 10**9
    second = job_of(world, slot_memory_mib=6000)
    measure(world, second, 6500)
    assert world.state.jobs[second].stop_reason is not None, "the other may not be stopped"


def test_an_opportunistic_job_leaves_first() -> None:
    world = world_of(replace(FGD, sharing=Sharing.ANTMAN))
    host = job_of(world, slot_memory_mib=4000)
    guest = job_of(world, opportunistic=True, slot_memory_mib=6000)
    assert world.state.jobs[guest].guest_of == (host,)
    measure(world, guest, 5500)
    measure(world, host, 4600)
    assert world.state.jobs[guest].stop_reason is not None and world.state.jobs[host].stop_reason is None


def test_frozen_and_observing_controllers_stop_no_job() -> None:
    world, first, other = pair_of(**TAUGHT)
    measure(world, other, 4000)
    world.cycle(FreezeSet(True))
    measure(world, first, 5001)
    assert world.state.jobs[other].stop_reason is None
    world.cycle(FreezeSet(False))
    assert world.state.jobs[other].stop_reason is not None
    world, first, other = pair_of(replace(FGD, mode=Mode.OBSERVE), **TAUGHT)
    measure(world, other, 4000)
    measure(world, first, 5001)
    measure(world, first, 5002)
    assert world.state.jobs[other].stop_reason is None and "separate" in world.entry_kinds(other)


def test_a_full_slot_of_jobs_that_may_not_be_stopped_is_logged() -> None:
    world, first, other = pair_of(preemptible=False)
    world.state.jobs[first].spec = structs.replace(world.state.jobs[first].spec, preemptible=False)
    measure(world, other, 4000)
    measure(world, first, 5001)
    measure(world, other, 4001)
    assert world.entry_kinds(first).count("memory") == 1 and world.state.jobs[other].stop_reason is None


# --- out of memory ---------------------------------------------------------------------------------------------------


def fails(world: World, job_id: str, shown: bool) -> None:
    world.alive.pop((job_id, world.state.jobs[job_id].attempt))
    exits = (RankExit(0, 1),)
    world.cycle(AttemptEnded(job_id, world.state.jobs[job_id].attempt, exits, out_of_memory=shown))
    world.running()


def test_a_job_that_ran_out_of_memory_beside_others_runs_alone() -> None:
    world, first, other = pair_of(nodes=2)
    fails(world, other, shown=True)
    job = world.state.jobs[other]
    assert job.alone and job.retries == 0 and job.state is JobState.RUNNING
    assert world.nodes_of(other) == {"n1"} != world.nodes_of(first)
    third = job_of(world, slot_memory_mib=1000)
    assert world.nodes_of(third) == {"n0"}
    (row,) = world.state.memory["ann|other"]
    assert (row.out_of_memory, row.peaks) == (1, {other: 7000}), "it needs more than the other job left"
    assert "ran out of device memory beside j-000001 (its output shows it)" in str(world.entries)
    explained = cycle.explain(world.state, other)
    assert explained is not None and "1 of them out of memory beside other jobs" in explained.memory_in_words


def test_such_a_job_joins_no_host() -> None:
    world, first, other = pair_of(GANDIVA)
    assert world.state.jobs[other].guest_of == (first,)
    fails(world, other, shown=True)
    assert state_of(world, other) is JobState.PENDING and world.state.jobs[other].alone


def test_a_failure_on_a_full_slot_counts_and_another_does_not() -> None:
    world, first, other = pair_of(nodes=2, preemptible=False, restartable=False, max_retries=1)
    world.state.jobs[first].spec = structs.replace(world.state.jobs[first].spec, preemptible=False)
    measure(world, other, 3999)
    fails(world, first, shown=False)
    assert not world.state.jobs[first].alone and world.state.jobs[first].state is JobState.FAILED
    world, first, other = pair_of(nodes=2, preemptible=False, restartable=False, max_retries=1)
    world.state.jobs[first].spec = structs.replace(world.state.jobs[first].spec, preemptible=False)
    measure(world, other, 3999)
    measure(world, first, 5500)
    fails(world, other, shown=False)
    job = world.state.jobs[other]
    assert job.alone and job.retries == 1, "a job that is not restartable uses a retry"


def test_a_job_alone_on_its_slot_gets_no_free_retry() -> None:
    world = world_of()
    first = job_of(world)
    fails(world, first, shown=True)
    assert state_of(world, first) is JobState.FAILED and not world.state.memory


def test_a_replay_learns_the_same() -> None:
    world, _, other = pair_of(nodes=2)
    fails(world, other, shown=True)
    job_of(world)
    state, _ = replay(world.initial, world.journal)
    assert encode_state(state) == encode_state(world.state)


def test_a_job_that_declares_more_memory_than_any_slot_has_waits_for_no_other_job() -> None:
    world = World({"n0": 1}, Policy(sharing=Sharing.FGD), jobs_per_slot=4, slot_memory_mib=1000)
    world.submit(1, 500.0, shareable=True, slot_memory_mib=600)
    found = cycle.explain(world.state, world.submit(1, 500.0, shareable=True, slot_memory_mib=1200))
    assert found is not None
    assert (found.binds, found.waits_for) == ("capacity", ())
    assert found.what_would_change_it == ("it is submitted again with less device memory (--slot-memory)",)
