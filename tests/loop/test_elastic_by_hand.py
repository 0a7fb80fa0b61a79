"""Two real elastic gangs, resized by their measured speeds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gangwatch.front_door import FrontDoor, front_door, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

RANK = Path(__file__).parent / "elastic_rank.py"

CONFIGURATION = """
[policy]
sizes = "speedup"
sizes_seconds = 2.0
migration_cooldown_seconds = 5.0
"""


@pytest.fixture
def door(tmp_path: Path) -> Iterator[FrontDoor]:
    configuration = tmp_path / "own.toml"
    configuration.write_text(CONFIGURATION)
    with front_door(tmp_path) as opened:
        opened.run("up", "--nodes", "1", "--slots", "8", "--port", "0", "--no-gpus", "--config", str(configuration))
        yield opened


def begin(door: FrontDoor, folder: Path, name: str, serial: float, parallel: float) -> str:
    job_id = door.submit(
        "--name", name, "--workload", name, "--ranks", "4", "--min-ranks", "1", "--max-ranks", "4", "--restartable",
        "--time-limit", "60m", "--grace", "3s", "--restart-cost", "1s", "--",
        sys.executable, str(RANK), str(folder / name), str(serial), str(parallel), "100000",
    )  # fmt: skip
    door.wait_for(job_id, "running")
    return job_id


def speeds(door: FrontDoor, job_id: str) -> dict[int, dict[str, Any]]:
    return {row["ranks"]: row for row in door.json("explain", job_id)["speeds"]}


def measured_at(door: FrontDoor, sizes: set[int], *jobs: str) -> None:
    """Wait until these sizes of all jobs are measured."""
    wait_until(
        lambda: all(sizes <= speeds(door, job_id).keys() for job_id in jobs),
        lambda: f"{[(door.json('story', job_id), speeds(door, job_id)) for job_id in jobs]}\n{door.logs()}",
        seconds=120,
    )


def test_only_the_gang_that_measurably_gains_from_more_ranks_grows_again(door: FrontDoor, tmp_path: Path) -> None:
    """Both gangs shrink to one rank for a third job. When it has gone, one has learnt that four ranks are no faster."""
    flat = begin(door, tmp_path, "flat", 0.1, 0.0)
    scaling = begin(door, tmp_path, "scaling", 0.0, 0.2)
    measured_at(door, {4}, flat, scaling)
    third = door.submit("--ranks", "6", "--time-limit", "5m", "--", "sleep", "300")
    door.wait_for(third, "running")
    measured_at(door, {1}, flat, scaling)
    door.run("cancel", third)
    wait_until(
        lambda: len(door.job(scaling)["ranks"]) == 4 and door.job(scaling)["state"] == "running",
        lambda: f"{door.json('story', scaling)}\n{speeds(door, scaling)}\n{door.logs()}",
        seconds=120,
    )
    assert len(door.job(flat)["ranks"]) == 1
    found = speeds(door, flat)
    assert found[1]["assumed"] == 0.25 and found[1]["speed"] > 0.75, "as fast with one rank as with four"
    assert speeds(door, scaling)[1]["speed"] < 0.5
    (text,) = [entry["text"] for entry in door.json("story", scaling) if entry["kind"] == "grow"]
    aim = "so that all slots together do the most work"
    assert f"continue with 4 ranks instead of 1, {aim}: measured speeds of its class give" in text
    assert "learnt speeds of similar jobs" in door.run("explain", flat).stdout
    assert int((tmp_path / "flat").read_text()) > 0, "it continues from its own checkpoint"
