"""Verdict: what a detector says, with the evidence that a person can check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What is the matter."""

    STRAGGLER = "straggler"  # a member slower than its peers for its own reason
    INTERFERENCE = "interference"  # slow because of another job, which is named
    HANG = "hang"
    HEALTH = "health"
    WORKLOAD = "workload"  # the job's own doing: never acted on as hardware


class Cause(StrEnum):
    """Why a member is slow, as far as the counters tell."""

    SUSPENDED = "suspended"  # off the processor, not waiting for one: stopped by a signal, a tracer, a freezer
    CPU_CONTENTION = "cpu-contention"  # runnable, waiting for a processor
    COMPUTE = "compute"  # the work itself takes more processor time
    STORAGE = "storage"  # waiting for block I/O
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One checkable fact: the measure, its value for the suspect, what it was compared with, and what it argues for.

    log_likelihood_ratio: natural log, positive where it argues for the verdict.
    unit: of value and reference. against: in words, whom or what the reference is.
    """

    measure: str
    value: float
    reference: float
    unit: str
    against: str
    log_likelihood_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """A finding about one member of one gang.

    verdict_id: unique and deterministic (gang, attempt, rank, first_ns), so that a replay names it alike.
    attempt: the attempt it was seen in; a verdict never outlives it.
    slowdown: step time now over step time without the suspect (>= 1): what the cost test needs.
    confidence: in 0..1. first_wall_ns, last_wall_ns: the evidence window. frames: newest frame seq a node in it.
    step_seconds_before, step_seconds_now: mean step time of the gang when healthy and in the window.
    """

    verdict_id: str
    kind: Kind
    gang: str
    attempt: int
    rank: int
    node: str
    cause: Cause
    confidence: float
    slowdown: float
    step_seconds_before: float
    step_seconds_now: float
    first_wall_ns: int
    last_wall_ns: int
    evidence: tuple[Evidence, ...] = ()
    frames: tuple[tuple[str, int], ...] = ()
    detector: str = "straggler"


@dataclass(frozen=True, slots=True)
class Cleared:
    """A verdict no longer holds: the member kept pace again for the detector's holding time."""

    verdict_id: str
    gang: str
    wall_ns: int
    reason: str


@dataclass(frozen=True, slots=True)
class Abstention:
    """A detector saw slowness and could not tell whose or why; nothing is acted on, and the reason is kept."""

    gang: str
    attempt: int
    rank: int | None
    wall_ns: int
    reason: str
    evidence: tuple[Evidence, ...] = ()
    detector: str = "straggler"


Finding = Verdict | Cleared | Abstention
