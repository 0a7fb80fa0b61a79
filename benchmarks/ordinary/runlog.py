"""The log of runs: one JSON line a run, failures included, and their summary."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.ordinary.kinds import KINDS

NO_CODE = (":(exclude)docs", ":(exclude)*.md", ":(exclude)*.jsonl")
"""Changes that do not restart the count: documents and logs."""

NOT_RUN = (*NO_CODE, ":(exclude)tests", ":(exclude)benchmarks", ":(exclude)examples")
HARNESS = ("benchmarks/ordinary", ":(exclude)benchmarks/ordinary/runlog.py")
"""NOT_RUN: changes in files that no day runs. HARNESS: what a day runs besides the product, without this module."""


def append(file: Path, report: dict[str, Any], commit: str, clean: bool) -> None:
    """Add one run."""
    line = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "commit": commit, "clean": clean, **report}
    with file.open("a", encoding="utf-8") as log:
        log.write(json.dumps(line) + "\n")


def read(file: Path) -> list[dict[str, Any]]:
    """Return every run, in order."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def summary(runs: list[dict[str, Any]], checkout: Path) -> dict[str, Any]:
    """Return totals over the runs: in all, since the last change of code, and since the last change of what a day runs.

    A run counts as one since the last change if no code differs between its commit and the newest run's, and its tree
    was clean. Tests, examples and other benchmarks are code that no day runs: they restart only the stricter count.
    """
    if not runs:
        return {"runs": 0}
    newest = runs[-1]["commit"]
    commits = {run["commit"] for run in runs}
    alike = {commit for commit in commits if same_code(checkout, commit, newest)}
    runs_alike = {commit for commit in commits if same_day(checkout, commit, newest)}
    since = [run for run in runs if run["clean"] and run["commit"] in alike]
    since_day = [run for run in runs if run["clean"] and run["commit"] in runs_alike]
    kinds = sorted({kind for run in runs for kind in run["activities"]} | set(KINDS))
    return {
        **_of("all", runs),
        **_of("since_last_change_of_code", since),
        **_of("since_last_change_of_what_a_day_runs", since_day),
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
    """Return whether two commits differ in documents alone. False if either is unknown."""
    return _same(checkout, one, other, (".", *NO_CODE))


def same_day(checkout: Path, one: str, other: str) -> bool:
    """Return whether a day runs the same product and harness in two commits. False if either is unknown."""
    return _same(checkout, one, other, (".", *NOT_RUN)) and _same(checkout, one, other, HARNESS)


def _same(checkout: Path, one: str, other: str, paths: tuple[str, ...]) -> bool:
    command = ["git", "-C", str(checkout), "diff", "--quiet", one, other, "--", *paths]
    return one == other or subprocess.run(command, capture_output=True).returncode == 0
