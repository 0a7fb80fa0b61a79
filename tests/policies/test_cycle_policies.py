"""Scheduling orders, backfill and preemption under load: starvation, stops, and decisions after a restart.

The state machine (``tests/cluster/state_machine.py``) checks the invariants of all policies.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_feedback.core.codec import decode_state, encode_state
from scheduler_feedback.core.events import CancelRequested, Submitted, Tick
from scheduler_feedback.core.job import After, Dependency, JobSpec, JobState
from scheduler_feedback.core.state import Backfilling, Estimates, Mode, Order, Policy
from scheduler_feedback.journal.replay import replay
from scheduler_feedback.policies.queue.order import ORDERS, las
from tests.cluster.cycle_world import SECOND, World

_NODES = st.lists(st.integers(1, 4), min_size=2, max_size=5).map(
    lambda sizes: {f"n{i}": slots for i, slots in enumerate(sizes)}
)


def test_every_order_that_the_policy_can_name_has_a_rule() -> None:
    assert {rule.name for rule in ORDERS} == set(Order)


@pytest.mark.parametrize("backfill", list(Backfilling))
@pytest.mark.parametrize("preempt", [False, True])
def test_a_state_restored_between_any_two_cycles_decides_the_same(backfill: Backfilling, preempt: bool) -> None:
    policy = Policy(order=Order.SRSF, backfill=backfill, preempt=preempt, estimates=Estimates.EXACT)
    world = World({"n0": 2, "n1": 2, "n2": 2}, policy, round_trips=False, racks=2)
    for number in range(14):
        seconds = 10.0 + 7 * (number * 5 % 11)
        world.submit(1 + number * 3 % 5, seconds, exact_seconds=seconds, restartable=True, preemptible=True)
        world.running()
        world.advance(6.0)
    world.advance(400.0)
    for middle in range(len(world.journal)):
        state, before = replay(world.initial, world.journal[:middle])
        state, after = replay(decode_state(encode_state(state)), world.journal[middle:])
        assert before + after == world.outcomes, middle
        assert state == world.state


def test_no_gang_is_stopped_to_give_an_elastic_one_more_than_its_minimum() -> None:
    policy = Policy(order=Order.SRSF, preempt=True, estimates=Estimates.EXACT)
    world = World({"n0": 2, "n1": 2}, policy)
    runs = world.submit(2, 30.0, exact_seconds=30.0, restartable=True, preemptible=True)
    world.running()
    elastic = world.submit(4, 10.0, exact_seconds=10.0, min_ranks=2, restartable=True, preemptible=True)
    world.running()
    assert (world.job_state(runs), world.job_state(elastic)) == (JobState.RUNNING, JobState.RUNNING)
    assert len(world.state.jobs[elastic].ranks) == 2


def test_a_cycle_that_defers_a_preemption_pass_is_journalled() -> None:
    policy = Policy(order=Order.LAS, preempt=True, replan_seconds=7.0, las_thresholds=(20.0, 200.0))
    world = World({"n0": 2}, policy)

    def wait(seconds: float) -> None:
        world.now_ns += round(seconds * SECOND)

    world.submit(2, 100.0, restartable=True, preemptible=True)
    wait(4.0)
    world.submit(2, 100.0, restartable=True, preemptible=True)
    wait(4.0)
    world.submit(2, 100.0, restartable=True, preemptible=True)  # a preemption pass runs here
    wait(2.0)
    world.cycle(Tick())  # the first drops into the next queue, too early for another pass
    wait(6.0)
    world.running()
    reported = [one for one, outcome in zip(world.journal, world.outcomes, strict=True) if outcome.changed]
    _, again = replay(world.initial, reported)
    assert [one.actions for one in again if one.actions] == [one.actions for one in world.outcomes if one.actions]


def test_jobs_demoted_in_one_pass_are_ordered_by_their_start() -> None:
    """An updated index has them in the order of their start, and a rebuilt index in the order of their ids."""
    world = World({"n0": 4}, Policy(order=Order.LAS, preempt=True, las_thresholds=(20.0, 200.0)))
    for _ in range(3):
        world.submit(1, 100.0, restartable=True, preemptible=True)
    world.running()
    fresh = decode_state(encode_state(world.state))
    late = world.now_ns + 50 * SECOND
    fallen = [job.job_id for job in las.demote(world.state, list(world.state.jobs.values()), late)]
    again = [job.job_id for job in las.demote(fresh, list(reversed(fresh.jobs.values())), late)]
    assert fallen == again == list(world.state.jobs)


_JOBS = st.lists(st.tuples(st.integers(1, 8), st.integers(5, 120), st.integers(0, 30)), min_size=2, max_size=14)


@settings(max_examples=60, deadline=None)
@given(_NODES, _JOBS, st.sampled_from([Backfilling.EASY, Backfilling.CONSERVATIVE]))
def test_with_exact_estimates_backfill_delays_no_reserved_head(
    nodes: dict[str, int], jobs: list[tuple[int, int, int]], backfill: Backfilling
) -> None:
    policy = Policy(estimates=Estimates.EXACT, backfill=backfill, start_timeout_seconds=0.0)
    world = World(nodes, policy, round_trips=False)
    promised: dict[str, int] = {}
    for ranks, seconds, gap in jobs:
        world.submit(ranks, float(seconds), exact_seconds=float(seconds))
        for _ in range(gap):
            if (head := world.state.reserved_for) is not None:
                assert world.state.reserved_from_ns is not None
                promised.setdefault(head, world.state.reserved_from_ns)
            world.advance(1.0)
    world.advance(3000.0)
    for job_id, at_ns in promised.items():
        assert world.started[job_id] <= at_ns


@pytest.mark.parametrize("backfill", [Backfilling.NONE, Backfilling.EASY, Backfilling.CONSERVATIVE])
def test_a_job_that_leaves_the_queue_lets_later_jobs_start_at_once(backfill: Backfilling) -> None:
    """Found by the state machine, seed 20027: without backfill no job was evaluated until another event."""
    world = World({"n0": 2}, Policy(estimates=Estimates.EXACT, backfill=backfill))
    world.submit(1, 100.0, exact_seconds=100.0)
    head = world.submit(2, 100.0, exact_seconds=100.0)
    behind = world.submit(1, 1000.0, exact_seconds=1000.0)
    world.advance(5.0)
    assert world.job_state(behind) is JobState.PENDING
    world.cycle(CancelRequested(head, "eve"))
    assert world.job_state(behind) is JobState.STARTING


@pytest.mark.parametrize("order", [Order.SJF, Order.SRTF, Order.SRSF, Order.LAS, Order.THEMIS, Order.FAIR])
@pytest.mark.parametrize("preempt", [False, True])
def test_no_job_waits_past_the_starvation_bound(order: Order, preempt: bool) -> None:
    """A gang needs the whole cluster, while a stream of small jobs arrives that every scheduling order prefers."""
    policy = Policy(
        order=order,
        estimates=Estimates.EXACT,
        starvation_seconds=300.0,
        preempt=preempt,
        backfill=Backfilling.EASY,
        min_run_seconds=0.0,
        las_thresholds=(1e9,),
    )
    world = World({"n0": 2, "n1": 2}, policy, round_trips=False)
    movable = {"restartable": True, "preemptible": True, "grace_seconds": 0.0, "restart_cost_seconds": 0.0}
    for _ in range(4):
        world.submit(1, 20.0, exact_seconds=20.0, **movable)
    large = world.submit(4, 2000.0, exact_seconds=2000.0, **movable)
    for _ in range(80):
        world.submit(1, 20.0, exact_seconds=20.0, **movable)
        world.running()
        world.advance(5.0)
    assert large in world.started
    assert world.started[large] - world.state.jobs[large].submitted_ns <= 330 * SECOND, (
        "the bound, and the rest of the running jobs"
    )


@pytest.mark.parametrize("preempt", [True, False])
@pytest.mark.parametrize("backfill", [Backfilling.EASY, Backfilling.NONE])
@pytest.mark.parametrize("order", Order)
def test_a_job_that_waits_for_a_start_starts_next(order: Order, backfill: Backfilling, preempt: bool) -> None:
    """A preemption pass forgot the jobs that its own starts let into the queue, until the next event. Without backfill,
    it did so until the next pass."""
    choices: dict[str, Any] = {"order": order, "backfill": backfill, "preempt": preempt}
    world = World({"n0": 8}, Policy(**choices, replan_seconds=5.0, default_time_limit_seconds=1000.0))
    world.submit(8, 10.0)
    second = world.submit(4, 500.0)
    third = world.submit(4, 500.0, after=(Dependency(second, After.STARTED),))
    world.advance(10.0)
    assert world.state.jobs[second].state.holds_slots
    while not world.state.idle:
        world.cycle(Tick())
    assert world.state.jobs[third].state.holds_slots


@pytest.mark.parametrize("replan_seconds", [0.0, 60.0])
def test_jobs_behind_a_gang_that_observe_mode_does_not_let_in_are_backfilled(replan_seconds: float) -> None:
    """The pass gave the first job slots of a gang that observe mode does not stop, and kept the idle ones for it."""
    choices: dict[str, Any] = {"order": Order.SRTF, "preempt": True, "replan_seconds": replan_seconds}
    world = World({"n0": 8}, Policy(**choices, mode=Mode.OBSERVE))
    world.submit(6, 10_000.0, time_limit_seconds=10_000.0, restartable=True, preemptible=True)
    world.running()
    world.advance(100.0)
    specs = [JobSpec(f"of-{ranks}", ("train",), ranks, time_limit_seconds=50.0 * (10 - ranks)) for ranks in (8, 2)]
    world.cycle(*(Submitted(spec.name, spec) for spec in specs))
    assert [world.state.jobs[spec.name].state.holds_slots for spec in specs] == [False, True]


def _overdue(world: World) -> set[str]:
    return {job_id for job_id, job in world.state.jobs.items() if job.overdue and not job.state.ended}


def test_starved_jobs_go_first_only_within_their_share() -> None:
    """Wide gangs that every pass would skip become overdue one by one. A quarter of eight slots is reserved for
    them."""
    policy = Policy(
        order=Order.FAIR,
        estimates=Estimates.EXACT,
        starvation_seconds=300.0,
        starvation_share=0.25,
        preempt=True,
        min_run_seconds=0.0,
    )
    world = World({"n0": 4, "n1": 4}, policy, round_trips=False)
    movable = {"restartable": True, "preemptible": True, "grace_seconds": 0.0, "restart_cost_seconds": 0.0}
    wide = [world.submit(2, 500.0, exact_seconds=500.0, **movable) for _ in range(4)]
    for _ in range(8):
        world.submit(1, 20.0, exact_seconds=20.0, **movable)
    for _ in range(600):
        for _ in range(2):
            world.submit(1, 20.0, exact_seconds=20.0, **movable)
        world.running()
        world.advance(5.0)
        held = sum(len(world.state.jobs[job_id].ranks) for job_id in _overdue(world))
        assert held <= 2, "a quarter of eight"
    assert all(world.state.jobs[job_id].state is JobState.COMPLETED for job_id in wide)
    ends = [world.state.jobs[job_id].ended_ns or 0 for job_id in wide]
    assert ends == sorted(ends), "the longest waiting first"
    for number, job_id in enumerate(wide):
        job = world.state.jobs[job_id]
        waited = (job.ended_ns or 0) - job.submitted_ns - job.run_ns
        assert waited <= (300 + number * 500 + 60) * SECOND, "the bound, and the work of the starved jobs before it"


def test_a_starved_job_wider_than_the_share_still_goes_first() -> None:
    policy = Policy(
        order=Order.FAIR, starvation_seconds=300.0, starvation_share=0.25, preempt=True, min_run_seconds=0.0
    )
    world = World({"n0": 2, "n1": 2}, policy, round_trips=False)
    movable = {"restartable": True, "preemptible": True, "grace_seconds": 0.0, "restart_cost_seconds": 0.0}
    for _ in range(4):
        world.submit(1, 20.0, exact_seconds=20.0, **movable)
    large = world.submit(4, 2000.0, exact_seconds=2000.0, **movable)
    for _ in range(80):
        world.submit(1, 20.0, exact_seconds=20.0, **movable)
        world.running()
        world.advance(5.0)
    assert world.started[large] - world.state.jobs[large].submitted_ns <= 330 * SECOND


def decisions_before_the_end(policy: Policy, true_seconds: float) -> list[Any]:
    """Return all decisions and forecasts while the first job runs. true_seconds: its actual run time."""
    world = World({"n0": 2, "n1": 2}, policy, round_trips=False)
    movable = {"restartable": True, "preemptible": True, "grace_seconds": 0.0, "restart_cost_seconds": 5.0}
    for number in range(6):
        world.submit(1 + number % 2, 10.0 * (number + 1), workload="w", **movable)
        world.running()
        world.advance(20.0)
    world.advance(2000.0)
    first = world.submit(2, true_seconds, workload="w", exact_seconds=true_seconds, **movable)
    seen: list[Any] = []
    for ranks in (4, 2, 1, 2, 1):
        world.submit(ranks, 30.0, workload="w", **movable)
        world.running()
        world.advance(21.0)
        seen.append((world.state.reserved_for, world.state.reserved_from_ns))
        seen.append(sorted((job.job_id, job.state, job.attempt) for job in world.state.jobs.values()))
    assert not world.state.jobs[first].state.ended
    return seen


@pytest.mark.parametrize(
    "policy",
    [
        Policy(order=Order.FAIR, estimates=Estimates.HISTORY, preempt=True, min_run_seconds=0.0),
        Policy(order=Order.FAIR, estimates=Estimates.HISTORY),
        Policy(order=Order.FIFO, estimates=Estimates.HISTORY),
        Policy(order=Order.SRSF, estimates=Estimates.HISTORY, preempt=True, backfill=Backfilling.CONSERVATIVE),
    ],
)
def test_with_estimates_from_history_the_true_run_time_changes_no_decision_before_the_end(policy: Policy) -> None:
    assert decisions_before_the_end(policy, 5_000.0) == decisions_before_the_end(policy, 50_000.0)


@pytest.mark.parametrize("preempt", [False, True])
def test_finish_time_fairness_uses_the_present_waits(preempt: bool) -> None:
    """A short job that waits as long as a long one has the larger rho, with and without preemption."""
    policy = Policy(order=Order.THEMIS, estimates=Estimates.EXACT, preempt=preempt, backfill=Backfilling.NONE)
    world = World({"n0": 2}, policy)
    world.submit(2, 40.0, exact_seconds=40.0)
    world.running()
    long = world.submit(2, 500.0, exact_seconds=500.0)
    short = world.submit(2, 50.0, exact_seconds=50.0)
    world.advance(41.0)
    assert (world.job_state(short), world.job_state(long)) == (JobState.RUNNING, JobState.PENDING)
