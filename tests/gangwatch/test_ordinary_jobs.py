"""Several jobs on one node that report no steps, which is the most common first use."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gangwatch.front_door import FrontDoor, front_door, wait_until

pytestmark = [pytest.mark.xdist_group("front-door"), pytest.mark.slow]

SLEEPS = ("--grace", "1s", "--", sys.executable, "-c", "import time; time.sleep(600)")
ENDS = ("--", sys.executable, "-c", "import time; time.sleep(1)")


@pytest.fixture
def door(tmp_path: Path) -> Iterator[FrontDoor]:
    with front_door(tmp_path) as closed:
        yield closed


def test_several_jobs_of_one_rank_leave_the_controller_running(door: FrontDoor) -> None:
    """Two jobs on one node and one on the other make frames of different length."""
    door.up()
    controller = door.state.controller()
    assert controller is not None
    jobs = [door.submit(*SLEEPS) for _ in range(3)]
    for job_id in jobs:
        door.wait_for(job_id, "running")
    for _ in range(30):  # several frames per node
        time.sleep(0.2)
        now = door.state.controller()
        assert now is not None, door.logs()
        assert now.pid == controller.pid, door.logs()
    assert {door.job(job_id)["state"] for job_id in jobs} == {"running"}
    last = door.submit(*ENDS)
    door.wait_for(last, "completed")
    door.run("cancel", jobs[0])
    wait_until(lambda: door.job(jobs[0])["state"] == "cancelled", door.logs)
    assert (end := door.state.controller()) is not None
    assert end.pid == controller.pid, door.logs()
