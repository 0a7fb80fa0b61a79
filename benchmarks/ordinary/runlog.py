"""The log of runs: one JSON line a run, failures included, and what the lines add up to."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.ordinary.kinds import KINDS

NOT_RUN = tuple(f":(exclude){path}" for path in ("docs", "*.md", "*.jsonl", "tests", "benchmarks", "examples"))
"""What a day runs nothing of, and a commit may change without restarting the count: documents, logs, tests, examples
and the other benchmarks.
"""

HARNESS = ("benchmarks/ordinary", ":(exclude)benchmarks/ordinary/runlog.py")
"""What a day runs beside the product; this module only counts."""


def append(file: Path, report: dict[str, Any], commit: str, clean: bool) -> None:
    """Add one run."""
    line = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "commit": commit, "clean": clean, **report}
    with file.open("a", encoding="utf-8") as log:
        log.write(json.dumps(line) + "\n")


def read(file: Path) -> list[dict[str, Any]]:
    """Every run, in order."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def summary(runs: list[dict[str, Any]], checkout: Path) -> dict[str, Any]:
    """What the runs add up to: in all, and after the last change of code.

    A run counts as one after the last change if no code differs between its commit and the newest run's, and its tree
    was clean.
    """
    if not runs:
        return {"runs": 0}
    newest = runs[-1]["commit"]
    same: dict[str, bool] = {}
    for run in runs:
        if run["commit"] not in same:
            same[run["commit"]] = same_code(checkout, run["commit"], newest)
    since = [run for run in runs if run["clean"] and same[run["commit"]]]
    kinds = sorted({kind for run in runs for kind in run["activities"]} | set(KINDS))
    return {
        **_of("all", runs),
        **_of("since_last_change_of_code", since),
        "newest_commit": newest,
        "activities": {kind: sum(run["activities"].get(kind, 0) for run in runs) for kind in kinds},
        "never_done": [kind for kind in KINDS if not any(run["activities"].get(kind) for run in since)],
        "failures": [
            {"seed": run["seed"], "commit": run["commit"][:12], **failure}
            for run in runs
            for failure in run["failures"]
        ],
    }


def _of(name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        name: {
            "runs": len(runs),
            "hours": round(sum(run["minutes"] for run in runs) / 60, 2),
            "seeds": len({run["seed"] for run in runs}),
            "jobs": sum(run["jobs"] for run in runs),
            "failed_runs": sum(bool(run["failures"]) for run in runs),
            "least_starts_a_minute": min((run["starts_a_minute"] for run in runs), default=0.0),
        }
    }


def same_code(checkout: Path, one: str, other: str) -> bool:
    """Whether the product and this harness are the same in two commits. False where either is unknown."""
    if one == other:
        return True
    command = ["git", "-C", str(checkout), "diff", "--quiet", one, other, "--"]
    compared = ((".", *NOT_RUN), HARNESS)
    return all(subprocess.run([*command, *paths], capture_output=True).returncode == 0 for paths in compared)
