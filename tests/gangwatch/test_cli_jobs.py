"""`jobs`, `node maintenance` and job names, run against real daemons."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.gangwatch.front_door import FrontDoor, front_door, wait_until

pytestmark = [pytest.mark.xdist_group("front-door"), pytest.mark.slow]

SLEEPS = (sys.executable, "-c", "import time; time.sleep(600)")
SAVES = (
    sys.executable,
    "-c",
    "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\ntime.sleep(600)",
)


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrontDoor]:
    with front_door(tmp_path_factory.mktemp("jobs")) as running:
        running.up()
        yield running


def cells(line: str) -> list[str]:
    return line.split()


def test_jobs_lists_and_filters_jobs(door: FrontDoor) -> None:
    ran = door.submit("--queue", "night", "--", sys.executable, "-c", "raise SystemExit(3)")
    door.wait_for(ran, "failed")
    wide = door.submit("--name", "wide", "--ranks", "4", "--", *SLEEPS)
    door.wait_for(wide, "running")
    waiting = door.submit("--ranks", "2", "--", *SLEEPS)

    header, *rows = door.run("jobs").stdout.splitlines()
    assert cells(header) == ["JOB", "NAME", "USER", "QUEUE", "STATE", "RANKS", "TIME", "REASON"]
    assert [cells(row)[0] for row in rows] == [wide, waiting], "ended jobs are listed only on request"
    assert cells(rows[0])[4:6] == ["running", "4"]
    assert cells(rows[1])[4:7] == ["pending", "2", "-"] and "needs 2 slots" in rows[1]

    def listed(*arguments: str) -> list[str]:
        return [cells(row)[0] for row in door.run("jobs", *arguments).stdout.splitlines()[1:]]

    assert listed("--all") == [ran, wide, waiting]
    assert listed("--ended") == listed("--queue", "night", "--all") == listed("--in-state", "failed") == [ran]
    assert "rank 0 exited with 3" in door.run("jobs", "--ended").stdout
    assert listed("--in-state", "pending", "--in-state", "failed") == [ran, waiting]
    assert listed("--user", "unknown-user") == []
    assert [job["job"] for job in door.json("jobs")] == [ran, wide, waiting], "the JSON document lists all jobs"
    assert [job["job"] for job in door.json("jobs", "--ended")] == [ran]
    assert "--ended" in door.run("jobs", "--queue", "night").stderr

    shown = door.run("jobs", ran, wide).stdout
    for words in (
        f"job:         {ran}",
        "state:       failed",
        "exit codes:  3 of all ranks",
        "node-0: 0-1; node-1: 2-3",
    ):
        assert words in shown
    assert "no job" in door.run("jobs", "j-999999", code=1).stderr
    door.run("jobs", wide, "--ended", code=2)
    door.run("cancel", wide, waiting)
    door.wait_for(wide, "cancelled")


def test_jobs_lists_an_array_by_its_id(door: FrontDoor) -> None:
    array = door.submit("--array", "3", "--", "true")
    wait_until(lambda: all(job["state"] == "completed" for job in door.json("jobs", array)), door.logs)
    assert [job["job"] for job in door.json("jobs", array)] == [f"{array}.{index}" for index in range(3)]


def test_job_names_and_list_limits(door: FrontDoor) -> None:
    refused = door.run("submit", "--name", "a\u202eb", "--", "true", code=2)
    assert "RIGHT-TO-LEFT OVERRIDE" in refused.stderr
    job = door.submit("--time-limit", "1-00:00:00", "--", sys.executable, "-m", "this")
    document = door.wait_for(job, "completed")
    assert (document["name"], document["time_limit_seconds"]) == ("this", 86400.0)


def interrupt(process: subprocess.Popen[str]) -> None:
    """Interrupt a command until it ends. Python loses a signal that arrives while a weak reference's callback runs, as
    at the end of an import."""
    for _ in range(5):
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=10)
            return


def test_maintenance_lists_the_jobs_of_a_node_and_drain_waits_until_it_is_empty(door: FrontDoor) -> None:
    stays = door.submit("--name", "stays", "--grace", "1s", "--", *SLEEPS)
    door.wait_for(stays, "running")
    leaves = door.submit("--name", "leaves", "--restartable", "--time-limit", "1h", "--", *SAVES)
    node = door.wait_for(leaves, "running")["ranks"][0]["node"]
    assert door.job(stays)["ranks"][0]["node"] == node, "both jobs are packed on one node"
    said = door.run("node", "maintenance", node, "--reason", "new fans").stderr
    assert f"{stays} (stays" in said and "is not restartable: it runs to its end here" in said
    assert f"{leaves} (leaves" in said and "can be moved" in said

    late = door.run("node", "maintenance", node, "--drain", "--timeout", "5s", code=1).stderr
    assert f"{leaves} has left {node}" in late and "not empty after 5 s" in late
    moved = door.wait_for(leaves, "running")
    assert moved["ranks"][0]["node"] != node and moved["attempt"] == 2

    with door.start("node", "maintenance", node, "--drain") as waits:
        assert waits.stderr is not None and node in waits.stderr.readline(), "it has begun"
        interrupt(waits)
        assert waits.returncode == 130
    [there] = [one for one in door.json("nodes") if one["node"] == node]
    assert (there["state"], there["draining"]) == ("maintenance", True)

    with door.start("node", "maintenance", node, "--drain") as waits:
        time.sleep(1)
        door.run("cancel", stays)
        _, printed = waits.communicate(timeout=60)
        assert waits.returncode == 0 and f"{node} is empty" in printed
    refused = door.run("node", "remove", node, code=1).stderr
    assert "still reports" in refused
    door.run("node", "release", node)
    door.run("cancel", leaves)
