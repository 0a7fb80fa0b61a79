"""Options of `submit` for groups, arrays, dependencies, elastic gangs, network levels and files."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from gangwatch.commands.jobs.jobs import submit
from scheduler_feedback.api.requests import Submission
from tests.gangwatch.front_door import FrontDoor, front_door, wait_until

PYTHON = (sys.executable, "-c")


def posted_body(posted: list[dict[str, Any]], *arguments: str) -> dict[str, Any]:
    """Return the body that `submit ARGUMENTS true` would send. The API must accept it."""
    done = CliRunner().invoke(submit, [*arguments, "true"], standalone_mode=False)
    assert done.exception is None, done.output
    body = json.loads(json.dumps(posted.pop()))
    msgspec.convert(body, Submission)
    return body


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        (("--ranks", "4", "--min-ranks", "2", "--max-ranks", "8"), {"ranks": 4, "min_ranks": 2, "max_ranks": 8}),
        (("--array", "100%8"), {"array_size": 100, "array_parallel": 8}),
        (("--array", "5"), {"array_size": 5, "array_parallel": 0}),
        (
            ("--after", "j-1", "--after", "j-2:ended"),
            {"after": [{"job_id": "j-1", "condition": "ok"}, {"job_id": "j-2", "condition": "ended"}]},
        ),
        (
            ("--group", "launcher=1", "--group", "worker=3:same-node"),
            {
                "ranks": 4,
                "groups": [
                    {"role": "launcher", "ranks": 1, "same_node": False},
                    {"role": "worker", "ranks": 3, "same_node": True},
                ],
            },
        ),
        (("--gpu-type", "A100", "--gpu-type", "V100"), {"gpu_types": ["A100", "V100"]}),
        (("--throughput", "A100=1", "--throughput", "V100=0.6"), {"throughput": {"A100": 1.0, "V100": 0.6}}),
        (
            ("--checkpoint-interval", "10m", "--checkpoint-cost", "5s", "--min-run", "0"),
            {"checkpoint_interval_seconds": 600.0, "checkpoint_cost_seconds": 5.0, "min_run_seconds": 0.0},
        ),
        (("--priority", "0"), {"priority": 0}),
        (("--preemptible",), {"preemptible": True, "restartable": True}),
        (("--spread", "--prefer-level", "rack"), {"packing": "spread", "preferred_level": "rack"}),
        (("--level", "node", "--workload", "bert"), {"required_level": "node", "workload": "bert"}),
        ((), {"restartable": False}),
        (
            ("--checkpoint-command", "python 'my save.py' --now", "--checkpoint-timeout", "5m"),
            {
                "checkpoint_command": ["python", "my save.py", "--now"],
                "checkpoint_timeout_seconds": 300.0,
                "restartable": True,
            },
        ),
        (("--checkpoint-signal", "usr1"), {"restartable": True, "checkpoint_signal": "SIGUSR1"}),
    ],
)
def test_each_option_sets_a_field(posted: list[dict[str, Any]], arguments: tuple[str, ...], fields: Any) -> None:
    body = posted_body(posted, *arguments)
    assert {name: body[name] for name in fields} == fields


def test_a_job_file_supplies_options_missing_on_the_command_line(posted: list[dict[str, Any]], tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    file.write_text(json.dumps({"ranks": 3, "queue": "vision", "groups": [{"role": "a", "ranks": 3}], "priority": 2}))
    body = posted_body(posted, "--job-file", str(file), "--queue", "speech")
    assert (body["ranks"], body["queue"], body["priority"]) == (3, "speech", 2)
    assert body["groups"] == [{"role": "a", "ranks": 3}]
    file.write_text("no json")
    done = CliRunner().invoke(submit, ["--job-file", str(file), "true"])
    assert done.exit_code == 2 and str(file) in done.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("--array", "0"), ("--array", "x"), ("--array", "3%0"), ("--after", "j-1:never"), ("--group", "worker"),
        ("--group", "worker=0"), ("--throughput", "A100"), ("--level", "building"), ("--min-ranks", "0"),
        ("--checkpoint-command", "save 'now"),
    ],
)  # fmt: skip
def test_invalid_shapes_are_refused_before_they_are_sent(
    posted: list[dict[str, Any]], arguments: tuple[str, ...]
) -> None:
    done = CliRunner().invoke(submit, [*arguments, "true"])
    assert done.exit_code == 2 and arguments[1] in done.output
    assert not posted


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrontDoor]:
    with front_door(tmp_path_factory.mktemp("shape")) as running:
        running.up()
        yield running


@pytest.mark.slow
@pytest.mark.xdist_group("front-door")
def test_an_mpi_launcher_gang_is_followed_by_a_dependent_array(door: FrontDoor, tmp_path: Path) -> None:
    print_variables = "import os; print(os.environ['GANGWATCH_ROLE'], os.environ['GANGWATCH_NODES'])"
    file = tmp_path / "mpi.json"
    launcher = {"role": "launcher", "ranks": 1, "command": [*PYTHON, f"print('mpirun'); {print_variables}"]}
    file.write_text(json.dumps({"groups": [launcher, {"role": "worker", "ranks": 2}]}))
    first = door.submit("--job-file", str(file), "--", *PYTHON, print_variables)
    index = "import os; print('index', os.environ['GANGWATCH_ARRAY_INDEX'])"
    array = door.submit("--array", "3%1", "--after", first, "--", *PYTHON, index)
    for number in range(3):
        assert door.wait_for(f"{array}.{number}", "completed", "failed")["state"] == "completed"
    said_first, where = door.run("logs", first, "--rank", "0").stdout.splitlines()
    assert said_first == "mpirun" and where in ("launcher node-0:2,node-1:1", "launcher node-0:1,node-1:2")
    assert door.run("logs", f"{array}.2").stdout == "0: index 2\n"
    explained = door.json("explain", array)
    assert explained["job_id"] == array and "an array: 3 completed" in explained["why"]
    assert "already" in door.run("cancel", array, code=1).stderr
    failed = door.run("submit", "--array", "2", "--wait", "--json", "--", *PYTHON, "raise SystemExit(3)", code=1)
    assert [job["state"] for job in json.loads(failed.stdout)] == ["failed", "failed"]


@pytest.mark.slow
@pytest.mark.xdist_group("front-door")
def test_an_array_is_cancelled_as_a_whole(door: FrontDoor) -> None:
    array = door.submit("--array", "6", "--grace", "1s", "--", *PYTHON, "import time; time.sleep(600)")
    wait_until(lambda: door.job(f"{array}.0")["state"] == "running", door.logs)
    explained = door.run("explain", array).stdout
    assert "an array:" in explained and "limit: slots" in explained
    door.run("cancel", array)
    for number in range(6):
        door.wait_for(f"{array}.{number}", "cancelled")
