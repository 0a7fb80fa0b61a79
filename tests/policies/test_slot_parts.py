"""Parts of slots: where jobs that declare a share or memory start, and that no slot gives more than it has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent.schema.sample import expanded
from scheduler_feedback import cycle
from scheduler_feedback.core.events import NodeSeen, PolicySet
from scheduler_feedback.core.job import JobState, Slot
from scheduler_feedback.core.state import Backfilling, Estimates, Order, Policy, Queue, Sharing
from scheduler_feedback.core.state_metrics import measure
from scheduler_feedback.policies.index.scheduling_index import index_of
from scheduler_feedback.policies.shares.declared_parts import FULL, Left, Part, left_after, left_of
from scheduler_feedback.policies.shares.part_placement import place_now
from tests.cluster.cycle_world import World
from tests.cluster.makers import job_of

FGD = Policy(sharing=Sharing.FGD)
RULES = [FGD, Policy(sharing=Sharing.BEST_FIT)]


def world_of(policy: Policy = FGD, nodes: int = 1, slots: int = 1, jobs: int = 4, **changes: Any) -> World:
    return World({f"n{number}": slots for number in range(nodes)}, policy, jobs_per_slot=jobs, **changes)


def share(world: World, part: float, seconds: float = 500.0, **spec: Any) -> str:
    return world.submit(1, seconds, **({"shareable": True, "slot_share": part, "time_limit_seconds": seconds} | spec))


def slot_of(world: World, job_id: str) -> Slot | None:
    ranks = world.state.jobs[job_id].ranks
    return ranks[0].slot if ranks else None


@pytest.mark.parametrize("policy", RULES)
def test_a_job_starts_beside_others_at_once_without_being_preemptible_or_measured(policy: Policy) -> None:
    world = world_of(policy)
    first, second = share(world, 0.5), share(world, 0.3)
    assert slot_of(world, first) == slot_of(world, second) == Slot("n0", 0)
    job = world.state.jobs[second]
    assert (job.guest_of, job.speed) == ((), 1.0)
    text = next(entry.text for entry in world.entries if entry.subject == second and entry.kind == "started")
    assert f"it uses 0.3 of n0:0 beside {first} (0.5)" in text
    world.running()
    explained = cycle.explain(world.state, first)
    assert explained is not None and f"it uses 0.5 of n0:0 beside {second} (0.3)" in explained.why
    third = share(world, 0.3)
    assert world.job_state(third) is JobState.PENDING
    waits = cycle.why_waits(world.state, world.state.jobs[third])
    assert waits.endswith("no slot that it may use now has 0.3 left")


def test_a_job_that_declares_nothing_gets_a_whole_slot() -> None:
    world = world_of(nodes=2)
    first = share(world, 0.0)
    second = share(world, 0.4)
    assert slot_of(world, first) != slot_of(world, second)
    explained = cycle.explain(world.state, second)
    assert explained is not None and "it uses 0.4 of n1:0" in explained.why and "beside" not in explained.why


def test_memory_counts_where_the_device_memory_is_known() -> None:
    world = world_of(slot_memory_mib=80, nodes=2)
    first = share(world, 0.2, slot_memory_mib=50)
    second = share(world, 0.2, slot_memory_mib=40)
    third = share(world, 0.0, slot_memory_mib=30)
    assert slot_of(world, first) == slot_of(world, third) != slot_of(world, second)
    assert world.state.jobs[third].speed == 0.5  # it declares no share: equal parts of the time


def test_a_job_larger_than_every_device_waits_and_blocks_no_other_job() -> None:
    world = world_of(slot_memory_mib=80)
    large = share(world, 0.2, slot_memory_mib=81)
    small = share(world, 0.2, slot_memory_mib=80)
    assert world.job_state(small) is JobState.STARTING
    assert "needs 81 MiB of device memory per rank; the slots that it may use have less" in cycle.why_waits(
        world.state, world.state.jobs[large]
    )
    world.cycle(NodeSeen("n1", 1, jobs_per_slot=2, slot_memory_mib=96))
    assert world.job_state(large) is JobState.STARTING


def test_fgd_keeps_whole_slots_for_typical_whole_jobs_and_fills_shared_ones() -> None:
    world = world_of(nodes=2, slots=2)
    shared = [share(world, 0.5) for _ in range(4)]
    assert {slot_of(world, one) for one in shared} == {Slot("n0", 0), Slot("n0", 1)}
    pair = world.submit(2, 500.0)
    assert world.nodes_of(pair) == {"n1"}


def test_fgd_uses_the_part_that_typical_jobs_cannot_use() -> None:
    """0.7 and 0.5 are taken. A typical job needs 0.5: a further 0.3 goes beside 0.7, where best fit puts it, too; a
    0.2 goes there as well, although nothing else would fit then."""
    world = world_of(nodes=1, slots=3)
    first, second = share(world, 0.7), share(world, 0.5)
    for _ in range(6):
        share(world, 0.5, 1.0)
        world.advance(2.0)
    assert slot_of(world, share(world, 0.2)) == slot_of(world, first)
    assert slot_of(world, share(world, 0.5)) == slot_of(world, second)


@pytest.mark.parametrize("resource", ["cpu", "memory"])
def test_a_job_uses_no_slot_of_a_node_without_enough_processors_or_memory(resource: str) -> None:
    world = world_of(nodes=0)
    free = [(("cpu", 8000), ("memory", 64)), (("cpu", 8000), ("memory", 64))]
    world.cycle(*(NodeSeen(f"n{n}", 2, jobs_per_slot=4, free=one) for n, one in enumerate(free)))
    first, second = (share(world, 0.3, requests=((resource, free[0][resource == "memory"][1] // 2 + 1),)) for _ in "ab")
    assert world.nodes_of(first) != world.nodes_of(second)
    assert world.nodes_of(share(world, 0.3)) == world.nodes_of(first)


def test_parts_count_in_full_against_the_limit_of_a_queue() -> None:
    world = world_of(replace(FGD, queues=(Queue("a", limit=1),)), nodes=2)
    jobs = [share(world, 0.3, queue="a") for _ in range(2)]
    assert [world.job_state(one) for one in jobs] == [JobState.STARTING, JobState.PENDING]


@pytest.mark.parametrize("backfill", list(Backfilling))
def test_a_part_of_a_reserved_slot_is_given_only_to_jobs_that_end_in_time(backfill: Backfilling) -> None:
    world = world_of(replace(FGD, backfill=backfill), slots=2)
    share(world, 0.5, 100.0)
    long = share(world, 0.6, 1000.0)
    world.running()
    pair = world.submit(2, 100.0, time_limit_seconds=100.0)
    assert world.job_state(pair) is JobState.PENDING
    one = share(world, 0.3, 50.0)
    if backfill is Backfilling.NONE:
        assert world.job_state(one) is JobState.PENDING
        return
    assert world.job_state(one) is JobState.STARTING
    world.advance(5000.0)
    assert world.job_state(pair) is JobState.COMPLETED and world.job_state(long) is JobState.COMPLETED


@pytest.mark.parametrize(("part", "joins"), [(0.0, False), (0.3, True)])
def test_a_backfilled_part_slows_no_job_whose_end_is_promised(part: float, joins: bool) -> None:
    world = world_of(nodes=1, slots=2, slot_memory_mib=80)
    first = share(world, part, 100.0, slot_memory_mib=30)
    other = world.submit(1, 200.0, time_limit_seconds=200.0)
    head = world.submit(1, 50.0, time_limit_seconds=50.0)
    world.running()
    promised_ns = world.state.reserved_from_ns
    assert (world.state.reserved_for, world.job_state(other)) == (head, JobState.RUNNING)
    late = share(world, part, 30.0, slot_memory_mib=30)
    assert (slot_of(world, late) == slot_of(world, first)) is joins, "without shares, both would take twice as long"
    world.running()
    assert world.state.reserved_from_ns == promised_ns


def test_a_backfilled_part_does_not_hold_the_other_slots_of_a_gang() -> None:
    world = world_of(nodes=1, slots=3)
    declared: dict[str, Any] = {"shareable": True, "slot_share": 0.6, "time_limit_seconds": 100.0}
    gang = world.submit(2, 100.0, **declared)
    world.submit(1, 400.0, time_limit_seconds=400.0)
    head = world.submit(1, 50.0, time_limit_seconds=50.0)
    world.running()
    promised_ns = world.state.reserved_from_ns
    late = share(world, 0.3, 300.0)
    world.running()
    assert slot_of(world, late) not in {rank.slot for rank in world.state.jobs[gang].ranks}
    assert (world.state.reserved_for, world.state.reserved_from_ns) == (head, promised_ns)


@pytest.mark.parametrize("order", list(Order))
def test_all_jobs_end_in_every_order_with_preemption(order: Order) -> None:
    policy = replace(FGD, order=order, preempt=True)
    world = world_of(policy, nodes=2, slots=2)
    jobs = [
        share(world, (0.2, 0.5, 0.9)[number % 3], 60.0 + number, restartable=True, preemptible=number % 2 == 0)
        for number in range(14)
    ]
    jobs += [world.submit(2, 50.0, time_limit_seconds=50.0, restartable=True, preemptible=True) for _ in range(3)]
    for _ in range(400):
        world.running()
        world.advance(20.0)
    assert {world.job_state(one) for one in jobs} == {JobState.COMPLETED}


def test_a_job_beside_others_is_not_preempted_because_that_frees_no_slot() -> None:
    world = world_of(replace(FGD, order=Order.SRTF, preempt=True))
    stays = {"restartable": True, "preemptible": True}
    jobs = [share(world, 0.5, 500.0, **stays), share(world, 0.5, 500.0, **stays)]
    world.running()
    world.submit(1, 10.0, time_limit_seconds=10.0)
    assert all(world.state.jobs[one].stop_reason is None for one in jobs)


def test_typical_requests_are_learnt_from_all_jobs_and_kept_in_the_state() -> None:
    world = world_of(Policy())
    share(world, 0.5)
    assert not world.state.requests.counts
    world.cycle(PolicySet(FGD))
    share(world, 0.25, slot_memory_mib=7)
    world.submit(1, 10.0)
    rows = {(row.ranks, row.share_milli, row.memory_mib, row.weight) for row in world.state.requests.counts.values()}
    assert rows == {(1, 500, 0, 1.0), (1, 250, 7, 1.0), (1, 0, 0, 1.0)}
    assert world.state.requests.seen == world.state.requests.typical_at == 3
    assert sum(row.weight for row in world.state.requests.typical) == pytest.approx(1)


def test_what_a_slot_has_left() -> None:
    free = Left(1000, 80, 3)
    assert left_after(free, Part(400, 30), 80) == Left(600, 50, 2)
    assert left_after(free, Part(400, 0), 80) == FULL  # its memory is unknown: it gets the whole slot
    assert left_after(Left(600, 50, 2), Part(400, 0), 80) is None
    assert left_after(Left(600, 50, 2), Part(601, 1), 80) is None
    assert left_after(Left(600, 50, 2), Part(1, 51), 80) is None
    assert left_after(Left(600, 50, 0), Part(1, 1), 80) is None
    assert left_after(Left(1000, 0, 2), Part(0, 9), 0) == FULL
    assert left_of([Part(400, 30), Part(600, 50)], 80, 2) == Left(0, 0, 0)
    assert left_of([Part(400, 30), Part(601, 50)], 80, 3) == FULL
    assert left_of([Part(0, 0)], 80, 3) == FULL


def test_a_shared_slot_counts_once_in_the_metrics() -> None:
    world = world_of(RULES[1], slots=2)
    for _ in range(3):
        share(world, 0.3)
    assert ("gangwatch_slots", (("use", "used"),), 1.0) in list(expanded(measure(world.state)))


def test_the_heads_expected_start_counts_the_jobs_that_have_just_started_beside_others() -> None:
    """A job that starts beside another makes it slower, so that its slots are free later (seed 3606003)."""
    pairs = {"a": {"b": 0.5}, "b": {"a": 0.5}}
    world = world_of(Policy(sharing=Sharing.FGD, estimates=Estimates.EXACT, pair_speeds=pairs), slots=2)
    whole = world.submit(2, 40.0)
    world.running()
    host = share(world, 0.6, 100.0, workload="a", exact_seconds=100.0)
    guest = share(world, 0.3, 10.0, workload="b", exact_seconds=10.0)
    head = world.submit(2, 50.0)
    world.end(whole, 0)
    assert slot_of(world, host) == slot_of(world, guest) and world.state.reserved_for == head
    assert world.state.reserved_from_ns == world.now_ns + 200 * 10**9


def test_a_job_that_must_slow_no_other_tries_further_slots_beside_others() -> None:
    """benchmarks.invariants, seed 8600015: only the preferred slot was tried, and it changed with the pending jobs."""
    pairs = {"a": {"b": 0.5}, "b": {"a": 0.5, "c": 1.0}, "c": {"b": 1.0}}
    world = world_of(replace(RULES[1], pair_speeds=pairs), slots=2)
    slowed = share(world, 0.6, workload="a")
    kept = share(world, 0.5, workload="c")
    assert slot_of(world, slowed) != slot_of(world, kept)
    job = job_of("new", ranks=1, shareable=True, slot_share=0.3, workload="b")
    index = index_of(world.state)
    mark = index.plan.checkpoint()
    assert place_now(index, job) == (slot_of(world, slowed),), "the fullest"
    index.plan.rollback(mark)
    assert place_now(index, job, slow_none=True) == (slot_of(world, kept),)
