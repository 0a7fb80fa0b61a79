"""Detectors: they turn telemetry into verdicts.

Each detector has one module and one line in DETECTORS. Detectors are pure: they read no clock and write no log. They
read a ``DetectionContext`` (context.py) and propose verdicts; the arbiter (arbiter.py) decides which are published.
"""

from __future__ import annotations

from typing import Protocol

from scheduler_feedback.detectors.ablation_switches import Switches
from scheduler_feedback.detectors.detection import Detection, Detector
from scheduler_feedback.detectors.hang.hang import HangDetector
from scheduler_feedback.detectors.health.health import HealthDetector
from scheduler_feedback.detectors.interference.interference import InterferenceDetector
from scheduler_feedback.detectors.links.slow_link import LinkDetector
from scheduler_feedback.detectors.straggler.straggler import StragglerDetector
from scheduler_feedback.detectors.workload.workload import WorkloadDetector

__all__ = ["DETECTORS", "Detection", "Detector", "Maker", "make_all", "make_detection"]


class Maker(Protocol):
    """Type of a detector's class. timed: whether the telemetry has real times in seconds. If not, each step of the job
    is evaluated as one counter window."""

    def __call__(self, timed: bool = True) -> Detector: ...


DETECTORS: tuple[Maker, ...] = (
    StragglerDetector,
    HangDetector,
    HealthDetector,
    InterferenceDetector,
    LinkDetector,
    WorkloadDetector,
)
"""Classes of all detectors. Their order does not matter."""


def make_all(timed: bool = True) -> tuple[Detector, ...]:
    """Return one detector of each class, for one stream of telemetry."""
    return tuple(make(timed) for make in DETECTORS)


def make_detection(timed: bool = True, switches: Switches | None = None) -> Detection:
    """Return all detectors for one stream of telemetry, with the state that they share."""
    return Detection(make_all(timed), timed, switches)
