"""Scheduling order: each rule on jobs of a state, and the keys that precede every rule."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from scheduler_feedback.core.job import Job, JobKind, JobState, Slot
from scheduler_feedback.core.state import Ended, Estimates, Order, Policy, State
from scheduler_feedback.policies.index import runtime_history
from scheduler_feedback.policies.queue import order
from scheduler_feedback.policies.queue.order import fair, las, themis
from tests.cluster.cycle_world import World
from tests.cluster.makers import NOW_NS, SECOND, job_of, running


def state_of(*jobs: Job, **policy: Any) -> State:
    return State(policy=Policy(**policy), now_ns=NOW_NS, jobs={job.job_id: job for job in jobs})


def in_order(state: State) -> list[str]:
    """Return the ids of all pending and running jobs in scheduling order."""
    return sorted(state.jobs, key=lambda job_id: order.key_of(state, state.jobs[job_id]))


# --- keys before every rule ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", list(Order))
def test_a_higher_priority_goes_before_every_rule(rule: Order) -> None:
    urgent = job_of("urgent", priority=1, submitted_ns=9000 * SECOND, ranks=64, time_limit_seconds=1e6, level=1)
    small = job_of("small", submitted_ns=SECOND, time_limit_seconds=1.0, urgency=-5.0)
    state = state_of(small, urgent, order=rule)
    assert in_order(state) == ["urgent", "small"]


@pytest.mark.parametrize("rule", list(Order))
def test_ties_are_broken_by_submission_then_by_id(rule: Order) -> None:
    same: dict[str, Any] = {"time_limit_seconds": 100.0}
    jobs = [job_of(name, submitted_ns=at * SECOND, **same) for name, at in (("c", 7), ("b", 7), ("a", 8), ("d", 6))]
    assert in_order(state_of(*jobs, order=rule)) == ["d", "b", "c", "a"]


def test_first_come_first_served_uses_only_priority_and_submission() -> None:
    late, early = job_of("late", submitted_ns=2, time_limit_seconds=1.0), job_of("early", submitted_ns=1, ranks=99)
    state = state_of(late, early, order=Order.FIFO, starvation_seconds=0.0)
    assert in_order(state) == ["early", "late"]
    assert order.key_of(state, late) == (0, 2, "late")
    assert order.ORDERS[0].key(state, late, NOW_NS) == ()


def test_starved_jobs_go_first_the_oldest_first() -> None:
    jobs = [job_of(f"j{at}", submitted_ns=at * SECOND, time_limit_seconds=limit) for at, limit in (
        (100, 900.0), (50, 1000.0), (9000, 1.0), (8000, 2.0),
    )]  # fmt: skip
    state = state_of(*jobs, order=Order.SJF, starvation_seconds=5000.0)
    assert in_order(state) == ["j50", "j100", "j9000", "j8000"]


def test_among_starved_jobs_a_higher_priority_goes_first() -> None:
    older, urgent = job_of("older", submitted_ns=1), job_of("urgent", submitted_ns=2, priority=1)
    assert in_order(state_of(older, urgent, order=Order.SJF, starvation_seconds=5000.0)) == ["urgent", "older"]


def test_run_time_is_not_wait_time() -> None:
    job = job_of("j", submitted_ns=2000 * SECOND, run_ns=3000 * SECOND)
    state = state_of(job, order=Order.SRTF, starvation_seconds=5000.0)
    assert order.starves_ns(state, job) == 10_000 * SECOND
    assert order.has_starved(state, job), "exactly at the bound"
    state.now_ns -= 1
    assert not order.has_starved(state, job)


@pytest.mark.parametrize(("rule", "bound"), [(Order.FIFO, 1.0), (Order.SJF, float("inf"))])
def test_without_a_bound_no_job_starves(rule: Order, bound: float) -> None:
    job = job_of("j")
    state = state_of(job, order=rule, starvation_seconds=bound)
    assert order.starves_ns(state, job) is None
    assert not order.has_starved(state, job)


def test_a_running_gang_has_starved_if_it_had_when_it_started() -> None:
    """Run time is not wait time: a job does not become overdue by running long."""
    state = state_of(order=Order.SJF, starvation_seconds=5000.0)
    assert not order.has_starved(state, running("soon", 6000.0))
    assert order.has_starved(state, running("late", 4000.0))


def test_with_a_starvation_share_overdue_jobs_go_first() -> None:
    called, old = job_of("called", overdue=True), job_of("old")
    state = state_of(called, old, order=Order.SJF, starvation_seconds=1.0, starvation_share=0.25)
    assert (order.has_starved(state, called), order.has_starved(state, old)) == (True, False)


def test_the_displayed_queue_has_moving_gangs_first_then_pending_jobs() -> None:
    moving = job_of("moving", submitted_ns=9, claim=[Slot("n0", 0)])
    probe = job_of("probe", kind=JobKind.PROBE)
    jobs = (job_of("b", submitted_ns=2), running("runs", 5.0), probe, job_of("a", submitted_ns=1), moving)
    assert [job.job_id for job in order.queue(state_of(*jobs))] == ["moving", "a", "b"]


# --- shortest first --------------------------------------------------------------------------------------------------


def test_shortest_job_first_uses_the_limit_without_an_estimate() -> None:
    jobs = (
        job_of("long", time_limit_seconds=500.0),
        job_of("unsaid", submitted_ns=5),  # counts as the default, 300 s
        job_of("short", time_limit_seconds=100.0, ranks=64, submitted_ns=9),
    )
    assert in_order(state_of(*jobs, order=Order.SJF, default_time_limit_seconds=300.0)) == ["short", "unsaid", "long"]


def test_shortest_job_first_uses_the_total_not_the_remaining_time() -> None:
    """A job with 450 of 500 s done goes behind a job of 100 s. Under SRTF it would go first."""
    known: dict[str, Any] = {"estimates": Estimates.EXACT}
    nearly = running("nearly", 450.0, exact_seconds=500.0, submitted_ns=1)
    fresh = job_of("fresh", exact_seconds=100.0, submitted_ns=2)
    assert in_order(state_of(nearly, fresh, order=Order.SJF, **known)) == ["fresh", "nearly"]
    assert in_order(state_of(nearly, fresh, order=Order.SRTF, **known)) == ["nearly", "fresh"]


def test_shortest_job_first_prefers_the_history_to_the_limit() -> None:
    mistaken = job_of("mistaken", time_limit_seconds=10.0, estimate_seconds=900.0)
    modest = job_of("modest", time_limit_seconds=1000.0, estimate_seconds=20.0, submitted_ns=3)
    assert in_order(state_of(mistaken, modest, order=Order.SJF, estimates=Estimates.HISTORY)) == ["modest", "mistaken"]
    assert in_order(state_of(mistaken, modest, order=Order.SJF)) == ["mistaken", "modest"]


def test_remaining_time_of_a_resumed_job_counts_and_slots_only_in_srsf() -> None:
    """Eighty seconds on one slot, or thirty on four: 80 and 120 slot-seconds."""
    alone = job_of("alone", time_limit_seconds=200.0, run_ns=120 * SECOND, attempt=1, restartable=True)
    wide = job_of("wide", time_limit_seconds=30.0, ranks=4, submitted_ns=1)
    assert in_order(state_of(alone, wide, order=Order.SRTF)) == ["wide", "alone"]
    assert in_order(state_of(alone, wide, order=Order.SRSF)) == ["alone", "wide"]
    again = replace(alone, spec=replace(alone.spec, restartable=False))
    assert in_order(state_of(again, wide, order=Order.SRSF)) == ["wide", "alone"], (
        "it starts again from the beginning: 200 s"
    )


def test_the_time_left_of_a_running_gang_ends_with_it() -> None:
    job = running("j", 150.0, time_limit_seconds=200.0, ranks=3)
    state = state_of(job)
    srtf, srsf = order.ORDERS[2], order.ORDERS[3]
    assert (srtf.name, srtf.key(state, job, NOW_NS)) == (Order.SRTF, (50 * SECOND,))
    assert (srsf.name, srsf.key(state, job, NOW_NS)) == (Order.SRSF, (150 * SECOND,))
    assert srtf.key(state, job, NOW_NS - 10 * SECOND) == (60 * SECOND,)


# --- least attained service ------------------------------------------------------------------------------------------

_LAS: dict[str, Any] = {"order": Order.LAS, "las_thresholds": (100.0, 1000.0)}


def test_las_orders_by_queue_and_then_by_turn_at_any_length() -> None:
    jobs = (
        job_of("fallen", level=1, turn=-9),
        job_of("second", turn=2, time_limit_seconds=1.0),
        job_of("first", turn=1),
    )
    assert in_order(state_of(*jobs, **_LAS)) == ["first", "second", "fallen"]


def test_a_gang_is_demoted_when_its_slot_seconds_pass_the_threshold_of_its_queue() -> None:
    job = running("j", 10.0, ranks=3)
    state = state_of(job, **_LAS)
    started_ns = NOW_NS - 10 * SECOND
    assert las.falls_ns(state, job) == started_ns + 34 * SECOND, "in whole seconds: 102 of 100 slot-seconds"
    job.run_ns = 20 * SECOND
    assert las.falls_ns(state, job) == started_ns + 14 * SECOND, "earlier attempts count"
    job.level = 1
    assert las.falls_ns(state, job) == started_ns + (334 - 20) * SECOND
    job.level = 2
    assert las.falls_ns(state, job) is None, "there is no queue below the last"
    job.level, job.state = 0, JobState.PENDING
    assert las.falls_ns(state, job) is None, "a pending job uses nothing"


def test_a_demoted_job_is_last_in_its_new_queue_from_that_instant_on() -> None:
    due, later = running("due", 100.0), running("later", 99.0)
    state = state_of(due, later, **_LAS)
    state.last_turn = 4
    assert las.demote(state, [later, due], NOW_NS) == [due]
    assert (due.level, due.turn, later.level) == (1, 5, 0)
    assert las.demote(state, [later, due], NOW_NS + SECOND) == [later]
    assert (later.level, later.turn) == (1, 6)
    assert las.demote(state, [later, due], NOW_NS + 899 * SECOND) == []
    assert las.demote(state, [later, due], NOW_NS + 900 * SECOND) == [due]
    assert due.level == 2


def test_jobs_demoted_in_one_pass_are_ordered_by_start() -> None:
    late, early = running("a", 200.0, turn=-8), running("b", 300.0, turn=-7)
    state = state_of(late, early, **_LAS)
    assert las.demote(state, [late, early], NOW_NS) == [early, late]
    assert early.turn < late.turn


def test_a_new_job_is_last() -> None:
    first, second = job_of("first"), job_of("second")
    state = state_of(first, second, **_LAS)
    las.enter(state, first)
    las.enter(state, second)
    assert (first.turn, second.turn, state.last_turn) == (1, 2, 2)


def test_chosen_jobs_go_first_then_stopped_then_pending_ones() -> None:
    names = ("a", "b", "c", "d", "new")
    jobs = {name: job_of(name, turn=context) for context, name in enumerate(names, 1)}
    state = state_of(*jobs.values(), **_LAS)
    state.first_turn, state.last_turn = 1, 5
    moved = las.take_turns(state, [jobs["c"], jobs["d"]], [])
    assert [job.job_id for job in moved] == ["c", "d"]
    assert in_order(state) == ["c", "d", "a", "b", "new"]
    jobs["c"].state = jobs["d"].state = JobState.RUNNING
    # The two chosen gangs are stopped for two others; jobs that were chosen once keep their order.
    moved = las.take_turns(state, [jobs["a"], jobs["b"]], [jobs["c"], jobs["d"]])
    assert [job.job_id for job in moved] == ["a", "b"]
    assert in_order(state) == ["a", "b", "c", "d", "new"]
    assert jobs["c"].turn < jobs["d"].turn < 1
    again = (jobs["a"].turn, jobs["b"].turn)
    assert las.take_turns(state, [jobs["a"], jobs["b"]], []) == [], "they are already chosen"
    assert (jobs["a"].turn, jobs["b"].turn) == again


def test_a_chosen_running_job_keeps_its_place() -> None:
    runs = running("runs", 5.0, turn=3)
    state = state_of(runs, **_LAS)
    assert las.take_turns(state, [runs], []) == []
    assert runs.turn == las.CHOSEN + 1


def test_a_demoted_and_stopped_job_stays_last() -> None:
    fallen = running("fallen", 5.0, turn=7, level=1)
    state = state_of(fallen, **_LAS)
    las.take_turns(state, [], [fallen])
    assert (fallen.turn, state.first_turn) == (7, 1)


# --- finish-time fairness --------------------------------------------------------------------------------------------


def test_rho_is_the_total_time_divided_by_the_time_alone() -> None:
    waits = job_of("waits", submitted_ns=NOW_NS - 300 * SECOND, time_limit_seconds=100.0)
    state = state_of(waits, order=Order.THEMIS)
    assert themis.rho(state, waits, NOW_NS) == pytest.approx((300 + 100) / 100)
    resumed = job_of(
        "resumed", submitted_ns=NOW_NS - 300 * SECOND, time_limit_seconds=100.0, restartable=True,
        run_ns=60 * SECOND, done_seconds=60.0, attempt=1,
    )  # fmt: skip
    assert themis.rho(state, resumed, NOW_NS) == pytest.approx((300 + 40) / 100)
    short = job_of("short", submitted_ns=NOW_NS - 5 * SECOND, time_limit_seconds=0.5)
    assert themis.rho(state, short, NOW_NS) == pytest.approx(5.5), "no job counts as shorter than a second"


def test_themis_puts_the_largest_rho_first_with_present_values_for_running_jobs() -> None:
    state = state_of(order=Order.THEMIS)
    rule = order.ORDERS[5]
    runs = running("runs", 50.0, submitted_ns=NOW_NS - 150 * SECOND, time_limit_seconds=100.0)
    assert (rule.name, rule.key(state, runs, NOW_NS)) == (Order.THEMIS, (pytest.approx(-(150 + 50) / 50),))
    waits = job_of("waits", submitted_ns=NOW_NS - 900 * SECOND, time_limit_seconds=100.0, urgency=-1.5)
    assert rule.key(state, waits, NOW_NS) == (-1.5,), "for pending jobs as of the last pass"
    fair.appraise(state, waits, NOW_NS)
    assert rule.key(state, waits, NOW_NS) == (pytest.approx(-10.0),)
    little = job_of("little", submitted_ns=NOW_NS - 900 * SECOND, time_limit_seconds=900.0)
    fair.appraise(state, little, NOW_NS)
    state.jobs = {"little": little, "waits": waits, "runs": runs}
    assert in_order(state) == ["waits", "runs", "little"]


# --- fair ------------------------------------------------------------------------------------------------------------


def test_fair_orders_by_queue_and_then_by_expected_service() -> None:
    jobs = (
        job_of("dear", queue="low", urgency=900.0),
        job_of("cheap", queue="low", urgency=5.0, submitted_ns=8),
        job_of("first", queue="high", urgency=5000.0, submitted_ns=9),
        job_of("unnamed", queue="unknown", urgency=4000.0, submitted_ns=9),
    )
    state = state_of(*jobs, order=Order.FAIR)
    state.queue_turns = {"high": 0, "low": 1}
    assert in_order(state) == ["unnamed", "first", "cheap", "dear"]


@pytest.mark.parametrize(
    ("estimates", "spec", "fields", "urgency"),
    [
        (Estimates.LIMIT, {"time_limit_seconds": 100.0}, {}, 400.0),
        (Estimates.EXACT, {"time_limit_seconds": 100.0, "exact_seconds": 30.0}, {}, 120.0),
        (Estimates.EXACT, {"time_limit_seconds": 100.0}, {}, 400.0),  # if the true run time is unknown
        (Estimates.LIMIT, {"exact_seconds": 30.0}, {}, 4 * 3600.0),  # nor needed
        (Estimates.LIMIT, {"time_limit_seconds": 100.0, "restart_cost_seconds": 7.0}, {"attempt": 1}, 428.0),
        (Estimates.LIMIT, {"time_limit_seconds": 100.0}, {"attempt": 1, "done_seconds": 60.0}, 4 * 50.0),
        (Estimates.LIMIT, {"time_limit_seconds": 100.0}, {"attempt": 1, "done_seconds": 400.0}, 4 * 11.0),
    ],
)
def test_the_fair_order_estimates_slots_times_remaining_time_and_restart(
    estimates: Estimates, spec: dict[str, Any], fields: dict[str, Any], urgency: float
) -> None:
    job = job_of("j", ranks=4, restartable=True, **spec, **fields)
    state = state_of(job, order=Order.FAIR, estimates=estimates)
    fair.appraise(state, job, NOW_NS)
    assert job.urgency == pytest.approx(urgency)
    assert job.estimate_seconds is None


def test_the_restart_of_a_running_gang_does_not_count() -> None:
    job = running("j", 30.0, ranks=2, time_limit_seconds=100.0, restartable=True, restart_cost_seconds=7.0)
    state = state_of(job, order=Order.FAIR)
    fair.appraise(state, job, NOW_NS)
    assert job.urgency == 2 * 70.0
    job.state, job.done_seconds = JobState.PENDING, 30.0
    fair.appraise(state, job, NOW_NS)
    assert job.urgency == 2 * 77.0


@pytest.mark.parametrize("rule", [Order.FIFO, Order.SJF, Order.SRTF, Order.SRSF, Order.LAS])
def test_the_other_orders_need_no_estimate(rule: Order) -> None:
    job = job_of("j", time_limit_seconds=100.0)
    fair.appraise(state_of(job, order=rule), job, NOW_NS)
    assert (job.urgency, job.appraise_ns) == (0.0, 0)


def state_with_history(*seconds: float, **policy: Any) -> State:
    state = State(policy=Policy(estimates=Estimates.HISTORY, **policy), now_ns=NOW_NS)
    for one in seconds:
        state.recently_ended.append(Ended("q", "", "w", 1, one))
        runtime_history.count_ended_jobs(state)
    return state


def test_with_history_a_job_is_expected_to_run_like_similar_jobs_up_to_its_limit() -> None:
    state = state_with_history(*[1000.0] * 40, order=Order.SJF)
    alike: dict[str, Any] = {"queue": "q", "workload": "w"}
    free, bound = job_of("free", **alike), job_of("bound", time_limit_seconds=50.0, **alike)
    for job in (free, bound):
        fair.appraise(state, job, NOW_NS)
    assert free.estimate_seconds == pytest.approx(1000.0, rel=0.3)
    assert bound.estimate_seconds == 50.0
    outlived = job_of("outlived", time_limit_seconds=50.0, restartable=True, done_seconds=80.0, attempt=1, **alike)
    fair.appraise(state, outlived, NOW_NS)
    assert outlived.estimate_seconds == 81.0, "more than it has run, at any limit"


def test_a_running_gang_keeps_its_estimate_and_only_its_urgency_is_updated() -> None:
    state = state_with_history(*[1000.0] * 40, order=Order.FAIR)
    job = running("j", 120.0, queue="q", workload="w", estimate_seconds=77.0, ranks=1)
    fair.appraise(state, job, NOW_NS)
    assert job.estimate_seconds == 77.0
    assert job.urgency > 0
    assert job.appraise_ns == NOW_NS + 10 * SECOND, "a twelfth of the 120 s that it has run"


def test_work_done_is_saved_work_plus_work_of_the_running_attempt() -> None:
    assert fair.work_done(job_of("waits", restartable=True, done_seconds=40.0), NOW_NS) == 40.0
    assert fair.work_done(job_of("not-restartable", done_seconds=40.0), NOW_NS) == 0.0, "it starts from the beginning"
    stopped = job_of("stopped", restartable=True, done_seconds=40.0, attempt=1, attempt_started_ns=NOW_NS - SECOND)
    assert fair.work_done(stopped, NOW_NS) == 40.0, "its last attempt has ended"
    first: dict[str, Any] = {"restartable": True, "restart_cost_seconds": 15.0}
    assert fair.work_done(running("first", 100.0, **first), NOW_NS) == 100.0
    job = running("second", 100.0, done_seconds=40.0, speed=2.0, **first)
    job.attempt = 2
    assert fair.work_done(job, NOW_NS) == 40 + 2 * (100 - 15)
    job.attempt_started_ns = NOW_NS - 5 * SECOND
    assert fair.work_done(job, NOW_NS) == 40.0, "it is still starting: as much as before"
    job.progress_ns = NOW_NS - 10 * SECOND
    assert fair.work_done(job, NOW_NS) == 40 + 2 * 10, "it has reported its progress"
    assert fair.work_done(job, NOW_NS - 20 * SECOND) == 40.0


def test_the_rules_decide_who_starts_when_slots_come_free() -> None:
    """Four jobs that wait for a full cluster start in the order of the rule."""
    first = {
        Order.FIFO: "j-000002",  # submitted first
        Order.SJF: "j-000003",  # 50 s
        Order.SRTF: "j-000003",
        Order.SRSF: "j-000004",  # 60 s on one slot: 60 slot-seconds, against 2 x 50
        Order.LAS: "j-000002",
        Order.THEMIS: "j-000003",  # the same wait counts more for a short job
        Order.FAIR: "j-000004",
    }
    for rule, wanted in first.items():
        world = World({"n0": 2}, Policy(order=rule, estimates=Estimates.EXACT, preempt=rule is Order.THEMIS))
        full = world.submit(2, 100.0, exact_seconds=100.0)
        world.running()
        for ranks, seconds in ((2, 500.0), (2, 50.0), (1, 60.0)):
            world.submit(ranks, seconds, exact_seconds=seconds)
        world.advance(40.0)
        world.end(full, 0)
        started = [job_id for job_id, job in world.state.jobs.items() if job.state is JobState.STARTING]
        assert wanted in started, rule
