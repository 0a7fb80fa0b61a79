"""Suspicion: what of the health detector's parts accuses which device, before it is told as a verdict."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_feedback.core.telemetry.telemetry import JobTelemetry
from scheduler_feedback.core.verdict import Cause, Evidence, Kind


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A device of a node and why. level: what it is. value: of the event, in its own unit. more: evidence beside it.

    job, index: whose it is and the rank's place in it, where that is known; every job that stands on it else.
    slower: the job's steps over its best.
    """

    node: str
    level: str
    device: str
    cause: Cause
    words: str
    value: float
    more: tuple[Evidence, ...] = ()
    job: JobTelemetry | None = None
    index: int = -1
    slower: float = 1.0
    kind: Kind = Kind.HEALTH
