"""Claims: the common form of our detectors' verdicts and of the published rules' results, for scoring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from scheduler_feedback.core.telemetry.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class Claim:
    """One verdict of our detectors or of a published rule, and when it was reported for which job.

    at: simulated time in seconds. key: claims with the same key are reports of the same claim. rank: -1 if no rank
    is named. ranks: all accused ranks, if there are several. node, device, level: the accused. suspects: further
    candidates in the method's order, as level:name or node names. moves: whether our scheduler's policy may move a
    running job because of this claim (ours only).
    """

    at: float
    key: str
    job: str
    kind: str
    rank: int = -1
    node: str = ""
    device: str = ""
    level: str = ""
    aggressor: str = ""
    cause: str = ""
    confidence: float = 1.0
    suspects: tuple[str, ...] = ()
    moves: bool = False
    ranks: tuple[int, ...] = ()


class Method(Protocol):
    """Interface of a detection method: our detectors or the published rules."""

    name: str

    def look(self, telemetry: Telemetry) -> Sequence[Claim]:
        """Return the new claims about the telemetry of one tick."""
        ...


@dataclass(slots=True)
class ClaimLog:
    """Claims of one method in one run: the first report of each key.

    moves: keys of claims that allow our scheduler to move a running job, at their first or a later report. highest:
    highest confidence of each claim, by key.
    """

    claims: dict[str, Claim] = field(default_factory=dict)
    moves: set[str] = field(default_factory=set)
    highest: dict[str, float] = field(default_factory=dict)

    def add(self, claims: Sequence[Claim]) -> None:
        """Add claims, but store only the first report of each key."""
        for claim in claims:
            self.claims.setdefault(claim.key, claim)
            self.highest[claim.key] = max(claim.confidence, self.highest.get(claim.key, 0.0))
            if claim.moves:
                self.moves.add(claim.key)

    def about(self, job: str) -> list[Claim]:
        """Return the claims about a job (or about all jobs at once), in order of time."""
        return sorted((c for c in self.claims.values() if c.job in (job, "")), key=lambda claim: claim.at)
