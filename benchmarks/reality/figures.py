"""Tables over all runs: precision and recall with 95 % intervals, by class, and discarded runs by reason."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.detection.statistics import wilson
from benchmarks.reality import score
from benchmarks.reality.cases import FAULTS, HEALTHY

Row = dict[str, Any]

BINS = (0.5, 0.9, 0.95, 0.98, 1.0)
"""Edges of the calibration bins. The last bin contains its upper edge."""


def share(part: int, whole: int) -> Row:
    """Return part / whole with both counts and the 95 % interval; None as the share and interval if whole is 0."""
    interval = wilson(part, whole)
    return {
        "value": round(part / whole, 4) if whole else None,
        "of": [part, whole],
        "interval": [round(edge, 4) for edge in interval] if interval else None,
    }


def calibration_error(accusations: Sequence[Row]) -> float | None:
    """Return the mean of |frequency of right accusations - mean confidence| over bins; None without accusations."""
    total, error = 0, 0.0
    for low, high in itertools.pairwise(BINS):
        inside = [v for v in accusations if low <= v["confidence"] < high or v["confidence"] == high == BINS[-1]]
        if inside:
            right = sum(v["mark"] == "right" for v in inside) / len(inside)
            error += abs(right - statistics.fmean(v["confidence"] for v in inside)) * len(inside)
            total += len(inside)
    return round(error / total, 4) if total else None


def figures(rows: Iterable[Row]) -> Row:
    """Return the document of `--json`."""
    everything = list(rows)
    valid = [row for row in everything if "discarded" not in row]
    faulty = [row for row in valid if score.costly(row)]
    healthy = [row for row in valid if row["healthy"]]
    # The undisturbed job of a pair, or the time before the fault, is a healthy run, too.
    pairs = [row for row in valid if not row["healthy"]]
    sure = [v for row in valid for v in score.sure(row) if v["mark"] != "unjudged"]
    accusations = [v for v in sure if v["accuses"]]
    accused = sum(score.outcome(row) == "accused" for row in healthy)
    accused += sum(any(v["mark"] == "innocent" for v in score.sure(row)) for row in pairs)
    found = sum(score.outcome(row) == "right" for row in faulty)
    doubtful = [v for row in valid for v in score.verdicts(row) if v["accuses"] and v["confidence"] >= BINS[0]]
    return {
        "ours": {
            "precision_at_90": share(sum(v["mark"] == "right" for v in sure), len(sure)),
            "precision_at_90_accusations": share(sum(v["mark"] == "right" for v in accusations), len(accusations)),
            "recall": share(found, len(faulty)),
            "recall_waits_known": _recall(faulty, known=True),
            "recall_waits_unknown": _recall(faulty, known=False),
            "wrong_rank": share(sum(v["mark"] in ("wrong_rank", "innocent") for v in accusations), len(accusations)),
            "healthy_accused": share(accused, len(healthy) + len(pairs)),
            "calibration_error": calibration_error(doubtful),
        },
        "classes": [*_faults(valid), *_healthy(healthy)],
        "runs": {
            "done": len(everything),
            "valid": len(valid),
            "below_the_bar": sum(not row["healthy"] and not score.costly(row) for row in valid),
            "discarded": dict(Counter(row["discarded"] for row in everything if "discarded" in row)),
            "load_average_median": _median(row["load_average"] for row in everything),
        },
        "wrong": [_wrong(row, v) for row in valid for v in score.sure(row) if v["mark"] not in ("right", "unjudged")],
    }


def _recall(faulty: Sequence[Row], *, known: bool) -> Row:
    chosen = [row for row in faulty if (row["framework"] in ("numpy", "ddp")) == known]
    return share(sum(score.outcome(row) == "right" for row in chosen), len(chosen))


def _median(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return round(statistics.median(numbers), 2) if numbers else None


def _by_class(rows: Sequence[Row], names: Iterable[str]) -> Iterable[tuple[str, list[Row]]]:
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["class"]].append(row)
    return [(name, groups[name]) for name in names if groups[name]]


def _faults(valid: Sequence[Row]) -> list[Row]:
    """Return a row for each fault, those with the smallest share of right runs first."""
    table = []
    for name, members in _by_class(valid, FAULTS):
        outcomes = Counter(score.outcome(row) for row in members if score.costly(row))
        count = sum(outcomes.values())
        table.append(
            {
                "fault": name,
                "severity": _median(row.get("severity") for row in members if score.costly(row)),
                "runs": count,
                **{key: outcomes[key] for key in ("right", "wrong_rank", "wrong_kind", "missed")},
                "delay_seconds": _median(score.delay_seconds(row) for row in members if score.costly(row)),
                "below_the_bar": len(members) - count,
            }
        )
    return sorted(table, key=lambda one: one["right"] / one["runs"] if one["runs"] else 1.0)


def _healthy(healthy: Sequence[Row]) -> list[Row]:
    """Return a row for each healthy class, those with the most accused runs first."""
    table = []
    for name, members in _by_class(healthy, HEALTHY):
        outcomes = Counter(score.outcome(row) for row in members)
        untrue = sum(any(v["mark"] == "untrue" for v in score.sure(row)) for row in members)
        table.append({"healthy": name, "runs": len(members), "accused": outcomes["accused"], "untrue": untrue})
    return sorted(table, key=lambda one: (-one["accused"] / one["runs"], -one["untrue"]))


def _wrong(row: Row, verdict: Row) -> Row:
    """Return a wrong verdict with the case in which it was given."""
    return {
        "seed": row["seed"],
        "class": row["class"],
        "framework": row["framework"],
        "culprits": row["culprits"],
        **{key: verdict[key] for key in ("job", "mark", "kind", "cause", "confidence", "first_seconds", "sentence")},
        "named": sorted(score.named(verdict, row["jobs"][verdict["job"]]["nodes"])),
    }


def table(document: Row) -> Iterable[str]:
    """Yield the lines of a Markdown table of the classes."""
    yield "| fault | severity | runs | right | wrong rank | wrong kind | missed | delay, s |"
    yield "|---|---|---|---|---|---|---|---|"
    for one in document["classes"]:
        if "fault" in one:
            keys = ("fault", "severity", "runs", "right", "wrong_rank", "wrong_kind", "missed", "delay_seconds")
            yield "| " + " | ".join("" if one[key] is None else str(one[key]) for key in keys) + " |"
    yield ""
    yield "| healthy class | runs | accused | with an untrue note |"
    yield "|---|---|---|---|"
    for one in document["classes"]:
        if "healthy" in one:
            yield f"| {one['healthy']} | {one['runs']} | {one['accused']} | {one['untrue']} |"
