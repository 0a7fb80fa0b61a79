"""Suspicion: a fault that the health detector has found and not yet reported as a verdict."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_feedback.core.telemetry.telemetry import JobTelemetry
from scheduler_feedback.core.verdict import Cause, Evidence, Kind


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A suspected device or node, with the reason."""

    node: str
    level: str
    """Kind of the device: gpu, nic, link or node."""
    device: str
    cause: Cause
    words: str
    value: float
    """Value of the event or counter that caused the suspicion, in its own unit."""
    more: tuple[Evidence, ...] = ()
    """Further evidence for the suspicion."""
    job: JobTelemetry | None = None
    """Job that the suspicion is limited to; None if it applies to every job that uses the device."""
    index: int = -1
    """Index of the job's rank that uses the device; -1 if no rank does."""
    slower: float = 1.0
    """The job's step time divided by its best step time."""
    kind: Kind = Kind.HEALTH
    without_waits: bool = False
    """Whether the job reports no waits, so that counters alone accuse the device: the confidence is fitted."""
