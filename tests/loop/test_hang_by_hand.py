"""A rank of a real training is stopped permanently: the training is restarted on other nodes and completes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gangwatch.front_door import FrontDoor, front_door, wait_until
from tests.loop.test_by_hand import steps_of, train, verdicts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

STOP_SECONDS = 40.0
"""Duration of the first of two stops: much longer than the delay of a verdict, which takes 10 to 15 s."""


@pytest.fixture
def door(tmp_path: Path) -> Iterator[FrontDoor]:
    with front_door(tmp_path) as opened:
        opened.run("up", "--nodes", "4", "--slots", "1", "--port", "0", "--no-gpus")
        yield opened


def begin(door: FrontDoor, folder: Path, name: str, ranks: int, *more: str) -> tuple[str, dict[str, Any]]:
    """Start a training and wait for some steps. Return its id and document."""
    own = folder / name
    own.mkdir()
    job_id = door.submit("--ranks", str(ranks), "--time-limit", "30m", "--grace", "3s", "--restart-cost", "3s", *more,
                         "--", *train(own, "--pace-seconds", "0.12", "--steps", "120"))  # fmt: skip
    door.wait_for(job_id, "running")
    wait_until(lambda: steps_of(door, job_id) > 20, lambda: f"no steps\n{door.logs()}")
    return job_id, door.job(job_id)


def story(door: FrontDoor, job_id: str, kind: str) -> list[str]:
    return [entry["text"] for entry in door.json("story", job_id) if entry["kind"] == kind]


def test_a_training_with_a_permanently_stopped_rank_is_restarted_elsewhere_and_ends(
    door: FrontDoor, tmp_path: Path
) -> None:
    """A second job that is not restartable stays, with the reason. A job of one rank that is stopped as a whole
    resumes."""
    job_id, job = begin(door, tmp_path, "restartable", 2, "--restartable")
    other_id, other = begin(door, tmp_path, "kept", 1)
    victim, single = job["ranks"][1], other["ranks"][0]
    os.kill(victim["pid"], signal.SIGSTOP)
    os.kill(single["pid"], signal.SIGSTOP)
    wait_until(
        lambda: door.job(job_id)["attempt"] == 2,
        lambda: f"{door.json('story', job_id)}\n{door.logs()}",
        seconds=120,
    )
    (decision,) = story(door, job_id, "restart")
    assert "rank 1's process is stopped (SIGSTOP)" in decision
    assert "no step for 1" in decision, "the verdict came long before the restart"
    (stay, *_) = story(door, job_id, "stay")
    assert "its process is stopped and may be continued" in stay
    moved = door.wait_for(job_id, "running")
    assert victim["node"] not in {rank["node"] for rank in moved["ranks"]}
    os.kill(single["pid"], signal.SIGCONT)
    for one in (job_id, other_id):
        wait_until(lambda one=one: door.job(one)["state"] == "completed", door.logs, seconds=120)  # type: ignore[misc]
    assert door.job(other_id)["attempt"] == 1
    assert not story(door, other_id, "restart")
    assert {one["job"] for one in verdicts(door)} <= {job_id}


def test_a_job_that_cannot_be_restarted_is_reported_and_a_second_stop_is_detected_as_fast(
    door: FrontDoor, tmp_path: Path
) -> None:
    job_id, job = begin(door, tmp_path, "kept", 2)
    pid = job["ranks"][1]["pid"]
    delays = []
    for number in (1, 2):
        at = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        wait_until(
            lambda number=number: len(story(door, job_id, "verdict")) == number,  # type: ignore[misc]
            lambda: f"{door.json('story', job_id)}\n{door.logs()}",
            seconds=120,
        )
        delays.append(time.monotonic() - at)
        if number == 1:
            time.sleep(max(STOP_SECONDS - delays[0], 0.0))
        os.kill(pid, signal.SIGCONT)
        wait_until(
            lambda number=number: len(story(door, job_id, "cleared")) == number,  # type: ignore[misc]
            lambda: f"{door.json('story', job_id)}\n{door.logs()}",
        )
        before = steps_of(door, job_id)
        wait_until(lambda before=before: steps_of(door, job_id) > before + 5, door.logs)  # type: ignore[misc]
    sys.stdout.write(f"verdicts {delays[0]:.1f} and {delays[1]:.1f} s after the stops\n")  # for pytest -s
    assert max(delays) < 15.0, "the process stays stopped; one and a half times the first stop is a minute"
    assert "not restarted: it is not declared restartable" in story(door, job_id, "stay")[0]
    assert door.job(job_id)["attempt"] == 1
