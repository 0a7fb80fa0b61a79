"""``python -m benchmarks.traces.fit --seed S --runs N --json``: fit confidence to the frequency of right verdicts.

The traces report their waits and have no counters. Two fault classes (HELD_OUT) are not used for the fit, and neither
are the simulator (``benchmarks.detection``) and the real trainings (``benchmarks.reality``). The result is written into
``scheduler_feedback/detectors/stats/log_odds.py`` and ``straggler/verdict_building.py`` by hand. ``--out`` continues a
result file, as in ``python -m benchmarks.traces``.

Fitted are:

- for each group of verdicts, the line that turns the sum of the evidence's weights into log odds;
- the frequency of faults among slow ranks of which it is not known yet whether they stay slow;
- the number of windows after which an ended slowdown was more often a fault than the job's own work;
- with ``--results`` of traces with counters and without waits: the line of the accusations by counters alone.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from agent.schema.verdicts.kinds import OF_OWN_JOB
from benchmarks.detection.statistics import wilson
from benchmarks.traces.__main__ import collect
from benchmarks.traces.campaign import CLASSES, Row, read_results, tasks
from benchmarks.traces.figures import BINS, calibration, counted
from benchmarks.traces.model import FloatArray

HELD_OUT = ("gradual", "slow-node")
"""Fault classes that are not used for the fit: one of a single rank, and one of a node."""

PRIOR_WEIGHT = 1.0
"""Weight of the prior, in verdicts: one right and one wrong verdict at each end of the range of log odds. Otherwise
groups without a wrong verdict would have an infinite slope."""

GROUPS = {"straggler": "straggler", "hang": "hang"} | dict.fromkeys(OF_OWN_JOB, "own job")
"""Group of each kind of verdict. Each group has its own line."""


def fit_line(x: FloatArray, right: FloatArray) -> tuple[float, float]:
    """Return offset and slope of the log odds, by maximum likelihood (Platt 1999) with PRIOR_WEIGHT.

    x: float64 [n], sums of weights. right: float64 [n], 1 for a right verdict, else 0. The slope is not negative.
    """
    ends = [float(x.min()), float(x.min()), float(x.max()), float(x.max())]
    values = np.concatenate([x, ends])
    target = np.concatenate([right, [0.0, 1.0, 0.0, 1.0]])
    weight = np.concatenate([np.ones(len(x)), np.full(4, PRIOR_WEIGHT / 2)])
    design = np.stack([np.ones_like(values), values], axis=1)
    line = np.zeros(2)
    for _ in range(100):  # Newton's method
        chance = 1.0 / (1.0 + np.exp(-design @ line))
        gradient = design.T @ (weight * (target - chance))
        curvature = (design * (weight * chance * (1.0 - chance))[:, None]).T @ design + 1e-9 * np.eye(2)
        change = np.linalg.solve(curvature, gradient)
        line += np.clip(change, -2.0, 2.0)
        if float(np.abs(change).max()) < 1e-9:
            break
    if line[1] < 0:
        share = float((target * weight).sum() / weight.sum())
        return math.log(share / (1.0 - share)), 0.0
    return float(line[0]), float(line[1])


def lines(rows: Sequence[Row]) -> Row:
    """Return for each group the fitted line and the numbers of verdicts. Early verdicts are not used."""
    found: Row = {}
    for group in dict.fromkeys(GROUPS.values()):
        used = [v for v in counted(rows) if GROUPS.get(v["kind"]) == group and not v["early"]]
        if not used:
            continue
        right = np.array([float(v["mark"] == "right") for v in used])
        offset, slope = fit_line(np.array([v["log_odds"] for v in used]), right)
        found[group] = {"offset": round(offset, 3), "slope": round(slope, 3), "verdicts": len(used),
                        "right": int(right.sum())}  # fmt: skip
    return found


def by_counters(rows: Sequence[Row]) -> Row | None:
    """Return the line of accusations by counters alone, and the numbers of verdicts; None without such traces.

    Only traces with counters and without known waits that are not in HELD_OUT count. Hangs are not included.
    """
    used = [row for row in rows if row.get("counters") and row["truth"]["waits"] != "known"]
    kept = counted([row for row in used if row["truth"]["name"] not in HELD_OUT])
    verdicts = [v for v in kept if v["kind"] in ("straggler", "health") and not v["early"]]
    if not verdicts:
        return None
    right = np.array([float(v["mark"] == "right") for v in verdicts])
    offset, slope = fit_line(np.array([v["log_odds"] for v in verdicts]), right)
    return {"offset": round(offset, 3), "slope": round(slope, 3), "verdicts": len(verdicts), "right": int(right.sum())}


def early(rows: Sequence[Row]) -> Row:
    """Return how often the first report on a slow rank without a known cause names a fault.

    A later verdict with a confidence of .9 counts as such a report, too: it was made before.
    """
    ended = [one["right"] for row in rows for one in row["outcome"]["ended"]]
    later = [v["mark"] == "right" for row in rows for v in row["outcome"]["verdicts"] if v["kind"] == "straggler"]
    reports = ended + later
    interval = wilson(sum(reports), len(reports))
    return {
        "reports": len(reports),
        "right": sum(reports),
        "share": round(sum(reports) / len(reports), 3) if reports else None,
        "interval": [round(edge, 3) for edge in interval] if interval else None,
    }


def least_windows(rows: Sequence[Row]) -> Row:
    """Return the number of steps from which an ended slowdown was more often a fault than not.

    It is the threshold with the fewest errors; of equal thresholds, the middle one.
    """
    ended = [(one["steps"], one["right"]) for row in rows for one in row["outcome"]["ended"]]
    tried = range(3, 25)
    errors = [sum((steps >= least) != right for steps, right in ended) for least in tried]
    best = [least for least, wrong in zip(tried, errors, strict=True) if wrong == min(errors)] if ended else []
    return {
        "ended": len(ended),
        "faults": sum(right for _, right in ended),
        "least": best[len(best) // 2] if best else None,
        "errors": min(errors) if ended else None,
    }


def fitted(rows: Sequence[Row]) -> Row:
    """Return all fitted values. Only traces with known waits that are not in HELD_OUT count."""
    used = [row for row in rows if row["truth"]["waits"] == "known" and row["truth"]["name"] not in HELD_OUT]
    return {"traces": len(used), "held_out": HELD_OUT, "lines": lines(used), "early": early(used),
            "ended": least_windows(used), "by_counters": by_counters(rows)}  # fmt: skip


def with_line(rows: Sequence[Row], offset: float, slope: float) -> list[Row]:
    """Return the verdicts on slow ranks that are not early, with the confidence that the line gives them.

    Each has the class of its trace as "class". Verdicts below .5 are left out: they are reported as unknown.
    """
    found = []
    for row in rows:
        for verdict in row["outcome"]["verdicts"]:
            if verdict["kind"] == "straggler" and not verdict["early"]:
                confidence = 1.0 / (1.0 + math.exp(-(offset + slope * verdict["log_odds"])))
                found.append(verdict | {"confidence": confidence, "class": row["truth"]["name"]})
    return [verdict for verdict in found if verdict["confidence"] >= BINS[0]]


def check(rows: Sequence[Row], line: Row) -> Row:
    """Return the calibration of the line on other traces: of all verdicts, of held-out classes, and of each class."""
    verdicts = with_line(rows, line["offset"], line["slope"])
    names = sorted({verdict["class"] for verdict in verdicts})
    by_class = {name: calibration([v for v in verdicts if v["class"] == name]) for name in names}
    return {
        "traces": len(rows),
        "all": calibration(verdicts),
        "held_out": calibration([v for v in verdicts if v["class"] in HELD_OUT]),
        "classes": by_class,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the traces, fit, and print the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.traces.fit", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=35000, help="seed of the first trace (default 35000)")
    parser.add_argument("--runs", type=int, default=300, help="number of traces (default 300)")
    parser.add_argument("--most-ranks", type=int, default=64, help="largest job (default 64)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--out", type=Path, help="result file (JSON lines) to continue")
    parser.add_argument(
        "--results", type=Path, help="result file of `python -m benchmarks.traces`: fit to it, run nothing"
    )
    parser.add_argument("--check", type=Path, help="result file of other seeds: show the calibration of the line on it")
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")
    options = parser.parse_args(arguments)
    if options.results:
        rows = read_results(options.results)
        if not rows:
            parser.error(f"{options.results}: the file has no results")
    else:
        todo = tasks(options.seed, options.runs, CLASSES, options.most_ranks, waits="known")
        rows = collect(todo, options.jobs, options.out)
    found = {"seed": rows[0]["seed"] if options.results else options.seed, **fitted(rows)}
    if options.check:
        found["check"] = check(read_results(options.check), found["lines"]["straggler"])
    print(json.dumps(found, indent=2 if options.json else None))
    return 0


if __name__ == "__main__":
    sys.exit(main())
