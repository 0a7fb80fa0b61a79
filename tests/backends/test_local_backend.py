"""Local backend with real processes: a gang starts completely or not at all, once, and ends with all descendants."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.schema.errors import BackendError
from scheduler_feedback.backends.backend import Backend
from scheduler_feedback.backends.local import attempt_files, local_processes
from scheduler_feedback.backends.local.local_backend import LocalBackend, LocalNode, free_port
from scheduler_feedback.backends.local.step_socket import step_socket
from scheduler_feedback.core.actions import StartGang, StopGang
from scheduler_feedback.core.events import AttemptEnded, AttemptRunning, AttemptUnknown, RankFailed
from scheduler_feedback.core.job import Group, JobSpec, Slot, StopReason
from tests.backends.local_gangs import LocalGangs, exit_codes, python, until

SLEEP = ("sleep", "300")


@pytest.fixture
def gangs(tmp_path: Path) -> Iterator[LocalGangs]:
    made = LocalGangs(tmp_path / "state")
    yield made
    made.close()


@pytest.fixture(params=[True, False], ids=["cgroup", "subreaper"])
def gangs_in_both_modes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalGangs]:
    """Run with control groups if the machine allows them, and without."""
    made = LocalGangs(tmp_path / "state", use_cgroups=request.param)
    yield made
    made.close()


# --- starting --------------------------------------------------------------------------------------------------------


def test_a_gang_runs_and_its_exit_codes_are_reported(gangs: LocalGangs) -> None:
    gangs.start(("sh", "-c", "echo rank $RANK of $WORLD_SIZE; echo and an error >&2"), 4)
    ended = gangs.wait_for(AttemptEnded)
    running = gangs.seen[0]
    assert isinstance(running, AttemptRunning)
    assert [(seen.rank, seen.node, seen.slot) for seen in running.ranks] == [
        (0, "n0", 0),
        (1, "n0", 1),
        (2, "n1", 0),
        (3, "n1", 1),
    ]
    assert exit_codes(ended) == [0, 0, 0, 0]
    assert ended.started and ended.reason == ""
    assert [gangs.log(rank) for rank in range(4)] == [f"rank {rank} of 4\nand an error\n" for rank in range(4)]
    written = [json.loads(path.read_text())["wall_ns"] for path in gangs.folder().glob("*/exit-*.json")]
    assert len(written) == 4
    assert ended.ended_wall_ns >= max(written)
    assert gangs.backend.observe([("j-1", 1)]) == []
    gangs.assert_nothing_left()


def test_each_group_runs_its_own_command_and_has_its_role(gangs: LocalGangs) -> None:
    echo = "echo $GANGWATCH_ROLE $RANK of $GANGWATCH_NODES"
    groups = (Group("launcher", 1, ("sh", "-c", f"echo mpirun; {echo}")), Group("worker", 2))
    gangs.start(("sh", "-c", echo), 3, groups=groups)
    assert exit_codes(gangs.wait_for(AttemptEnded)) == [0, 0, 0]
    assert [gangs.log(rank) for rank in range(3)] == [
        "mpirun\nlauncher 0 of n0:2,n1:1\n",
        "worker 1 of n0:2,n1:1\n",
        "worker 2 of n0:2,n1:1\n",
    ]


def test_a_groups_missing_command_starts_no_rank(gangs: LocalGangs) -> None:
    groups = (Group("launcher", 1, ("no-such-mpirun",)), Group("worker", 2))
    gangs.start(SLEEP, 3, groups=groups)
    ended = gangs.wait_for(AttemptEnded)
    assert not ended.started and "the program of the command of group launcher is not on" in ended.reason


def test_an_array_s_member_has_its_index(gangs: LocalGangs) -> None:
    command = ("sh", "-c", "echo ${GANGWATCH_ARRAY_INDEX-none}")
    gangs.start(command, 1, job_id="j-1.12", array_size=20)
    gangs.wait_for(AttemptEnded, "j-1.12")
    gangs.start(command, 1, job_id="j-2")
    gangs.wait_for(AttemptEnded, "j-2")
    assert (gangs.log(0, "j-1.12"), gangs.log(0, "j-2")) == ("12\n", "none\n")


def test_rank_files_name_live_processes_by_pid_and_start_time(gangs: LocalGangs) -> None:
    gangs.start(SLEEP, 3)
    running = gangs.wait_for(AttemptRunning)
    for seen in running.ranks:
        path = gangs.state_folder / "ranks" / seen.node / f"j-1.1.{seen.rank}.json"
        record = json.loads(path.read_text())
        shim = gangs.shim(seen.node)
        assert record == {
            "gang": "j-1",
            "attempt": 1,
            "rank": seen.rank,
            "pid": seen.pid,
            "start_time": seen.start_time,
            "slot": seen.slot,
            "shim_pid": shim["pid"],
            "shim_start_time": shim["start_time"],
        }
        assert local_processes.is_alive(seen.pid, seen.start_time)
        assert not local_processes.is_alive(seen.pid, seen.start_time + 1)
    gangs.stop()
    assert exit_codes(gangs.wait_for(AttemptEnded)) == [143] * 3
    gangs.assert_nothing_left()


def test_applying_twice_starts_once(gangs: LocalGangs, tmp_path: Path) -> None:
    count = tmp_path / "count"
    action = gangs.action(("sh", "-c", f"echo ran >> {count}; sleep 0.2"), 2)
    gangs.backend.apply(action)
    gangs.backend.apply(action)
    gangs.another_controller().apply(action)
    gangs.wait_for(AttemptEnded)
    gangs.backend.apply(action)
    gangs.another_controller().apply(action)
    gangs.assert_nothing_left()
    assert count.read_text() == "ran\n" * 2


def test_ranks_get_the_environment_variables_of_torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET_OF_THE_CONTROLLER", "1")
    nodes = [LocalNode("cpu", 1), LocalNode("gpu", 2, ("GPU-aa", "GPU-bb"))]
    gangs = LocalGangs(tmp_path / "state", nodes)
    command = python("import json, os; print(json.dumps(dict(os.environ)))")
    spec = JobSpec("env", command, 3, environment={"MINE": "x", "RANK": "7", "PATH": "/mine", "OMP_NUM_THREADS": "3"})
    gangs.backend.apply(StartGang("a", "j-1", 1, spec, (Slot("gpu", 1), Slot("cpu", 0), Slot("gpu", 0))))
    assert exit_codes(gangs.wait_for(AttemptEnded)) == [0, 0, 0]
    found = [json.loads(gangs.log(rank)) for rank in range(3)]
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "GANGWATCH_NODE")
    assert [[each[name] for name in names] for each in found] == [
        ["0", "0", "2", "0", "2", "gpu"],
        ["1", "0", "1", "1", "2", "cpu"],
        ["2", "1", "2", "0", "2", "gpu"],
    ]
    for each in found:
        assert each["WORLD_SIZE"] == "3"
        assert each["MASTER_ADDR"] == "127.0.0.1"
        assert each["MASTER_PORT"] == found[0]["MASTER_PORT"]
        assert (each["GANGWATCH_JOB"], each["GANGWATCH_ATTEMPT"]) == ("j-1", "1")
        assert each["GANGWATCH_SOCKET"] == step_socket(tmp_path / "state", each["GANGWATCH_NODE"])
        assert (each["MINE"], each["PATH"], each["OMP_NUM_THREADS"]) == ("x", "/mine", "3")
        assert "A_SECRET_OF_THE_CONTROLLER" not in each
    assert [each.get("CUDA_VISIBLE_DEVICES") for each in found] == ["GPU-bb,GPU-aa", None, "GPU-bb,GPU-aa"]
    assert (found[1]["OPENBLAS_NUM_THREADS"], found[1]["MKL_NUM_THREADS"]) == ("1", "1")
    assert "OPENBLAS_NUM_THREADS" not in found[0]
    gangs.assert_nothing_left()


@pytest.mark.parametrize(
    ("command", "spec", "reason"),
    [
        (("no-such-program",), {}, "the program of the command is not on the job's PATH"),
        (("./no-such-program",), {}, "the program of the command does not exist"),
        (("/etc/passwd",), {}, "the program of the command is not executable"),
        (SLEEP, {"working_directory": "/no/such/place"}, "the working directory does not exist"),
    ],
)
def test_a_refused_start_names_rank_node_and_reason(
    gangs: LocalGangs, command: tuple[str, ...], spec: dict[str, str], reason: str
) -> None:
    gangs.start(command, 4, **spec)
    ended = gangs.wait_for(AttemptEnded)
    assert not ended.started
    assert ended.reason in (f"node n0 cannot start rank 0, 1: {reason}", f"node n1 cannot start rank 2, 3: {reason}")
    assert gangs.seen == [ended]
    gangs.assert_nothing_left()


def test_one_node_that_cannot_start_keeps_every_rank_from_starting(gangs: LocalGangs, tmp_path: Path) -> None:
    (gangs.state_folder / "ranks").mkdir(parents=True)
    (gangs.state_folder / "ranks" / "n1").write_text("where a folder should be")
    gangs.start(("touch", str(tmp_path / "ran")), 4)
    ended = gangs.wait_for(AttemptEnded)
    assert not ended.started
    assert "node n1 cannot start rank 2, 3" in ended.reason
    gangs.assert_nothing_left()
    assert not (tmp_path / "ran").exists()


def test_a_program_that_cannot_be_executed_fails_the_start(gangs: LocalGangs, tmp_path: Path) -> None:
    program = tmp_path / "garbage"
    program.write_bytes(b"\x7fELF and nothing more")
    program.chmod(0o700)
    gangs.start((str(program),), 4)
    ended = gangs.wait_for(AttemptEnded)
    assert not ended.started
    assert "Exec format error" in ended.reason and "rank" in ended.reason
    assert exit_codes(ended) == [None] * 4
    gangs.assert_nothing_left()


def test_a_node_failure_after_the_decision_stops_the_other_nodes(gangs: LocalGangs) -> None:
    # The rank's file cannot be written there.
    (gangs.state_folder / "ranks" / "n1" / "j-1.1.3.json").mkdir(parents=True)
    gangs.start(("sh", "-c", "trap '' TERM; sleep 300"), 4)
    ended = gangs.wait_for(AttemptEnded)
    assert not ended.started
    assert "node n1" in ended.reason
    assert exit_codes(ended)[2:] == [None, None]
    (gangs.state_folder / "ranks" / "n1" / "j-1.1.3.json").rmdir()
    gangs.assert_nothing_left()


def test_an_unresponsive_shim_aborts_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gangs = LocalGangs(tmp_path / "state", ready_timeout_seconds=0.3)
    start_shim = gangs.backend._start_shim

    def start_all_but_one(folder: Path, node: str) -> None:
        """This process, which does not respond, takes the place of n1's shim."""
        me = os.getpid()
        about = {
            "pid": me,
            "start_time": local_processes.start_time(me),
            "boot_id": local_processes.boot_id(),
            "cgroup": None,
        }
        if node == "n1":
            assert attempt_files.create_folder(f"{folder}/{node}", {"shim.json": attempt_files.encode(about)})
            monkeypatch.setattr(signal, "pidfd_send_signal", lambda *_: None)  # a poke would signal the test
        start_shim(folder, node)

    monkeypatch.setattr(gangs.backend, "_start_shim", start_all_but_one)
    gangs.start(SLEEP, 4)
    ended = gangs.wait_for(AttemptEnded)
    assert (ended.started, ended.reason) == (False, "no response within 0.3 s from node n1")
    gangs.assert_nothing_left()


def test_shims_without_a_decision_give_up(tmp_path: Path) -> None:
    gangs = LocalGangs(tmp_path / "state", decision_timeout_seconds=0.3)
    gangs.start(("touch", str(tmp_path / "ran")), 4)
    gangs.assert_nothing_left()
    decided = attempt_files.decision(str(gangs.folder()))
    assert decided is not None and decided[0] == "abort"
    ended = gangs.wait_for(AttemptEnded)
    assert not ended.started and "no controller decided" in ended.reason
    assert not (tmp_path / "ran").exists()


def test_a_shim_that_dies_before_the_start_aborts_it(gangs: LocalGangs) -> None:
    gangs.start(SLEEP, 4)
    about = gangs.shim("n1")
    assert local_processes.send_signal(about["pid"], about["start_time"], signal.SIGKILL)
    ended = gangs.wait_for(AttemptEnded)
    # Found dead before or after the decision: no rank of its node was ever released.
    assert not ended.started
    assert "the shim of node n1 died" in ended.reason
    gangs.assert_nothing_left()


# --- ending ----------------------------------------------------------------------------------------------------------


def test_a_failed_rank_stops_the_gang(gangs: LocalGangs) -> None:
    program = "import os, sys, time\nif os.environ['RANK'] == '2': sys.exit(3)\ntime.sleep(300)"
    gangs.start(python(program), 4)
    ended = gangs.wait_for(AttemptEnded)
    assert exit_codes(ended) == [143, 143, 3, 143]
    assert ended.started
    assert ended.reason == "rank 2 on node n1 exited with 3"
    gangs.assert_nothing_left()


def test_a_failed_rank_is_reported_while_others_still_run(gangs: LocalGangs, tmp_path: Path) -> None:
    """Rank 0 fails once all other ranks ignore SIGTERM. They run until the failure is reported."""
    program = "\n".join(
        (
            "import os, signal, sys, time",
            "from pathlib import Path",
            f"folder = Path({str(tmp_path)!r})",
            "def wait_for(*names):",
            "    while not all((folder / name).exists() for name in names): time.sleep(0.01)",
            "if os.environ['RANK'] == '0':",
            "    wait_for('ignores-1', 'ignores-2')",
            "    os.kill(os.getpid(), signal.SIGSEGV)",
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
            "(folder / ('ignores-' + os.environ['RANK'])).touch()",
            "wait_for('reported')",
            "sys.exit(7)",
        )
    )
    gangs.start(python(program), 3, grace_seconds=600.0)
    failed = gangs.wait_for(RankFailed)
    assert (failed.rank, failed.exit_code) == (0, 128 + signal.SIGSEGV)
    (tmp_path / "reported").touch()
    assert exit_codes(gangs.wait_for(AttemptEnded)) == [128 + signal.SIGSEGV, 7, 7]
    assert sum(isinstance(event, RankFailed) for event in gangs.seen) == 1
    gangs.assert_nothing_left()


def test_a_failed_rank_stops_the_gang_without_a_controller(gangs: LocalGangs) -> None:
    gangs.start(
        python("import os, time; time.sleep(0.5); os._exit(9) if os.environ['RANK'] == '3' else time.sleep(300)"), 4
    )
    gangs.wait_for(AttemptRunning)
    for _ in until():
        if all((gangs.folder() / node / "ended.json").exists() for node in ("n0", "n1")):
            break
    gangs.assert_nothing_left()
    gangs.restart_controller()
    ended = gangs.wait_for(AttemptEnded)
    assert exit_codes(ended) == [143, 143, 143, 9]
    # The others were stopped because of rank 3, which is therefore reported although all have ended.
    assert [type(event) for event in gangs.seen] == [AttemptRunning, RankFailed, AttemptEnded]
    failed = gangs.seen[1]
    assert isinstance(failed, RankFailed) and (failed.rank, failed.exit_code) == (3, 9)


SAVES = "\n".join(
    (
        "import signal, sys, time",
        "def save(*_): print('saved', flush=True); sys.exit(0)",
        "signal.signal(signal.{name}, save)",
        "print('ready', flush=True)",
        "time.sleep(300)",
    )
)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_stop_lets_the_job_save(gangs: LocalGangs, name: str) -> None:
    gangs.start(python(SAVES.replace("{name}", name)), 4)
    gangs.wait_for(AttemptRunning)
    for rank in range(4):
        gangs.wait_for_log(rank, "ready")
    gangs.stop(signal_name=name)
    gangs.stop(signal_name=name)
    ended = gangs.wait_for(AttemptEnded)
    assert exit_codes(ended) == [0] * 4
    assert (ended.reason, ended.why, ended.signalled) == ("cancel", "cancel", True)
    assert [gangs.log(rank) for rank in range(4)] == ["ready\nsaved\n"] * 4
    gangs.assert_nothing_left()


def test_a_stopped_process_can_still_save(gangs: LocalGangs) -> None:
    gangs.start(python(SAVES.replace("{name}", "SIGTERM")), 2)
    running = gangs.wait_for(AttemptRunning)
    gangs.wait_for_log(0, "ready")
    gangs.wait_for_log(1, "ready")
    os.kill(running.ranks[0].pid, signal.SIGSTOP)
    gangs.stop()
    assert exit_codes(gangs.wait_for(AttemptEnded)) == [0, 0]
    assert gangs.log(0) == "ready\nsaved\n"
    gangs.assert_nothing_left()


def test_a_job_that_ignores_the_signal_is_killed_after_the_grace_period(gangs_in_both_modes: LocalGangs) -> None:
    program = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(300)"
    )
    gangs_in_both_modes.start(python(program), 4)
    gangs_in_both_modes.wait_for(AttemptRunning)
    for rank in range(4):
        gangs_in_both_modes.wait_for_log(rank, "deaf")
    gangs_in_both_modes.stop(grace_seconds=0.3)
    assert exit_codes(gangs_in_both_modes.wait_for(AttemptEnded)) == [137] * 4
    gangs_in_both_modes.assert_nothing_left()


DAEMON = "\n".join(
    (
        "import os, signal, sys, time",
        "if os.fork() == 0:",
        "    os.setsid()",
        "    if os.fork(): os._exit(0)",
        "    os.setsid()",
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        "    print('daemon', os.getpid(), flush=True)",
        "    time.sleep(300)",
        "os.wait()",
        "while not (len(sys.argv) > 1 and sys.argv[1] == 'end'): time.sleep(300)",
        "time.sleep(0.2)",
    )
)


@pytest.mark.parametrize("end", ["end", "stay"])
def test_a_process_that_left_its_session_and_parent_is_ended_with_the_job(
    gangs_in_both_modes: LocalGangs, end: str
) -> None:
    gangs_in_both_modes.start((*python(DAEMON), end), 2)
    gangs_in_both_modes.wait_for(AttemptRunning)
    gangs_in_both_modes.wait_for_log(0, "daemon")
    gangs_in_both_modes.wait_for_log(1, "daemon")
    daemons = [int(gangs_in_both_modes.log(rank).split()[1]) for rank in range(2)]
    if end == "stay":
        assert all(local_processes.start_time(daemon) is not None for daemon in daemons)
        gangs_in_both_modes.stop(grace_seconds=0.5)
    ended = gangs_in_both_modes.wait_for(AttemptEnded)
    assert exit_codes(ended) == ([0, 0] if end == "end" else [143, 143])
    assert all((found := local_processes.read_stat(daemon)) is None or found.gone for daemon in daemons)
    gangs_in_both_modes.assert_nothing_left()


def test_a_process_that_keeps_forking_is_killed(gangs_in_both_modes: LocalGangs) -> None:
    program = "\n".join(
        (
            "import os, time",
            "deadline = time.monotonic() + 60",
            "while time.monotonic() < deadline:",
            "    time.sleep(0.002)",
            "    if os.fork(): os._exit(0)",
            "    os.setsid()",
        )
    )
    gangs_in_both_modes.start(("sh", "-c", 'trap "" TERM; "$@" & sleep 300', "sh", *python(program)), 2)
    gangs_in_both_modes.wait_for(AttemptRunning)
    gangs_in_both_modes.stop(grace_seconds=0.2)
    gangs_in_both_modes.wait_for(AttemptEnded)
    gangs_in_both_modes.assert_nothing_left()


def test_a_stop_before_the_decision_keeps_the_gang_from_starting(gangs: LocalGangs, tmp_path: Path) -> None:
    gangs.start(("touch", str(tmp_path / "ran")), 4)
    gangs.stop()
    ended = gangs.wait_for(AttemptEnded)
    assert (ended.started, ended.reason) == (False, "cancel")
    gangs.assert_nothing_left()
    assert not (tmp_path / "ran").exists()


# --- after deaths ----------------------------------------------------------------------------------------------------


def test_a_dead_shim_ends_the_attempt_with_unknown_exits(gangs_in_both_modes: LocalGangs) -> None:
    gangs_in_both_modes.start((*python(DAEMON), "stay"), 4)
    gangs_in_both_modes.wait_for(AttemptRunning)
    for rank in range(4):
        gangs_in_both_modes.wait_for_log(rank, "daemon")
    about = gangs_in_both_modes.shim("n0")
    assert local_processes.send_signal(about["pid"], about["start_time"], signal.SIGKILL)
    ended = gangs_in_both_modes.wait_for(AttemptEnded)
    assert exit_codes(ended) == [None, None, 143, 143]
    assert ended.started
    assert ended.reason == "the shim of node n0 died"
    gangs_in_both_modes.assert_nothing_left()
    assert about["cgroup"] is None or not Path(about["cgroup"]).exists()
    assert isinstance(gangs_in_both_modes.seen[0], AttemptRunning)


def test_after_a_reboot_nothing_is_running_and_nothing_is_signalled(gangs: LocalGangs) -> None:
    gangs.start(SLEEP, 2)
    gangs.wait_for(AttemptRunning)
    about = gangs.shim("n0")
    assert local_processes.send_signal(about["pid"], about["start_time"], signal.SIGKILL)
    for _ in until():
        if not gangs.processes():
            break
    if about["cgroup"] is not None:  # a reboot would have removed it
        local_processes.remove_cgroup(about["cgroup"])
    # The remaining files were written before the reboot; other processes may have their pids now.
    bystander = {"pid": os.getpid(), "start_time": local_processes.start_time(os.getpid())}
    attempt_files.write(f"{gangs.folder()}/n0/shim.json", {**about, **bystander, "boot_id": "another boot"})
    gangs.restart_controller()
    ended = gangs.wait_for(AttemptEnded)
    assert ended.reason == "the machine was restarted"
    assert exit_codes(ended) == [None, None]
    assert ended.ended_wall_ns > 0
    gangs.assert_nothing_left()


def test_a_restarted_controller_finds_a_running_gang(gangs: LocalGangs) -> None:
    gangs.start(SLEEP, 4)
    before = gangs.wait_for(AttemptRunning)
    gangs.restart_controller()
    assert gangs.wait_for(AttemptRunning) == before
    gangs.stop()
    assert exit_codes(gangs.wait_for(AttemptEnded)) == [143] * 4
    gangs.restart_controller()
    assert exit_codes(gangs.wait_for(AttemptEnded)) == [143] * 4
    gangs.assert_nothing_left()


def test_an_attempt_that_was_never_started_is_unknown_and_stays_so(gangs: LocalGangs, tmp_path: Path) -> None:
    assert gangs.backend.observe([("j-1", 1)]) == [AttemptUnknown("j-1", 1)]
    assert gangs.backend.observe([("j-1", 1)]) == []
    gangs.start(("touch", str(tmp_path / "ran")), 2)
    assert gangs.another_controller().observe([("j-1", 1)]) == [AttemptUnknown("j-1", 1)]
    gangs.assert_nothing_left()
    assert not (tmp_path / "ran").exists()


def test_stopping_an_attempt_that_never_started_makes_it_unknown(gangs: LocalGangs) -> None:
    gangs.stop()
    assert gangs.backend.observe([("j-1", 1)]) == [AttemptUnknown("j-1", 1)]


def test_an_attempt_that_is_not_held_is_ended(gangs: LocalGangs) -> None:
    gangs.start(("sh", "-c", "trap '' TERM; sleep 300"), 4)
    gangs.wait_for(AttemptRunning)
    gangs.restart_controller()
    for _ in until():
        assert gangs.backend.observe([]) == []
        if not gangs.rank_files():
            break
    gangs.assert_nothing_left()


def test_two_state_folders_do_not_touch_each_other(gangs: LocalGangs, tmp_path: Path) -> None:
    other = LocalGangs(tmp_path / "other")
    try:
        for each in (gangs, other):
            each.start(SLEEP, 2)
            each.wait_for(AttemptRunning)
        about = gangs.shim("n0")
        assert local_processes.send_signal(about["pid"], about["start_time"], signal.SIGKILL)
        gangs.wait_for(AttemptEnded)
        gangs.assert_nothing_left()
        assert len(other.processes()) == 3
        assert other.backend.observe([("j-1", 1)]) == []
        other.stop(grace_seconds=0.0)
        assert exit_codes(other.wait_for(AttemptEnded)) == [137, 137]
        other.assert_nothing_left()
    finally:
        other.close()


# --- the rest of the interface ---------------------------------------------------------------------------------------


def test_nodes_are_reported_with_their_machine(tmp_path: Path) -> None:
    backend: Backend = LocalBackend(tmp_path, [LocalNode("a", 2), LocalNode("b", 1, ("GPU-x",))])
    seen = backend.nodes()
    assert [(each.node, each.slots, each.devices, each.present) for each in seen] == [
        ("a", 2, (), True),
        ("b", 1, ("GPU-x",), True),
    ]
    assert {each.machine for each in seen} == {local_processes.boot_id()}


@pytest.mark.parametrize(
    "nodes",
    [
        [LocalNode("a", 1), LocalNode("a", 1)],
        [LocalNode("a", 0)],
        [LocalNode("a", 2, ("GPU-x",))],
        [LocalNode("../a", 1)],
        [LocalNode("", 1)],
    ],
)
def test_invalid_nodes_are_refused(tmp_path: Path, nodes: list[LocalNode]) -> None:
    with pytest.raises(BackendError):
        LocalBackend(tmp_path, nodes)


@pytest.mark.parametrize(
    ("job_id", "spec", "placement", "what"),
    [
        ("j-1", JobSpec("x", SLEEP, 2), (Slot("n0", 0),), "2 ranks"),
        ("j-1", JobSpec("x", SLEEP, 2), (Slot("n0", 0), Slot("n0", 0)), "1 slots"),
        ("j-1", JobSpec("x", SLEEP, 1), (Slot("n9", 0),), "n9"),
        ("j-1", JobSpec("x", SLEEP, 1), (Slot("n0", 2),), "slot 2"),
        ("j-1", JobSpec("x", (), 1), (Slot("n0", 0),), "empty"),
        ("j-1", JobSpec("x", SLEEP, 1, checkpoint_signal="SIGNOTHING"), (Slot("n0", 0),), "SIGNOTHING"),
        ("../j", JobSpec("x", SLEEP, 1), (Slot("n0", 0),), "../j"),
    ],
)
def test_an_invalid_start_is_refused(
    gangs: LocalGangs, job_id: str, spec: JobSpec, placement: tuple[Slot, ...], what: str
) -> None:
    with pytest.raises(BackendError, match=what):
        gangs.backend.apply(StartGang("a", job_id, 1, spec, placement))
    assert not (gangs.state_folder / "jobs").exists()


def test_a_stop_with_an_unknown_signal_is_refused(gangs: LocalGangs) -> None:
    with pytest.raises(BackendError, match="SIGNOTHING"):
        gangs.backend.apply(StopGang("a", "j-1", 1, "SIGNOTHING", 1.0, StopReason.CANCEL))


def test_an_unwritable_state_folder_raises_backend_error(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    gangs = LocalGangs(tmp_path / "state")
    with pytest.raises(BackendError, match="j-1"):
        gangs.start(SLEEP, 1)


def test_the_files_of_an_ended_job_can_be_removed(gangs: LocalGangs) -> None:
    gangs.start(SLEEP, 2)
    gangs.wait_for(AttemptRunning)
    with pytest.raises(BackendError, match="j-1"):
        gangs.backend.forget("j-1")
    with pytest.raises(BackendError, match="j-1"):
        gangs.another_controller().forget("j-1")
    gangs.stop(grace_seconds=0.0)
    gangs.wait_for(AttemptEnded)
    gangs.assert_nothing_left()
    gangs.backend.forget("j-1")
    assert list((gangs.state_folder / "jobs").iterdir()) == []
    gangs.backend.forget("j-1")


def test_files_with_an_environment_are_readable_only_by_their_owner(gangs: LocalGangs) -> None:
    gangs.start(("true",), 1)
    gangs.wait_for(AttemptEnded)
    for path in (gangs.folder() / "attempt.json", gangs.folder().parent / "logs" / "1" / "rank-0.log"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_sockets_of_a_long_state_folder_are_in_tmp(tmp_path: Path) -> None:
    assert step_socket(Path("/s"), "n0") == "/s/run/n0.sock"
    far = step_socket(Path("/" + "s" * 120), "n0")
    assert far.startswith(f"/tmp/gangwatch-{os.getuid()}-") and far.endswith("/n0.sock")
    assert len(far) <= 107


def test_free_ports_are_free() -> None:
    assert all(1024 < free_port() < 65536 for _ in range(5))
