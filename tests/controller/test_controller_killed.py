"""Controller as a separate process with real jobs: killed at any moment, stopped, reloaded."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scheduler_feedback.core.job import JobState
from scheduler_feedback.core.state import State
from scheduler_feedback.journal.recovery import recover
from scheduler_feedback.journal.store import Store

_CONTROLLER = """
import asyncio, json, signal, sys
from pathlib import Path
from agent.schema.errors import SubmissionError
from scheduler_feedback.backends.local.local_backend import LocalBackend, LocalNode
from scheduler_feedback.controller.controller import Controller
from scheduler_feedback.controller.controller_settings import ControllerSettings
from scheduler_feedback.core.events import Submitted
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.core.state import Policy

folder = Path(sys.argv[1])
backend = LocalBackend(folder, [LocalNode("n0", 2), LocalNode("n1", 2)])

def reload():
    return Policy(**json.loads((folder / "policy.json").read_text()))

async def main():
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    with Controller(folder, backend, reload(), ControllerSettings(detectors=()), reload=reload) as controller:
        async with controller.serving(stop.set):
            controller.announce("http://127.0.0.1:1")
            for line in (folder / "wanted.jsonl").read_text().splitlines():
                spec = JobSpec(**json.loads(line))
                def make(state):
                    if any(job.spec.name == spec.name for job in state.jobs.values()):
                        raise SubmissionError("it is there")
                    return Submitted(controller.cycle.new_job_id(), spec)
                try:
                    await asyncio.wrap_future(controller.cycle.request(make))
                except SubmissionError:
                    pass
            print("up", flush=True)
            await stop.wait()
    print("down", flush=True)

asyncio.run(main())
"""

_JOB = """
import os, sys, time
with open(sys.argv[1], "a") as file:
    file.write(f"{os.environ['GANGWATCH_JOB']} {os.environ['GANGWATCH_ATTEMPT']} {os.environ['RANK']}\\n")
time.sleep(float(sys.argv[2]))
"""


class Process:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.popen = subprocess.Popen(
            [sys.executable, "-c", _CONTROLLER, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        _started.append(self)

    def until_up(self) -> None:
        assert self.popen.stdout is not None
        assert self.popen.stdout.readline() == "up\n", self.popen.communicate()

    def end(self, how: signal.Signals) -> str:
        """Send a signal and wait for the end. Return the output since the last call."""
        self.popen.send_signal(how)
        out, errors = self.popen.communicate(timeout=30)
        assert "Traceback" not in errors, errors
        return out


_started: list[Process] = []


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "policy.json").write_text("{}")
    (tmp_path / "wanted.jsonl").write_text("")
    yield tmp_path
    for process in _started:
        if process.popen.poll() is None:
            process.popen.kill()
        if process.popen.stdout is not None and not process.popen.stdout.closed:
            process.popen.communicate()
    _started.clear()
    for path in tmp_path.glob("ranks/*/*.json"):  # only after a failed test
        record = json.loads(path.read_text())
        for key in ("shim_pid", "pid"):
            try:
                os.kill(record[key], signal.SIGKILL)
            except (KeyError, ProcessLookupError):
                pass


def want(folder: Path, *jobs: tuple[str, int, float]) -> None:
    lines = [
        json.dumps(
            {
                "name": name,
                "command": [sys.executable, "-S", "-c", _JOB, str(folder / "ran"), str(seconds)],
                "ranks": ranks,
                "time_limit_seconds": seconds + 1,
            }
        )
        for name, ranks, seconds in jobs
    ]
    (folder / "wanted.jsonl").write_text("\n".join(lines))


def stored(folder: Path) -> State:
    store = Store(folder / "store.sqlite")
    try:
        recovered = recover(store)
    finally:
        store.close()
    assert recovered.mismatches == 0
    return recovered.state


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)


@pytest.mark.slow
def test_killed_at_random_moments_it_loses_no_job_and_runs_none_twice(folder: Path) -> None:
    want(folder, ("a", 2, 4.0), ("b", 4, 0.5), ("c", 2, 2.0), ("d", 1, 0.1))
    chance = random.Random(7)
    for _ in range(10):
        controller = Process(folder)
        if chance.random() < 0.7:
            controller.until_up()
        time.sleep(chance.uniform(0.0, 0.6))
        controller.end(signal.SIGKILL)
    controller = Process(folder)
    controller.until_up()
    until(lambda: len(stored_jobs := stored(folder).jobs) == 4 and all(j.state.ended for j in stored_jobs.values()))
    assert controller.end(signal.SIGTERM) == "down\n"

    state = stored(folder)
    assert {job.spec.name: job.state for job in state.jobs.values()} == dict.fromkeys("abcd", JobState.COMPLETED)
    assert all(rank.exit_code == 0 for job in state.jobs.values() for rank in job.ranks)
    ran = (folder / "ran").read_text().splitlines()
    assert sorted(ran) == sorted(
        f"{job.job_id} {job.attempt} {rank}" for job in state.jobs.values() for rank in range(job.spec.ranks)
    )
    store = Store(folder / "store.sqlite")
    for job_id in state.jobs:
        kinds = [numbered.entry.kind for numbered in store.entries_of(job_id)]
        assert kinds[0] == "submitted"
        assert kinds[-1] == "ended"
        assert "started" in kinds or "backfilled" in kinds
    assert store.open_actions() == []
    store.close()
    assert list(folder.glob("ranks/*/*.json")) == []


def test_sigterm_leaves_the_jobs_and_is_quick(folder: Path) -> None:
    want(folder, ("a", 2, 10.0))  # longer than a busy machine takes until the ranks are observed again
    controller = Process(folder)
    controller.until_up()
    until(lambda: len(list(folder.glob("ranks/*/*.json"))) == 2)
    assert json.loads((folder / "controller.json").read_text())["pid"] == controller.popen.pid
    second = Process(folder)
    out, errors = second.popen.communicate(timeout=30)
    assert out == ""
    assert f"StateFolderBusyError: a controller (pid {controller.popen.pid})" in errors
    began = time.monotonic()
    assert controller.end(signal.SIGTERM) == "down\n"
    assert time.monotonic() - began < 10  # the limit is 2 s; a loaded machine may need more
    assert controller.popen.returncode == 0
    assert not (folder / "controller.json").exists()
    assert len(list(folder.glob("ranks/*/*.json"))) == 2
    again = Process(folder)
    again.until_up()
    until(lambda: all(job.state is JobState.COMPLETED for job in stored(folder).jobs.values()))
    again.end(signal.SIGTERM)
    assert len((folder / "ran").read_text().splitlines()) == 2


def test_sighup_takes_over_new_settings(folder: Path) -> None:
    controller = Process(folder)
    controller.until_up()
    (folder / "policy.json").write_text('{"migration_margin": 0.6}')
    controller.popen.send_signal(signal.SIGHUP)
    until(lambda: stored(folder).policy.migration_margin == 0.6)
    assert controller.end(signal.SIGTERM) == "down\n"
