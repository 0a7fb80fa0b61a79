"""Detectors: from telemetry to findings.

Each detector has one module and one line in DETECTORS. Detectors are pure: they read no clock and write no log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from scheduler_feedback.core.telemetry.fleet import Sample
from scheduler_feedback.core.telemetry.telemetry import Telemetry
from scheduler_feedback.core.verdict import Finding
from scheduler_feedback.detectors.ablation_switches import Switches
from scheduler_feedback.detectors.counters.counter_statistics import CounterStatistics
from scheduler_feedback.detectors.hang.hang import HangDetector
from scheduler_feedback.detectors.health.health import HealthDetector
from scheduler_feedback.detectors.interference.interference import InterferenceDetector
from scheduler_feedback.detectors.straggler.straggler import StragglerDetector
from scheduler_feedback.detectors.workload.workload import WorkloadDetector


class Detector(Protocol):
    """A detector of a stream of telemetry. Its findings depend only on telemetry that it has received."""

    name: str

    def tick(self, telemetry: Telemetry) -> list[Finding]:
        """Return the findings that are new since the last tick. A verdict with a known id replaces the earlier one."""
        ...

    def measures(self) -> Iterable[Sample]:
        """Return the metric samples of the newest tick."""
        ...

    def snapshot(self) -> bytes:
        """Encode the state that must survive a restart of the controller."""
        ...

    def restore(self, data: bytes) -> None:
        """Restore a snapshot. Raises ValueError if the bytes are not a snapshot of this detector."""
        ...


class Maker(Protocol):
    """Class of a detector.

    timed: whether times are real seconds; otherwise each step is one window. panel: counter statistics, shared
    by the detectors of one stream.
    """

    def __call__(
        self, timed: bool = True, switches: Switches | None = None, panel: CounterStatistics | None = None
    ) -> Detector: ...


DETECTORS: tuple[Maker, ...] = (
    StragglerDetector,
    HangDetector,
    HealthDetector,
    InterferenceDetector,
    WorkloadDetector,
)
"""All detectors, in the order in which they run."""


def make_all(timed: bool = True, switches: Switches | None = None) -> tuple[Detector, ...]:
    """Return one detector of each class, for one stream."""
    panel = CounterStatistics(switches)
    return tuple(make(timed, switches, panel) for make in DETECTORS)
