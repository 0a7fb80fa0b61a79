"""Restart of the controller: active verdicts keep their ids. Also a downgrade to release 0.1.0."""

from __future__ import annotations

import logging

import msgspec
import pytest

from agent.schema.clock import SystemClock
from benchmarks.detection.cells import Cell, stage
from scheduler_feedback.controller.detection_thread import DetectionThread
from scheduler_feedback.core.verdict import Cleared, Verdict
from scheduler_feedback.detectors import make_all, make_detection
from scheduler_feedback.detectors.detection import SHARED
from scheduler_feedback.sim.world.outputs.array_output import Delivery, World

RESTART_SECONDS, WATCHED_SECONDS = 75.0, 250.0
"""After the beginning of the fault."""


def active_verdicts(disorder: str, reports: bool, restarts: bool) -> tuple[dict[str, str], list[str]]:
    """Return {verdict id: detector} of the verdicts that are active during the fault, and all ids ever published."""
    staged, _ = stage(Cell(disorder, 0.5, 64, "step", "balanced", 10, 1.0, 7, reports), 0)
    world, detection = World(staged.courses, 5, 1.0, Delivery(), True), make_detection()
    active: dict[str, str] = {}
    ever: set[str] = set()
    while world.now < staged.fault.begin + WATCHED_SECONDS:
        for one in detection.tick(world.tick(5.0)):
            if isinstance(one, Verdict):
                active[one.verdict_id] = one.detector
                ever.add(one.verdict_id)
            elif isinstance(one, Cleared):
                del active[one.verdict_id]
        if restarts and world.now > staged.fault.begin + RESTART_SECONDS:
            restarts = False
            assert active
            snapshots, detection = detection.snapshots(), make_detection()
            detection.restore(snapshots)
    return active, sorted(ever)


@pytest.mark.parametrize(
    ("disorder", "reports", "detector"),
    [
        ("clock-lock", True, "straggler"),
        ("hang-compute", True, "hang"),
        ("memory-errors", True, "health"),
        ("memory-errors", False, "health"),
        ("stage-imbalance", True, "workload"),
    ],
)
def test_active_verdicts_outlast_a_restart(disorder: str, reports: bool, detector: str) -> None:
    usual = active_verdicts(disorder, reports, restarts=False)
    assert set(usual[0].values()) == {detector}
    assert active_verdicts(disorder, reports, restarts=True) == usual


def test_release_0_1_0_refuses_the_health_snapshot_alone() -> None:
    """That release ignores a snapshot of another version, starts the detector without baselines, and logs it.

    It reads version 2 of health, straggler and hang, version 1 of the others, and ignores other names.
    """
    versions = {}
    for name, data in make_detection().snapshots().items():
        decoded = msgspec.msgpack.decode(data)
        first = decoded.get("version") if isinstance(decoded, dict) else decoded
        versions[name] = first[0] if isinstance(first, list) else first
    assert versions.pop(SHARED) == 2
    assert versions == {"straggler": 2, "hang": 2, "health": 3, "interference": 1, "workload": 1, "link": 1}


def test_the_thread_of_the_controller_starts_without_an_unreadable_snapshot(caplog: pytest.LogCaptureFixture) -> None:
    watch = DetectionThread(make_all(), lambda _: None, SystemClock())
    with caplog.at_level(logging.ERROR):
        watch.restore(make_detection().snapshots() | {"health": msgspec.msgpack.encode((9,))})
    assert [record.message.partition(":")[0] for record in caplog.records] == ["detector health"]
    assert not watch.broken()
