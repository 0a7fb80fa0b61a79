"""Readers of metrics and speeds, and ticks of detection, wait for each other briefly."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from agent.schema.clock import SystemClock
from agent.schema.sample import Sample, expanded
from scheduler_feedback.controller import detection_thread
from scheduler_feedback.controller.detection_thread import DetectionThread
from scheduler_feedback.detectors.straggler.straggler import StragglerDetector

COUNT = 5


def sample_of(number: int) -> Sample:
    return "gangwatch_rank_slowdown_ratio", (("gang", "j-0"), ("rank", str(number))), 1.0


def test_a_tick_runs_while_metrics_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection_thread, "MEASURED_AT_ONCE", 2)
    detector, ticked = StragglerDetector(), threading.Event()
    watch = DetectionThread((detector,), lambda _: None, SystemClock())

    def measures() -> Iterator[Sample]:
        for number in range(COUNT):
            if number == 2:
                threading.Thread(target=tick).start()
            elif number == 4:
                assert ticked.wait(10), "the tick waits for all metrics"
            yield sample_of(number)

    def tick() -> None:
        watch.run_tick()
        ticked.set()

    monkeypatch.setattr(detection_thread, "MEASURED_REST_SECONDS", 0.2)
    monkeypatch.setattr(detector, "measures", measures)
    found = [one for one in expanded(watch.measures()) if one[0] == "gangwatch_rank_slowdown_ratio"]
    assert found == [sample_of(number) for number in range(COUNT)]
    assert not watch.broken()


def test_speeds_do_not_wait_for_a_tick() -> None:
    watch = DetectionThread((), lambda _: None, SystemClock())
    assert watch.speeds() == {}
    ended = threading.Event()

    def read() -> None:
        watch.speeds()
        ended.set()

    with watch._lock:  # a tick is running
        threading.Thread(target=read, daemon=True).start()
        assert ended.wait(10)
