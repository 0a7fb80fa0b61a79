"""Detectors: from telemetry to findings.

Each detector has one module and one line in DETECTORS. Detectors are pure: they read no clock and write no log. They
read a ``DetectionContext`` (context.py) and propose verdicts; the arbiter (arbiter.py) publishes them.
"""

from __future__ import annotations

from typing import Protocol

from scheduler_feedback.detectors.ablation_switches import Switches
from scheduler_feedback.detectors.detection import Detection, Detector
from scheduler_feedback.detectors.hang.hang import HangDetector
from scheduler_feedback.detectors.health.health import HealthDetector
from scheduler_feedback.detectors.interference.interference import InterferenceDetector
from scheduler_feedback.detectors.straggler.straggler import StragglerDetector
from scheduler_feedback.detectors.workload.workload import WorkloadDetector

__all__ = ["DETECTORS", "Detection", "Detector", "Maker", "make_all", "make_detection"]


class Maker(Protocol):
    """Class of a detector.

    timed: whether times are real seconds; otherwise each step is one window.
    """

    def __call__(self, timed: bool = True) -> Detector: ...


DETECTORS: tuple[Maker, ...] = (
    StragglerDetector,
    HangDetector,
    HealthDetector,
    InterferenceDetector,
    WorkloadDetector,
)
"""All detectors. Their order does not matter."""


def make_all(timed: bool = True) -> tuple[Detector, ...]:
    """Return one detector of each class, for one stream."""
    return tuple(make(timed) for make in DETECTORS)


def make_detection(timed: bool = True, switches: Switches | None = None) -> Detection:
    """Return all detectors of one stream with their shared state."""
    return Detection(make_all(timed), timed, switches)
