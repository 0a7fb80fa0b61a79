"""Checkpoint command of a job: it runs on the node of rank 0 before a stop. When it runs, and what it does."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from scheduler_feedback import cycle
from scheduler_feedback.backends.local import attempt_files
from scheduler_feedback.core.actions import StopGang
from scheduler_feedback.core.codec import decode_event, encode_event
from scheduler_feedback.core.events import (
    AttemptEnded,
    AttemptRunning,
    Checkpointed,
    NodeSeen,
    RankExit,
    Submitted,
)
from scheduler_feedback.core.job import JobSpec, StopReason
from scheduler_feedback.core.state import Policy, State
from scheduler_feedback.policies.index.scheduling_index import index_of
from scheduler_feedback.policies.intake.job_admission import admit_check
from scheduler_feedback.policies.remediation.move_cost import save_seconds, unsaved_seconds
from tests.backends.local_gangs import LocalGangs, python

BEGIN_NS = 1_700_000_000 * 10**9

# A rank that records the order of events: whether the save exists when the stop signal arrives.
RANK = python(
    "import os, signal, sys, time\n"
    "def save(*_):\n"
    "    print('saved before' if os.path.exists('model') else 'not saved', flush=True); sys.exit(0)\n"
    "signal.signal(signal.SIGTERM, save)\n"
    "print('ready', flush=True)\n"
    "time.sleep(300)"
)


@pytest.fixture
def gangs(tmp_path: Path) -> Iterator[LocalGangs]:
    made = LocalGangs(tmp_path / "state")
    yield made
    made.close()


def running(gangs: LocalGangs, folder: Path, ranks: int = 3) -> None:
    """Start a gang on both nodes, with its own folder."""
    folder.mkdir()
    gangs.start(RANK, ranks, working_directory=str(folder), environment={"GIVEN": "by its user"})
    gangs.wait_for(AttemptRunning)
    for rank in range(ranks):
        gangs.wait_for_log(rank, "ready")


def stop(gangs: LocalGangs, *command: str, seconds: float = 60.0) -> AttemptEnded:
    gangs.backend.apply(
        StopGang(
            *("a-stop", "j-1", 1, "SIGTERM", 20.0, StopReason.MIGRATE),
            checkpoint_command=command,
            checkpoint_timeout_seconds=seconds,
        )
    )
    return gangs.wait_for(AttemptEnded)


def log_of_command(gangs: LocalGangs) -> str:
    return Path(attempt_files.checkpoint_log(str(gangs.state_folder), "j-1", 1)).read_text()


def test_ranks_are_stopped_after_the_checkpoint_command(gangs: LocalGangs, tmp_path: Path) -> None:
    running(gangs, tmp_path / "job")
    save = "open('model', 'w').write(' '.join(os.environ[name] for name in ('RANK', 'WORLD_SIZE', 'GIVEN')))"
    ended = stop(gangs, sys.executable, "-c", f"import os, time; time.sleep(0.5); {save}; print('a word')")
    assert (tmp_path / "job" / "model").read_text() == "0 3 by its user"
    assert [gangs.log(rank) for rank in range(3)] == ["ready\nsaved before\n"] * 3
    assert ended.checkpointed is not None and ended.checkpointed.exit_code == 0
    assert ended.checkpointed.seconds >= 0.5 and not ended.checkpointed.reason
    assert ended.signalled and ended.why == "migrate"
    assert log_of_command(gangs) == "a word\n"
    gangs.assert_nothing_left()


def test_no_shell_sees_the_command(gangs: LocalGangs, tmp_path: Path) -> None:
    running(gangs, tmp_path / "job", 1)
    stop(gangs, "echo", "$HOME; touch x", "a b")
    assert log_of_command(gangs) == "$HOME; touch x a b\n"
    assert not (tmp_path / "job" / "x").exists()


def test_a_failed_command_is_logged_and_the_stop_continues(gangs: LocalGangs, tmp_path: Path) -> None:
    running(gangs, tmp_path / "job")
    ended = stop(gangs, *python("raise SystemExit(3)"))
    assert ended.checkpointed is not None and ended.checkpointed.exit_code == 3
    assert [gangs.log(rank) for rank in range(3)] == ["ready\nnot saved\n"] * 3
    gangs.assert_nothing_left()


def test_a_command_past_its_timeout_is_killed_with_its_children(gangs: LocalGangs, tmp_path: Path) -> None:
    running(gangs, tmp_path / "job")
    ended = stop(gangs, "sh", "-c", "sleep 300 & sleep 300", seconds=0.5)
    assert ended.checkpointed is not None and ended.checkpointed.exit_code is None
    assert ended.checkpointed.reason == "it did not end within 0.5 s"
    assert [exit_.exit_code for exit_ in ended.exits] == [0, 0, 0]
    gangs.assert_nothing_left()


def test_a_missing_program_saves_nothing_and_is_logged(gangs: LocalGangs, tmp_path: Path) -> None:
    running(gangs, tmp_path / "job", 1)
    ended = stop(gangs, "no-such-program")
    assert ended.checkpointed is not None and ended.checkpointed.exit_code is None
    assert "the program of the checkpoint command is not on the job's PATH" in ended.checkpointed.reason
    gangs.assert_nothing_left()


def test_a_program_that_does_not_exist_keeps_the_gang_from_starting(gangs: LocalGangs) -> None:
    gangs.start(RANK, 3, checkpoint_command=("no-such-program",), restartable=True)
    ended = gangs.wait_for(AttemptEnded)
    assert not ended.started and "the program of the checkpoint command is not on the job's PATH" in ended.reason


def test_a_job_ended_by_its_command_counts_as_saved(gangs: LocalGangs, tmp_path: Path) -> None:
    running(gangs, tmp_path / "job", 2)
    pids = [json.loads(path.read_text())["pid"] for path in gangs.rank_files()]
    ended = stop(
        gangs, *python(f"import os, time; [os.kill(pid, 15) for pid in {pids}]; time.sleep(0.5); raise SystemExit(7)")
    )
    assert ended.checkpointed is not None and ended.checkpointed.exit_code == 7
    assert ended.signalled and [exit_.exit_code for exit_ in ended.exits] == [0, 0]
    gangs.assert_nothing_left()


# --- when it is requested --------------------------------------------------------------------------------------------

SPEC = JobSpec("x", ("train",), 1, restartable=True, checkpoint_command=("save", "--now"))


def cluster(spec: JobSpec, **policy: object) -> State:
    """Return a cluster of one node with one slot, on which the job runs."""
    state = State(policy=Policy(**policy))  # type: ignore[arg-type]
    cycle.run(state, [NodeSeen("n0", 1)], BEGIN_NS)
    cycle.run(state, [Submitted("a", spec)], BEGIN_NS + 10**9)
    cycle.run(state, [AttemptRunning("a", 1, ())], BEGIN_NS + 2 * 10**9)
    return state


def stop_for(state: State, why: StopReason) -> tuple[StopGang, str]:
    """Stop the job for this reason. Return the action and the text of the log entry."""
    index_of(state).stop(state.jobs["a"], why)
    outcome = cycle.run(state, [], BEGIN_NS + 3 * 10**9)
    (action,) = outcome.actions
    assert isinstance(action, StopGang)
    return action, next(entry.text for entry in outcome.entries if entry.kind == "stopping")


@pytest.mark.parametrize("why", list(StopReason))
def test_only_jobs_that_resume_are_saved(why: StopReason) -> None:
    action, text = stop_for(cluster(SPEC), why)
    saves = why in (StopReason.MIGRATE, StopReason.PREEMPT, StopReason.RESIZE)
    assert action.checkpoint_command == (("save", "--now") if saves else ())
    assert action.checkpoint_timeout_seconds == (60.0 if saves else 0.0)
    assert ("save within 60 s, then SIGTERM" in text) is saves


def test_a_stop_is_repeated_only_after_command_and_grace() -> None:
    state = cluster(replace(SPEC, checkpoint_timeout_seconds=100.0, grace_seconds=30.0), start_timeout_seconds=60.0)
    stop_for(state, StopReason.MIGRATE)
    assert state.jobs["a"].not_before_ns == BEGIN_NS + (3 + 100 + 30 + 60) * 10**9


@pytest.mark.parametrize(
    ("done", "words"),
    [
        (Checkpointed(0, 2.5), "exited with 0 after 2.5 s"),
        (Checkpointed(1, 2.5), "exited with 1 after 2.5 s"),
        (Checkpointed(None, 60.0, "it did not end within 60 s"), "saved nothing: it did not end within 60 s"),
    ],
)
def test_the_result_is_in_the_journal_and_in_the_story(done: Checkpointed, words: str) -> None:
    state = cluster(SPEC)
    stop_for(state, StopReason.PREEMPT)
    ended = AttemptEnded("a", 1, (RankExit(0, 0),), signalled=True, checkpointed=done)
    assert decode_event(encode_event(ended)) == ended
    saved = [entry for entry in cycle.run(state, [ended], BEGIN_NS + 9 * 10**9).entries if entry.kind == "checkpoint"]
    assert len(saved) == 1 and words in saved[0].text


def test_a_save_on_request_loses_no_work_and_may_take_command_and_grace() -> None:
    state = cluster(replace(SPEC, checkpoint_interval_seconds=600.0, grace_seconds=30.0))
    job = state.jobs["a"]
    assert unsaved_seconds(job, BEGIN_NS + 500 * 10**9) == 0.0
    assert save_seconds(job) == 90.0
    job.spec = replace(job.spec, checkpoint_command=())
    assert unsaved_seconds(job, BEGIN_NS + 500 * 10**9) == 499.0
    assert save_seconds(job) == 30.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"checkpoint_command": ("",)}, "the checkpoint command is empty"),
        ({"checkpoint_command": ("save", "\0")}, "argument 1 of the checkpoint command contains a NUL"),
        ({"checkpoint_timeout_seconds": 0.0}, "the checkpoint timeout is 0 s"),
        ({"restartable": False}, "a checkpoint command needs restartable"),
    ],
)
def test_an_invalid_command_is_refused(changes: dict[str, object], words: str) -> None:
    assert words in (admit_check(cluster(SPEC), replace(SPEC, **changes)) or "")  # type: ignore[arg-type]
