"""The real `gangwatch` program, run in processes with a separate state folder."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from gangwatch.cli import run as run_command
from gangwatch.state_folder import StateFolder
from gangwatch.supervisor.teardown import remains

DEADLINE_SECONDS = 60.0
"""Deadline of every wait, generous because a shared machine is slow at times."""

_OUTPUT = threading.Lock()
"""Held while a command of this process writes to the standard output, which all threads share."""


class FrontDoor:
    """Runner of `gangwatch` commands on one state folder."""

    def __init__(self, folder: Path) -> None:
        self.state = StateFolder(folder)
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("GANGWATCH_", "XDG_"))
        } | {"HOME": str(folder.parent), "COLUMNS": "200"}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command and return at once. The caller waits for its end."""
        command, *rest = arguments
        return subprocess.Popen(
            [sys.executable, "-m", "gangwatch", command, "--state", str(self.state), *rest],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run a command to its end. code: required exit code; None for any."""
        with self.start(*arguments) as process:
            out, err = process.communicate(timeout=DEADLINE_SECONDS)
        assert code is None or process.returncode == code, (
            f"{arguments}: {process.returncode}\n{out}\n{err}\n{self.logs()}"
        )
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def json(self, *arguments: str) -> Any:
        """Run a command with --json in this process. Return its output, which must be one document.

        Tests that wait repeat this several times a second, and a new process takes about 0.3 s of CPU time only to
        start.
        """
        command, *rest = arguments
        out, err = io.StringIO(), io.StringIO()
        with (
            _OUTPUT,
            mock.patch.dict(os.environ, self.environment, clear=True),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = run_command([command, "--state", str(self.state), "--json", *rest])
        assert code == 0, f"{arguments}: {code}\n{out.getvalue()}\n{err.getvalue()}\n{self.logs()}"
        return json.loads(out.getvalue())

    def up(self, *arguments: str) -> None:
        self.run("up", "--nodes", "2", "--slots", "2", "--port", "0", "--no-gpus", *arguments)

    def submit(self, *arguments: str) -> str:
        return self.run("submit", *arguments).stdout.strip()

    def job(self, job_id: str) -> dict[str, Any]:
        job: dict[str, Any]
        (job,) = (job for job in self.json("jobs") if job["job"] == job_id)
        return job

    def wait_for(self, job_id: str, *states: str) -> dict[str, Any]:
        """Wait until the job is in one of the states. Return the job."""
        found: dict[str, Any] = {}

        def there() -> bool:
            found.update(self.job(job_id))
            return found["state"] in states

        wait_until(there, lambda: f"{job_id} is {found} and not {states}\n{self.logs()}")
        return found

    def kill(self, name: str) -> int:
        """Kill a daemon ('supervisor', 'controller' or a node) with SIGKILL. Return its pid when it has ended."""
        record = {"supervisor": self.state.supervisor, "controller": self.state.controller}.get(
            name, lambda: self.state.agent(name)
        )()
        assert record is not None, f"{name} does not run"
        os.kill(record.pid, signal.SIGKILL)
        wait_until(lambda: not record.alive(), lambda: f"{name} still runs after SIGKILL")
        return record.pid

    def logs(self) -> str:
        files = sorted((self.state.path / "log").glob("*"))
        return "\n".join(f"--- {file.name}\n{file.read_text()[-3000:]}" for file in files)

    def close(self) -> None:
        """Stop all daemons and jobs, even if the test failed."""
        self.run("down")
        assert remains(self.state) == set()


def wait_until(condition: Callable[[], bool], complaint: Callable[[], str], seconds: float = DEADLINE_SECONDS) -> None:
    deadline_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline_s, complaint()
        time.sleep(0.1)


@contextlib.contextmanager
def front_door(folder: Path) -> Iterator[FrontDoor]:
    door = FrontDoor(folder / "state")
    try:
        yield door
    finally:
        door.close()
