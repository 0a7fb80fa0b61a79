"""Claim: result of a workload rule, before it becomes a verdict."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_feedback.core.verdict import Cause, Evidence, Kind

STAGE = "stage"
"""Prefix of the keys of claims about a stage."""

LEAST_SLOWDOWN = 1.05
"""Minimum slowdown to report: five per cent (the threshold of EROICA and Guard)."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Result of one rule: the suspected cause, with its evidence."""

    key: str
    kind: Kind
    cause: Cause
    rank: int
    """Rank that the claim is about; -1 for the job."""
    ranks: tuple[int, ...]
    without_seconds: float
    """Step time without the cause."""
    evidence: tuple[Evidence, ...]
    first_step: int | None = None
    node: str = ""
    """Faulty node; '' if the cause is within the job."""
