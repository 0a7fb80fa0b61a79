"""What a method says and what is true, in one form for ours and for every published rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from scheduler_feedback.core.telemetry.telemetry import Telemetry

ACCUSING = frozenset({"straggler", "hang", "health"})
"""Kinds that accuse hardware; 'interference' accuses another job."""

OF_WORKLOAD = frozenset({"workload", "stage_imbalance", "sequence_imbalance"})


@dataclass(frozen=True, slots=True)
class Claim:
    """One verdict: at what time of the world it was told, about whom, and what it says.

    at: world seconds. key: claims with one key are one claim told again. rank: -1 where it names none. node, device,
    level: what is accused. suspects: what else it could be, as the method ranks it: level:name or node names. moves:
    of ours, whether our scheduler's policy may touch a running job for it.
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
    """What judges a stream of telemetry."""

    name: str

    def look(self, telemetry: Telemetry) -> Sequence[Claim]:
        """Claims that are new."""
        ...


@dataclass(slots=True)
class Heard:
    """Claims of one method in one run, those told first by key; and the keys of those for which, then or when told
    again (with its cause, or more surely), a running job may be touched."""

    claims: dict[str, Claim] = field(default_factory=dict)
    moves: set[str] = field(default_factory=set)

    def hear(self, claims: Sequence[Claim]) -> None:
        """Keep each claim's first telling."""
        for claim in claims:
            self.claims.setdefault(claim.key, claim)
            if claim.moves:
                self.moves.add(claim.key)

    def about(self, job: str) -> list[Claim]:
        """Claims about a job or about all of them, in order of time."""
        return sorted((c for c in self.claims.values() if c.job in (job, "")), key=lambda claim: claim.at)
