"""Detectors: from the fleet to findings. One file a detector, one line in DETECTORS. Pure: no clock, no log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from scheduler_feedback.core.fleet import Fleet, Sample
from scheduler_feedback.core.verdict import Finding
from scheduler_feedback.detectors.straggler import StragglerDetector


class Detector(Protocol):
    """What looks at the fleet and says what it found."""

    name: str

    def tick(self, fleet: Fleet, now_wall_ns: int) -> list[Finding]:
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
