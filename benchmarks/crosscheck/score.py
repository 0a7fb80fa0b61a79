"""What is right in the verdicts on a generated trace, and the table of many traces."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from benchmarks.crosscheck.trace import Generated

CONFIDENT = 0.9
COSTLY = 1.05
OFFSET = 1.02  # a rank has more work than its peers if it computes longer than this many times
ACCUSING = ("straggler", "hang", "health")
NAMED_BY_TIMES = ("one", "several-of-node", "node", "hang", "gradual", "intermittent", "from-start", "neighbours")

# The effects that make a verdict about the job's own work true.
TRUE_CAUSES = {
    "checkpoint": {"checkpoint", "checkpoint-behind", "evaluation", "evaluation-by-one", "garbage"},
    "evaluation": {"checkpoint", "checkpoint-behind", "evaluation", "evaluation-by-one", "garbage"},
    "data-loading": {"loader", "long-pause", "warm-up", "restart"},
    "pauses": {"garbage", "recompiles", "loader"},
    "sequence-length": {"lengths", "hot-expert"},
    "whole-job": {"larger-batch"},
}


def accused(verdict: dict[str, Any], trace: Generated) -> set[int]:
    """Return the ranks that a verdict accuses: those it lists, or all of its node."""
    if verdict["ranks"]:
        return set(verdict["ranks"])
    if verdict["rank"] is not None and verdict["rank"] >= 0:
        return {verdict["rank"]}
    names, node = trace.job.names, trace.job.node()
    return {int(trace.job.number[p]) for p in range(trace.job.ranks) if names[node[p]] == verdict["node"]}


def judged(trace: Generated, verdicts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return one result: what the trace is, and each verdict with whether it is right."""
    rows = []
    for verdict in verdicts:
        who = accused(verdict, trace)
        row = {
            k: verdict[k]
            for k in ("kind", "cause", "confidence", "detected_step", "rank", "ranks", "node", "first_step")
        }
        if verdict["kind"] in ACCUSING:
            row["right"] = bool(who) and who <= trace.culprits
            row["found"] = bool(who & trace.culprits)
        elif verdict["kind"] == "unknown":
            row["right"] = None
        else:
            row["right"] = _own_work(trace, verdict, who)
            row["confused"] = not row["right"] and bool(who & trace.culprits)
        rows.append(row)
    fault = trace.fault
    job = trace.job
    onset = int(trace.step[np.flatnonzero(fault.active)[0]]) if fault and fault.active.any() else None
    return {
        "seed": trace.seed,
        "ranks": job.ranks,
        "layout": f"{job.style} dp{job.replicas} pp{job.stages} tp{job.shards}",
        "steps": job.steps,
        "effects": trace.effects,
        "fault": fault.kind if fault else None,
        "severity": fault.severity if fault else None,
        "culprits": sorted(trace.culprits),
        "onset": onset,
        "cost": trace.cost,
        "waits": trace.waits,
        "jitter": job.notes["jitter"],
        "verdicts": rows,
    }


def _own_work(trace: Generated, verdict: dict[str, Any], who: set[int]) -> bool:
    """Return whether a verdict about the job's own work is true."""
    cause, effects = verdict["cause"], set(trace.effects)
    if cause in TRUE_CAUSES:
        return bool(TRUE_CAUSES[cause] & effects)
    rows = (trace.step >= verdict["first_step"]) & (trace.step <= verdict["detected_step"])
    own = trace.healthy_own[rows] if rows.any() else trace.healthy_own
    usual, mean = np.median(own, axis=0), own.mean(axis=0)
    stage = trace.job.place()[1]
    if cause == "stage-partition":
        means = [float(usual[stage == s].mean()) for s in range(trace.job.stages)]
        return trace.job.stages > 1 and max(means) > 1.02 * min(means)
    if cause == "standing-offset":
        number = trace.job.number
        role = [np.flatnonzero((stage == stage[p]) & (number != number[p])) for p in range(trace.job.ranks)]
        slower = [max(float(a[p] / np.median(a[role[p]])) for a in (usual, mean)) for p in range(trace.job.ranks)]
        fault = trace.fault
        if fault and fault.kind not in ("hang", "stall", "port") and who & trace.culprits:
            onset = int(trace.step[fault.active.argmax()])
            if verdict["detected_step"] >= onset:
                return False  # their fault has begun
        return bool(who) and all(slower[p] > OFFSET for p in range(trace.job.ranks) if int(number[p]) in who)
    return False


def summary(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of many results, misses before successes."""
    sure = [(r, v) for r in results for v in r["verdicts"] if v["confidence"] >= CONFIDENT and v["right"] is not None]
    accusing = [(r, v) for r, v in sure if v["kind"] in ACCUSING]
    own = [(r, v) for r, v in sure if v["kind"] not in ACCUSING]
    healthy = [r for r in results if r["fault"] is None]
    out: dict[str, Any] = {
        "traces": len(results),
        "missed": [_short(r) for r in results if _counts(r) and not _found(r)],
        "wrong": [_short(r) | {"verdict": v} for r, v in sure if not v["right"]],
        "confident_right": _share([v["right"] for _, v in sure]),
        "accusations_right": _share([v["right"] for _, v in accusing]),
        "own_work_right": _share([v["right"] for _, v in own]),
        "stalls_noted": _share([_named(r) for r in results if r["fault"] == "stall" and r["waits"] == "known"]),
        "healthy_accused": _share(
            [any(v["confidence"] >= CONFIDENT and v["kind"] in ACCUSING for v in r["verdicts"]) for r in healthy]
        ),
        "kind_confusion": _share([bool(v.get("confused")) for _, v in sure]),
        "calibration_error": calibration(
            [(v["confidence"], v["right"]) for r in results for v in r["verdicts"] if v["kind"] in ACCUSING]
        ),
    }
    out["recall"] = {
        w: _share([_found(r) for r in results if _counts(r) and r["waits"] == w]) for w in ("known", "absent", "own")
    }
    classes: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for r in results:
        for name in [r["fault"]] if r["fault"] else r["effects"] or ["plain"]:
            classes[name].append(r)
    out["classes"] = {name: _class(rows) for name, rows in sorted(classes.items())}
    return out


def calibration(pairs: Sequence[tuple[float, bool]]) -> dict[str, Any]:
    """Return the expected calibration error, in bins that end at .8, .9, .95, .98 and 1, and the number of verdicts."""
    if not pairs:
        return {"error": None, "verdicts": 0}
    edges = (0.0, 0.8, 0.9, 0.95, 0.98, 1.01)
    error = 0.0
    for low, high in itertools.pairwise(edges):
        inside = [(c, r) for c, r in pairs if low <= c < high]
        if inside:
            error += abs(sum(c for c, _ in inside) - sum(r for _, r in inside))
    return {"error": round(error / len(pairs), 4), "verdicts": len(pairs)}


def _counts(result: dict[str, Any]) -> bool:
    nameable = result["fault"] in NAMED_BY_TIMES and len(result["culprits"]) < result["ranks"]
    return nameable and result["cost"] >= COSTLY


def _found(result: dict[str, Any]) -> bool:
    return any(v["kind"] in ACCUSING and v["confidence"] >= CONFIDENT and v["right"] for v in result["verdicts"])


def _named(result: dict[str, Any]) -> bool:
    return any(v["rank"] in result["culprits"] for v in result["verdicts"])


def _share(values: Sequence[bool]) -> str:
    return f"{sum(values)} of {len(values)}"


def _short(result: dict[str, Any]) -> dict[str, Any]:
    return {
        k: result[k]
        for k in ("seed", "layout", "steps", "effects", "fault", "severity", "cost", "culprits", "onset", "waits")
    }


def _class(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    accusing = [v for r in rows for v in r["verdicts"] if v["kind"] in ACCUSING]
    sure = [v for v in accusing if v["confidence"] >= CONFIDENT]
    return {
        "traces": len(rows),
        "found_known": _share([_found(r) for r in rows if _counts(r) and r["waits"] == "known"]),
        "accusations_right": _share([v["right"] for v in sure]),
        "calibration": calibration([(v["confidence"], v["right"]) for v in accusing]),
        "noted": sum(bool(r["verdicts"]) for r in rows),
    }
