"""One detector that runs without the other detectors."""

from __future__ import annotations

from typing import Any

from scheduler_feedback.core.verdict import Cause, Kind, Verdict
from scheduler_feedback.detectors import Detection, Detector
from scheduler_feedback.detectors.arbiter import Arbiter


class Alone(Detection):
    """One detector with its own shared state. All other attributes are those of the detector."""

    def snapshot(self) -> bytes:
        return self.detectors[0].snapshot()

    def restore(self, data: Any) -> None:
        self.detectors[0].restore(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.detectors[0], name)


def alone(detector: Detector, timed: bool = True) -> Alone:
    return Alone((detector,), timed)


def accuse(arbiter: Arbiter, job: str, rank: int = 5, kind: Kind = Kind.STRAGGLER) -> None:
    """Publish a verdict of another detector on this rank. It stays active."""
    cause = Cause.CONGESTION if kind is Kind.INTERFERENCE else Cause.UNKNOWN
    one = Verdict("other", kind, job, 1, rank, "n", cause, 0.95, 1.3, 1.0, 1.3, 0, 0, detector="other")
    arbiter.resolve({"other": [one]}, {job: 1}, 0)
