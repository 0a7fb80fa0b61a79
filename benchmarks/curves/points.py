"""Points of precision-recall curves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from benchmarks.curves.rules import Accusation, Trace


@dataclass(slots=True)
class Judged:
    """Accusations about one job."""

    counts: bool
    """Whether the job has a fault that must be found."""
    accusations: list[tuple[float, bool]]
    """(confidence or threshold, right) of each accusation."""


@dataclass(frozen=True, slots=True)
class Point:
    """Precision and recall at one threshold."""

    threshold: float
    right: int
    accusations: int
    found: int
    faults: int

    @property
    def precision(self) -> float:
        """Share of right accusations; 1 without any."""
        return self.right / self.accusations if self.accusations else 1.0

    @property
    def recall(self) -> float:
        """Share of the faults that a right accusation names; 0 without any fault."""
        return self.found / self.faults if self.faults else 0.0


def point(jobs: Sequence[Judged], threshold: float) -> Point:
    """Return the point of all accusations with at least this confidence."""
    right = accusations = found = 0
    for job in jobs:
        marks = [mark for confidence, mark in job.accusations if confidence >= threshold]
        right, accusations = right + sum(marks), accusations + len(marks)
        found += job.counts and any(marks)
    return Point(threshold, right, accusations, found, sum(job.counts for job in jobs))


def curve(jobs: Sequence[Judged], thresholds: Iterable[float]) -> list[Point]:
    """Return one point for each threshold at which something is accused, the highest first."""
    points = (point(jobs, threshold) for threshold in sorted(set(thresholds), reverse=True))
    return [one for one in points if one.accusations]


def first_of_each_rank(trace: Trace, found: Iterable[Accusation], threshold: float) -> list[bool]:
    """Return for each rank that a rule accuses whether its first accusation is right. A rank counts once per job."""
    firsts: dict[int, int] = {}
    for one in found:
        if one.score >= threshold and one.rank not in firsts:
            firsts[one.rank] = one.at
    return [rank in trace.culprits and at >= trace.onset for rank, at in firsts.items()]


def by_rule(jobs: Sequence[tuple[Trace, bool, list[Accusation]]], threshold: float) -> Point:
    """Return the point of a rule at a threshold. jobs: (trace, whether its fault must be found, accusations)."""
    marked = [Judged(counts, [(1.0, right) for right in first_of_each_rank(trace, found, threshold)])
              for trace, counts, found in jobs]  # fmt: skip
    return replace(point(marked, 1.0), threshold=threshold)
