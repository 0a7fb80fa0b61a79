"""Claim: a cause that a workload rule suspects. It can become a verdict."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_feedback.core.verdict import Cause, Evidence, Kind

STAGE = "stage"
"""Prefix of the key of a claim (a suspected cause) about a pipeline stage."""

LEAST_SLOWDOWN = 1.05
"""Minimum slowdown of a job to report: five per cent, as in EROICA and Guard."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Result of one rule: the suspected cause, with its evidence."""

    key: str
    kind: Kind
    cause: Cause
    rank: int
    """Number of the rank that the claim is about; -1 if it is about the job."""
    ranks: tuple[int, ...]
    without_seconds: float
    """Step time in seconds that the job would have without the cause."""
    evidence: tuple[Evidence, ...]
    first_step: int | None = None
    step_seconds: float | None = None
    """Step time in seconds that the cause explains; None: the mean of all steps that are kept."""
    node: str = ""
    """Name of the slow node; '' if the cause is within the job."""
