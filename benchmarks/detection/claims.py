"""Claims of a method in one form, for ours and for every published rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from scheduler_feedback.core.telemetry.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class Claim:
    """One verdict: when it was reported, for which job, and its content.

    at: world seconds. key: claims with the same key are one claim reported again. rank: -1 if it names none. node,
    device, level: the accused. suspects: alternatives, as the method ranks them: level:name or node names. moves: of
    ours, whether our scheduler's policy may touch a running job for it.
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


class Method(Protocol):
    """A method that judges a stream of telemetry."""

    name: str

    def look(self, telemetry: Telemetry) -> Sequence[Claim]:
        """Return the new claims."""
        ...


@dataclass(slots=True)
class ClaimLog:
    """Claims of one method in one run: the first report of each key, and the keys of all claims that justify moving a
    running job (a later report may, with a cause or more confidence)."""

    claims: dict[str, Claim] = field(default_factory=dict)
    moves: set[str] = field(default_factory=set)

    def add(self, claims: Sequence[Claim]) -> None:
        """Keep the first report of each claim."""
        for claim in claims:
            self.claims.setdefault(claim.key, claim)
            if claim.moves:
                self.moves.add(claim.key)

    def about(self, job: str) -> list[Claim]:
        """Return the claims about a job or about all jobs, in order of time."""
        return sorted((c for c in self.claims.values() if c.job in (job, "")), key=lambda claim: claim.at)
