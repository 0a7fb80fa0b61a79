"""Attempt that the controller follows by the files in its folder, with idle processes instead of shims."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler_feedback.backends.local import attempt_files, checkpoint_command, local_processes, rank_launch
from scheduler_feedback.backends.local.local_attempt import FollowedAttempt
from scheduler_feedback.core.events import (
    AttemptEnded,
    AttemptRunning,
    AttemptUnknown,
    Checkpointed,
    RankExit,
    RankFailed,
    RankSeen,
)

TIMEOUT = 5.0


@pytest.fixture
def stand_in() -> Iterator[subprocess.Popen[bytes]]:
    """Start a process in place of a shim. It ignores the signals by which a shim is woken up."""
    process = subprocess.Popen(["sh", "-c", "trap '' USR1; exec sleep 100"])
    yield process
    process.kill()
    process.wait()


class Folder:
    """Folder of attempt 2 of a gang of three (rank 0 on node b, ranks 1 and 2 on a), and its FollowedAttempt."""

    def __init__(self, state: Path, shim: subprocess.Popen[bytes], **plan: Any) -> None:
        self.state, self.shim = state, shim
        self.path = state / "jobs" / "j-7" / "2"
        self.path.mkdir(parents=True)
        self.plan: dict[str, Any] = {
            "job_id": "j-7",
            "attempt": 2,
            "spec": {"environment": {}, "checkpoint_signal": "SIGUSR2", "grace_seconds": 7.0},
            "placement": [{"node": "b", "slot": 4}, {"node": "a", "slot": 1}, {"node": "a", "slot": 0}],
            "nodes": {name: {"devices": (), "socket": f"/{state}/{name}"} for name in ("a", "b")},
            "state_folder": str(state),
        } | plan
        attempt_files.write(f"{self.path}/{attempt_files.ATTEMPT}", self.plan)
        self.started: list[str] = []
        self.followed = self.follow()

    def follow(self) -> FollowedAttempt:
        return FollowedAttempt(self.path, "j-7", 2, 100.0, lambda _, node: self.started.append(node))

    def poll(self, now: float = 100.0) -> list[Any]:
        return list(self.followed.poll(now, TIMEOUT))

    def decision(self) -> tuple[str, str] | None:
        return attempt_files.decision(str(self.path))

    def put(self, name: str, value: dict[str, Any]) -> None:
        attempt_files.write(f"{self.path}/{name}", value)

    def shim_comes(self, node: str, *, dead: bool = False, boot_id: str | None = None) -> None:
        (self.path / node).mkdir()
        pid = self.shim.pid
        start_time = local_processes.start_time(pid) or 0
        about = {
            "pid": pid,
            "start_time": start_time + dead,
            "boot_id": boot_id or local_processes.boot_id(),
            "cgroup": None,
        }
        self.put(f"{node}/{attempt_files.SHIM}", about)

    def ready(self, *nodes: str) -> None:
        for node in nodes:
            self.shim_comes(node)
            self.put(f"{node}/{attempt_files.READY}", {})

    def go(self) -> None:
        self.ready("a", "b")
        assert self.poll() == []
        assert self.decision() == (attempt_files.GO, "")

    def rank_starts(self, rank: int) -> None:
        node = self.plan["placement"][rank]["node"]
        self.put(
            f"{node}/{attempt_files.start_record(rank)}", {"rank": rank, "pid": 1000 + rank, "start_time": 70 + rank}
        )

    def rank_exits(self, rank: int, code: int | None) -> None:
        node = self.plan["placement"][rank]["node"]
        self.put(f"{node}/{attempt_files.exit_record(rank)}", {"rank": rank, "exit_code": code, "wall_ns": 5})

    def node_ends(self, node: str, wall_ns: int = 50, **fields: Any) -> None:
        usual = {"wall_ns": wall_ns, "started": True, "signalled": False, "reason": ""}
        self.put(f"{node}/{attempt_files.ENDED}", usual | fields)

    def request(self) -> dict[str, Any] | None:
        return attempt_files.read(f"{self.path}/{attempt_files.STOP}")


@pytest.fixture
def folder(tmp_path: Path, stand_in: subprocess.Popen[bytes]) -> Folder:
    return Folder(tmp_path, stand_in)


# --- before the start ------------------------------------------------------------------------------------------------


def test_it_starts_once_every_node_is_ready_and_not_before(folder: Folder) -> None:
    assert folder.poll() == [] and folder.started == ["b", "a"], "in the order of their lowest ranks"
    folder.ready("b")
    folder.poll()
    assert folder.started == ["b", "a"], "each is started once"
    folder.shim_comes("a")
    folder.poll(100.0 + TIMEOUT)
    assert folder.decision() is None, "one shim has not responded, and its timeout has not passed"
    folder.put(f"a/{attempt_files.READY}", {})
    folder.poll(100.0 + TIMEOUT)
    assert folder.decision() == (attempt_files.GO, "")


def test_no_second_shim_is_started_on_a_node(folder: Folder) -> None:
    folder.shim_comes("b")
    folder.poll()
    assert folder.started == ["a"]


def test_a_node_that_times_out_aborts_the_start_and_is_named(folder: Folder) -> None:
    folder.ready("b")
    (ended,) = folder.poll(100.1 + TIMEOUT)
    assert ended == AttemptEnded("j-7", 2, (), False, "no response within 5 s from node a", ended.ended_wall_ns)
    assert abs(ended.ended_wall_ns - (folder.path / attempt_files.DECISION).stat().st_mtime_ns) < 1
    assert folder.followed.done and folder.poll() == []


def test_a_refusing_node_aborts_the_start_with_its_ranks_and_reason(folder: Folder) -> None:
    folder.ready("b")
    folder.shim_comes("a")
    folder.put(f"a/{attempt_files.REFUSED}", {"reason": "no such program"})
    (ended,) = folder.poll()
    assert (ended.started, ended.reason) == (False, "node a cannot start rank 1, 2: no such program")
    assert folder.decision() == (attempt_files.ABORT, ended.reason)


def test_a_shim_that_died_before_the_start_is_quoted(folder: Folder) -> None:
    folder.shim_comes("b", dead=True)
    Path(attempt_files.shim_log(str(folder.path), "b")).write_text("first\n\nout of memory \n\n")
    (ended,) = folder.poll()
    assert ended.reason == "the shim of node b died before the start: out of memory"


def test_an_attempt_without_a_plan_is_unknown_and_never_starts(folder: Folder) -> None:
    (folder.path / attempt_files.ATTEMPT).unlink()
    folder.followed = folder.follow()
    assert folder.poll() == [AttemptUnknown("j-7", 2)]
    assert folder.decision() == (attempt_files.ABORT, "the start was never carried out")
    assert folder.started == []


def test_an_earlier_decision_is_kept(folder: Folder) -> None:
    attempt_files.decide(str(folder.path), attempt_files.ABORT, "another thought so")
    folder.ready("a", "b")
    (ended,) = folder.poll()
    assert ended.reason == "another thought so"


# --- while it runs ---------------------------------------------------------------------------------------------------


def test_running_is_reported_once_when_every_rank_has_started(folder: Folder) -> None:
    folder.go()
    folder.rank_starts(0)
    folder.rank_starts(1)
    assert folder.poll() == []
    folder.rank_starts(2)
    assert folder.poll() == [
        AttemptRunning("j-7", 2, (
            RankSeen(0, "b", 4, 1000, 70), RankSeen(1, "a", 1, 1001, 71), RankSeen(2, "a", 0, 1002, 72),
        ))
    ]  # fmt: skip
    assert folder.poll() == []
    folder.followed = folder.follow()
    assert [type(event) for event in folder.poll()] == [AttemptRunning], "reported again by the next controller"


def test_a_failed_rank_is_reported_once_and_other_stops_are_not(folder: Folder) -> None:
    folder.go()
    request = {"signal": "SIGTERM", "grace_seconds": 1.0, "reason": "x", "rank": 1, "exit_code": 9}
    folder.put(attempt_files.STOP, request | {"why": "migrate"})
    assert folder.poll() == []
    folder.put(attempt_files.STOP, request | {"why": "rank-failed"})
    assert folder.poll() == [RankFailed("j-7", 2, 1, 9)]
    assert folder.poll() == []


def test_the_end_is_reported_with_all_details_when_every_node_has_ended(folder: Folder) -> None:
    folder.go()
    for rank in range(3):
        folder.rank_starts(rank)
    folder.put(
        attempt_files.STOP,
        {"signal": "SIGTERM", "grace_seconds": 1.0, "why": "migrate", "reason": "away from b",
         "checkpoint": {"command": ["save"], "timeout_seconds": 3.0}},
    )  # fmt: skip
    folder.put(attempt_files.SAVED, {"exit_code": 0, "seconds": 1.5, "reason": ""})
    folder.rank_exits(0, 0)
    folder.rank_exits(2, 137)
    folder.node_ends("b", 80)
    assert [type(event) for event in folder.poll()] == [AttemptRunning]
    folder.node_ends("a", 60, signalled=True)
    (ended,) = folder.poll()
    assert ended == AttemptEnded(
        "j-7", 2, (RankExit(0, 0), RankExit(1, None), RankExit(2, 137)), True, "away from b", 80, why="migrate",
        signalled=True, checkpointed=Checkpointed(0, 1.5, ""),
    )  # fmt: skip
    assert folder.followed.done and folder.poll() == []


def test_a_gang_that_ran_and_ended_between_two_polls_is_reported_as_both(folder: Folder) -> None:
    folder.go()
    for rank in range(3):
        folder.rank_starts(rank)
        folder.rank_exits(rank, 0)
    folder.node_ends("a")
    folder.node_ends("b", started=False, reason="disk full")
    running, ended = folder.poll()
    assert isinstance(running, AttemptRunning) and isinstance(ended, AttemptEnded)
    assert (ended.started, ended.reason, ended.why, ended.signalled) == (False, "disk full", "", False)
    assert ended.checkpointed is None


def test_a_save_without_a_record_is_reported_as_failed(folder: Folder) -> None:
    folder.go()
    folder.put(
        attempt_files.STOP,
        {"why": "preempt", "reason": "", "checkpoint": {}, "signal": "SIGTERM", "grace_seconds": 1.0},
    )
    folder.node_ends("a")
    folder.node_ends("b")
    (ended,) = folder.poll()
    assert (ended.reason, ended.checkpointed.exit_code) == ("preempt", None)
    assert "before the command ran" in ended.checkpointed.reason


# --- stopping --------------------------------------------------------------------------------------------------------


def test_a_stop_before_the_decision_is_the_decision(folder: Folder) -> None:
    folder.followed.stop("SIGTERM", 3.0, "cancel", "by eve")
    assert folder.decision() == (attempt_files.ABORT, "by eve") and folder.request() is None
    (ended,) = folder.poll()
    assert (ended.started, ended.reason) == (False, "by eve")


def test_the_first_stop_request_stops_a_running_gang(folder: Folder) -> None:
    folder.go()
    folder.followed.stop("SIGUSR1", 3.0, "migrate", "away", {"command": ["save"], "timeout_seconds": 2.0})
    wanted = {
        "signal": "SIGUSR1", "grace_seconds": 3.0, "why": "migrate", "reason": "away",
        "checkpoint": {"command": ["save"], "timeout_seconds": 2.0},
    }  # fmt: skip
    assert folder.request() == wanted
    folder.followed.stop("SIGTERM", 9.0, "cancel", "by eve")
    folder.follow().stop("SIGTERM", 9.0, "cancel", "by eve")
    assert folder.request() == wanted


def test_a_gang_that_has_ended_on_one_node_is_stopped_on_the_others(folder: Folder) -> None:
    folder.go()
    folder.node_ends("a")
    folder.followed.stop("SIGTERM", 3.0, "cancel", "by eve")
    assert folder.request() is not None


def test_an_attempt_that_has_ended_on_every_node_is_not_stopped(folder: Folder) -> None:
    folder.go()
    folder.node_ends("a")
    folder.node_ends("b")
    folder.followed.stop("SIGTERM", 3.0, "cancel", "by eve")
    assert folder.request() is None


# --- after a shim's death --------------------------------------------------------------------------------------------


def test_a_dead_shims_node_is_recorded_and_the_others_are_stopped(folder: Folder) -> None:
    folder.go()
    for rank in range(3):
        folder.rank_starts(rank)
    folder.rank_exits(2, 3)
    rank_file = Path(attempt_files.rank_file(str(folder.state), "a", "j-7", 2, 1))
    rank_file.parent.mkdir(parents=True)
    attempt_files.write(str(rank_file), {"pid": folder.shim.pid, "start_time": 1})  # of another process by now
    Path(attempt_files.shim_log(str(folder.path), "a")).write_text("killed\n")
    about = attempt_files.read(f"{folder.path}/a/{attempt_files.SHIM}")
    assert about is not None
    folder.put(f"a/{attempt_files.SHIM}", about | {"start_time": about["start_time"] + 1})
    folder.followed = folder.follow()
    events = folder.poll()
    assert [type(event) for event in events] == [AttemptRunning]
    request = folder.request()
    assert request is not None
    assert (request["why"], request["signal"], request["grace_seconds"]) == ("shim-died", "SIGUSR2", 7.0)
    ended = attempt_files.read(f"{folder.path}/a/{attempt_files.ENDED}")
    assert ended is not None
    assert (ended["started"], ended["reason"]) == (True, "the shim of node a died: killed")
    exits = [attempt_files.read(f"{folder.path}/a/{attempt_files.exit_record(rank)}") for rank in (1, 2)]
    assert [one and one["exit_code"] for one in exits] == [None, 3], "known exit codes are kept"
    assert not rank_file.exists()
    assert folder.shim.poll() is None, "a process that is not the rank is not signalled"
    folder.node_ends("b")
    (end,) = folder.poll()
    assert end.exits == (RankExit(0, None), RankExit(1, None), RankExit(2, 3))


def test_a_shim_that_died_before_it_started_anything_has_started_nothing(folder: Folder) -> None:
    folder.go()
    about = attempt_files.read(f"{folder.path}/a/{attempt_files.SHIM}")
    assert about is not None
    folder.put(f"a/{attempt_files.SHIM}", about | {"start_time": about["start_time"] + 1})
    folder.followed = folder.follow()
    folder.poll()
    ended = attempt_files.read(f"{folder.path}/a/{attempt_files.ENDED}")
    assert ended is not None and ended["started"] is False
    assert not (folder.path / "a" / attempt_files.exit_record(1)).exists()


def test_after_a_reboot_the_end_is_when_the_folder_was_last_written(folder: Folder) -> None:
    folder.go()
    about = attempt_files.read(f"{folder.path}/a/{attempt_files.SHIM}")
    assert about is not None
    folder.put(f"a/{attempt_files.SHIM}", about | {"boot_id": "another"})
    for entry in (folder.path / "a").iterdir():
        os.utime(entry, ns=(10**18, 10**18))
    folder.followed = folder.follow()
    folder.poll()
    ended = attempt_files.read(f"{folder.path}/a/{attempt_files.ENDED}")
    assert ended is not None
    assert (ended["started"], ended["reason"], ended["wall_ns"]) == (True, "the machine was restarted", 10**18)
    assert folder.shim.poll() is None, "a pid of another boot identifies no process"


def test_leftovers_of_a_dead_shim_are_killed_before_its_node_ends(folder: Folder) -> None:
    folder.go()
    marks = rank_launch.marks(folder.plan, "a")
    left = subprocess.Popen(["sleep", "100"], env={**os.environ, **marks})
    other = subprocess.Popen(["sleep", "100"], env={**os.environ, **marks, "GANGWATCH_ATTEMPT": "3"})
    try:
        about = attempt_files.read(f"{folder.path}/a/{attempt_files.SHIM}")
        assert about is not None
        folder.put(f"a/{attempt_files.SHIM}", about | {"start_time": about["start_time"] + 1})
        folder.followed = folder.follow()
        folder.poll()
        assert not (folder.path / "a" / attempt_files.ENDED).exists(), "not while one of its processes may live"
        assert left.wait(5) == -9
        folder.poll()
        assert (folder.path / "a" / attempt_files.ENDED).exists()
        assert other.poll() is None, "a process of another attempt"
    finally:
        for process in (left, other):
            process.kill()
            process.wait()


# --- a save on another node ------------------------------------------------------------------------------------------


def test_other_nodes_wait_for_the_first_nodes_save_or_its_time_limit(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 50.0
    monkeypatch.setattr(checkpoint_command.time, "monotonic", lambda: now)
    saving = checkpoint_command.Checkpoint(
        folder.plan, str(folder.path), "a", {"command": ["/nothing"], "timeout_seconds": 10.0}, None
    )
    saving.poll()
    assert (saving.pid, saving.over, saving.record) == (None, False, None)
    now = 61.9
    saving.poll()
    assert not saving.over, "the first node's record may still arrive"
    now = 62.1
    saving.poll()
    assert saving.over
    now = 50.0
    again = checkpoint_command.Checkpoint(
        folder.plan, str(folder.path), "a", {"command": ["x"], "timeout_seconds": 10.0}, None
    )
    folder.put(attempt_files.SAVED, {"exit_code": 0})
    again.poll()
    assert again.over and again.record is None, "only the first node writes its record"


def test_a_save_that_cannot_begin_or_has_ended_is_over_and_recorded_once(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.plan["environment"] = {"PATH": "/nowhere", "HOME": str(folder.path)}
    folder.plan["spec"]["working_directory"] = ""
    folder.plan |= {"master_address": "x", "master_port": 1}
    now = 50.0
    monkeypatch.setattr(checkpoint_command.time, "monotonic", lambda: now)
    request = {"command": ["save"], "timeout_seconds": 10.0}
    saving = checkpoint_command.Checkpoint(folder.plan, str(folder.path), "b", request, None)
    assert saving.over and saving.record == {
        "exit_code": None, "seconds": 0.0, "reason": "the program of the checkpoint command is not on the job's PATH",
    }  # fmt: skip
    saving.over, saving.record = False, None
    now = 53.0
    saving.ended(7)
    assert saving.record == {"exit_code": 7, "seconds": 3.0, "reason": ""}
    saving.ended(9)
    assert saving.record["exit_code"] == 7
    late = checkpoint_command.Checkpoint(folder.plan, str(folder.path), "b", request, None)
    late.over, late.record = False, None
    now = 63.0
    late.poll()
    assert not late.over, "at the end it may still finish normally"
    now = 63.1
    late.poll()
    assert late.over and late.record is not None and late.record["reason"] == "it did not end within 10 s"
