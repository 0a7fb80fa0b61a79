"""Report of late detection: the age of the frames that a tick used, as metric, on the page and in the API."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from agent.schema.clock import ManualClock
from agent.schema.sample import expanded
from scheduler_feedback.controller import detection_thread
from scheduler_feedback.controller.detection_thread import DetectionThread
from scheduler_feedback.controller.frame_age import LATE_SECONDS, FrameAge
from tests.cluster.memory_backend import World
from tests.controller.site import serving
from tests.core.test_consumption import SECOND, WALL, Machine


def metric(watch: DetectionThread) -> float | None:
    return next(
        (value for name, _, value in expanded(watch.measures()) if name == "gangwatch_watch_frame_age_seconds"), None
    )


def test_age_counts_from_the_creation_of_the_newest_frame_of_each_node() -> None:
    clock = ManualClock(100 * SECOND, WALL + 100 * SECOND)
    watch = DetectionThread((), lambda _: None, clock)
    watch.run_tick()
    assert metric(watch) is None and not watch.late()
    nodes = [Machine(f"n{number}", ((f"j-{number}", 0),)) for number in range(3)]
    for node in nodes:
        for at in (60, 70, 80):  # the controller reads them all at once, long after they were sent
            watch.offer(node.layout(), node.frame(at * SECOND), clock.monotonic_ns())
    watch.run_tick()
    assert metric(watch) == pytest.approx(20.0), "older frames of a node do not count"
    assert "20 s old" in watch.late()
    for node in nodes:
        watch.offer(node.layout(), node.frame(99 * SECOND), clock.monotonic_ns())
    watch.run_tick()
    assert metric(watch) == pytest.approx(1.0) and not watch.late()


def test_one_wrong_clock_does_not_count() -> None:
    age = FrameAge()
    for made_ns in (WALL, WALL - 3600 * SECOND, WALL):
        age.add(made_ns)
    age.tick_ended(WALL + SECOND)
    assert age.seconds == 1.0
    age.tick_ended(WALL + 60 * SECOND)
    assert age.seconds == 1.0, "a tick without frames changes nothing"


def test_late_detection_is_shown_by_the_api_and_on_the_page(tmp_path: Path) -> None:
    with serving(tmp_path, World()) as site:
        assert site.get("/api/overview")["troubles"] == []
        site.controller._detection._frame_age.seconds = LATE_SECONDS + 7
        deadline = time.monotonic() + 10
        while not (found := site.get("/api/overview")["troubles"]):  # documents are kept for a moment
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert found[0].startswith("Detection is late: it uses telemetry that is 12 s old")
        assert found[0] in site.ask("GET", "/").content.decode()
        assert site.ask("GET", "/readyz").status == 200, "jobs are scheduled and monitored"


def test_metrics_do_not_wait_long_for_a_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection_thread, "MEASURES_WAIT_SECONDS", 0.05)
    watch = DetectionThread((), lambda _: None, ManualClock(100 * SECOND, WALL + 100 * SECOND))
    node = Machine("n0", (("j-0", 0),))
    watch.offer(node.layout(), node.frame(99 * SECOND), 99 * SECOND)
    watch.run_tick()
    before = watch.measures()
    assert metric(watch) is not None
    with watch._lock:  # a tick is running
        assert watch.measures() == before
