"""Restart with another build whose decisions differ from those in the journal: the state follows the journal."""

from __future__ import annotations

import logging

import pytest

from scheduler_feedback.core.actions import Action, StartGang, StopGang
from scheduler_feedback.core.codec import encode_action
from scheduler_feedback.core.events import CancelRequested, Event, NodeSeen, Submitted, Tick
from scheduler_feedback.core.job import Job, JobSpec, JobState, RankRecord, Slot, StopReason
from scheduler_feedback.core.state import State
from scheduler_feedback.cycle import run
from scheduler_feedback.journal.recovery import follow, run_again
from scheduler_feedback.journal.store import JournalRow

SPEC = JobSpec("train", ("train",), 2)
N0, N1 = (Slot("n0", 0), Slot("n0", 1)), (Slot("n1", 0), Slot("n1", 1))
NOW_NS = 10**18


def start(number: int, job: str = "j-000001", attempt: int = 1, placement: tuple[Slot, ...] = N0) -> StartGang:
    return StartGang(f"a-{number}", job, attempt, SPEC, placement, "fits")


def stop(number: int, job: str = "j-000001", attempt: int = 1, why: StopReason = StopReason.MIGRATE) -> StopGang:
    return StopGang(f"a-{number}", job, attempt, "SIGTERM", 3.0, why, "asked")


def row(cycle: int, events: tuple[Event, ...], *actions: Action) -> JournalRow:
    return JournalRow(cycle, NOW_NS + cycle, events, tuple(map(encode_action, actions)))


def cluster() -> State:
    """Return a cluster of two nodes with two slots each, after cycle 1."""
    state = State()
    run(state, [NodeSeen("n0", 2), NodeSeen("n1", 2)], NOW_NS + 1)
    return state


def holding(job_id: str = "j-000001", state: JobState = JobState.RUNNING) -> State:
    """Return a state with a job on n0."""
    found = State()
    ranks = [RankRecord(rank, slot) for rank, slot in enumerate(N0)]
    found.jobs[job_id] = Job(job_id, SPEC, state, NOW_NS, attempt=1, ranks=ranks, attempt_started_ns=NOW_NS)
    return found


def slots_of(state: State, job_id: str = "j-000001") -> tuple[Slot, ...]:
    return tuple(rank.slot for rank in state.jobs[job_id].ranks)


def test_a_start_on_other_slots_follows_the_record(caplog: pytest.LogCaptureFixture) -> None:
    state = cluster()
    _, same = run_again(state, row(2, (Submitted("j-000001", SPEC),), start(7, placement=N1)))
    assert not same
    job = state.jobs["j-000001"]
    assert (job.state, job.attempt, slots_of(state), job.action_id) == (JobState.STARTING, 1, N1, "a-7")
    assert (job.started_ns, job.attempt_started_ns) == (NOW_NS + 2, NOW_NS + 2)
    assert "recorded StartGang a-7 of j-000001" in caplog.text
    # Its slots are held from now on, and its action number is never used again.
    outcome = run(state, [Submitted("j-000002", SPEC), Submitted("j-000003", SPEC)], NOW_NS + 3)
    (action,) = outcome.actions
    assert isinstance(action, StartGang)
    assert (action.placement, action.action_id) == (N0, "a-000008")


def test_a_start_missing_in_the_record_leaves_the_job_pending() -> None:
    state = cluster()
    _, same = run_again(state, row(2, (Submitted("j-000001", SPEC),)))
    assert not same
    job = state.jobs["j-000001"]
    assert (job.state, job.attempt, job.ranks, job.attempt_started_ns) == (JobState.PENDING, 0, [], None)
    (action,) = run(state, [Tick()], NOW_NS + 3).actions
    assert isinstance(action, StartGang) and action.attempt == 1, "it is started once"


def test_a_stop_missing_in_the_record_leaves_the_job_running() -> None:
    state = cluster()
    run(state, [Submitted("j-000001", SPEC)], NOW_NS + 2)
    state.jobs["j-000001"].state = JobState.RUNNING
    _, same = run_again(state, row(3, (CancelRequested("j-000001"),)))
    job = state.jobs["j-000001"]
    assert not same
    assert (job.state, job.stop_reason, job.stopping_ns, job.attempt) == (JobState.RUNNING, None, None, 1)
    assert len(job.ranks) == 2, "it holds its slots"


def test_a_recorded_stop_is_in_progress() -> None:
    state = holding()
    follow(state, [stop(4)], [], NOW_NS + 5)
    job = state.jobs["j-000001"]
    assert (job.state, job.stop_reason, job.stopping_ns) == (JobState.STOPPING, StopReason.MIGRATE, NOW_NS + 5)
    assert (job.action_id, slots_of(state)) == ("a-4", N0), "it holds its slots until it has ended"


def test_actions_of_one_cycle_are_undone_in_reverse_order() -> None:
    """In their original order, undoing a start and a stop would leave the job running without slots."""
    state = State(jobs={"j-000001": Job("j-000001", SPEC, JobState.STOPPING, NOW_NS, attempt=1)})
    follow(state, [], [start(1), stop(2)], NOW_NS + 5)
    job = state.jobs["j-000001"]
    assert (job.state, job.attempt, job.action_id) == (JobState.PENDING, 0, "")


def test_a_job_with_equal_decisions_is_unchanged() -> None:
    state = holding()
    before = repr(state.jobs["j-000001"])
    follow(state, [stop(4), start(5, "j-000009", 1, N1)], [stop(4)], NOW_NS + 5)
    assert repr(state.jobs["j-000001"]) == before
    assert slots_of(state, "j-000009") == N1, "a job that only the record has is added"


def test_a_stop_of_an_unknown_job_is_ignored() -> None:
    state = State()
    follow(state, [stop(4, "j-000009")], [], NOW_NS)
    assert state.jobs == {}


def test_a_new_attempt_keeps_nothing_of_the_one_before() -> None:
    state = holding(state=JobState.STOPPING)
    job = state.jobs["j-000001"]
    job.stop_reason, job.first_step_ns, job.ended_ns = StopReason.MIGRATE, 5, 6
    job.claim, job.started_ns = list(N1), NOW_NS - 9
    follow(state, [start(5, attempt=2, placement=N1)], [], NOW_NS + 5)
    assert (job.state, job.attempt, slots_of(state), job.claim) == (JobState.STARTING, 2, N1, [])
    assert (job.stop_reason, job.first_step_ns, job.ended_ns) == (None, None, None)
    assert (job.started_ns, job.attempt_started_ns) == (NOW_NS - 9, NOW_NS + 5), "started_ns is of the first attempt"


def test_a_reworded_reason_is_the_same_decision(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    recorded = cluster()
    (action,) = run(recorded, [Submitted("j-000001", SPEC)], NOW_NS + 2).actions
    assert isinstance(action, StartGang)
    worded = StartGang(action.action_id, action.job_id, action.attempt, action.spec, action.placement, "in other words")
    state = cluster()
    assert run_again(state, row(2, (Submitted("j-000001", SPEC),), worded))[1]
    assert caplog.text == ""
    moved = StartGang(action.action_id, action.job_id, action.attempt, action.spec, N1, action.reason)
    assert not run_again(cluster(), row(2, (Submitted("j-000001", SPEC),), moved))[1]


def test_one_action_more_or_less_is_another_decision() -> None:
    (action,) = run(cluster(), [Submitted("j-000001", SPEC)], NOW_NS + 2).actions
    submitted = (Submitted("j-000001", SPEC),)
    assert not run_again(cluster(), row(2, submitted))[1]
    assert not run_again(cluster(), row(2, submitted, action, start(9, "j-000009", 1, N1)))[1]
    assert run_again(cluster(), row(2, submitted, action))[1]


def test_cycles_without_a_change_count_although_not_journalled() -> None:
    state = cluster()
    run_again(state, row(9, (Tick(),)))
    assert state.cycle == 9


def test_action_numbers_increase_whatever_the_record_says() -> None:
    state = cluster()
    state.action_count = 40
    run_again(state, row(2, (Submitted("j-000001", SPEC),), start(7, placement=N1)))
    assert state.action_count == 40, "an older number does not lower it"
    state = cluster()
    run_again(state, row(2, (Submitted("j-000001", SPEC),), start(41, placement=N1)))
    assert state.action_count == 41
