"""Scoring of a run: which verdicts are right, and whether the fault was found.

Only verdicts with a confidence of at least .9 count. An accusation blames a node, a device or another job. It is right
if a fault was injected, its kind fits the fault, it was reported after the fault began, and it names only ranks at
fault. A verdict about a whole node counts as one about the node's ranks. A verdict about the job's own work is right if
its cause is true of the class. A pipeline's stages and a rank with constant extra work are not known exactly, so
verdicts about them are neither right nor wrong in a run without a fault.
"""

from __future__ import annotations

from typing import Any, Literal

from agent.schema.verdicts.causes import Cause
from agent.schema.verdicts.kinds import BLAMING, OF_OWN_JOB, Kind
from benchmarks.reality.cases import FAULTS, HEALTHY

Row = dict[str, Any]

CONFIDENT = 0.9
LEAST_SEVERITY = 1.05
"""Faults that lengthen a step by less do not count for recall."""

UNKNOWABLE = (Cause.STANDING_OFFSET, Cause.STAGE_PARTITION)

Mark = Literal["right", "wrong_rank", "wrong_kind", "innocent", "untrue", "unjudged"]
"""right; wrong_rank: a healthy rank, node or job is accused during a fault; wrong_kind: the culprit is named with a
wrong kind; innocent: an accusation without a fault; untrue: a wrong claim about the job's own work; unjudged."""


def named(verdict: Row, nodes: list[str]) -> set[int]:
    """Return the ranks that the verdict names; for a verdict about a node, the node's ranks."""
    ranks = {rank for rank in (verdict["rank"], *verdict["ranks"]) if rank >= 0}
    return ranks or {rank for rank, node in enumerate(nodes) if node == verdict["node"]}


def mark(verdict: Row, row: Row, disturbed: bool) -> Mark:
    """Judge one verdict of a run's job. disturbed: the job had the fault."""
    kind = Kind(verdict["kind"])
    began = disturbed and verdict["first_seconds"] >= 0
    if kind in OF_OWN_JOB:
        return _own_job(verdict, row, began)
    if kind not in BLAMING:
        return "unjudged"
    if not began:
        return "innocent"
    fits = kind in FAULTS[row["class"]]
    if row["class"] == "shared-uplink":
        return "right" if fits and verdict["aggressor"] else "wrong_rank"
    if kind is Kind.INTERFERENCE:
        return "wrong_rank"  # there is no other job
    ranks, culprits = named(verdict, row["jobs"]["disturbed"]["nodes"]), set(row["culprits"])
    if not ranks or not ranks <= culprits:
        return "wrong_rank"
    return "right" if fits else "wrong_kind"


def _own_job(verdict: Row, row: Row, began: bool) -> Mark:
    cause = Cause(verdict["cause"])
    if began:
        return "untrue"
    if row["healthy"] and cause in HEALTHY[row["class"]]:
        return "right"
    return "unjudged" if cause in UNKNOWABLE else "untrue"


def verdicts(row: Row) -> list[Row]:
    """Return all verdicts of a run, with their marks."""
    found = []
    for name, job in row["jobs"].items():
        for verdict in job["verdicts"]:
            marked = mark(verdict, row, name == "disturbed")
            found.append(verdict | {"job": name, "mark": marked, "accuses": Kind(verdict["kind"]) in BLAMING})
    return found


def sure(row: Row) -> list[Row]:
    """Return the verdicts of a run that had a confidence of at least .9, with their marks."""
    return [verdict for verdict in verdicts(row) if verdict["confidence"] >= CONFIDENT]


def costly(row: Row) -> bool:
    """Return whether the run's fault cost enough to count. A rank that never arrives costs everything."""
    return not row["healthy"] and (row["class"] == "never-arrives" or (row.get("severity") or 0.0) >= LEAST_SEVERITY)


def outcome(row: Row) -> str:
    """Return right, wrong_rank, wrong_kind or missed for a fault; quiet, noted or accused for a healthy run."""
    if row["healthy"]:
        marks = {verdict["mark"] for verdict in sure(row)}
        return "accused" if "innocent" in marks else "noted" if marks else "quiet"
    marks = {verdict["mark"] for verdict in sure(row) if verdict["job"] == "disturbed"}
    for one in ("right", "wrong_rank", "wrong_kind"):
        if one in marks:
            return one
    return "wrong_kind" if "untrue" in marks else "missed"


def delay_seconds(row: Row) -> float | None:
    """Return the time from the begin of the fault to the first right verdict of confidence .9; None without one."""
    times = [verdict["sure_seconds"] for verdict in sure(row) if verdict["mark"] == "right"]
    return min((time for time in times if time is not None), default=None)
