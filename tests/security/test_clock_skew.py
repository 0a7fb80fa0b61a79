"""Node whose clock is wrong by minutes: its jobs get the same verdicts as jobs on other nodes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import needs
from tests.gangwatch.front_door import FrontDoor, front_door, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("front-door"), pytest.mark.timeout(600)]

TRAIN = str(Path(__file__).resolve().parents[2] / "examples" / "train_dp.py")
LIGHT = ("--batch", "256", "--pace-seconds", "0.05")
"""Options of a training that uses little of the machine's CPU time."""


@pytest.fixture(params=[300])  # behind: tests/core/test_node_clock.py
def door(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[FrontDoor]:
    compiler, library = needs.component("gcc", "gcc"), tmp_path / "skew.so"
    source = Path(__file__).with_name("skew.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    with front_door(tmp_path) as opened:
        opened.environment |= {
            "LD_PRELOAD": str(library),
            "GANGWATCH_SKEWED_NODE": "node-1",
            "GANGWATCH_SKEW_SECONDS": str(request.param),
        }
        yield opened


def verdicts_of(door: FrontDoor, job: str) -> list[dict[str, Any]]:
    return [verdict for verdict in door.json("verdict", "list") if verdict["job"] == job]


def test_under_clock_skew_a_healthy_job_has_no_verdict_and_a_stopped_rank_is_found(door: FrontDoor) -> None:
    door.up()
    job = door.submit("--ranks", "4", "--", sys.executable, TRAIN, "--steps", "100000000", *LIGHT)
    door.wait_for(job, "running")
    until_s = time.monotonic() + 25
    while time.monotonic() < until_s:
        assert verdicts_of(door, job) == []
        time.sleep(2)
    (listed,) = (one for one in door.json("jobs") if one["job"] == job)
    ranks = {rank["rank"]: rank for rank in listed["ranks"]}
    culprit = next(rank for rank in ranks.values() if rank["node"] == "node-1")
    os.kill(culprit["pid"], signal.SIGSTOP)
    try:
        wait_until(lambda: bool(verdicts_of(door, job)), door.logs)
        (verdict, *_) = verdicts_of(door, job)
        assert (verdict["kind"], verdict["rank"], verdict["node"]) == ("hang", culprit["rank"], "node-1")
        seconds = (time.time_ns() - verdict["first_wall_ns"]) / 1e9
        assert -1 < seconds < 120, "times are those of the controller's clock"
    finally:
        os.kill(culprit["pid"], signal.SIGCONT)
