"""Arrays, dependencies, queue limits, conservative backfill, preemption, and reasons why a job is pending."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler_feedback import cycle
from scheduler_feedback.core.actions import StopGang
from scheduler_feedback.core.cluster import Level, NodeState
from scheduler_feedback.core.codec import decode_state, encode_state
from scheduler_feedback.core.events import CancelRequested, NodeSeen, PolicySet, Tick
from scheduler_feedback.core.job import After, Dependency, Job, JobSpec, JobState, StopReason
from scheduler_feedback.core.state import Backfilling, Ended, Estimates, Order, Policy, Queue, State
from scheduler_feedback.policies.index import runtime_history
from scheduler_feedback.policies.index.runtime_estimate import Release
from scheduler_feedback.policies.queue.conservative_backfill import Profile
from tests.cluster.cycle_world import SECOND, START_NS, World

_MOVABLE = {"restartable": True, "preemptible": True, "grace_seconds": 0.0, "restart_cost_seconds": 5.0}


# --- arrays and dependencies -----------------------------------------------------------------------------------------


def test_members_of_an_array_start_in_order_up_to_the_limit() -> None:
    world = World({"n0": 8})
    array = world.submit(1, array_size=5, array_parallel=2, time_limit_seconds=10.0)
    ids = [f"{array}.{index}" for index in range(5)]
    assert [job for job in ids if world.job_state(job) is JobState.STARTING] == ids[:2]
    assert "2 of array" in cycle.why_waits(world.state, world.state.jobs[ids[2]])
    world.running()
    world.end(ids[1], 0)
    assert world.job_state(ids[2]) is JobState.STARTING and world.job_state(ids[3]) is JobState.PENDING
    world.cycle(CancelRequested(array, "eve"))
    assert world.job_state(ids[4]) is JobState.CANCELLED


@pytest.mark.parametrize(
    ("condition", "code", "state"),
    [
        (After.OK, 0, JobState.STARTING),
        (After.OK, 1, JobState.CANCELLED),
        (After.FAILED, 1, JobState.STARTING),
        (After.FAILED, 0, JobState.CANCELLED),
        (After.ENDED, 1, JobState.STARTING),
        (After.STARTED, 0, JobState.STARTING),
    ],
)
def test_a_job_waits_for_its_dependency_as_long_as_it_can_be_met(condition: After, code: int, state: JobState) -> None:
    world = World({"n0": 4})
    first = world.submit(1, 1000.0)
    second = world.submit(1, after=(Dependency(first, condition),))
    if condition is not After.STARTED:
        assert world.job_state(second) is JobState.PENDING
        explained = cycle.explain(world.state, second)
        assert explained is not None and explained.binds == "dependency"
        world.running()
        world.end(first, code)
    assert world.job_state(second) is state


def test_a_job_with_an_unknown_dependency_is_cancelled() -> None:
    world = World({"n0": 4})
    job_id = world.submit(1, after=(Dependency("j-999999"),))
    world.cycle(Tick())
    assert (world.job_state(job_id), world.state.jobs[job_id].end_reason) == (
        JobState.CANCELLED,
        "it waits for j-999999, an unknown job",
    )


# --- queues ----------------------------------------------------------------------------------------------------------


def test_a_queue_at_its_limit_blocks_no_other() -> None:
    queues = (Queue("research"), Queue("a", "research", limit=3), Queue("b", "research", quota=2, borrow=False))
    world = World({"n0": 8}, Policy(queues=queues))
    world.submit(3, 1000.0, queue="a")
    held_back = world.submit(1, queue="a")
    world.submit(2, 1000.0, queue="b")
    no_borrower = world.submit(1, queue="b")
    free = world.submit(2, queue="elsewhere")
    assert world.job_state(free) is JobState.STARTING
    explained = cycle.explain(world.state, held_back)
    assert explained is not None
    assert (explained.binds, explained.why) == ("limit", "queue a is limited to 3 slots and uses 3")
    assert world.job_state(no_borrower) is JobState.PENDING
    world.cycle(PolicySet(replace(world.state.policy, queues=())))
    assert world.job_state(held_back) is JobState.STARTING


def test_a_queue_just_below_its_limit_blocks_no_other() -> None:
    """Two more ranks would exceed the queue's limit of three. They get no reservation, and six of another queue
    start."""
    world = World({"n0": 8}, Policy(queues=(Queue("a", limit=3), Queue("b"))))
    world.submit(2, 1000.0, queue="a", time_limit_seconds=1000.0)
    held_back = world.submit(2, 1000.0, queue="a", time_limit_seconds=1000.0)
    other = world.submit(6, 5000.0, queue="b", time_limit_seconds=5000.0)
    assert world.job_state(held_back) is JobState.PENDING
    assert world.job_state(other) is JobState.STARTING
    assert world.state.reserved_for is None


def test_a_starved_job_at_its_queue_s_limit_blocks_no_other() -> None:
    policy = Policy(order=Order.FAIR, preempt=True, starvation_seconds=60.0, queues=(Queue("a", limit=3), Queue("b")))
    world = World({"n0": 8}, policy)
    world.submit(2, 1000.0, queue="a", time_limit_seconds=1000.0)
    world.submit(2, 1000.0, queue="a", time_limit_seconds=1000.0)
    world.running()
    world.advance(100.0)
    wide = world.submit(7, 1000.0, queue="b", time_limit_seconds=1000.0)
    narrow = world.submit(2, 5000.0, queue="b", time_limit_seconds=5000.0)
    assert (world.job_state(wide), world.job_state(narrow)) == (JobState.PENDING, JobState.STARTING)


def test_slots_are_freed_for_the_first_job_below_its_queue_s_limit() -> None:
    world = World({"n0": 8}, Policy(queues=(Queue("a", limit=1), Queue("b"))))
    world.submit(1, 5000.0, queue="a", time_limit_seconds=5000.0)
    elastic = world.submit(7, 5000.0, min_ranks=2, max_ranks=7, queue="b", time_limit_seconds=5000.0, restartable=True)
    world.running()
    world.submit(1, 5000.0, queue="a", time_limit_seconds=5000.0)
    world.submit(4, 3000.0, queue="b", time_limit_seconds=3000.0)
    assert world.state.jobs[elastic].stop_reason is StopReason.RESIZE


@pytest.mark.parametrize(
    ("queues", "ranks", "words"),
    [
        ((Queue("q", limit=0),), 1, "asks for 1 rank; queue q may hold at most 0 slots: use another queue, or have"),
        ((Queue("q", quota=3, borrow=False),), 4, "queue q may hold at most 3 slots: ask for at most 3 ranks, or use"),
        ((Queue("top", limit=2), Queue("q", "top")), 3, "queue top may hold at most 2 slots, and queue q is part of"),
    ],
)
def test_a_job_that_never_fits_its_queue_is_refused_and_given_no_start(
    queues: tuple[Queue, ...], ranks: int, words: str
) -> None:
    """A new job is refused. A job that is already pending, as after a reload, has the reason and no expected start."""
    world = World({"n0": 8}, Policy())
    other = world.submit(8, 1000.0, time_limit_seconds=1000.0)
    world.running()
    waiting = world.submit(ranks, 100.0, queue="q", time_limit_seconds=100.0)
    explained = cycle.explain(world.state, waiting)
    assert explained is not None and explained.expected_start_ns is not None
    world.cycle(PolicySet(Policy(queues=queues)))
    assert words in (cycle.admit_check(world.state, world.state.jobs[waiting].spec) or "")
    explained = cycle.explain(world.state, waiting)
    assert explained is not None
    assert (explained.binds, explained.expected_start_ns, explained.expected_start_range_ns) == ("limit", None, None)
    assert words in explained.why
    assert any("is raised" in change for change in explained.what_would_change_it)
    assert world.state.reserved_for is None and world.state.jobs[waiting].expected_start_ns is None
    world.end(other, 0)
    assert world.job_state(waiting) is JobState.PENDING
    world.cycle(PolicySet(Policy()))
    assert world.job_state(waiting) is JobState.STARTING, "the limit was raised"


def test_a_job_at_its_queue_s_limit_is_expected_to_start_when_the_queue_has_room() -> None:
    world = World({"n0": 8}, Policy(queues=(Queue("a", limit=2),)))
    first = world.submit(2, 500.0, queue="a", time_limit_seconds=500.0)
    waiting = world.submit(1, 100.0, queue="a", time_limit_seconds=100.0)
    explained = cycle.explain(world.state, waiting)
    assert explained is not None and explained.binds == "limit"
    assert explained.expected_start_ns == world.started[first] + 500 * SECOND


def test_queues_below_quota_go_first_then_the_least_usage_per_weight() -> None:
    queues = (Queue("a", quota=4), Queue("b", quota=4), Queue("c", weight=4.0), Queue("d", weight=1.0))
    policy = Policy(order=Order.FAIR, estimates=Estimates.LIMIT, queues=queues)
    world = World({"n0": 8}, policy)
    for _ in range(6):
        world.submit(1, 50_000.0, queue="a")
    for name in ("c", "d"):
        world.submit(1, 50_000.0, queue=name)
    world.running()
    for _ in range(3):
        world.advance(1801.0)
    turns = world.state.queue_turns
    assert turns["b"] < turns["a"], "it holds less than its quota"
    assert turns["c"] < turns["d"], "it may use four times as much"
    borrower, owner = world.submit(1, queue="a"), world.submit(1, queue="b")
    world.end("j-000001", 0)
    assert world.job_state(owner) is JobState.STARTING and world.job_state(borrower) is JobState.PENDING


# --- conservative ----------------------------------------------------------------------------------------------------


def test_conservative_backfill_delays_no_earlier_job() -> None:
    def play(backfill: Backfilling) -> World:
        world = World({"n0": 4}, Policy(backfill=backfill, estimates=Estimates.EXACT))
        for ranks, seconds in ((3, 100.0), (4, 10.0), (2, 200.0), (1, 100.0), (1, 200.0)):
            world.submit(ranks, seconds, exact_seconds=seconds)
        world.running()
        world.advance(1000.0)
        return world

    easy, conservative = play(Backfilling.EASY), play(Backfilling.CONSERVATIVE)
    starts = {job: (at - START_NS) // SECOND for job, at in conservative.started.items()}
    assert starts == {"j-000001": 0, "j-000004": 0, "j-000002": 100, "j-000003": 110, "j-000005": 110}
    assert easy.started["j-000002"] == conservative.started["j-000002"]


def test_the_profile_finds_the_first_hole_that_is_long_enough() -> None:
    profile = Profile(0, 1, [Release(10, "a", ()), Release(20, "b", ())])
    profile.take(1, 5, 10)
    assert [profile.earliest(1, length, 0) for length in (5, 6)] == [0, 15]
    assert (profile.free_for(5), profile.free_for(6)) == (1, 0)
    assert profile.earliest(2, 1, 0) is None


# --- preemption ------------------------------------------------------------------------------------------------------


def _preempted(world: World) -> list[str]:
    actions = [action for outcome in world.outcomes for action in outcome.actions]
    return [action.job_id for action in actions if isinstance(action, StopGang) and action.why.value == "preempt"]


def test_a_shorter_gang_takes_the_slots_of_a_longer_one_and_that_resumes_where_it_was() -> None:
    policy = Policy(order=Order.SRTF, backfill=Backfilling.GREEDY, estimates=Estimates.EXACT, preempt=True)
    world = World({"n0": 4}, policy)
    long = world.submit(4, 1000.0, exact_seconds=1000.0, **_MOVABLE)
    world.running()
    world.advance(100.0)
    short = world.submit(2, 50.0, exact_seconds=50.0, **_MOVABLE)
    assert _preempted(world) == [long]
    assert world.job_state(short) is JobState.STARTING or world.state.jobs[short].attempt == 0
    world.end(long, 75, signalled=True)
    assert world.job_state(short) is JobState.STARTING
    job = world.state.jobs[long]
    assert (job.state, job.retries, job.preemptions, job.done_seconds) == (JobState.PENDING, 0, 1, 100.0)
    world.running()
    world.advance(60.0)
    assert job.state is not JobState.PENDING and job.attempt == 2


def test_among_too_many_victims_the_one_with_the_largest_loss_is_spared() -> None:
    """Five slots are needed, from gangs of two, one and four. With the gang of four, either of the others suffices."""
    policy = Policy(order=Order.FAIR, estimates=Estimates.LIMIT, preempt=True)
    world = World({"n0": 7}, policy)
    spec: dict[str, Any] = {"restartable": True, "preemptible": True, "grace_seconds": 2.0}
    dear = world.submit(2, 20_000.0, time_limit_seconds=20_000.0, restart_cost_seconds=500.0, **spec)
    cheap = world.submit(1, 30_000.0, time_limit_seconds=30_000.0, restart_cost_seconds=5.0, **spec)
    wide = world.submit(4, 6000.0, time_limit_seconds=6000.0, restart_cost_seconds=50.0, **spec)
    world.running()
    world.advance(10.0)
    world.submit(5, 100.0, time_limit_seconds=100.0)
    assert set(_preempted(world)) == {cheap, wide}
    assert world.state.jobs[dear].stop_reason is None


def test_only_preemptible_gangs_past_their_minimum_run_time_are_stopped() -> None:
    policy = Policy(order=Order.SRTF, estimates=Estimates.EXACT, preempt=True, min_run_seconds=60.0)
    world = World({"n0": 4}, policy)
    world.submit(2, 1000.0, exact_seconds=1000.0, restartable=True)
    movable = world.submit(2, 1000.0, exact_seconds=1000.0, **_MOVABLE)
    world.running()
    short = world.submit(2, 50.0, exact_seconds=50.0)
    assert _preempted(world) == []
    world.advance(61.0)
    world.cycle(NodeSeen("n1", 1))
    assert _preempted(world) == [movable]
    assert world.job_state(short) is not JobState.COMPLETED


def test_the_fair_order_prefers_a_new_job_to_one_past_its_usual_run_time() -> None:
    policy = Policy(order=Order.FAIR, estimates=Estimates.HISTORY, preempt=True, min_run_seconds=0.0)
    world = World({"n0": 2}, policy)
    for _ in range(12):
        world.submit(2, 20.0, workload="w", **_MOVABLE)
        world.running()
        world.advance(20.0)
    world.advance(2000.0)
    long = world.submit(2, 50_000.0, workload="w", **_MOVABLE)
    world.running()
    world.advance(3000.0)
    new = world.submit(2, 20.0, workload="w", **_MOVABLE)
    assert _preempted(world) == [long]
    assert world.state.jobs[new].claim, "its slots are reserved until the other has stopped"
    world.end(long, 75, signalled=True)
    assert world.job_state(new) is JobState.STARTING


# --- run times of similar jobs ---------------------------------------------------------------------------------------


def state_with_history(*rows: tuple[str, int, float]) -> State:
    state = State()
    for workload, ranks, seconds in rows:
        state.recently_ended.append(Ended("q", "", workload, ranks, seconds))
        runtime_history.count_ended_jobs(state)
    state.renewed_ns = 1
    return state


def _spec(workload: str, ranks: int = 1) -> JobSpec:
    return JobSpec("j", ("x",), ranks, queue="q", workload=workload)


def test_unused_history_is_bounded() -> None:
    """Under FIFO with limits ended jobs are never counted, so the list of them must be bounded."""
    world = World({"n0": 8})
    ended = runtime_history.MOST_RECENT * 2 + 500
    for number in range(ended):
        runtime_history.learn(world.state, Job("a", JobSpec("a", ("x",), 1), JobState.COMPLETED, 0), float(number))
    kept = [one.seconds for one in world.state.recently_ended]
    assert runtime_history.MOST_RECENT * 0.9 <= len(kept) <= runtime_history.MOST_RECENT
    assert kept == [float(number) for number in range(ended - len(kept), ended)], "the newest are kept"


def test_history_weights_kinds_by_their_predictions() -> None:
    state = state_with_history(*[("short", 1, 100.0), ("long", 1, 100_000.0)] * 40)
    answers = runtime_history.answers_of(state)
    assert answers.quantile(_spec("short"), 0.0, 0.6) == pytest.approx(100.0, rel=0.5)
    assert answers.quantile(_spec("long"), 0.0, 0.6) == pytest.approx(100_000.0, rel=0.5)
    assert answers.expense(_spec("short"), 0.0, 0.0) < answers.expense(_spec("long"), 0.0, 0.0) / 10


def test_the_longer_a_job_of_wide_spread_has_run_the_more_it_is_expected_to_need() -> None:
    state = state_with_history(*[("w", 1, 10.0 * 2.0 ** (n % 14)) for n in range(140)])
    answers = runtime_history.answers_of(state)
    spent = [answers.expense(_spec("w"), done, 0.0) for done in (0.0, 100.0, 1000.0, 10_000.0)]
    assert spent == sorted(spent)
    assert answers.quantile(_spec("w"), 10_000.0, 0.5) > 10_000.0
    assert runtime_history.expense(answers.spread(_spec("w")), 2.0**40) > 2.0**40


def test_the_mean_remaining_time_is_cut_at_a_bound() -> None:
    """Half of the similar jobs end within a minute and half run for a day: a bound of an hour cuts the latter."""
    state = state_with_history(*[("w", 1, 40.0), ("w", 1, 86_400.0)] * 60)
    spread = runtime_history.answers_of(state).spread(_spec("w"))
    assert runtime_history.yet_within(spread, 0.0, 3600.0) == pytest.approx(0.5 * 40 + 0.5 * 3600, rel=0.15)
    assert runtime_history.yet_within(spread, 100.0, 3600.0) == pytest.approx(3600, rel=0.1), (
        "a job past a minute continues"
    )
    assert runtime_history.yet_within(spread, 100.0, 0.0) == 0.0
    assert runtime_history.yet_within(spread, 2.0**40, 10.0) == 10.0, "for such a job there is no history"
    bounds = [runtime_history.yet_within(spread, 0.0, bound) for bound in (1.0, 30.0, 1000.0, 10_000.0, 1e6)]
    assert bounds == sorted(bounds)


# --- explaining ------------------------------------------------------------------------------------------------------


def test_explain_names_the_cheapest_change_and_a_range() -> None:
    world = World({"n0": 2, "n1": 2, "n2": 2, "n3": 2}, racks=2)
    for node in ("n0", "n1"):
        world.submit(1, 1000.0, time_limit_seconds=100.0, pinned_node=node)
    wants = world.submit(4, required_level=Level.RACK, time_limit_seconds=10.0)
    world.running()
    explained = cycle.explain(world.state, wants)
    assert explained is not None
    assert "spread over more than one rack, it could start now" in explained.what_would_change_it
    assert any("with 3 ranks or fewer" in change for change in explained.what_would_change_it)
    assert explained.expected_start_range_ns is not None
    first, last = explained.expected_start_range_ns
    assert explained.expected_start_ns is not None
    assert first <= explained.expected_start_ns <= last


def test_explain_changes_nothing() -> None:
    world = World({"n0": 2, "n1": 2}, racks=1)
    for ranks in (3, 4, 2, 1, 4):
        world.submit(ranks, time_limit_seconds=40.0)
    world.running()
    before = decode_state(encode_state(world.state))
    for job_id in world.state.jobs:
        cycle.explain(world.state, job_id)
    assert before == world.state


def test_a_running_gang_has_no_binding_constraint() -> None:
    state = State(jobs={"j": Job("j", JobSpec("j", ("x",), 1), JobState.COMPLETED, 0)})
    assert cycle.why_waits(state, state.jobs["j"]) == ""


def test_the_head_s_reservation_is_on_nodes_that_it_will_use() -> None:
    """A free slow node would cost the wide gang more than it gains, so its reservation is on healthy nodes."""
    world = World({f"n{i}": 2 for i in range(4)}, Policy(quarantine_slowdown=10.0))
    world.submit(4, time_limit_seconds=1000.0)
    long = world.submit(2, 5000.0, time_limit_seconds=5000.0)
    slow = world.submit(2, 1000.0, time_limit_seconds=500.0)
    world.running()
    (name,) = world.nodes_of(slow)
    head = world.submit(5, 1000.0, time_limit_seconds=1000.0)
    world.submit(1, time_limit_seconds=100.0)  # gains from a slow slot, so the node stays in use
    world.cycle(world.verdict(slow, slowdown=3.0))
    world.end(slow, 0)
    node = world.state.nodes[name]
    assert (node.state, node.slowdown) == (NodeState.SUSPECT, 3.0)
    assert (world.state.reserved_for, world.state.reserved_from_ns) == (head, world.started[long] + 5000 * SECOND)
    assert name not in world.state.reserved_nodes
