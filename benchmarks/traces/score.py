"""Scoring of the verdicts about one trace against its true fault.

An accusation is a verdict of the kinds that blame a node, a device or another job. It is right if its kind fits the
fault, it was reported after the fault began, and it names only culprits. A verdict about a whole node may also name
healthy ranks of this node, at most half of the named ranks. A verdict about the job's own work is right if it
describes the trace's class and names no culprit. "Unknown" is neither right nor wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from agent.schema.verdicts.kinds import BLAMING, OF_OWN_JOB
from benchmarks.traces.job import Truth

CONFIDENT = 0.9
"""Only verdicts of at least this confidence count for precision and recall."""

OFFSET = "standing-offset"

EARLY = "windows_of_slowness"
"""Measure in the evidence about a rank that has not been slow for long."""

ENDS = 12
"""A slowdown that lasts until so many steps before the end of the trace may not have ended."""

NOTE_STEPS = 20
"""A note about a single long step is in time for so many steps after it."""

Mark = Literal["right", "wrong_rank", "wrong_kind", "innocent", "untrue"]
"""right; wrong_rank: a healthy rank of a faulty job is accused; wrong_kind: the culprit is named, but with a wrong
kind or before the fault; innocent: a healthy job is accused; untrue: a wrong claim about the job's own work."""


@dataclass(slots=True)
class Marked:
    """One verdict of a report, and whether it is right."""

    kind: str
    """Kind of the verdict."""
    cause: str
    """Cause of the verdict."""
    ranks: list[int]
    """Named ranks; empty: the whole job."""
    confidence: float
    """Confidence of the verdict."""
    detected: int
    """Step of the report."""
    accuses: bool
    """Whether the verdict blames a node, a device or another job."""
    mark: Mark
    """Whether it is right, and otherwise how it is wrong."""
    log_odds: float = 0.0
    """Sum of the weights of its evidence."""
    early: bool = False
    """Whether it is about a rank that had not been slow for long."""


@dataclass(slots=True)
class Ended:
    """A slowdown that ended before its verdict was certain."""

    steps: int
    """Steps from its first to its last slow step."""
    right: bool
    """Whether it was the fault."""
    kept: bool
    """Whether the report still accuses the rank."""


@dataclass(slots=True)
class Outcome:
    """Result of the scoring of one trace."""

    outcome: str
    """right, wrong_rank, wrong_kind or missed, from the confident verdicts. A healthy trace is right or wrong_rank."""
    found: bool = False
    """Whether a confident verdict names a culprit rightly, whatever else was reported."""
    complete: bool = False
    """Whether confident right verdicts name all culprits together."""
    delay: int | None = None
    """Steps from the onset to the first confident right verdict."""
    noted: bool = False
    """Whether any verdict or "unknown" was reported after the onset, or soon after the step to be mentioned."""
    verdicts: list[Marked] = field(default_factory=list)
    """All verdicts but "unknown"."""
    contradicted: bool = False
    """Whether a culprit is also among the ranks of a verdict about the job's own work."""
    ended: list[Ended] = field(default_factory=list)
    """Slowdowns that were reported and ended before their verdict was certain."""
    gain_reported: float | None = None
    """Part of the mean step that the report attributes to its suspects."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def _named(verdict: dict[str, Any]) -> list[int]:
    return list(verdict["ranks"]) or ([] if verdict["rank"] is None else [int(verdict["rank"])])


def _names_culprits(ranks: list[int], verdict: dict[str, Any], truth: Truth) -> bool:
    culprits = set(truth.culprits)
    if not ranks:
        return truth.node >= 0 and verdict["node"] == f"node-{truth.node}"
    if culprits.issuperset(ranks):
        return True
    on_node = truth.node >= 0 and all(rank // truth.per_node == truth.node for rank in ranks)
    return on_node and 2 * len(culprits.intersection(ranks)) >= len(ranks)


def _mark(verdict: dict[str, Any], truth: Truth) -> Mark:
    ranks, kind, cause = _named(verdict), verdict["kind"], verdict["cause"]
    if kind in OF_OWN_JOB:
        if set(truth.culprits).intersection(ranks) and verdict["detected_step"] >= truth.onset:
            return "wrong_kind"  # a report from before the fault cannot be about it
        true = cause in truth.own_causes or kind in truth.own_causes
        if cause == OFFSET:
            true = bool(ranks) and set(truth.standing).issuperset(ranks)
        return "right" if true else "untrue"
    if truth.healthy:
        return "innocent"
    if kind == "interference":
        if truth.neighbours and verdict["aggressor"] == truth.neighbours[0]:
            return "right"
        return "wrong_rank" if truth.neighbours else "wrong_kind"
    if not _names_culprits(ranks, verdict, truth):
        return "wrong_rank"
    # With counters, a verdict can come within the first affected step. The newest step is then the one before it.
    if kind not in truth.kinds or verdict["detected_step"] < truth.onset - bool(truth.cause):
        return "wrong_kind"
    return "right"


def score(document: dict[str, Any], truth: Truth) -> Outcome:
    """Score the output of `gangwatch detect --json` for the trace."""
    marked, ended, noted, contradicted = [], [], False, False
    for verdict in document["verdicts"]:
        ranks = _named(verdict)
        noted = noted or _is_note(verdict["detected_step"], truth)
        early = EARLY in [one["measure"] for one in verdict.get("evidence", [])]
        if early and verdict["last_step"] > verdict["first_step"]:
            right = not truth.healthy and verdict["first_step"] >= truth.onset - 1
            right = right and _names_culprits(ranks, verdict, truth)
            steps = verdict["last_step"] - verdict["first_step"] + 1
            if verdict["last_step"] < truth.steps - ENDS:
                ended.append(Ended(steps, right, verdict["kind"] != "unknown"))
        if verdict["kind"] == "unknown":
            continue
        own = verdict["kind"] in OF_OWN_JOB
        contradicted = contradicted or (own and bool(set(truth.culprits).intersection(ranks)))
        detected, confidence = int(verdict["detected_step"] or 0), float(verdict["confidence"])
        blames, mark = verdict["kind"] in BLAMING, _mark(verdict, truth)
        weight = sum(one["log_likelihood_ratio"] for one in verdict.get("evidence", []))
        marked.append(
            Marked(verdict["kind"], verdict["cause"], ranks, confidence, detected, blames, mark, weight, early)
        )
    sure = [one for one in marked if one.confidence >= CONFIDENT]
    right = [one for one in sure if one.accuses and one.mark == "right"]
    wrong = any(one.accuses and one.mark in ("wrong_rank", "innocent") for one in sure)
    outcome = Outcome("missed", noted=noted, verdicts=marked, contradicted=contradicted, ended=ended)
    if wrong:
        outcome.outcome = "wrong_rank"
    elif truth.healthy or right:
        outcome.outcome = "right"
    elif any(one.mark == "wrong_kind" for one in sure):
        outcome.outcome = "wrong_kind"
    if right:
        outcome.found = True
        outcome.complete = set(truth.culprits).issubset(_all_ranks(right))
        outcome.delay = min(one.detected for one in right) - truth.onset
    job = document["job"]
    if job["without_suspects_seconds"] is not None and job["step_seconds"]:
        outcome.gain_reported = 1.0 - job["without_suspects_seconds"] / job["step_seconds"]
    return outcome


def _is_note(detected: int | None, truth: Truth) -> bool:
    if detected is None:
        return truth.note_step < 0
    if truth.note_step >= 0:
        return truth.note_step <= detected <= truth.note_step + NOTE_STEPS
    return detected >= truth.onset


def _all_ranks(marked: Iterable[Marked]) -> set[int]:
    return {rank for one in marked for rank in one.ranks}
