"""Shim alone: the environment of its ranks, failures that it survives, and its use of resources."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from scheduler_feedback.backends.local import attempt_files, local_backend, local_processes, rank_launch, shim
from scheduler_feedback.core.events import AttemptEnded, AttemptRunning
from tests import needs
from tests.backends.local_gangs import LocalGangs, exit_codes, python, until


@pytest.fixture
def gangs(tmp_path: Path) -> Iterator[LocalGangs]:
    made = LocalGangs(tmp_path / "state")
    yield made
    made.close()


# --- pure ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("status", "code"), [(0, 0), (3 << 8, 3), (255 << 8, 255), (9, 137), (11 | 0x80, 139)])
def test_exit_codes_follow_the_convention_of_shells(status: int, code: int) -> None:
    assert local_processes.exit_code(status) == code


def plan(environment: Mapping[str, str], spec: Mapping[str, Any], devices: tuple[str, ...] = ()) -> dict[str, Any]:
    nodes = {"a": {"devices": devices, "socket": "/s/a"}, "b": {"devices": (), "socket": "/s/b"}}
    return {
        "job_id": "j-7",
        "attempt": 2,
        "spec": {"environment": {}, "working_directory": "", **spec},
        "placement": [{"node": "b", "slot": 0}, {"node": "a", "slot": 1}, {"node": "a", "slot": 0}],
        "environment": dict(environment),
        "nodes": nodes,
        "master_address": "127.0.0.1",
        "master_port": 4242,
    }


def test_the_submitter_overrides_the_base_and_the_rank_overrides_both() -> None:
    given = plan({"PATH": "/base", "HOME": "/h"}, {"environment": {"PATH": "/mine", "WORLD_SIZE": "99"}})
    environment = rank_launch.rank_environment(given, "a", 2)
    assert (environment["PATH"], environment["HOME"], environment["WORLD_SIZE"]) == ("/mine", "/h", "3")
    assert (environment["RANK"], environment["LOCAL_RANK"], environment["GROUP_RANK"]) == ("2", "1", "1")
    assert rank_launch.marks(given, "a").items() <= environment.items()
    assert rank_launch.nodes_of(given) == ["b", "a"]
    assert rank_launch.ranks_on(given, "a") == [1, 2]


def test_devices_follow_the_order_of_local_ranks_and_thread_settings_are_unchanged() -> None:
    environment = rank_launch.rank_environment(plan({}, {}, ("GPU-0", "GPU-1")), "a", 1)
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-0"
    assert "OMP_NUM_THREADS" not in environment


def test_an_opportunistic_rank_uses_a_part_of_the_multiprocessors_of_its_device() -> None:
    """The submitter's own limit stays. Without a device, or a part, there is none."""
    name, guest = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", {"opportunistic": True, "slot_share": 0.65}
    devices = ("GPU-0", "GPU-1")
    assert rank_launch.rank_environment(plan({}, guest, devices), "a", 1)[name] == "65"
    mine = guest | {"environment": {name: "30"}}
    assert rank_launch.rank_environment(plan({}, mine, devices), "a", 1)[name] == "30"
    for spec, of in ((guest, ()), ({"slot_share": 0.65}, devices), ({"opportunistic": True}, devices)):
        assert name not in rank_launch.rank_environment(plan({}, spec, of), "a", 1)


def test_ranks_start_where_submitted_else_at_home() -> None:
    assert rank_launch.working_directory(plan({}, {"working_directory": "/w"}), {"HOME": "/h"}) == "/w"
    assert rank_launch.working_directory(plan({}, {}), {"HOME": "/h"}) == "/h"
    assert rank_launch.working_directory(plan({}, {}), {}) == "/"


def shim_of(folder: Path) -> shim.Shim:
    attempt_files.write(f"{folder}/{attempt_files.ATTEMPT}", plan({}, {}) | {"state_folder": str(folder)})
    return shim.Shim(str(folder), "a")


def test_the_earliest_kill_deadline_wins(tmp_path: Path) -> None:
    made = shim_of(tmp_path)
    for instant, earliest in ((30.0, 30.0), (50.0, 30.0), (20.0, 20.0)):
        made.kill_no_later_than(instant)
        assert made.kill_at == earliest


def test_unwritten_records_keep_their_order_and_the_first_stop_counts(tmp_path: Path) -> None:
    made = shim_of(tmp_path)
    own = tmp_path / "a"
    own.write_text("no folder")
    made.keep("exit-1.json", {"rank": 1})
    made.keep("exit-2.json", {"rank": 2})
    made.unwritten.append((f"{tmp_path}/{attempt_files.STOP}", {"why": "mine"}, True))
    for _ in range(3):
        made.write_records()
        assert [path.rpartition("/")[2] for path, _, _ in made.unwritten] == ["exit-1.json", "exit-2.json", "stop.json"]
    own.unlink()
    own.mkdir()
    attempt_files.claim(f"{tmp_path}/{attempt_files.STOP}", b'{"why": "an earlier one"}')
    made.write_records()
    assert made.unwritten == []
    assert attempt_files.read(f"{own}/exit-2.json") == {"rank": 2}
    assert attempt_files.read(f"{tmp_path}/{attempt_files.STOP}") == {"why": "an earlier one"}


def test_a_problem_is_logged_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = shim_of(tmp_path)
    for text in ("no space", "no space", "no folder"):
        made.complain(text)
    assert capfd.readouterr().err == "no space\nno folder\n"


def test_an_unwritable_record_is_logged_once_despite_new_temporary_names(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made = shim_of(tmp_path)
    folder = Path(made.own)
    if folder.is_dir():
        folder.rmdir()
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("a file")  # root ignores permissions, but a file cannot contain files
    made.keep("exit-1.json", {"rank": 1})
    for _ in range(3):
        made.write_records()
    assert capfd.readouterr().err == "exit-1.json is not written yet: Not a directory\n"


def test_records_of_a_removed_attempt_are_dropped(tmp_path: Path) -> None:
    made = shim_of(tmp_path)
    made.keep("exit-1.json", {"rank": 1})
    made.write_records()
    assert made.unwritten == []


def test_programs_are_found_as_execvp_finds_them(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    (tmp_path / "first" / "tool").write_text("not executable")
    (tmp_path / "first" / "tool").chmod(0o600)
    for path in (tmp_path / "second" / "tool", tmp_path / "mine"):
        path.write_text("#!/bin/sh\n")
        path.chmod(0o700)
    search = {"PATH": f"{tmp_path}/first:second:{tmp_path}/none"}
    assert rank_launch.find_program("tool", search, str(tmp_path)) == f"{tmp_path}/second/tool"
    assert Path(rank_launch.find_program("./mine", search, str(tmp_path))).samefile(tmp_path / "mine")
    assert rank_launch.find_program("/bin/sh", {}, "/") == "/bin/sh"
    assert rank_launch.find_program("sh", {}, "/").endswith("/sh")
    with pytest.raises(PermissionError, match="the program of the command is not executable"):
        rank_launch.find_program("tool", {"PATH": f"{tmp_path}/first"}, "/")
    with pytest.raises(FileNotFoundError, match="the program of the command does not exist"):
        rank_launch.find_program("./second", search, str(tmp_path))


# --- as a process ----------------------------------------------------------------------------------------------------

CONFESS = """
import json, os, resource
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "descriptors": {each: os.readlink(f"/proc/self/fd/{each}") for each in "012"},
    "others": [each for each in range(3, 1024) if os.path.exists(f"/proc/self/fd/{each}")],
    "blocked": int(status["SigBlk"], 16), "ignored": int(status["SigIgn"], 16),
    "session": os.getsid(0), "group": os.getpgrp(), "pid": os.getpid(), "parent": os.getppid(), "place": os.getcwd(),
}))
"""


def test_a_rank_starts_with_clean_descriptors_and_signals(gangs: LocalGangs, tmp_path: Path) -> None:
    kept = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(kept, True)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGQUIT, signal.SIGUSR2)}
    try:
        gangs.start(python(CONFESS), 2, working_directory=str(tmp_path))
    finally:
        os.close(kept)
        for number, handler in before.items():
            signal.signal(number, handler)
    assert exit_codes(gangs.wait_for(AttemptEnded)) == [0, 0]
    shim_pid = gangs.shim("n0")["pid"]
    for rank in range(2):
        output = json.loads(gangs.log(rank))
        log = attempt_files.log_file(str(gangs.state_folder), "j-1", 1, rank)
        assert output["descriptors"] == {"0": os.devnull, "1": log, "2": log}
        assert output["others"] == []
        assert output["blocked"] == 0
        # SIGPIPE (13) and SIGXFSZ (25) are set by the reporting interpreter, 32 and 33 belong to the C library.
        assert [
            number for number in range(1, 65) if output["ignored"] >> (number - 1) & 1 and number not in (32, 33)
        ] == [
            signal.SIGPIPE,
            signal.SIGXFSZ,
        ]
        assert output["session"] == output["group"] == output["pid"]
        assert output["parent"] == shim_pid
        assert output["place"] == str(tmp_path)


def test_a_shim_has_its_own_session_and_is_small(gangs: LocalGangs) -> None:
    gangs.start(("sleep", "300"), 1)
    gangs.wait_for(AttemptRunning)
    pid = gangs.shim("n0")["pid"]
    assert os.getsid(pid) == pid
    descriptors = {str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()}
    assert descriptors == {os.devnull, attempt_files.shim_log(str(gangs.folder()), "n0")}
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    assert int(status["VmRSS"].split()[0]) < 32 * 1024
    gangs.stop(grace_seconds=0.0)
    gangs.wait_for(AttemptEnded)
    gangs.assert_nothing_left()


def test_a_second_shim_for_the_same_node_exits_at_once(gangs: LocalGangs, tmp_path: Path) -> None:
    gangs.start(("sh", "-c", f"echo ran >> {tmp_path}/count; exec sleep 300"), 1)
    gangs.wait_for(AttemptRunning)
    program = [sys.executable, "-I", "-S", str(local_backend._SHIM), str(gangs.folder()), "n0"]
    assert subprocess.run(program, timeout=60, check=False).returncode == 0
    gangs.stop(grace_seconds=0.0)
    gangs.wait_for(AttemptEnded)
    assert (tmp_path / "count").read_text() == "ran\n"


def test_a_shim_without_an_attempt_exits_with_an_error(tmp_path: Path) -> None:
    program = [sys.executable, "-I", "-S", str(local_backend._SHIM), str(tmp_path), "n0"]
    ended = subprocess.run(program, timeout=60, check=False, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "there is no attempt in this folder" in ended.stderr


def test_sigterm_to_a_shim_stops_the_whole_gang(gangs: LocalGangs) -> None:
    program = (
        "import signal, sys, time",
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))",
        "print(1, flush=True)",
        "time.sleep(300)",
    )
    gangs.start(python("\n".join(program)), 4)
    gangs.wait_for(AttemptRunning)
    for rank in range(4):
        gangs.wait_for_log(rank, "1")
    about = gangs.shim("n1")
    assert local_processes.send_signal(about["pid"], about["start_time"], signal.SIGTERM)
    ended = gangs.wait_for(AttemptEnded)
    assert exit_codes(ended) == [5] * 4
    assert ended.reason == "the shim of node n1 received a signal to end"
    gangs.assert_nothing_left()


def test_sigterm_to_a_shim_that_waits_for_a_decision_aborts_the_start(gangs: LocalGangs) -> None:
    gangs.start(("sleep", "300"), 4)
    about = gangs.shim("n0")
    assert local_processes.send_signal(about["pid"], about["start_time"], signal.SIGTERM)
    gangs.assert_nothing_left()
    ended = gangs.wait_for(AttemptEnded)
    assert (ended.started, ended.reason) == (False, "the shim of node n0 received a signal to end")


def test_ranks_end_with_their_shim_with_or_without_a_controller(gangs: LocalGangs) -> None:
    gangs.start(("sleep", "300"), 2)
    ranks = gangs.wait_for(AttemptRunning).ranks
    about = gangs.shim("n0")
    assert local_processes.send_signal(about["pid"], about["start_time"], signal.SIGKILL)
    for _ in until():
        if not any(local_processes.is_alive(seen.pid, seen.start_time) for seen in ranks):
            break
    assert gangs.processes() == []
    gangs.wait_for(AttemptEnded)
    gangs.assert_nothing_left()


def test_sighup_does_not_affect_a_shim(gangs: LocalGangs) -> None:
    gangs.start(("sleep", "300"), 1)
    gangs.wait_for(AttemptRunning)
    about = gangs.shim("n0")
    assert local_processes.send_signal(about["pid"], about["start_time"], signal.SIGHUP)
    assert gangs.backend.observe([("j-1", 1)]) == []
    gangs.stop()
    assert exit_codes(gangs.wait_for(AttemptEnded)) == [143]


def test_a_full_disk_delays_exit_records_and_loses_none(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    needs.small_file_system(state, "256k")
    gangs = LocalGangs(state)
    try:
        gangs.start(("sh", "-c", f"trap '' TERM; until [ -e {tmp_path}/go ]; do sleep 0.05; done; exit $RANK"), 3)
        gangs.wait_for(AttemptRunning)
        filler = os.open(state / "filler", os.O_WRONLY | os.O_CREAT)
        with pytest.raises(OSError, match="No space left"):
            while True:
                os.write(filler, b"\0" * 4096)
        os.close(filler)
        (tmp_path / "go").touch()
        for _ in until():
            if all((found := local_processes.read_stat(pid)) is None or found.gone for pid in ranks_of(gangs)):
                break
        for _ in until(1.0):
            assert gangs.backend.observe([("j-1", 1)]) == []
        assert not list(gangs.folder().glob("*/ended.json"))
        (state / "filler").unlink()
        assert exit_codes(gangs.wait_for(AttemptEnded)) == [0, 1, 2]
        gangs.assert_nothing_left()
    finally:
        gangs.close()
        for _ in until():
            if subprocess.run(["umount", str(state)], check=False).returncode == 0:
                break


def ranks_of(gangs: LocalGangs) -> list[int]:
    return [json.loads(path.read_text())["pid"] for path in gangs.folder().glob("*/start-*.json")]
