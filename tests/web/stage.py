"""Real cluster on this machine: daemons and jobs, with a straggler, a reservation and a backfilled job."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gangwatch.controller_client import Client
from gangwatch.demo.play import plain_environment, training_command
from tests.gangwatch.front_door import FrontDoor, front_door, wait_until

PACE_SECONDS = 0.2
"""Pause of each step in seconds: four ranks and their neighbours then leave idle CPUs on a small machine."""


class Stage:
    def __init__(self, door: FrontDoor, folder: Path) -> None:
        self.door = door
        self.client = Client(door.state)
        self._folder = folder

    @property
    def url(self) -> str:
        record = self.door.state.controller()
        assert record is not None
        return record.url

    def train(self, name: str, ranks: int, minutes: float, restartable: bool = False) -> str:
        """Submit a real training that makes steps until it is cancelled. Return its id."""
        work = self._folder / name
        work.mkdir()
        submission = {
            "name": name,
            "user": "ada",
            "command": training_command(1_000_000, 1, PACE_SECONDS, work),
            "ranks": ranks,
            "time_limit_seconds": 60 * minutes,
            "restartable": restartable,
            "working_directory": str(work),
            "environment": plain_environment(),
        }
        return str(self.client.post("/api/jobs", submission)["job"])

    def wait(self, job_id: str) -> None:
        wait_until(lambda: self.client.get(f"/api/jobs/{job_id}")["state"] == "running", self.door.logs)

    @contextmanager
    def disturbed(self, job_id: str, rank: int) -> Iterator[None]:
        """Stop and continue one rank of the job inside the ``with``, from a process outside gangwatch."""
        (place,) = (one for one in self.client.get(f"/api/jobs/{job_id}")["ranks"] if one["rank"] == rank)
        disturbance = [sys.executable, "-m", "gangwatch.demo.disturbance", "--slot", str(place["slot"])]
        ranks_folder = self.door.state.path / "ranks" / place["node"]
        with subprocess.Popen(
            [*disturbance, "--ranks-folder", str(ranks_folder)], env=plain_environment(), stdout=subprocess.DEVNULL
        ) as process:
            try:
                yield
            finally:
                process.terminate()


CONFIGURATION = """\
[cluster]
nodes = 4
slots = 2
gpus = false

[controller]
port = 0
mode = "observe"
"""
"""Observe mode: the straggler is not moved during the test."""


@contextmanager
def stage(folder: Path) -> Iterator[Stage]:
    with front_door(folder) as door:
        (folder / "gangwatch.toml").write_text(CONFIGURATION)
        door.run("up", "--config", str(folder / "gangwatch.toml"))
        yield Stage(door, folder)
