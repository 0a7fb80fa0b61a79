"""The controller is killed with SIGKILL at random, again and again; no job is lost, run twice or left behind.

Rounds of five jobs are submitted meanwhile. Each kill comes at a random time after a start, so some come during the
replay, some while the journal is written, and some while gangs start or stop. Every rank writes a line when it starts
and one when it ends, so the file records which ranks really ran.
"""

from __future__ import annotations

import http.client
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.schema.errors import GangwatchError
from gangwatch.controller_client import Client

KILLS = int(os.environ.get("GANGWATCH_TEST_KILLS", "40"))
SEED = int(os.environ.get("GANGWATCH_TEST_SEED", "20261121"))

RANK = """
import os, sys, time
line = "{} {} {} {}\\n"
def record(what):
    descriptor = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line.format(what, os.environ["GANGWATCH_JOB"], os.environ["RANK"], os.getpid()).encode())
    os.close(descriptor)
record("began")
time.sleep(float(sys.argv[2]))
record("ended")
sys.exit(int(sys.argv[3]))
"""

CONFIGURATION = """
[cluster]
nodes = 2
slots = 2

[controller]
port = 0
"""


class KilledController:
    """Controller that is killed and restarted repeatedly."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.configuration = folder / "gangwatch.toml"
        self.configuration.write_text(CONFIGURATION)
        self.log = (folder / "controller.err").open("ab")
        self.client = Client(self.state)
        self.process: subprocess.Popen[bytes] | None = None
        self.kills = 0

    def start(self) -> None:
        command = [sys.executable, "-m", "gangwatch", "controller"]
        command += ["--state", str(self.state), "--config", str(self.configuration)]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)

    def kill(self) -> None:
        assert self.process is not None
        assert self.process.poll() is None, f"the controller ended without a kill: see {self.log.name}"
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.kills += 1

    def when_ready(self, ask: Callable[[], Any], seconds: float = 60) -> Any:
        """Send the request until there is a response. Return the response."""
        until = time.monotonic() + seconds
        while True:
            try:
                return ask()
            except (GangwatchError, OSError, http.client.HTTPException) as error:
                if time.monotonic() > until:
                    raise AssertionError(f"no response within {seconds} s: {error}") from error
                time.sleep(0.05)


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[KilledController]:
    controller = KilledController(tmp_path)
    controller.start()
    yield controller
    if controller.process is not None and controller.process.poll() is None:
        controller.process.terminate()
        controller.process.wait(timeout=30)
    controller.log.close()
    down = [sys.executable, "-m", "gangwatch", "down", "--state", str(controller.state)]
    subprocess.run(down, check=True, capture_output=True, timeout=120)


def jobs_of_a_round(number: int, diary: Path, source: random.Random) -> list[dict[str, Any]]:
    """Return five jobs for four slots: some must wait, one fails, one is backfilled."""
    shapes = [(2, 0), (4, 0), (1, 0), (3, 7), (1, 0)]
    return [
        {
            "name": f"round{number}-job{index}",
            "command": [
                sys.executable,
                "-I",
                "-S",
                "-c",
                RANK,
                str(diary),
                f"{source.uniform(0.1, 1.2):.2f}",
                str(code),
            ],
            "ranks": ranks,
            "time_limit_seconds": 5.0,
            "working_directory": str(diary.parent),
            "environment": {"PATH": os.environ["PATH"]},
        }
        for index, (ranks, code) in enumerate(shapes)
    ]


def submit_until_accepted(killed: KilledController, specification: dict[str, Any]) -> None:
    """Submit until the job is accepted. After a lost response, search for the job by its name, as a user would."""

    def ask() -> None:
        names = {job["name"] for job in killed.client.get("/api/jobs")}
        if specification["name"] not in names:
            killed.client.post("/api/jobs", specification)

    killed.when_ready(ask)


def remaining_processes(folder: Path, controller: int) -> list[str]:
    """Return the command lines that name the folder, except the controller's: those of ranks and shims."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in command and int(path.parent.name) not in (controller, os.getpid()):
            found.append(command)
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_job_is_lost_run_twice_or_left_behind(killed: KilledController, tmp_path: Path) -> None:
    source = random.Random(SEED)
    diary = tmp_path / "diary"
    round_number = 0
    names: list[str] = []
    while killed.kills < KILLS:
        round_number += 1
        waiting = jobs_of_a_round(round_number, diary, source)
        names += [specification["name"] for specification in waiting]
        kills_before = killed.kills
        while killed.kills < kills_before + 10 and killed.kills < KILLS:
            if waiting and source.random() < 0.6:
                submit_until_accepted(killed, waiting.pop(0))
            time.sleep(source.uniform(0.05, 1.5))
            killed.kill()
            killed.start()
        for specification in waiting:
            submit_until_accepted(killed, specification)

    def all_ended() -> list[dict[str, Any]]:
        jobs: list[dict[str, Any]] = killed.client.get("/api/jobs")
        if not all(job["state"] in ("completed", "failed", "cancelled") for job in jobs):
            raise AssertionError("still running")
        return jobs

    until = time.monotonic() + 240
    while True:
        try:
            jobs = killed.when_ready(all_ended)
            break
        except AssertionError:
            assert time.monotonic() < until, killed.client.get("/api/jobs")
            time.sleep(0.5)

    assert killed.kills == KILLS
    assert sorted(job["name"] for job in jobs) == sorted(names), "a job was lost, or accepted twice"
    lines = [line.split() for line in diary.read_text().splitlines()]
    for job in jobs:
        fails = job["name"].endswith("job3")
        assert job["state"] == ("failed" if fails else "completed"), job
        began = [(rank, pid) for what, gang, rank, pid in lines if gang == job["job"] and what == "began"]
        assert sorted(rank for rank, _ in began) == [str(rank) for rank in range(len(job["ranks"]))], (job, began)
        codes = [rank["exit_code"] for rank in job["ranks"]]
        if fails:
            assert 7 in codes, job
        else:
            assert codes == [0] * len(codes), job
        kinds = [entry["kind"] for entry in killed.client.get(f"/api/jobs/{job['job']}/story")]
        for kind in ("submitted", "running", "ended"):
            assert kinds.count(kind) == 1, (job["name"], kind, kinds)
        assert kinds.count("started") + kinds.count("backfilled") == 1, (job["name"], kinds)
    assert killed.process is not None
    until = time.monotonic() + 10
    while (left := remaining_processes(tmp_path, killed.process.pid)) and time.monotonic() < until:
        time.sleep(0.1)  # a shim reports at its very end that all ranks have ended
    assert left == []
