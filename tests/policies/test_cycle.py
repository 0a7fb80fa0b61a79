"""Scheduling cycle, case by case: states of a job, and the reasons for them."""

from __future__ import annotations

import pytest

from scheduler_feedback import cycle
from scheduler_feedback.core.actions import StartGang, StopGang
from scheduler_feedback.core.codec import decode_state, encode_state
from scheduler_feedback.core.events import (
    ActionFailed,
    AttemptEnded,
    AttemptRunning,
    AttemptUnknown,
    CancelRequested,
    FreezeSet,
    NodeCommand,
    NodeCommanded,
    NodeSeen,
    RankExit,
    RankFailed,
    Submitted,
    Tick,
)
from scheduler_feedback.core.job import Dependency, JobSpec, JobState, StopReason
from scheduler_feedback.core.state import Policy, State
from scheduler_feedback.policies.index.scheduling_index import drop_index
from tests.cluster.cycle_world import SECOND, START_NS, World


def test_time_never_goes_back() -> None:
    state = State()
    assert cycle.run(state, [], START_NS).now_ns == START_NS
    assert cycle.run(state, [], START_NS - SECOND).now_ns == START_NS
    assert state.now_ns == START_NS


def test_a_job_cancelled_without_a_controller_is_cancelled_and_not_failed() -> None:
    world = World({"n0": 2})
    job_id = world.submit(2)
    world.cycle()
    exits = (RankExit(0, 143), RankExit(1, 143))
    world.cycle(AttemptEnded(job_id, 1, exits, reason="gangwatch down", signalled=True, why="cancel"))
    assert (world.job_state(job_id), world.state.jobs[job_id].end_reason) == (JobState.CANCELLED, "gangwatch down")


def test_a_job_runs_and_completes() -> None:
    world = World({"n0": 2, "n1": 2})
    job_id = world.submit(3, time_limit_seconds=50.0)
    job = world.state.jobs[job_id]
    assert job.state is JobState.STARTING
    world.running()
    assert job.state is JobState.RUNNING
    assert [(rank.pid, rank.start_time) for rank in job.ranks] == [(1000, 77), (1001, 77), (1002, 77)]
    world.advance(60.0)
    assert (job.state, job.end_reason) == (JobState.COMPLETED, "all ranks exited with 0")
    assert [rank.exit_code for rank in job.ranks] == [0, 0, 0]
    assert world.entry_kinds(job_id) == ["submitted", "started", "running", "ended"]


def test_first_come_first_served() -> None:
    world = World({"n0": 2})
    jobs = [world.submit(2, time_limit_seconds=10.0) for _ in range(3)]
    for _ in range(3):
        world.running()
        world.advance(10.0)
    assert [world.started[job] for job in jobs] == [START_NS + n * 10 * SECOND for n in range(3)]


def test_a_submission_is_idempotent_and_a_malformed_one_fails_at_once() -> None:
    world = World({"n0": 2})
    spec = JobSpec("a", ("x",), 1)
    world.cycle(Submitted("j-1", spec))
    assert not world.cycle(Submitted("j-1", spec)).entries
    world.cycle(Submitted("j-2", JobSpec("b", (), 1)))
    assert world.state.jobs["j-2"].end_reason == "the command is empty"


def test_a_submitted_job_continues_the_count_of_attempts_of_an_earlier_controller() -> None:
    world = World({"n0": 2})
    world.cycle(Submitted("j-1", JobSpec("a", ("x",), 1), attempt=3))
    assert world.state.jobs["j-1"].state is JobState.STARTING
    assert world.state.jobs["j-1"].attempt == 4


def test_without_a_configured_start_timeout_a_start_has_a_minute() -> None:
    assert Policy().start_seconds == 60.0
    assert Policy(start_timeout_seconds=0.0).start_seconds == 0.0, "no limit"


def test_a_job_too_large_for_the_available_nodes_waits_with_a_reason_and_blocks_no_other() -> None:
    world = World({"n0": 2, "n1": 2})
    world.cycle(NodeSeen("n1", 2, present=False))
    large = world.submit(4)
    small = world.submit(2)
    assert world.job_state(large) is JobState.PENDING
    because = cycle.why_waits(world.state, world.state.jobs[large])
    assert "needs 4 slots" in because and "2 slots" in because and "n1" in because
    assert world.job_state(small) is JobState.STARTING
    explained = cycle.explain(world.state, large)
    assert explained is not None
    assert explained.expected_start_ns is None
    assert any("n1" in change for change in explained.what_would_change_it)
    world.running()
    world.advance(200.0)
    world.cycle(NodeSeen("n1", 2))
    assert world.job_state(large) is JobState.STARTING


# --- failures --------------------------------------------------------------------------------------------------------


def test_a_rank_that_fails_stops_its_gang_and_is_named() -> None:
    world = World({"n0": 4})
    job_id = world.submit(4, 1000.0)
    world.running()
    outcome = world.cycle(RankFailed(job_id, 1, 2, 1))
    (stop,) = outcome.actions
    assert isinstance(stop, StopGang)
    assert (stop.why, stop.reason, stop.attempt) == (StopReason.RANK_FAILED, "rank 2 exited with 1", 1)
    assert not world.cycle(RankFailed(job_id, 1, 3, 1)).actions, "it is already being stopped"
    world.end(job_id, 143, 143, 1, 143)
    assert world.state.jobs[job_id].end_reason == "rank 2 exited with 1"
    assert world.job_state(job_id) is JobState.FAILED


def test_a_failure_is_retried_as_often_as_the_job_allows() -> None:
    world = World({"n0": 1})
    job_id = world.submit(1, 5.0, 1, max_retries=2)
    for _ in range(5):
        world.running()
        world.advance(6.0)
    job = world.state.jobs[job_id]
    assert (job.state, job.attempt, job.retries, job.end_reason) == (JobState.FAILED, 3, 2, "rank 0 exited with 1")


@pytest.mark.parametrize(
    ("codes", "reason"),
    [
        ((0, 137), "rank 1 was killed by SIGKILL"),
        ((0, None), "the exit status of rank 1 is unknown"),
        ((75, 75), "rank 0 exited with 75"),
        ((0, 255), "rank 1 exited with 255"),
    ],
)
def test_the_reason_of_a_failure_is_a_sentence(codes: tuple[int | None, ...], reason: str) -> None:
    world = World({"n0": 2})
    job_id = world.submit(2, 1000.0)
    world.running()
    world.alive.clear()
    world.cycle(AttemptEnded(job_id, 1, tuple(RankExit(r, code) for r, code in enumerate(codes))))
    assert (world.job_state(job_id), world.state.jobs[job_id].end_reason) == (JobState.FAILED, reason)


def test_a_command_that_does_not_exist_is_not_tried_again() -> None:
    world = World({"n0": 1})
    job_id = world.submit(1, max_retries=5)
    world.alive.clear()
    world.cycle(AttemptEnded(job_id, 1, (), started=False, reason="rank 0 on n0: no such file: train"))
    job = world.state.jobs[job_id]
    assert (job.state, job.attempt) == (JobState.FAILED, 1)
    assert job.end_reason == "it could not be started: rank 0 on n0: no such file: train"


def test_a_start_past_its_timeout_fails() -> None:
    world = World({"n0": 1}, Policy(start_timeout_seconds=10.0))
    job_id = world.submit(1, 1000.0)
    world.now_ns += 9 * SECOND
    assert not world.cycle(Tick()).actions
    world.now_ns += SECOND
    (stop,) = world.cycle(Tick()).actions
    assert isinstance(stop, StopGang) and stop.why is StopReason.START_FAILED
    world.cycle(AttemptEnded(job_id, 1, (), started=False, reason="aborted"))
    assert world.state.jobs[job_id].end_reason == "not all of its ranks started within 10 s"


def test_a_lost_start_is_repeated_without_a_retry() -> None:
    world = World({"n0": 1})
    job_id = world.submit(1, 1000.0)
    world.alive.clear()
    outcome = world.cycle(AttemptUnknown(job_id, 1))
    assert [(a.attempt, type(a)) for a in outcome.actions] == [(2, StartGang)]
    assert world.state.jobs[job_id].retries == 0


@pytest.mark.parametrize(("restartable", "state"), [(True, JobState.STARTING), (False, JobState.FAILED)])
def test_a_lost_attempt_is_repeated_only_if_restartable(restartable: bool, state: JobState) -> None:
    world = World({"n0": 1})
    job_id = world.submit(1, 1000.0, restartable=restartable)
    world.running()
    world.alive.clear()
    world.cycle(AttemptUnknown(job_id, 1))
    assert world.job_state(job_id) is state


def test_a_refused_start_is_tried_again_after_a_pause() -> None:
    world = World({"n0": 1}, Policy(retry_backoff_seconds=5.0))
    job_id = world.submit(1, 10.0)
    job = world.state.jobs[job_id]
    world.alive.clear()
    assert not world.cycle(ActionFailed(job.action_id, job_id, "out of memory")).actions
    explained = cycle.explain(world.state, job_id)
    assert explained is not None and "out of memory" in explained.why
    assert job.expected_start_ns == world.now_ns + 5 * SECOND
    assert not world.cycle(ActionFailed("a-000001", job_id, "out of memory")).entries, "logged once"
    world.now_ns += 5 * SECOND
    (start,) = world.cycle(Tick()).actions
    assert isinstance(start, StartGang) and start.attempt == 2


def test_refused_starts_wait_for_their_pause_at_the_head_of_the_queue_and_behind_it() -> None:
    world = World({"n0": 4}, Policy(retry_backoff_seconds=5.0))
    world.submit(2, 1000.0, time_limit_seconds=1000.0)
    first = world.submit(1, 10.0, time_limit_seconds=10.0)
    head = world.submit(4, 10.0, time_limit_seconds=10.0)
    behind = world.submit(1, 10.0, time_limit_seconds=10.0)
    refused = [first, behind]
    for job_id in refused:
        del world.alive[job_id, 1]
    events = [ActionFailed(world.state.jobs[job_id].action_id, job_id, "out of memory") for job_id in refused]
    assert not world.cycle(*events).actions
    other = world.submit(1, 10.0, time_limit_seconds=10.0)
    assert [world.job_state(job_id) for job_id in (first, head, behind)] == [JobState.PENDING] * 3
    assert world.job_state(other) is JobState.STARTING, "it is short enough, and was not refused"
    world.now_ns += 5 * SECOND
    assert {action.job_id for action in world.cycle(Tick()).actions} == {first}
    assert world.job_state(behind) is JobState.PENDING, "the other has its slot"


def test_a_refused_stop_is_repeated() -> None:
    world = World({"n0": 1}, Policy(retry_backoff_seconds=5.0))
    job_id = world.submit(1, 1000.0)
    world.running()
    (stop,) = world.cycle(CancelRequested(job_id)).actions
    assert not world.cycle(ActionFailed(stop.action_id, job_id, "node does not answer")).actions
    world.now_ns += 5 * SECOND
    (again,) = world.cycle(Tick()).actions
    assert isinstance(again, StopGang) and again.attempt == 1 and again.action_id != stop.action_id


def test_a_stop_without_effect_is_repeated() -> None:
    world = World({"n0": 1}, Policy(start_timeout_seconds=10.0))
    job_id = world.submit(1, 1000.0, grace_seconds=5.0)
    world.running()
    world.cycle(CancelRequested(job_id))
    world.now_ns += 14 * SECOND
    assert not world.cycle(Tick()).actions
    world.now_ns += 1 * SECOND
    assert len(world.cycle(Tick()).actions) == 1


def test_reports_of_other_attempts_change_nothing() -> None:
    world = World({"n0": 1})
    job_id = world.submit(1, 1000.0, max_retries=1)
    world.running()
    world.end(job_id, 1)
    world.running()
    job = world.state.jobs[job_id]
    assert (job.attempt, job.state) == (2, JobState.RUNNING)
    for stale in (AttemptEnded(job_id, 1, (RankExit(0, 0),)), RankFailed(job_id, 1, 0, 1), AttemptUnknown(job_id, 1)):
        outcome = world.cycle(stale)
        assert not outcome.actions and not outcome.entries
    outcome = world.cycle(AttemptRunning(job_id, 7, ()))
    assert [entry.kind for entry in outcome.entries] == ["ignored"], "an attempt that was never started is logged"
    assert job.state is JobState.RUNNING
    assert not world.cycle(AttemptEnded("j-none", 1, ())).entries
    world.end(job_id, 0)
    ended = world.state.jobs[job_id].ended_ns
    world.now_ns += SECOND
    for again in (AttemptEnded(job_id, 2, (RankExit(0, 1),)), AttemptUnknown(job_id, 2), RankFailed(job_id, 2, 0, 1)):
        assert not world.cycle(again).entries
    assert (job.state, job.ended_ns) == (JobState.COMPLETED, ended)


# --- cancelling ------------------------------------------------------------------------------------------------------


def test_a_pending_job_is_cancelled_at_once_and_a_running_one_at_its_end() -> None:
    world = World({"n0": 1})
    running, waiting = world.submit(1, 1000.0), world.submit(1)
    world.running()
    assert not world.cycle(CancelRequested(waiting, "eve")).actions
    assert world.state.jobs[waiting].end_reason == "cancelled while pending by eve"
    (stop,) = world.cycle(CancelRequested(running)).actions
    assert isinstance(stop, StopGang) and stop.why is StopReason.CANCEL
    assert not world.cycle(CancelRequested(running)).entries
    world.end(running, 0)
    assert world.job_state(running) is JobState.CANCELLED, "exit codes after a cancel do not matter"


def test_a_rank_that_dies_of_the_cancel_is_no_failure() -> None:
    world = World({"n0": 2})
    job_id = world.submit(2, 1000.0, max_retries=3)
    world.running()
    world.cycle(CancelRequested(job_id))
    world.cycle(RankFailed(job_id, 1, 0, 143))
    world.end(job_id, 143)
    assert world.job_state(job_id) is JobState.CANCELLED


# --- freezing --------------------------------------------------------------------------------------------------------


def test_while_frozen_events_are_applied_and_nothing_starts() -> None:
    world = World({"n0": 2, "n1": 2})
    running = world.submit(2, 1000.0, max_retries=1)
    world.running()
    world.cycle(FreezeSet(True, "eve"))
    waiting = world.submit(1)
    assert cycle.why_waits(world.state, world.state.jobs[waiting]) == "all actions are frozen by eve"
    assert not world.cycle(RankFailed(running, 1, 0, 1)).actions
    explained = cycle.explain(world.state, running)
    assert explained is not None and "once actions are allowed again" in explained.why
    world.now_ns += 1000 * SECOND
    assert not world.cycle(Tick()).actions
    outcome = world.cycle(FreezeSet(False))
    assert {(type(a), a.job_id) for a in outcome.actions} == {(StopGang, running), (StartGang, waiting)}


def test_while_frozen_an_operator_can_still_cancel() -> None:
    world = World({"n0": 1})
    job_id = world.submit(1, 1000.0)
    world.running()
    world.cycle(FreezeSet(True))
    (stop,) = world.cycle(CancelRequested(job_id)).actions
    assert isinstance(stop, StopGang)


# --- nodes -----------------------------------------------------------------------------------------------------------


def test_a_node_in_maintenance_keeps_its_jobs_and_gets_no_new_ones() -> None:
    world = World({"n0": 1, "n1": 1})
    first = world.submit(1, 50.0)
    world.running()
    world.cycle(NodeCommanded("n0", NodeCommand.MAINTENANCE, "eve", "new fans"))
    assert world.job_state(first) is JobState.RUNNING
    assert not world.cycle(NodeCommanded("n0", NodeCommand.MAINTENANCE)).entries
    second, third = world.submit(1, 500.0), world.submit(1)
    assert world.nodes_of(second) == {"n1"}
    world.advance(60.0)
    assert world.job_state(third) is JobState.PENDING
    world.cycle(NodeCommanded("n0", NodeCommand.RELEASE))
    assert world.nodes_of(third) == {"n0"}


def test_node_changes_are_logged() -> None:
    world = World({"n0": 1})
    world.cycle(NodeSeen("n0", 1))
    world.cycle(NodeSeen("n0", 3))
    world.cycle(NodeSeen("n0", 3, present=False))
    world.cycle(NodeSeen("n0", 3, present=False))
    world.cycle(NodeSeen("n0", 3))
    world.cycle(NodeSeen("ghost", 1, present=False))
    assert world.entry_kinds("node:n0") == ["seen", "seen", "absent", "seen"]
    assert list(world.state.nodes) == ["n0"]


# --- explaining ------------------------------------------------------------------------------------------------------


def test_explain_names_what_the_head_waits_for_and_its_expected_start() -> None:
    world = World({"n0": 2, "n1": 2})
    first = world.submit(3, time_limit_seconds=100.0)
    head = world.submit(4, time_limit_seconds=10.0)
    small = world.submit(1, time_limit_seconds=500.0)
    world.running()
    explained = cycle.explain(world.state, head)
    assert explained is not None
    assert explained.expected_start_ns == START_NS + 100 * SECOND
    assert [(w.job_id, w.ranks, w.until_ns) for w in explained.waits_for] == [(first, 3, START_NS + 100 * SECOND)]
    assert len(explained.reservation) == 4
    assert "first in the queue" in explained.why
    assert {blocker.node for blocker in explained.blockers} == {"n0"}
    behind = cycle.explain(world.state, small)
    assert behind is not None
    assert behind.expected_start_ns == START_NS + 110 * SECOND, "after the head, if nothing is backfilled"
    assert "would delay" in behind.why
    assert any("time limit of at most 100 s" in change for change in behind.what_would_change_it)
    assert cycle.explain(world.state, "j-none") is None


def test_the_expected_start_of_explain_is_met() -> None:
    world = World({"n0": 2, "n1": 2})
    for ranks in (3, 4, 2, 3, 1):
        world.submit(ranks, time_limit_seconds=40.0)
    world.running()
    promised = {}
    for job_id in world.state.jobs:
        explained = cycle.explain(world.state, job_id)
        assert explained is not None
        promised[job_id] = explained.expected_start_ns
    world.advance(400.0)
    for job_id, at_ns in promised.items():
        assert at_ns is None or world.started[job_id] <= at_ns


def test_ended_jobs_are_dropped_beyond_a_bound_and_active_ones_never() -> None:
    world = World({"n0": 1}, Policy(ended_jobs_kept=10))
    for _ in range(30):
        world.submit(1, time_limit_seconds=1.0)
    world.running()
    world.advance(20.0)
    assert sum(not job.state.ended for job in world.state.jobs.values()) == 10
    world.advance(40.0)
    assert 10 <= len(world.state.jobs) <= 11
    assert "j-000030" in world.state.jobs


def test_a_cancelled_head_loses_its_reservation() -> None:
    world = World({"n0": 4})
    world.submit(3, 1000.0, time_limit_seconds=1000.0)
    head = world.submit(4, 1000.0, time_limit_seconds=1000.0)
    waiting = world.submit(1, 5000.0, time_limit_seconds=5000.0)
    assert world.state.reserved_for == head and world.job_state(waiting) is JobState.PENDING
    world.cycle(CancelRequested(head))
    assert world.state.reserved_for is None
    assert world.job_state(waiting) is JobState.STARTING


def test_an_ended_job_is_kept_while_another_depends_on_it() -> None:
    world = World({"n0": 1}, Policy(ended_jobs_kept=2))
    first = world.submit(1, 10.0)
    world.running()
    world.advance(10.0)
    busy = world.submit(1, 1000.0, time_limit_seconds=1000.0)
    dependent = world.submit(1, 10.0, after=(Dependency(first),))
    for _ in range(5):
        world.cycle(CancelRequested(world.submit(1)))
    assert first in world.state.jobs and len(world.state.jobs) == 5
    drop_index(world.state)  # as after a restart
    world.cycle()
    assert world.job_state(dependent) is JobState.PENDING, "it may start, and is not cancelled"
    world.end(busy, 0)
    assert world.job_state(dependent) is JobState.STARTING


def test_a_pause_that_ended_during_a_restart_is_noticed_by_the_next_cycle() -> None:
    world = World({"n0": 1})
    job_id = world.submit(1)
    world.alive.clear()
    world.cycle(ActionFailed(world.state.jobs[job_id].action_id, job_id, "no more processes"))
    world.cycle()
    assert world.state.idle and world.job_state(job_id) is JobState.PENDING
    world.state = decode_state(encode_state(world.state))
    world.now_ns += 60 * SECOND
    world.cycle(Tick())
    assert world.job_state(job_id) is JobState.STARTING
