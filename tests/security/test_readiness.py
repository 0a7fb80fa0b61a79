"""Readiness: a controller that is stuck reports it, releases its Lease, and is restarted."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.schema.clock import ManualClock
from gangwatch.supervisor.heartbeats import WATCHDOG_SECONDS, Heartbeats, is_stopped
from gangwatch.supervisor.service_manager import notify
from scheduler_feedback.controller.progress import LATE_SECONDS, STUCK_SECONDS, Progress
from scheduler_feedback.core.events import NodeSeen
from scheduler_feedback.feed.agent_reporting import NEVER_SECONDS, AgentStatuses
from scheduler_feedback.feed.stream_state import Stream
from tests.cluster.memory_backend import World
from tests.controller.site import serving
from tests.gangwatch.front_door import FrontDoor, front_door, wait_until

SECOND = 1_000_000_000


# --- late and stuck threads -------------------------------------------------------------------------------------------


def test_a_thread_without_cycles_is_late_and_one_that_does_not_loop_is_stuck() -> None:
    clock = ManualClock()
    progress = Progress(clock)
    progress.begin()
    for _ in range(300):  # a full disk: the loop runs, and no cycle finishes
        clock.advance(1.0)
        progress.pass_finished()
    assert "no scheduling cycle has finished for 300 s" in progress.late()
    assert progress.stuck() == ""
    progress.cycle_finished()
    assert progress.late() == ""
    progress.doing("writing the journal to disk")
    clock.advance(LATE_SECONDS)
    assert progress.late().endswith("10 s: it is writing the journal to disk")
    assert progress.stuck() == ""
    clock.advance(STUCK_SECONDS)
    assert "stuck for 70 s: it is writing the journal to disk" in progress.stuck()


def test_readiness_reports_a_journal_fsync_that_never_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an earlier release /readyz answered 200 for the 45 s that an fsync took."""
    monkeypatch.setattr("scheduler_feedback.controller.progress.LATE_SECONDS", 3.0)
    monkeypatch.setattr("scheduler_feedback.controller.progress.STUCK_SECONDS", 5.0)
    free = threading.Event()
    free.set()
    with serving(tmp_path, World([NodeSeen("n1", 2, (), "m1", True)])) as site:
        commit = site.controller.store.cycle

        def stuck_cycle(*arguments: Any) -> Any:
            free.wait(60)
            return commit(*arguments)

        monkeypatch.setattr(site.controller.store, "cycle", stuck_cycle)
        try:
            free.clear()
            wait_until(lambda: site.ask("GET", "/readyz").status == 503, str)
            document = site.ask("GET", "/readyz").document
            assert document["scheduling"] is False
            assert "no scheduling cycle has finished for" in document["error"]
            assert "writing the journal to disk" in document["error"]
            wait_until(lambda: site.ask("GET", "/healthz").status == 503, str)
            assert "stuck" in site.ask("GET", "/healthz").document["error"]
        finally:
            free.set()
        wait_until(lambda: site.ask("GET", "/readyz").status == 200, str)
        assert site.ask("GET", "/healthz").status == 200


# --- the watchdog -----------------------------------------------------------------------------------------------------


@pytest.fixture
def heartbeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Heartbeats]:
    path = tmp_path / "beats"
    monkeypatch.setenv("NOTIFY_SOCKET", str(path))
    listening = Heartbeats(path)
    yield listening
    listening.close()


def test_a_process_whose_heartbeats_stop_is_identified_by_pid(heartbeats: Heartbeats) -> None:
    pid = os.getpid()
    heartbeats.take(0.0)
    assert heartbeats.seconds_since(pid, 1000.0) == 0.0, "a process that never sent a heartbeat is not watched"
    notify("READY=1", "WATCHDOG=1")
    heartbeats.take(10.0)
    assert heartbeats.seconds_since(pid, 10.0 + WATCHDOG_SECONDS) == WATCHDOG_SECONDS
    heartbeats.excuse(pid, 100.0)
    assert heartbeats.seconds_since(pid, 101.0) == 1.0
    heartbeats.forget(pid)
    assert heartbeats.seconds_since(pid, 1000.0) == 0.0


@pytest.mark.parametrize("message", [b"", b"READY=1", b"XWATCHDOG=1", b"WATCHDOG=10", b"\0" * 400, b"\xff" * 512])
def test_invalid_heartbeats_are_ignored(heartbeats: Heartbeats, tmp_path: Path, message: bytes) -> None:
    notify("WATCHDOG=1")
    heartbeats.take(0.0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(message, str(tmp_path / "beats"))
    heartbeats.take(50.0)
    assert heartbeats.seconds_since(os.getpid(), 50.0) == 50.0


STUCK_CONTROLLER = """
import pathlib, sys, time

if "controller" in sys.orig_argv or "agent" in sys.orig_argv or "up" in sys.orig_argv or "supervise" in sys.orig_argv:
    from gangwatch.supervisor import heartbeats

    heartbeats.WATCHDOG_SECONDS = 4.0
    if "supervise" in sys.orig_argv or "up" in sys.orig_argv:
        from gangwatch.supervisor import supervisor

        supervisor.STUCK_CHECK_SECONDS = 0.5
    import scheduler_feedback.controller.progress as progress

    progress.STUCK_SECONDS = 1.0
    flag = pathlib.Path(__file__).with_name("stuck")
    if "controller" in sys.orig_argv:
        from scheduler_feedback.journal.store import Store

        write = Store.cycle

        def cycle(self, *arguments):
            if flag.exists():
                flag.unlink()
                time.sleep(3600)
            return write(self, *arguments)

        Store.cycle = cycle
"""


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FrontDoor]:
    folder = tmp_path / "slow-disk"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(STUCK_CONTROLLER)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    with front_door(tmp_path) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.xdist_group("front-door")
def test_a_stuck_controller_is_restarted_and_a_stopped_one_is_not(door: FrontDoor, tmp_path: Path) -> None:
    door.up()
    job = door.submit("--", sys.executable, "-I", "-c", "import time; time.sleep(60)")
    door.wait_for(job, "running")
    first = door.state.controller()
    assert first is not None
    os.kill(first.pid, signal.SIGSTOP)
    wait_until(lambda: is_stopped(first.pid), door.logs)
    time.sleep(9)  # longer than the watchdog's timeout, as with an attached debugger
    os.kill(first.pid, signal.SIGCONT)
    wait_until(lambda: status_of(f"{first.url}/readyz")[0] == 200, door.logs)
    again = door.state.controller()
    assert again is not None
    assert again.pid == first.pid, "a process that a person stopped is not stuck"

    (tmp_path / "slow-disk" / "stuck").touch()
    wait_until(lambda: (found := door.state.controller()) is not None and found.pid != first.pid, door.logs)
    wait_until(lambda: door.job(job)["state"] == "running", door.logs)
    assert door.job(job)["attempt"] == 1, "the job continued"
    assert "stuck: no progress for" in door.state.log_file("supervisor").read_text()


# --- agents that do not report ----------------------------------------------------------------------------------------


def test_an_agent_is_stale_after_three_intervals_and_at_least_three_seconds() -> None:
    known = [
        Stream("fast", received_ns=100 * SECOND, interval_seconds=0.1),
        Stream("usual", received_ns=100 * SECOND, interval_seconds=1.0),
        Stream("slow", received_ns=100 * SECOND, interval_seconds=15.0),
        Stream("new", known_ns=100 * SECOND),
    ]
    streams = {stream.node: stream for stream in known}

    def stale_at(seconds: float) -> set[str]:
        statuses = AgentStatuses(streams, int((100 + seconds) * SECOND), 1_800_000_000 * SECOND)
        assert {node for node, one in statuses.items() if one.silent} == {node for node, _ in statuses.silent(streams)}
        return {node for node, _ in statuses.silent([*streams, "unknown"])}

    assert stale_at(2.9) == set()
    assert stale_at(3.1) == {"fast", "usual"}
    assert stale_at(NEVER_SECONDS + 0.1) == {"fast", "usual", "new"}
    assert stale_at(45.1) == {"fast", "usual", "slow", "new"}
    statuses = AgentStatuses(streams, 107 * SECOND, 1_800_000_000 * SECOND)
    assert statuses["usual"].words == "no frame for 7 s"
    assert statuses["usual"].since_ns == 1_799_999_993 * SECOND
    assert statuses["new"].words == "no frame yet"
    assert statuses["slow"].words == "fresh"


@pytest.mark.slow
@pytest.mark.xdist_group("front-door")
def test_a_stopped_agent_is_reported_on_page_and_command_line(tmp_path: Path) -> None:
    with front_door(tmp_path) as door:
        door.up()
        controller, agent = door.state.controller(), door.state.agent("node-1")
        assert controller is not None
        assert agent is not None
        wait_until(lambda: all((node["agent"] or {}).get("words") == "fresh" for node in door.json("nodes")), door.logs)
        os.kill(agent.pid, signal.SIGSTOP)
        stopped_s = time.monotonic()
        try:
            wait_until(lambda: "No telemetry from" in status_of(controller.url)[1], door.logs)
            took_seconds = time.monotonic() - stopped_s
            assert 2.0 < took_seconds < 15.0  # 5 s are promised; a loaded machine needs longer
            by_node = {node["node"]: node["agent"] for node in door.json("nodes")}
            assert by_node["node-1"]["silent"] is True
            assert by_node["node-0"]["silent"] is False
            assert by_node["node-1"]["age_seconds"] > 3.0
            assert "no frame for" in door.run("nodes").stdout
            assert "no telemetry from node-1" in door.run("top", "--once").stdout
            assert "no frame for" in status_of(f"{controller.url}/nodes/node-1")[1]
        finally:
            os.kill(agent.pid, signal.SIGCONT)
        wait_until(lambda: "No telemetry from" not in status_of(controller.url)[1], door.logs)


def status_of(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, json.dumps(str(error))


def test_the_systemd_unit_sets_the_watchdog_timeout() -> None:
    unit = Path(__file__).resolve().parents[2] / "deploy" / "systemd" / "gangwatch-slurm.service"
    assert f"WatchdogSec={WATCHDOG_SECONDS:.0f}\n" in unit.read_text()
