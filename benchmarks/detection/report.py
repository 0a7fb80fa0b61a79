"""JSON document of the detection benchmark, computed from the results of all runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from agent.schema.verdicts.kinds import ACCUSING, BLAMING
from benchmarks.detection.baselines import NAMES
from benchmarks.detection.fleet import Result
from benchmarks.detection.healthy import Alarms
from benchmarks.detection.score import HEADLINE_SEVERITY
from benchmarks.detection.statistics import (
    calibration_error,
    platt,
    poisson_upper,
    quantile,
    reliability,
    scores,
    wilson,
)

METHODS = ("ours", *NAMES)

NO_TOKENS = "-untold"
"""Suffix of workloads whose ranks report no tokens: they have their own row and are not in the headline."""

TTD_SECONDS, TTD_STEPS = 60.0, 6


def method(name: str, results: Sequence[Result], alarms: Sequence[Alarms]) -> dict[str, Any]:
    """Return the main figures of one method, for slowdowns of 10 % and more and for hangs and losses."""
    counted = [r for r in results if r.cell.severity >= HEADLINE_SEVERITY and not r.cell.workload.endswith(NO_TOKENS)]
    found = _scores(name, counted)
    outcomes = [r.outcomes[name] for r in counted]
    seconds = [o.seconds for o in outcomes if o.seconds is not None]
    steps = [o.steps for o in outcomes if o.steps is not None]
    within = [o.seconds <= TTD_SECONDS or (o.steps or 0) <= TTD_STEPS for o in outcomes if o.seconds is not None]
    beyond = sum(not one for one in within)
    found |= {
        "ttd_seconds_p50": quantile(seconds, 0.5),
        "ttd_seconds_p95": quantile(seconds, 0.95),
        "ttd_steps_p50": quantile(steps, 0.5),
        "ttd_steps_p95": quantile(steps, 0.95),
        "ttd_within_60_seconds_or_6_steps": round(1 - beyond / len(within), 4) if within else None,
        "localisation_8k": _localisation(name, results, 8192)["all"]["top1"],
        "kind_confusion": confusion(name, counted),
    }
    days = sum(a.gpu_days for a in alarms if name in a.by_method)
    false = sum(a.by_method.get(name, 0) for a in alarms)
    found |= {
        "false_alarms_per_1000_gpu_days": round(1000 * false / days, 4) if days else None,
        "false_alarms_upper95": round(1000 * poisson_upper(false) / days, 4) if days else None,
        "false_alarms": false,
        "healthy_gpu_days": round(days, 1),
    }
    return found


def ours_more(results: Sequence[Result], alarms: Sequence[Alarms]) -> dict[str, Any]:
    """Return the figures that exist for our detectors only."""
    counted = [r for r in results if r.cell.severity >= HEADLINE_SEVERITY]
    outcomes = [r.outcomes["ours"] for r in counted]
    pairs = [pair for o in outcomes for pair in o.confidences]
    sizes = sorted({r.cell.gpus for r in results if r.level in ("gpu", "node", "nic", "link")})
    return {
        "untold": _scores("ours", [r for r in counted if r.cell.workload.endswith(NO_TOKENS)]),
        "by_family": _split(counted, lambda r: r.family),
        "by_fault": _split(counted, lambda r: r.cell.disorder),
        "by_workload": _split(counted, lambda r: r.cell.workload),
        "by_severity": _split(results, lambda r: str(r.cell.severity)),
        "by_size": _split(counted, lambda r: str(r.cell.gpus)),
        "by_shape": _split(counted, lambda r: r.cell.form),
        "by_step_seconds": _split(counted, lambda r: _bin(r.cell.step_seconds)),
        "localisation": {str(size): _localisation("ours", results, size) for size in sizes},
        "kind_matrix": _matrix(counted, lambda o: o.first),
        "cause_matrix": _matrix(counted, lambda o: o.cause),
        "false_kinds": dict(Counter(kind for o in outcomes for kind in o.false_kinds)),
        "calibration_error": calibration_error([c for c, _ in pairs], [right for _, right in pairs]),
        "reliability": reliability([c for c, _ in pairs], [right for _, right in pairs]),
        "platt": platt([c for c, _ in pairs], [right for _, right in pairs]),
        "wrong_actions": sum(a.wrong_actions for a in alarms),
        "sure_false_alarms": sum(a.sure for a in alarms),
        "false_alarm_kinds": dict(sum((Counter(a.kinds) for a in alarms), Counter())),
        "false_alarms_by_workload": {
            workload: _alarms([a for a in alarms if a.workload == workload])
            for workload in sorted({a.workload for a in alarms})
        },
        "accused_jobs_by_property": _by_property(alarms),
        "said_of_healthy_workloads": dict(sum((Counter(a.of_workload) for a in alarms), Counter())),
    }


NYQUIST = 2.0
"""Minimum number of samples in an iteration that is necessary to infer its duration."""


def periods(results: Sequence[Result]) -> dict[str, Any]:
    """Compare the inferred durations of iterations with the true ones, for jobs that report no steps.

    could_be_told: jobs with at least two samples per iteration. not_told: jobs without an inferred duration. wrong:
    jobs whose inferred duration differs from the true one by more than 2 %.
    """
    asked = [r for r in results if not r.cell.reports]
    pairs = [(r, r.inferred_seconds / r.period_seconds - 1.0) for r in asked if r.inferred_seconds is not None]
    errors = [abs(error) for _, error in pairs]
    could = [r for r in asked if r.period_seconds >= NYQUIST * r.sampling_seconds]
    return {
        "jobs": len(asked),
        "inferred": len(errors),
        "could_be_told": len(could),
        "told_of_those": sum(r.inferred_seconds is not None for r in could),
        "within_2_percent": round(sum(e <= 0.02 for e in errors) / len(errors), 4) if errors else None,
        "error_p50": quantile(errors, 0.5),
        "error_p95": quantile(errors, 0.95),
        "error_worst": round(max(errors), 4) if errors else None,
        "wrong": [_timed(r) | {"error": round(e, 4)} for r, e in pairs if abs(e) > 0.02],
        "not_told": [_timed(r) for r in could if r.inferred_seconds is None],
    }


def _timed(result: Result) -> dict[str, Any]:
    cell = result.cell
    return {
        "fault": cell.disorder,
        "workload": cell.workload,
        "gpus": cell.gpus,
        "step_seconds": round(result.period_seconds, 3),
        "sampling_seconds": result.sampling_seconds,
    }


def grid(results: Iterable[Result]) -> list[dict[str, Any]]:
    """Return the results by combination of fault class, severity, size, shape over time and workload."""
    rows: dict[tuple[Any, ...], list[Result]] = defaultdict(list)
    for result in results:
        rows[result.cell.key].append(result)
    found = []
    for (fault, severity, gpus, form, workload), members in sorted(rows.items(), key=lambda item: str(item[0])):
        names = [name for name in METHODS if name in members[0].outcomes]
        counts = {name: _counts(name, members) for name in names}
        found.append(
            {
                "fault": fault,
                "severity": severity,
                "gpus": gpus,
                "shape": form,
                "workload": workload,
                "runs": len(members),
                "minutes": sorted({r.cell.minutes for r in members}),
                "step_seconds": sorted(r.cell.step_seconds for r in members),
                "slowdown": round(sum(r.slowdown for r in members) / len(members), 4),
                "ours": counts.pop("ours"),
                "baselines": counts,
            }
        )
    return found


def behind(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of ``grid`` in which a published rule is better than our detectors.

    A rule is better if the 95 % interval of its recall is above ours and it has no more false alarms.
    """
    found = []
    for row in rows:
        ours = row["ours"]
        own = wilson(ours["tp"], ours["tp"] + ours["fn"])
        for name, theirs in row["baselines"].items():
            other = wilson(theirs["tp"], theirs["tp"] + theirs["fn"])
            if own and other and other[0] > own[1] and theirs["fp"] <= ours["fp"]:
                found.append({**{k: row[k] for k in ("fault", "severity", "gpus", "shape", "workload")}, "rule": name})
    return found


def confusion(name: str, results: Sequence[Result]) -> float | None:
    """Return the share of detected hardware faults that were first reported as interference, or the reverse."""
    kinds = {"hardware": ACCUSING, "interference": BLAMING - ACCUSING}
    asked = [r for r in results if r.family in kinds and r.outcomes[name].first != "none"]
    wrong = [
        r for r in asked if r.outcomes[name].first in kinds["interference" if r.family == "hardware" else "hardware"]
    ]
    return round(len(wrong) / len(asked), 4) if asked else None


def _scores(name: str, results: Sequence[Result]) -> dict[str, Any]:
    counts = _counts(name, results)
    return scores(counts["tp"], counts["fp"], counts["fn"])


def _counts(name: str, results: Sequence[Result]) -> dict[str, int]:
    return {key: sum(getattr(r.outcomes[name], key) for r in results) for key in ("tp", "fp", "fn")}


def _split(results: Sequence[Result], key: Any) -> dict[str, Any]:
    parts: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        parts[key(result)].append(result)
    found = {}
    for part, members in sorted(parts.items()):
        seconds = [r.outcomes["ours"].seconds for r in members if r.outcomes["ours"].seconds is not None]
        brief = {
            k: v for k, v in _scores("ours", members).items() if k in ("precision", "recall", "f1", "tp", "fp", "fn")
        }
        found[part] = brief | {"runs": len(members), "ttd_seconds_p95": quantile(seconds, 0.95)}
    return found


def _bin(seconds: float) -> str:
    for low, high in ((0.3, 1.0), (1.0, 5.0), (5.0, 15.0)):
        if seconds < high:
            return f"{low:g}-{high:g}"
    return "15-45"


def _localisation(name: str, results: Sequence[Result], gpus: int) -> dict[str, Any]:
    """Return how often the right rank or node was named, among detected hardware faults in jobs of this size."""
    found: dict[str, Any] = {}
    members = [
        r
        for r in results
        if r.cell.gpus == gpus and r.cell.severity >= HEADLINE_SEVERITY and not r.cell.workload.endswith(NO_TOKENS)
    ]
    for level in ("all", "gpu", "node", "nic", "link"):
        asked = [
            r.outcomes[name]
            for r in members
            if r.family == "hardware" and (level in ("all", r.level)) and r.outcomes[name].top1 is not None
        ]
        top1 = sum(bool(o.top1) for o in asked)
        found[level] = {
            "top1": round(top1 / len(asked), 4) if asked else None,
            "top1_interval": wilson(top1, len(asked)),
            "top3": round(sum(bool(o.top3) for o in asked) / len(asked), 4) if asked else None,
            "told": len(asked),
        }
    return found


def _matrix(results: Sequence[Result], of: Any) -> dict[str, dict[str, int]]:
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        found[result.cell.disorder][of(result.outcomes["ours"])] += 1
    return {fault: dict(row) for fault, row in sorted(found.items())}


def _by_property(alarms: Sequence[Alarms]) -> dict[str, dict[str, int]]:
    """Return how many healthy jobs have each property, and how many of them were accused."""
    names = sorted({name for a in alarms for name in a.by_property})
    counts = {name: [a.by_property[name] for a in alarms if name in a.by_property] for name in names}
    return {
        name: {"jobs": sum(jobs for jobs, _ in pairs), "accused": sum(accused for _, accused in pairs)}
        for name, pairs in counts.items()
    }


def _alarms(alarms: Sequence[Alarms]) -> dict[str, Any]:
    days, false = sum(a.gpu_days for a in alarms), sum(a.by_method["ours"] for a in alarms)
    return {
        "gpu_days": round(days, 1),
        "jobs": sum(a.jobs for a in alarms),
        "false_alarms": false,
        "per_1000_gpu_days": round(1000 * false / days, 4),
        "upper95": round(1000 * poisson_upper(false) / days, 4),
    }
