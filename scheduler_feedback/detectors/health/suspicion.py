"""Suspicion: a fault found by a part of the health detector, before it becomes a verdict."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_feedback.core.telemetry.telemetry import JobTelemetry
from scheduler_feedback.core.verdict import Cause, Evidence, Kind


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A suspected device of a node, with the reason."""

    node: str
    level: str
    """Kind of the device: gpu, nic, link or node."""
    device: str
    cause: Cause
    words: str
    value: float
    """Value of the event, in its own unit."""
    more: tuple[Evidence, ...] = ()
    """Additional evidence."""
    job: JobTelemetry | None = None
    """Job that uses the device; None applies the suspicion to every job that does."""
    index: int = -1
    """Index of the rank in the job that uses the device; -1 for no rank."""
    slower: float = 1.0
    """The job's step time divided by its best step time."""
    kind: Kind = Kind.HEALTH
