"""Statistics over many runs of `gangwatch demo` with different seeds: how often all of its checks pass.

python -m benchmarks.loop --runs 10 --json

python -m benchmarks.loop --runs 10 --no-disturbance --json

Prints one JSON document: one row per run, and the medians and extremes over all runs. Exits with 1 if a verdict was
false, or if fewer than nine in ten runs passed all checks. Use an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LEAST_KEPT = 0.9
FIGURES = ("seconds_to_detect", "seconds_to_running_again", "reprobation_seconds", "seconds")


def perform(seed: int, options: list[str]) -> dict[str, Any]:
    """Run `gangwatch demo` once and return its report. Raises RuntimeError if the demo wrote no report."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        command = [
            sys.executable,
            "-P",
            "-m",
            "gangwatch",
            "demo",
            "--seed",
            str(seed),
            "--report",
            str(path),
            *options,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900)
        if not path.exists():
            raise RuntimeError(f"seed {seed}: no report: {done.stderr[-500:]}")
        report: dict[str, Any] = json.loads(path.read_text())
        return report


def row(report: dict[str, Any]) -> dict[str, Any]:
    """Return those figures of a run's report that are compared between runs."""
    kept = ("seed", "passed", "failures", "verdicts", "false_verdicts", "abstentions", "migrations", *FIGURES)
    one = {name: report.get(name) for name in kept}
    one["steps"] = report["training"]["steps"]
    one["steps_repeated"] = report["training"]["steps_repeated"]
    one["weights_match_uninterrupted"] = report["training"]["weights_match_uninterrupted"]
    if report.get("step_seconds"):
        one["step_seconds"] = report["step_seconds"]
    if report.get("backfilled"):
        one["head_delay_seconds"] = report["backfilled"]["head_delay_seconds"]
    return one


def figures(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the minimum, median and maximum of each figure, over the runs in which the figure is not None."""
    found = {name: [one[name] for one in rows if one[name] is not None] for name in FIGURES}
    for one in rows:
        seconds = one.get("step_seconds") or {"before": None, "after": None}
        if None not in (seconds["before"], seconds["after"]):
            found.setdefault("step_seconds_after_over_before", []).append(seconds["after"] / seconds["before"])
    return {
        name: {"least": min(values), "median": statistics.median(values), "most": max(values)}
        for name, values in found.items()
        if values
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--no-disturbance", action="store_true")
    parser.add_argument("--json", action="store_true", help="accepted for compatibility: the output is always JSON")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for seed in range(given.first_seed, given.first_seed + given.runs):
        rows.append(row(perform(seed, ["--no-disturbance"] if given.no_disturbance else [])))
        sys.stderr.write(f"seed {seed}: {'kept' if rows[-1]['passed'] else rows[-1]['failures']}\n")
    false = sum(one["false_verdicts"] for one in rows)
    passed = sum(one["passed"] for one in rows)
    document = {"runs": len(rows), "passed": passed, "false_verdicts": false, "figures": figures(rows), "rows": rows}
    print(json.dumps(document, indent=2))
    return 0 if not false and passed >= LEAST_KEPT * len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
