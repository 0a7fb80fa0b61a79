"""Feedback loop as a user runs it: up, submit, a rank slowed by signals from outside, and gangwatch's reaction."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exporter.prometheus.profiles import left_out_by
from tests import needs
from tests.gangwatch.front_door import FrontDoor, front_door, wait_until
from tests.loop.disturbance import stopped_and_continued
from tests.ports import held_port

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_dp.py"
STEPS = 260

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def train(folder: Path, *options: str) -> list[str]:
    return [
        sys.executable,
        str(EXAMPLE),
        "--steps",
        str(STEPS),
        "--batch",
        "256",
        "--checkpoint",
        str(folder / "checkpoint"),
        "--result",
        str(folder / "result.json"),
        *options,
    ]


@pytest.fixture
def door(tmp_path: Path) -> Iterator[FrontDoor]:
    with front_door(tmp_path) as opened:
        yield opened


def begin(door: FrontDoor, folder: Path, configuration: str, steps: int = 110) -> tuple[str, dict[str, Any]]:
    """Start four nodes of two slots and a training of four ranks, and wait for `steps` steps (default: the warm-up).

    Return the job's id and document.
    """
    (folder / "gangwatch.toml").write_text(configuration)
    up = ("--nodes", "4", "--slots", "2", "--port", "0", "--no-gpus", "--config", str(folder / "gangwatch.toml"))
    door.run("up", *up)
    submit = ("--ranks", "4", "--restartable", "--time-limit", "30m", "--grace", "5s", "--restart-cost", "3s", "--")
    job_id = door.submit(*submit, *train(folder, "--pace-seconds", "0.08"))
    door.wait_for(job_id, "running")
    wait_until(lambda: steps_of(door, job_id) > steps, lambda: f"no steps\n{door.logs()}")
    return job_id, door.job(job_id)


def steps_of(door: FrontDoor, job_id: str) -> int:
    """Return the newest started step according to the agents' metrics."""
    text = "".join(metrics(agent.url) for agent in door.state.agents().values())
    numbers = re.findall(rf'gangwatch_rank_step\{{[^}}]*gang="{job_id}"[^}}]*\}} (\S+)', text)
    return max((int(float(number)) for number in numbers), default=0)


def metrics(url: str) -> str:
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def verdicts(door: FrontDoor) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = door.json("verdict", "list")
    return listed


@pytest.mark.serial
def test_a_repeatedly_stopped_rank_is_moved_without_changing_the_weights(door: FrontDoor, tmp_path: Path) -> None:
    job_id, job = begin(door, tmp_path, "[policy]\nquarantine_seconds = 600\n")
    victim = job["ranks"][2]
    with stopped_and_continued(victim["pid"]):
        wait_until(lambda: door.job(job_id)["attempt"] == 2, lambda: f"{door.json('story', job_id)}\n{door.logs()}")
    (verdict,) = verdicts(door)
    assert (verdict["job"], verdict["rank"], verdict["node"]) == (job_id, 2, victim["node"])
    assert (verdict["kind"], verdict["cause"]) == ("straggler", "suspended")
    moved = door.wait_for(job_id, "running")
    assert victim["node"] not in {rank["node"] for rank in moved["ranks"]}
    (node,) = (node for node in door.json("nodes") if node["node"] == victim["node"])
    assert node["state"] == "quarantine"
    door.wait_for(job_id, "completed")
    kinds = [entry["kind"] for entry in door.json("story", job_id)]
    for kind in ("submitted", "started", "running", "first-step", "verdict", "migrate", "ended"):
        assert kind in kinds, kinds

    alone = tmp_path / "alone"
    alone.mkdir()
    environment = {n: v for n, v in os.environ.items() if n != "RANK"} | {"WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1"}
    environment |= {"MASTER_PORT": str(held_port()), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(train(alone), env=environment | {"RANK": str(rank)}, stdout=subprocess.DEVNULL)
        for rank in range(4)
    ]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0, 0, 0]
    disturbed, undisturbed = (json.loads((f / "result.json").read_text()) for f in (tmp_path, alone))
    assert disturbed["weights_sha256"] == undisturbed["weights_sha256"]
    assert (tmp_path / "checkpoint").read_bytes() == (alone / "checkpoint").read_bytes()


@pytest.mark.serial
def test_in_observe_mode_decisions_are_logged_and_no_job_is_moved(door: FrontDoor, tmp_path: Path) -> None:
    job_id, job = begin(door, tmp_path, '[controller]\nmode = "observe"\n')
    victim = job["ranks"][1]
    with stopped_and_continued(victim["pid"]):
        wait_until(
            lambda: any(entry["kind"] == "migrate" for entry in door.json("story", job_id)),
            lambda: f"{door.json('story', job_id)}\n{door.logs()}",
        )
    (decision,) = (entry for entry in door.json("story", job_id) if entry["kind"] == "migrate")
    assert decision["applied"] is False
    after = door.job(job_id)
    assert after["attempt"] == 1
    assert [rank["pid"] for rank in after["ranks"]] == [rank["pid"] for rank in job["ranks"]]
    assert {node["state"] for node in door.json("nodes")} == {"healthy"}


OWN = ("gangwatch_exporter_", "gangwatch_http_", "gangwatch_plugin_", "gangwatch_textfile_", "process_", "python_")
"""Beginnings of the names of metrics about the exporter's process, which are in no frame."""


def test_exposition_and_json_are_valid_and_equal(door: FrontDoor, tmp_path: Path) -> None:
    promtool = needs.component("promtool", "prometheus")
    job_id, _ = begin(door, tmp_path, "", steps=10)
    controller = door.state.controller()
    assert controller is not None
    urls = [controller.url, *(agent.url for agent in door.state.agents().values())]
    assert len(urls) == 5
    for url in urls:
        text = metrics(url)
        checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True)
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", ""), url
        assert not re.search(r'[{,](job|instance)="', text)
    assert f'gangwatch_gang_info{{gang="{job_id}"' in metrics(controller.url)
    for agent in door.state.agents().values():
        document, text = one_frame_in_both_forms(agent.url)
        published = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        framed = {series_name(series): series["value"] for series in document["series"]}
        expected = {
            name: value
            for name, value in framed.items()
            if left_out_by(name.partition("{")[0], "default", (), ()) is None
        }
        assert len(expected) < len(framed)
        own = {name for name in published if name.startswith(OWN)}
        assert {name: float(value) for name, value in published.items() if name not in own} == expected


def one_frame_in_both_forms(url: str) -> tuple[dict[str, Any], str]:
    """Return the JSON form and the exposition of one frame."""

    def frame() -> dict[str, Any]:
        with urllib.request.urlopen(f"{url}/frame", timeout=10) as answer:
            document: dict[str, Any] = json.load(answer)
        return document

    for _ in range(20):
        before, text, after = frame(), metrics(url), frame()
        if before["seq"] == after["seq"]:
            return before, text
    raise AssertionError("frames changed faster than they could be read")


def series_name(series: dict[str, Any]) -> str:
    """Return the series' name as the exposition has it."""
    labels = ",".join(f'{name}="{value}"' for name, value in series["labels"].items())
    return f"{series['name']}{{{labels}}}"
