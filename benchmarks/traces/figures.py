"""Tables over scored traces: precision, recall, misses by class, and calibration."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from benchmarks.traces.score import CONFIDENT

Row = dict[str, Any]
"""A line of the result file: keys seed, truth and outcome."""

BINS = (0.5, 0.9, 0.95, 0.98, 1.0)
"""Edges of the calibration bins. The last bin contains its upper edge."""

HEADLINE_COST = 1.05
"""Faults that cost the job at least this count for recall."""


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def _verdicts(rows: Sequence[Row]) -> list[Row]:
    return [verdict for row in rows for verdict in row["outcome"]["verdicts"]]


def counted(rows: Sequence[Row], least: float = 0.0) -> list[Row]:
    """Return the verdicts with a confidence of at least `least`.

    Equal verdicts about a job's own work count once per trace. Otherwise a job with 40 ranks of more work would have 40
    right verdicts, which would hide wrong accusations.
    """
    found = []
    for row in rows:
        seen = set()
        for verdict in row["outcome"]["verdicts"]:
            claim = (verdict["kind"], verdict["cause"], verdict["mark"])
            if verdict["confidence"] >= least and (verdict["accuses"] or claim not in seen):
                found.append(verdict)
                seen.add(claim)
    return found


def calibration(verdicts: Sequence[Row]) -> Row:
    """Return the frequency of right verdicts in each bin of confidence, and the expected calibration error.

    The error is the mean of |frequency - mean confidence| over bins, weighted by their verdicts.
    """
    bins, error = [], 0.0
    for low, high in itertools.pairwise(BINS):
        inside = [v for v in verdicts if low <= v["confidence"] < high or v["confidence"] == high == BINS[-1]]
        if not inside:
            continue
        right = sum(v["mark"] == "right" for v in inside)
        mean = sum(v["confidence"] for v in inside) / len(inside)
        error += abs(right / len(inside) - mean) * len(inside)
        bins.append({"from": low, "to": high, "verdicts": len(inside), "right": right, "mean": round(mean, 4)})
    count = sum(one["verdicts"] for one in bins)
    return {"bins": bins, "expected_calibration_error": round(error / count, 4) if count else None}


def by_class(rows: Sequence[Row]) -> list[Row]:
    """Return one row for each class, in order of the share of right verdicts, smallest first."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["truth"]["name"]].append(row)
    table = []
    for name, members in groups.items():
        outcomes = Counter(row["outcome"]["outcome"] for row in members)
        delays = [row["outcome"]["delay"] for row in members if row["outcome"]["delay"] is not None]
        accusations = [v for v in _verdicts(members) if v["accuses"]]
        known = [row for row in members if row["truth"]["waits"] == "known"]
        table.append(
            {
                "class": name,
                "healthy": members[0]["truth"]["healthy"],
                "runs": len(members),
                **{key: outcomes[key] for key in ("right", "wrong_rank", "wrong_kind", "missed")},
                "waits_known": len(known),
                "found_of_these": sum(row["outcome"]["found"] for row in known),
                "noted": sum(row["outcome"]["noted"] for row in members),
                "complete": sum(row["outcome"]["complete"] for row in members),
                "contradicted": sum(row["outcome"]["contradicted"] for row in members),
                "delay_steps_median": statistics.median(delays) if delays else None,
                "calibration": calibration(accusations),
            }
        )
    return sorted(table, key=lambda one: (one["right"] / one["runs"], one["class"]))


def _recall(rows: Sequence[Row]) -> Row:
    found = sum(row["outcome"]["found"] for row in rows)
    noted = sum(row["outcome"]["noted"] for row in rows)
    return {"faults": len(rows), "found": found, "recall": _share(found, len(rows)), "noted": noted}


def figures(rows: Sequence[Row]) -> Row:
    """Return all tables. Figures without any fault or verdict are None, not zero."""
    healthy = [row for row in rows if row["truth"]["healthy"]]
    faulty = [row for row in rows if not row["truth"]["healthy"]]
    costly = [row for row in faulty if row["truth"]["cost"] >= HEADLINE_COST]
    local = [row for row in costly if row["truth"]["localisable"]]
    known = [row for row in local if row["truth"]["waits"] == "known"]
    inferred = [row for row in local if row["truth"]["waits"] == "own"]
    unknown = [row for row in local if row["truth"]["waits"] in ("null", "absent")]
    sure = counted([*healthy, *costly], CONFIDENT)
    accused = [v for v in sure if v["accuses"]]
    own = [v for v in sure if not v["accuses"]]
    marks = Counter(v["mark"] for v in accused)
    culprits_named = [v for v in sure if v["mark"] == "wrong_kind" or (v["accuses"] and v["mark"] == "right")]
    due = [row for row in healthy if row["truth"]["note_step"] >= 0]
    accounts = [row for row in faulty if row["outcome"]["gain_reported"] is not None and row["outcome"]["found"]]
    return {
        "traces": len(rows),
        "precision_at_90": _share(sum(v["mark"] == "right" for v in sure), len(sure)),
        "precision_at_90_accusations": _share(marks["right"], len(accused)),
        "precision_at_90_own_job": _share(sum(v["mark"] == "right" for v in own), len(own)),
        "verdicts_at_90": {"accusations": dict(marks), "own_job": dict(Counter(v["mark"] for v in own))},
        "recall_at_90": {
            "waits_known": _recall(known),
            "waits_inferred": _recall(inferred),
            "waits_unknown": _recall(unknown),
            "not_localisable_by_steps": _recall([row for row in costly if not row["truth"]["localisable"]]),
        },
        "healthy_accused": _share(sum(row["outcome"]["outcome"] == "wrong_rank" for row in healthy), len(healthy)),
        "wrong_rank": _share(marks["wrong_rank"] + marks["innocent"], len(accused)),
        "kind_confusion": _share(sum(v["mark"] == "wrong_kind" for v in culprits_named), len(culprits_named)),
        "contradicted": _share(sum(row["outcome"]["contradicted"] for row in faulty), len(faulty)),
        "note_due_and_given": _share(sum(row["outcome"]["noted"] for row in due), len(due)),
        "gain_error_median": round(
            statistics.median(abs(row["outcome"]["gain_reported"] - row["truth"]["gain"]) for row in accounts), 4
        )
        if accounts
        else None,
        "cut_differs": _cuts(rows),
        "calibration": calibration([v for v in _verdicts([*healthy, *costly]) if v["accuses"]]),
        "classes": by_class(rows),
    }


def _cuts(rows: Sequence[Row]) -> Row | None:
    tried = [one for row in rows for one in row.get("cuts", [])]
    return {"verdicts": len(tried), "differ": tried.count(False)} if tried else None
