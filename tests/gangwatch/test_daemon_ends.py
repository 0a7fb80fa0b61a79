"""Commands that need a controller print why the supervisor has none running."""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gangwatch.state_folder import (
    NodePlan,
    ProcessRecord,
    StateFolder,
    SupervisorRecord,
    this_process,
    write_atomically,
)
from gangwatch.supervisor.daemon_ends import DaemonEnd, forget_ends, read_ends, why_no_controller, write_end
from tests.gangwatch.front_door import FrontDoor, front_door, wait_until

SECOND = 1_000_000_000
GONE = ProcessRecord(2**22 - 1, 1)


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    return StateFolder(tmp_path)


def supervised(state: StateFolder, by: ProcessRecord, controller: ProcessRecord | None = None) -> None:
    daemons = {} if controller is None else {"controller": controller}
    record = SupervisorRecord(by.pid, by.start_time, (NodePlan("node-0", 2),), 0, "", (), daemons)
    write_atomically(state.supervisor_file, msgspec.json.encode(record))


def ended(state: StateFolder, ago: float, again: float, **more: object) -> None:
    now_ns = time.time_ns()
    values = {"pid": GONE.pid, "ended_ns": now_ns - int(ago * SECOND), "next_start_ns": now_ns + int(again * SECOND)}
    write_end(state, "controller", DaemonEnd(**{**values, **more}))  # type: ignore[arg-type]


def test_without_a_start_the_message_names_the_command_that_starts_it(state: StateFolder) -> None:
    assert why_no_controller(state) == f"no controller is running for {state}: start one with `gangwatch up`"


def test_during_restarts_the_message_names_the_reason_and_the_next_attempt(state: StateFolder) -> None:
    supervised(state, this_process(), GONE)
    ended(state, 3.2, 4.8, exit_code=1, words="ValueError: a bug", in_a_row=4)
    words = why_no_controller(state)
    assert (
        "is being restarted (ended 3 s ago, 4 times in a row: exit code 1: ValueError: a bug; next attempt in 5 s)"
        in words
    )
    assert "gangwatch up" not in words
    ended(state, 200, -1, exit_code=-9)
    assert "(ended 3 min ago: killed by SIGKILL; next attempt in 0 s)" in why_no_controller(state)


def test_a_starting_controller_is_not_reported_missing(state: StateFolder) -> None:
    supervised(state, this_process(), this_process())
    assert "is starting: try again in a moment" in why_no_controller(state)
    ended(state, 5, 0, exit_code=None)
    assert "is starting again (it ended 5 s ago: ended)" in why_no_controller(state)


def test_without_a_supervisor_the_message_says_to_start_both(state: StateFolder) -> None:
    supervised(state, GONE, GONE)
    ended(state, 7, 0, exit_code=1, words="OSError: no room")
    words = why_no_controller(state)
    assert "its supervisor has ended; the controller ended 7 s ago: exit code 1: OSError: no room" in words
    assert "`gangwatch up`" in words
    forget_ends(state)
    assert "no room" not in why_no_controller(state)


def test_a_damaged_exit_record_is_ignored(state: StateFolder) -> None:
    (state.path / "daemon-ends.json").write_bytes(b'{"controller": 7')
    assert read_ends(state) == {}
    supervised(state, this_process(), GONE)
    assert "starting" in why_no_controller(state)


# --- a controller that cannot start again -----------------------------------------------------------------------------


@pytest.fixture
def door(tmp_path: Path) -> Iterator[FrontDoor]:
    with front_door(tmp_path) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.xdist_group("front-door")
def test_every_command_reports_why_the_controller_is_down_until_it_runs(door: FrontDoor, tmp_path: Path) -> None:
    configuration = tmp_path / "gangwatch.toml"
    configuration.write_text("")
    door.up("--config", str(configuration))
    configuration.write_text("[nonsense]\nkey = 1\n")
    door.kill("controller")
    wait_until(lambda: (end := read_ends(door.state).get("controller")) is not None and end.in_a_row > 2, door.logs)
    for command in (("jobs",), ("submit", "--", sys.executable, "-c", ""), ("top", "--once"), ("queue",)):
        refused = door.run(*command, code=3)
        assert "controller" in refused.stderr, refused.stderr
        assert "nonsense" in refused.stderr, refused.stderr
        assert "restarted" in refused.stderr or "starting again" in refused.stderr
        assert "gangwatch up" not in refused.stderr
    again = door.run("up", "--config", str(configuration), code=None)
    assert again.returncode != 0
    assert "nonsense" in again.stderr
    findings = {one["name"]: one for one in door.json("check")["findings"]}
    assert findings["controller"]["state"] == "missing"
    assert "nonsense" in findings["controller"]["detail"]

    configuration.write_text("")
    wait_until(lambda: door.state.controller() is not None, door.logs)
    assert door.json("jobs") == []
    controller = door.state.controller()
    assert controller is not None
    with urllib.request.urlopen(f"{controller.url}/api/parts", timeout=20) as answer:
        (part,) = json.load(answer)
    assert part["part"] == "controller"
    assert "nonsense" in part["words"]
    with urllib.request.urlopen(controller.url, timeout=20) as answer:
        assert "and was restarted. Running jobs" in answer.read().decode()
    door.run("down")
    assert door.run("jobs", code=3).stderr.endswith("start one with `gangwatch up`\n")
