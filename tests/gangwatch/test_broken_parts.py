"""A real controller with bugs in its parts: it starts, reports each broken part, and runs jobs to their end."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gangwatch.front_door import FrontDoor, front_door, wait_until

pytestmark = [pytest.mark.xdist_group("front-door"), pytest.mark.slow]

BUGS = """
import sys

if "controller" in sys.orig_argv:
    from scheduler_feedback.api import documents
    from scheduler_feedback.core.telemetry.telemetry_update import Look
    from scheduler_feedback.detectors.hang.hang import HangDetector
    from scheduler_feedback.api.web import lists_page

    def broken(*_arguments, **_named):
        raise ZeroDivisionError("a bug that a test put there")

    HangDetector.tick = broken
    Look._job = broken
    lists_page.job_parts = broken
    documents.queue_frame = broken
"""


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FrontDoor]:
    folder = tmp_path / "bugs"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(BUGS)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    with front_door(tmp_path) as opened:
        yield opened


def status_of(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_bugs_in_detector_fleet_page_and_api_do_not_affect_jobs(door: FrontDoor) -> None:
    door.up()
    controller = door.state.controller()
    assert controller is not None
    jobs = [door.submit("--", sys.executable, "-I", "-c", "import time; time.sleep(6)") for _ in range(3)]
    assert status_of(f"{controller.url}/jobs")[0] == 500
    for _ in range(3):
        code, text = status_of(f"{controller.url}/api/queue")
        assert (code, "ZeroDivisionError" in json.loads(text)["error"]) == (500, True)
    wait_until(lambda: {"hang", "fleet", "page", "api"} <= set(parts(controller.url)), door.logs)
    for job_id in jobs:
        door.wait_for(job_id, "completed")
    now = door.state.controller()
    assert now is not None
    assert now.pid == controller.pid, door.logs()

    code, text = status_of(f"{controller.url}/readyz")
    assert (code, json.loads(text)["scheduling"]) == (503, True)
    assert "hang failed: ZeroDivisionError" in text
    page = status_of(controller.url)[1]
    assert "hang is out of service because of a bug" in page
    top = door.run("top", "--once").stdout
    assert "hang is out of service" in top
    findings = {one["name"]: one for one in door.json("check")["findings"]}
    assert findings["controller"]["state"] == "limited"
    assert "hang is out of service" in findings["controller"]["detail"]
    metrics = status_of(f"{controller.url}/metrics")[1]
    assert 'gangwatch_detector_failures_total{detector="hang"} 1' in metrics
    assert 'gangwatch_part_failures_total{part="api"} 3' in metrics
    log = door.state.log_file("controller").read_text()
    assert log.count("part=api") == 1, "three failures of one bug are logged once"
    assert log.count("part=hang") == 1
    again = door.run("up")
    assert "already running" in again.stderr


def parts(url: str) -> list[str]:
    return [one["part"] for one in json.loads(status_of(f"{url}/api/parts")[1])]


def test_up_reports_broken_parts_and_continues(door: FrontDoor) -> None:
    """`up` reports bugs that appear before it returns. A second `up` reports later ones."""
    door.up()
    controller = door.state.controller()
    assert controller is not None
    wait_until(lambda: "hang" in parts(controller.url), door.logs)
    door.kill("supervisor")
    again = door.run("up")
    assert "hang failed: ZeroDivisionError" in again.stderr
    assert "jobs are still scheduled" in again.stderr
