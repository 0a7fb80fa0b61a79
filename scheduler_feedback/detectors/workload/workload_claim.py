"""Claim: what a rule about the workload says, before it is told."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_feedback.core.verdict import Cause, Evidence, Kind

STAGE = "stage"
"""Keys of claims about a stage begin so."""

LEAST_SLOWDOWN = 1.05
"""Below five per cent nothing is worth telling (EROICA's and Guard's threshold)."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a rule says: about which rank (-1: the job), what the steps would be without, and why. node: the one that is
    at fault, where it is not the job."""

    key: str
    kind: Kind
    cause: Cause
    rank: int
    ranks: tuple[int, ...]
    without_seconds: float
    evidence: tuple[Evidence, ...]
    first_step: int | None = None
    node: str = ""
