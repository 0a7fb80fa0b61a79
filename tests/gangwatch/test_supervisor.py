"""`up` and `down`: which daemons are started, adopted, restarted and stopped, also after any of them was killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangwatch.state_folder import StateFolder, agent_name, start_time_of
from gangwatch.supervisor.supervisor import daemon_commands
from gangwatch.supervisor.teardown import open_attempts, remains
from tests.gangwatch.front_door import FrontDoor, front_door, wait_until
from tests.ports import held_neighbours

pytestmark = [pytest.mark.xdist_group("front-door"), pytest.mark.slow]

SLEEPS = ("--", sys.executable, "-c", "import time; time.sleep(600)")


@pytest.fixture
def door(tmp_path: Path) -> Iterator[FrontDoor]:
    with front_door(tmp_path) as closed:
        yield closed


def daemons(door: FrontDoor) -> dict[str, int]:
    """Return {name: pid} of the daemons that listen."""
    controller = door.state.controller()
    found = {name: record.pid for name, record in door.state.agents().items()}
    return found | ({"controller": controller.pid} if controller is not None else {})


def job_processes(door: FrontDoor, job_id: str) -> list[tuple[int, int]]:
    return [(rank["pid"], rank["start_time"]) for rank in door.job(job_id)["ranks"]]


def alive(processes: list[tuple[int, int]]) -> bool:
    return all(start_time_of(pid) == start_time for pid, start_time in processes)


def test_a_second_up_reports_the_running_cluster_and_changes_nothing(door: FrontDoor) -> None:
    door.up()
    before = daemons(door)
    assert set(before) == {"node-0", "node-1", "controller"}
    again = door.run("up")
    assert "already running" in again.stderr
    assert daemons(door) == before
    other = door.run("up", "--nodes", "3", code=1)
    assert "gangwatch down" in other.stderr
    assert daemons(door) == before


def test_killed_daemons_are_restarted_and_jobs_continue(door: FrontDoor) -> None:
    door.up()
    job_id = door.submit("--ranks", "4", "--grace", "1s", *SLEEPS)
    door.wait_for(job_id, "running")
    processes = job_processes(door, job_id)
    before = daemons(door)
    for name in ("controller", "node-0"):
        door.kill(name)
    wait_until(lambda: set(daemons(door)) == set(before), door.logs)
    after = daemons(door)
    assert after["node-1"] == before["node-1"]
    assert after["controller"] != before["controller"]
    assert after["node-0"] != before["node-0"]
    assert door.wait_for(job_id, "running")["attempt"] == 1
    assert job_processes(door, job_id) == processes
    assert alive(processes)


def test_following_a_job_survives_a_killed_controller(door: FrontDoor) -> None:
    door.up()
    with door.start(
        "submit", "--wait", "--", sys.executable, "-c", "import time; time.sleep(4); print('end')"
    ) as waiting:
        assert waiting.stdout is not None
        job_id = waiting.stdout.readline().strip()
        with door.start("logs", job_id, "--rank", "0", "--follow") as following:
            door.kill("controller")
            shown, _ = following.communicate(timeout=60)
        waiting.communicate(timeout=60)
    assert (waiting.returncode, following.returncode, shown) == (0, 0, "end\n")


def test_after_sigkill_of_the_supervisor_up_adopts_running_daemons_and_starts_the_rest(door: FrontDoor) -> None:
    door.up()
    job_id = door.submit("--ranks", "2", "--grace", "1s", *SLEEPS)
    door.wait_for(job_id, "running")
    processes = job_processes(door, job_id)
    before = daemons(door)
    door.kill("supervisor")
    assert daemons(door) == before, "killing the supervisor kills no daemon"
    door.kill("node-1")
    done = door.run("up")
    assert f"controller is already running (pid {before['controller']})" in done.stderr
    after = daemons(door)
    assert {name: after[name] for name in ("controller", "node-0")} == {
        name: before[name] for name in ("controller", "node-0")
    }
    assert after["node-1"] != before["node-1"]
    assert alive(processes)
    # The supervisor also restarts the daemons that it adopted.
    door.kill("controller")
    wait_until(lambda: "controller" in daemons(door), door.logs)
    assert job_processes(door, job_id) == processes


def test_down_stops_everything_when_every_daemon_was_killed(door: FrontDoor) -> None:
    door.up()
    job_id = door.submit("--ranks", "4", "--grace", "1s", *SLEEPS)
    door.wait_for(job_id, "running")
    processes = job_processes(door, job_id)
    for name in ("supervisor", "controller", "node-0", "node-1"):
        door.kill(name)
    assert alive(processes)
    assert [attempt.job_id for attempt in open_attempts(door.state)] == [job_id]
    assert json.loads(door.run("down", "--json").stdout)["jobs"] == 1
    assert not alive(processes)
    assert remains(door.state) == set()
    assert door.json("down") == {"state": str(door.state), "jobs": 0, "daemons": 0}
    door.up()
    ended = door.wait_for(job_id, "failed", "cancelled")
    assert ended["attempt"] == 1
    assert [rank["exit_code"] for rank in ended["ranks"]] == [143] * 4


def test_down_waits_the_grace_period_and_then_kills(door: FrontDoor, tmp_path: Path) -> None:
    door.up()
    saved = tmp_path / "saved"
    polite = (
        "import signal, sys, time, pathlib\n"
        "def save(*_):\n    time.sleep(0.5)\n"
        f"    pathlib.Path({str(saved)!r}).touch()\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('set', flush=True)\ntime.sleep(600)"
    )
    rude = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('set', flush=True); time.sleep(600)"
    )
    jobs = [
        door.submit("--grace", "20s", "--", sys.executable, "-c", polite),
        door.submit("--grace", "1s", "--", sys.executable, "-c", rude),
    ]
    for job_id in jobs:
        wait_until(lambda job_id=job_id: "set" in door.run("logs", job_id, code=None).stdout, door.logs)  # type: ignore[misc]
        door.wait_for(job_id, "running")  # before, the processes are unknown
    processes = [process for job_id in jobs for process in job_processes(door, job_id)]
    door.run("down")
    assert saved.exists()
    assert not any(start_time_of(pid) == start_time for pid, start_time in processes)


def test_down_stops_everything_under_a_freeze(door: FrontDoor) -> None:
    door.up()
    job_id = door.submit("--grace", "1s", *SLEEPS)
    door.wait_for(job_id, "running")
    processes = job_processes(door, job_id)
    door.run("freeze")
    waiting = door.submit("true")
    door.run("down")
    assert not alive(processes)
    door.up()
    assert door.json("queue")["frozen"], "a freeze survives restarts"
    door.run("thaw")
    assert door.wait_for(job_id, "cancelled", "failed")["attempt"] == 1
    assert door.wait_for(waiting, "cancelled")["attempt"] == 0


def test_down_can_keep_jobs_for_the_next_up(door: FrontDoor) -> None:
    door.up()
    job_id = door.submit("--grace", "1s", *SLEEPS)
    door.wait_for(job_id, "running")
    processes = job_processes(door, job_id)
    door.run("down", "--keep-jobs")
    assert daemons(door) == {}
    assert alive(processes)
    door.up()
    assert door.wait_for(job_id, "running")["attempt"] == 1
    assert job_processes(door, job_id) == processes


def test_a_port_in_use_gives_a_one_line_error_and_leaves_nothing_running(door: FrontDoor) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        failed = door.run("up", "--nodes", "1", "--slots", "1", "--no-gpus", "--port", str(port), code=1)
    (line,) = [line for line in failed.stderr.splitlines() if line.startswith("Error: ")]
    assert str(port) in line
    assert "in use" in line
    assert failed.stdout == ""
    assert remains(door.state) == set()
    assert not door.state.supervisor_file.exists()


def test_a_second_controller_is_refused(door: FrontDoor) -> None:
    door.up()
    before = daemons(door)
    refused = door.run("controller", "--port", "0", "--no-gpus", code=1)
    assert refused.stderr == f"Error: a controller (pid {before['controller']}) is already running for {door.state}\n"
    refused = door.run("agent", "--node", "node-0", "--slots", "2", code=1)
    assert (
        refused.stderr
        == f"Error: an agent of node node-0 (pid {before['node-0']}) is already running for {door.state}\n"
    )
    assert daemons(door) == before


def test_an_invalid_configuration_starts_nothing_and_creates_no_folder(door: FrontDoor, tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text("[policy]\nquarantine_secnds = 1\n")
    refused = door.run("up", "--config", str(file), code=1)
    assert refused.stderr == (
        f"Error: {file}: policy.quarantine_secnds: unknown key (did you mean quarantine_seconds?)\n"
    )
    assert not door.state.path.exists()


def test_an_unusable_state_folder_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    refused = FrontDoor(file / "state").run("up", "--port", "0", code=1)
    assert refused.stderr.startswith(f"Error: state folder {file}/state: ")
    assert refused.stderr.count("\n") == 1


def test_reload_applies_reloadable_keys_and_refuses_invalid_files(door: FrontDoor, tmp_path: Path) -> None:
    file = tmp_path / "gangwatch.toml"
    text = "[cluster]\nnodes = 2\nslots = 2\ngpus = false\n[controller]\nport = 0\n"
    file.write_text(text)
    door.run("up", "--config", str(file))
    before = daemons(door)
    file.write_text(
        text
        + "mode = 'observe'\n[policy]\nsuspect_seconds = '5m'\nquarantine_seconds = '20m'\n"
        + "[agent]\ninterval_seconds = 2\n"
    )
    foreseen = door.json("reload", "--check-config")
    assert {change["key"]: change["restart"] for change in foreseen["changes"]} == {
        "agent.interval_seconds": True,
        "controller.mode": False,
        "policy.quarantine_seconds": False,
    }
    done = door.run("reload")
    assert "policy.quarantine_seconds: 600.0 -> 1200.0" in done.stderr
    assert "not changed: agent.interval_seconds" in done.stderr
    left = door.json("config", "--config", str(file))
    assert [change["key"] for change in left["changes"]] == ["agent.interval_seconds"]
    file.write_text(text + "[policy]\nquarantine_secnds = 1\n")
    refused = door.run("reload", code=1)
    assert "policy.quarantine_secnds: unknown key" in refused.stderr
    controller = door.state.controller()
    assert controller is not None
    os.kill(controller.pid, signal.SIGHUP)
    wait_until(lambda: "quarantine_secnds" in door.state.log_file("controller").read_text(), door.logs)
    assert daemons(door) == before


def test_a_foreground_up_notifies_systemd_and_stops_its_daemons_on_sigterm(door: FrontDoor, tmp_path: Path) -> None:
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    manager.settimeout(60)
    door.environment["NOTIFY_SOCKET"] = str(tmp_path / "notify")
    with (
        manager,
        door.start("up", "--foreground", "--nodes", "1", "--slots", "1", "--no-gpus", "--port", "0") as process,
    ):
        assert manager.recv(1000).startswith(b"READY=1\n"), "not the daemons' heartbeats"
        assert set(daemons(door)) and door.state.supervisor() is not None
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert daemons(door) == {}
    assert remains(door.state) == set()


def test_an_interrupted_up_leaves_no_process(door: FrontDoor) -> None:
    with door.start("up", "--nodes", "2", "--slots", "1", "--no-gpus", "--port", "0") as process:
        wait_until(lambda: door.state.supervisor() is not None, door.logs)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert remains(door.state) == set()


def test_daemon_commands_are_argument_lists_with_the_options_of_up(tmp_path: Path) -> None:
    from gangwatch.state_folder import NodePlan

    state = StateFolder(tmp_path)
    commands = daemon_commands(
        state, (NodePlan("a", 2, ("GPU-1", "GPU-2")), NodePlan("b", 1)), "/etc/g.toml", ("--port", "0")
    )
    assert set(commands) == {agent_name("a"), agent_name("b"), "controller"}
    assert commands["agent-a"][-4:] == ("--device", "GPU-1", "--device", "GPU-2")
    assert commands["controller"][-6:-1] == ("--config", "/etc/g.toml", "--port", "0", "--planned")
    assert json.loads(commands["controller"][-1])[0] == {"name": "a", "slots": 2, "devices": ["GPU-1", "GPU-2"]}


def test_a_reused_pid_is_never_mistaken_for_a_daemon(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    state.prepare()
    with subprocess.Popen(["sleep", "600"]) as stranger:
        start_time = start_time_of(stranger.pid)
        assert start_time is not None
        state.controller_file.write_text(json.dumps({"pid": stranger.pid, "start_time": start_time - 1, "url": "x"}))
        assert state.controller() is None
        FrontDoor(tmp_path).run("down")
        assert stranger.poll() is None, "stopped an unrelated process that only reuses a daemon's pid"
        stranger.kill()


def test_agents_listen_on_the_configured_ports(door: FrontDoor, tmp_path: Path) -> None:
    port = held_neighbours(2)
    (tmp_path / "gangwatch.toml").write_text(f"[agent]\nport = {port}\n")
    door.up("--config", str(tmp_path / "gangwatch.toml"))
    assert [agent.url for _, agent in sorted(door.state.agents().items())] == [
        f"http://127.0.0.1:{port}",
        f"http://127.0.0.1:{port + 1}",
    ]
