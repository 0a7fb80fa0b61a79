"""Detectors: from telemetry to findings. One file a detector, one line in DETECTORS. Pure: no clock, no log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from scheduler_feedback.core.fleet import Sample
from scheduler_feedback.core.telemetry import Telemetry
from scheduler_feedback.core.verdict import Finding
from scheduler_feedback.detectors.straggler import StragglerDetector


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


DETECTORS: tuple[type[Detector], ...] = (StragglerDetector,)
