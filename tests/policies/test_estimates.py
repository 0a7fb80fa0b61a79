"""Estimates of remaining run times, ends of running jobs, cost of a slow rank, and times of the next evaluation."""

from __future__ import annotations

import itertools
from dataclasses import replace as changed
from typing import Any

import pytest

from scheduler_feedback.core.job import JobState, Slot, StopReason
from scheduler_feedback.core.state import Estimates, Policy, State
from scheduler_feedback.policies.index import runtime_estimate
from scheduler_feedback.policies.index.evaluation_times import next_evaluation_ns
from tests.cluster.makers import NOW_NS, SECOND, held, job_of, running, verdict_of

LIMIT = Policy(default_time_limit_seconds=3600.0)
EXACT = changed(LIMIT, estimates=Estimates.EXACT)
HISTORY = changed(LIMIT, estimates=Estimates.HISTORY)


def slots(*numbers: int) -> tuple[Slot, ...]:
    return tuple(Slot("n0", number) for number in numbers)


# --- remaining work of a job -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "spec", "seconds"),
    [
        (LIMIT, {}, None),
        (LIMIT, {"exact_seconds": 5.0, "estimate_seconds": 6.0}, None),
        (EXACT, {"exact_seconds": 5.0, "estimate_seconds": 6.0}, 5.0),
        (EXACT, {"estimate_seconds": 6.0}, None),
        (HISTORY, {"exact_seconds": 5.0, "estimate_seconds": 6.0}, 6.0),
        (HISTORY, {"exact_seconds": 5.0}, None),
    ],
)
def test_the_policy_selects_the_source_of_estimates(
    policy: Policy, spec: dict[str, Any], seconds: float | None
) -> None:
    assert runtime_estimate.expected_seconds(policy, job_of("j", **spec)) == seconds


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        ({}, 3600.0),
        ({"time_limit_seconds": 100.0}, 100.0),
        ({"time_limit_seconds": 100.0, "run_ns": 60 * SECOND}, 100.0),  # it starts from the beginning
        ({"time_limit_seconds": 100.0, "run_ns": 60 * SECOND, "restartable": True}, 40.0),
        ({"time_limit_seconds": 100.0, "run_ns": 100 * SECOND, "restartable": True}, 30.0),  # at least half a minute
        ({"time_limit_seconds": 1000.0, "run_ns": 5000 * SECOND, "restartable": True}, 100.0),  # a tenth of the limit
    ],
)
def test_with_limits_past_run_time_counts_only_for_restartable_jobs(fields: dict[str, Any], left: float) -> None:
    assert runtime_estimate.remaining_ns(LIMIT, job_of("j", **fields)) == left * SECOND


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        ({}, 200.0),  # never started: no restart
        ({"attempt": 1}, 208.0),
        ({"attempt": 1, "done_seconds": 150.0}, 58.0),
        ({"attempt": 1, "done_seconds": 150.0, "restartable": False}, 208.0),
        # Longer than expected: twice the expectation, less the work done.
        ({"attempt": 1, "done_seconds": 200.0}, 208.0),
        ({"attempt": 1, "done_seconds": 900.0}, 1600.0 - 900.0 + 8.0),
        ({"attempt": 1, "state": JobState.RUNNING}, 200.0),  # the first attempt pays no restart
        ({"attempt": 2, "state": JobState.RUNNING, "done_seconds": 100.0}, 108.0),
        # It has already restarted.
        ({"attempt": 2, "state": JobState.RUNNING, "done_seconds": 100.0, "progress_ns": 5}, 100.0),
        ({"attempt": 2, "state": JobState.RUNNING, "done_seconds": 100.0, "speed": 0.5}, 208.0),
        ({"attempt": 1, "done_seconds": 100.0, "speed": 0.5}, 108.0),  # its speed says nothing about the next nodes
    ],
)
def test_with_estimates_work_done_restart_and_speed_count(fields: dict[str, Any], left: float) -> None:
    usual: dict[str, Any] = {"exact_seconds": 200.0, "restartable": True, "restart_cost_seconds": 8.0}
    assert runtime_estimate.remaining_ns(EXACT, job_of("j", **(usual | fields))) == left * SECOND


def test_a_very_short_prediction_is_corrected_to_half_a_minute_and_then_doubled() -> None:
    job = job_of("j", exact_seconds=1.0, restartable=True, attempt=1, restart_cost_seconds=0.0, done_seconds=20.0)
    assert runtime_estimate.remaining_ns(EXACT, job) == 10 * SECOND
    job.done_seconds = 30.0
    assert runtime_estimate.remaining_ns(EXACT, job) == 30 * SECOND


# --- when a running attempt ends -------------------------------------------------------------------------------------


def test_the_expected_end_follows_from_the_start_or_the_last_progress() -> None:
    reported: dict[str, Any] = {"restartable": True, "done_seconds": 80.0, "progress_ns": NOW_NS - 10 * SECOND}
    job = running("j", 100.0, exact_seconds=300.0, time_limit_seconds=400.0, **reported)
    assert runtime_estimate.healthy_end_ns(EXACT, job, NOW_NS) == NOW_NS + 210 * SECOND
    assert runtime_estimate.healthy_end_ns(LIMIT, job, NOW_NS) == NOW_NS + 300 * SECOND


@pytest.mark.parametrize(("over", "end"), [(-1.0, 1.0), (0.0, 30.0), (29.0, 1.0), (30.0, 30.0), (65.0, 25.0)])
def test_the_expected_end_of_an_overrun_moves_in_steps(over: float, end: float) -> None:
    """The step is half a minute, because a tenth of 100 s would be less."""
    job = running("j", 100.0 + over, time_limit_seconds=100.0)
    assert runtime_estimate.end_ns(LIMIT, job, None, NOW_NS) == NOW_NS + end * SECOND


@pytest.mark.parametrize(("ran", "end"), [(99.0, 1.0), (100.0, 100.0), (199.0, 1.0), (200.0, 200.0), (500.0, 300.0)])
def test_a_job_past_its_predicted_run_time_gets_twice_the_time(ran: float, end: float) -> None:
    job = running("j", ran, estimate_seconds=100.0)
    assert runtime_estimate.end_ns(HISTORY, job, None, NOW_NS) == NOW_NS + end * SECOND


def test_a_stopping_job_ends_after_its_save_and_grace() -> None:
    job = running(
        "j", 50.0, time_limit_seconds=5000.0, grace_seconds=20.0, checkpoint_command=("save",),
        checkpoint_timeout_seconds=40.0,
    )  # fmt: skip
    job.state, job.stopping_ns = JobState.STOPPING, NOW_NS - 10 * SECOND
    for policy in (LIMIT, HISTORY):
        assert runtime_estimate.end_ns(policy, job, verdict_of(), NOW_NS) == NOW_NS + 50 * SECOND


@pytest.mark.parametrize(
    ("slowdown", "left", "lasts", "loss"),
    [
        (2.0, 100.0, 1e9, 100.0),  # all of the remaining work takes twice as long
        (1.5, 100.0, 1e9, 50.0),
        (2.0, 1e9, 100.0, 50.0),  # no more than half of the fault's time is lost
        (4.0, 1e9, 100.0, 75.0),
        (1.0, 100.0, 100.0, 0.0),
        (0.5, 100.0, 100.0, 0.0),
        (2.0, 0.0, 100.0, 0.0),
        (2.0, -5.0, 100.0, 0.0),
    ],
)
def test_the_loss_by_a_slow_member_is_bounded_by_fault_and_remaining_work(
    slowdown: float, left: float, lasts: float, loss: float
) -> None:
    assert runtime_estimate.loss_seconds(slowdown, left, lasts) == pytest.approx(loss)


def test_a_verdict_stretches_the_work_left_at_the_begin_of_the_fault() -> None:
    job = running("j", 100.0, time_limit_seconds=300.0)
    policy = changed(LIMIT, expected_persistence_seconds=1e6)
    at_60 = verdict_of(first_wall_ns=NOW_NS - 40 * SECOND)
    assert runtime_estimate.end_ns(policy, job, at_60, NOW_NS) == NOW_NS + (200 + 240) * SECOND
    before = verdict_of(first_wall_ns=NOW_NS - 900 * SECOND)
    assert runtime_estimate.end_ns(policy, job, before, NOW_NS) == NOW_NS + (200 + 300) * SECOND, (
        "at most from its start"
    )
    brief = verdict_of(first_wall_ns=NOW_NS - 40 * SECOND, lasts_seconds=60.0)
    assert runtime_estimate.end_ns(policy, job, brief, NOW_NS) == NOW_NS + (200 + 30) * SECOND


def test_expected_duration_of_a_fault() -> None:
    policy = changed(LIMIT, expected_persistence_seconds=1000.0)
    expected = verdict_of(first_wall_ns=NOW_NS - 40 * SECOND, lasts_seconds=60.0)
    assert runtime_estimate.lasts_yet_seconds(policy, expected, None, NOW_NS) == 20.0
    assert runtime_estimate.lasts_yet_seconds(policy, expected, None, NOW_NS + 90 * SECOND) == 0.0
    unsaid = verdict_of(first_wall_ns=NOW_NS - 40 * SECOND)
    assert runtime_estimate.lasts_yet_seconds(policy, unsaid, None, NOW_NS) == 1000.0
    old = verdict_of(first_wall_ns=NOW_NS - 5000 * SECOND)
    assert runtime_estimate.lasts_yet_seconds(policy, old, None, NOW_NS) == 5000.0, "as long again as it has lasted"
    doubted_ns = NOW_NS - 7000 * SECOND
    assert runtime_estimate.lasts_yet_seconds(policy, old, doubted_ns, NOW_NS) == 7000.0, "its node was slow before"
    assert runtime_estimate.slow_since_ns(old, NOW_NS) == old.first_wall_ns


def test_the_worst_verdict_of_a_gang_counts() -> None:
    mild, bad, worse = (verdict_of(verdict_id=str(s), slowdown=s) for s in (1.5, 3.0, 2.0))
    other = verdict_of(gang="k", slowdown=9.0)
    assert runtime_estimate.slowest([mild, bad, worse, other]) == {"j": bad, "k": other}
    as_bad = verdict_of(verdict_id="as bad", slowdown=3.0)
    assert runtime_estimate.slowest([bad, as_bad])["j"] is bad, "of equal verdicts the first"


# --- released slots --------------------------------------------------------------------------------------------------


def test_a_slower_gang_releases_its_slots_later() -> None:
    job = held(running("j", 100.0, time_limit_seconds=300.0), *slots(0, 1))
    state = State(policy=changed(LIMIT, expected_persistence_seconds=1e6), jobs={"j": job})
    assert runtime_estimate.job_releases(state, job, NOW_NS) == [(NOW_NS + 200 * SECOND, "j", slots(0, 1))]
    state.verdicts = {"v": verdict_of(), "w": verdict_of(verdict_id="w", gang="other", slowdown=9.0)}
    assert runtime_estimate.job_releases(state, job, NOW_NS) == [(NOW_NS + 400 * SECOND, "j", slots(0, 1))]


def test_a_moving_gang_releases_its_old_slots_first_and_its_reserved_ones_at_its_end() -> None:
    job = held(
        running("j", 100.0, time_limit_seconds=300.0, restartable=True, grace_seconds=20.0, restart_cost_seconds=7.0),
        *slots(0, 1)
    )  # fmt: skip
    job.state, job.stop_reason, job.stopping_ns = JobState.STOPPING, StopReason.MIGRATE, NOW_NS - 5 * SECOND
    job.claim = list(slots(1, 2))
    gone_ns = NOW_NS + 15 * SECOND
    kept, left = runtime_estimate.job_releases(State(policy=LIMIT, jobs={"j": job}), job, NOW_NS)
    assert left == (gone_ns, "j", slots(0)), "it keeps slot 1"
    assert kept == (gone_ns + (7 + 205) * SECOND, "j", slots(1, 2))


def test_reserved_slots_of_a_pending_job_count_from_its_possible_start() -> None:
    job = job_of("j", time_limit_seconds=300.0, restart_cost_seconds=7.0, attempt=1, claim=list(slots(3)))
    state = State(policy=LIMIT, jobs={"j": job})
    length = 307 * SECOND
    assert runtime_estimate.job_releases(state, job, NOW_NS) == [(NOW_NS + length, "j", slots(3))]
    job.not_before_ns = NOW_NS + 4 * SECOND
    assert runtime_estimate.job_releases(state, job, NOW_NS)[0].at_ns == NOW_NS + 4 * SECOND + length
    clear_ns = NOW_NS + 9 * SECOND
    assert runtime_estimate.job_releases(state, job, NOW_NS, clear_ns)[0].at_ns == clear_ns + length


# --- evaluation instants ---------------------------------------------------------------------------------------------


def test_evaluations_come_every_second_and_then_an_eighth_later_each_time() -> None:
    since_ns, now_ns = 7, 7
    ages = []
    for _ in range(90):
        after_ns = next_evaluation_ns(since_ns, now_ns)
        assert after_ns > now_ns
        assert next_evaluation_ns(since_ns, after_ns - 1) == after_ns, "the instants depend on the beginning only"
        now_ns = after_ns
        ages.append((now_ns - since_ns) / SECOND)
    assert ages[:9] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    for before, after in itertools.pairwise(ages[8:]):
        assert after / before == pytest.approx(9 / 8)


def test_a_future_duration_is_first_evaluated_a_second_after_its_begin() -> None:
    assert next_evaluation_ns(100 * SECOND, 40 * SECOND) == 101 * SECOND
