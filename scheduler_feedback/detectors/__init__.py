"""Detectors: from telemetry to findings. One file a detector, one line in DETECTORS. Pure: no clock, no log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from scheduler_feedback.core.telemetry.fleet import Sample
from scheduler_feedback.core.telemetry.telemetry import Telemetry
from scheduler_feedback.core.verdict import Finding
from scheduler_feedback.detectors.ablation_switches import Switches
from scheduler_feedback.detectors.counters.counter_statistics import Panel
from scheduler_feedback.detectors.hang.hang import HangDetector
from scheduler_feedback.detectors.health.health import HealthDetector
from scheduler_feedback.detectors.interference.interference import InterferenceDetector
from scheduler_feedback.detectors.straggler.straggler import StragglerDetector
from scheduler_feedback.detectors.workload.workload import WorkloadDetector


class Detector(Protocol):
    """What looks at a stream of telemetry and says what it found; it has seen nothing later than what it was shown."""

    name: str

    def tick(self, telemetry: Telemetry) -> list[Finding]:
        """Findings that are new since the last tick. A verdict told again under its id replaces the earlier one."""
        ...

    def measures(self) -> Iterable[Sample]:
        """Samples of the catalogue, as of the newest tick."""
        ...

    def snapshot(self) -> bytes:
        """What must outlive a restart of the controller."""
        ...

    def restore(self, data: bytes) -> None:
        """Take a snapshot's place. Raises ValueError where it is not one of this detector's."""
        ...


class Maker(Protocol):
    """A detector's class. timed: whether times are real seconds on a clock; else each step is a window of its own.
    panel: the counters, shared by the detectors of one stream."""

    def __call__(
        self, timed: bool = True, switches: Switches | None = None, panel: Panel | None = None
    ) -> Detector: ...


DETECTORS: tuple[Maker, ...] = (
    StragglerDetector,
    HangDetector,
    HealthDetector,
    InterferenceDetector,
    WorkloadDetector,
)
"""Every detector, in the order in which they look."""


def make_all(timed: bool = True, switches: Switches | None = None) -> tuple[Detector, ...]:
    """One of each, for one stream."""
    panel = Panel(switches)
    return tuple(make(timed, switches, panel) for make in DETECTORS)
