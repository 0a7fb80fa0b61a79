"""Rolling upgrade and downgrade with the wheel of an older commit: daemons of both releases; jobs continue."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gangwatch.supervisor.teardown import remains
from tests import needs
from tests.gangwatch.front_door import FrontDoor, wait_until

OLD = "bbd3087"
"""Last commit of the first edition."""

ROOT = Path(__file__).resolve().parents[2]

TRAINING = """
import sys, time
from gangwatch import steps

reporter = steps.reporter()
while True:
    with reporter.step():
        time.sleep(0.1)
"""

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("front-door"), pytest.mark.timeout(600)]


@pytest.fixture(scope="session")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which the old wheel is installed. It uses the current dependencies."""
    folder = tmp_path_factory.mktemp("old")
    git = needs.component("git", "git")
    archive = subprocess.run([git, "-C", str(ROOT), "archive", OLD], capture_output=True)
    if archive.returncode:
        needs.absent(f"commit {OLD} is not in this clone: git fetch --unshallow")
    source = folder / "source"
    source.mkdir()
    subprocess.run(["tar", "-x", "-C", source], input=archive.stdout, check=True)
    needs.package("build")
    python = [sys.executable, "-m"]
    build = [*python, "build", "--wheel", "--no-isolation", "--outdir", str(folder / "dist"), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    installed = folder / "installed"
    install = [*python, "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(installed), str(wheel)]
    subprocess.run(install, check=True)
    return installed


class TwoReleases(FrontDoor):
    """State folder that commands of either release use."""

    def __init__(self, folder: Path, old: Path) -> None:
        super().__init__(folder)
        self.old = old

    def use_old(self) -> None:
        self.environment["PYTHONPATH"] = str(self.old)

    def use_new(self) -> None:
        self.environment.pop("PYTHONPATH", None)


@pytest.fixture
def door(tmp_path: Path, old: Path) -> Iterator[TwoReleases]:
    opened = TwoReleases(tmp_path / "state", old)
    try:
        yield opened
    finally:
        opened.use_new()
        opened.close()
        assert remains(opened.state) == set()


def job_of(door: FrontDoor, job_id: str) -> dict[str, Any]:
    (job,) = (one for one in door.json("jobs") if one["job"] == job_id)
    return dict(job)


def runs_in_its_first_attempt(door: FrontDoor, job_id: str) -> bool:
    job = job_of(door, job_id)
    return (job["state"], job["attempt"]) == ("running", 1)


def agent_pids(door: FrontDoor) -> list[int]:
    return [record.pid for number in (0, 1) if (record := door.state.agent(f"node-{number}"))]


def metrics_of(door: FrontDoor) -> str:
    record = door.state.controller()
    if record is None:
        return ""
    try:
        with urllib.request.urlopen(f"{record.url}/metrics", timeout=20) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def value(text: str, series: str) -> float:
    """Return the sum of the series whose text begins with `series`: a name, perhaps with some labels."""
    found = re.findall(rf"^{re.escape(series)}[^\n ]* (\S+)$", text, re.MULTILINE)
    return sum(map(float, found))


def receives_both_agents(door: FrontDoor) -> bool:
    text = metrics_of(door)
    frames = [value(text, f'gangwatch_feed_frames_total{{node="node-{number}"') for number in (0, 1)]
    assert value(text, "gangwatch_feed_malformed_total") == 0, door.logs()
    return min(frames) >= 3


def up(door: FrontDoor) -> None:
    door.run("up", "--nodes", "2", "--slots", "2", "--port", "0", "--no-gpus")


def submit_training(door: FrontDoor) -> str:
    job = door.submit("--ranks", "2", "--", sys.executable, "-c", TRAINING)
    door.wait_for(job, "running")
    return job


def test_upgrade_and_downgrade_end_no_job(door: TwoReleases) -> None:
    door.use_old()
    up(door)
    before = submit_training(door)
    door.run("down", "--keep-jobs")
    door.use_new()
    up(door)
    wait_until(lambda: runs_in_its_first_attempt(door, before), door.logs)
    wait_until(lambda: receives_both_agents(door), door.logs)
    between = door.submit("--", sys.executable, "-I", "-c", "import time; time.sleep(3600)")
    door.wait_for(between, "running")

    door.run("down", "--keep-jobs")
    door.use_old()
    tried = door.run("up", "--nodes", "2", "--slots", "2", "--port", "0", "--no-gpus", code=None)
    if tried.returncode == 0:
        wait_until(lambda: runs_in_its_first_attempt(door, before), door.logs)
        wait_until(lambda: runs_in_its_first_attempt(door, between), door.logs)
        door.run("down", "--keep-jobs")
    door.use_new()
    up(door)
    for job in (before, between):
        wait_until(partial(runs_in_its_first_attempt, door, job), door.logs)
    later = door.submit("--", "true")
    door.wait_for(later, "completed")


@pytest.mark.parametrize("agents", ["old", "new"])
def test_a_controller_receives_agents_of_another_release(door: TwoReleases, agents: str) -> None:
    """In the middle of a rollout, `up` adopts the running agents and starts the controller of the new release."""
    first, then = (door.use_old, door.use_new) if agents == "old" else (door.use_new, door.use_old)
    first()
    up(door)
    training = submit_training(door)
    kept = agent_pids(door)
    door.kill("supervisor")
    door.kill("controller")
    then()
    up(door)
    assert agent_pids(door) == kept
    wait_until(lambda: receives_both_agents(door), door.logs)
    wait_until(lambda: runs_in_its_first_attempt(door, training), door.logs)
    wait_until(lambda: value(metrics_of(door), "gangwatch_gang_step_seconds") > 0 or paced(door, training), door.logs)
    for pid in kept:
        os.kill(pid, 0)


def paced(door: FrontDoor, job: str) -> bool:
    """Return whether the controller knows the job's step time, which needs steps from the agents."""
    record = door.state.controller()
    try:
        with urllib.request.urlopen(f"{record.url}/api/jobs/{job}/pace", timeout=20) as answer:  # type: ignore[union-attr]
            return bool(answer.status == 200)
    except OSError:
        return False
