"""Log of test days: one JSON line per day, including failed days, and a summary."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.ordinary.kinds import KINDS

NO_CODE = (":(exclude)docs", ":(exclude)*.md", ":(exclude)*.jsonl")
"""Git paths of all files except documents and logs, whose changes do not restart the count of runs."""

NOT_RUN = (*NO_CODE, ":(exclude)tests", ":(exclude)benchmarks", ":(exclude)examples")
HARNESS = ("benchmarks/ordinary", ":(exclude)benchmarks/ordinary/runlog.py")
"""Git paths of the files that a day runs besides the product, without this module. NOT_RUN, above, contains paths of
product files, without files that no day runs."""


def append(file: Path, report: dict[str, Any], commit: str, clean: bool) -> None:
    """Append the report of one day to the log. commit: tested commit. clean: whether the working tree had no
    changes."""
    line = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "commit": commit, "clean": clean, **report}
    with file.open("a", encoding="utf-8") as log:
        log.write(json.dumps(line) + "\n")


def read(file: Path) -> list[dict[str, Any]]:
    """Return the reports of all days in the log, in order."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def summary(runs: list[dict[str, Any]], checkout: Path) -> dict[str, Any]:
    """Return totals over all days, over days since the last change of any code, and since the last change of tested
    code.

    Days with uncommitted changes count only in the first total. Tests, examples and other benchmarks are not tested
    code.
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
    """Return whether two commits differ only in documents. False if a commit is unknown."""
    return _same(checkout, one, other, (".", *NO_CODE))


def same_day(checkout: Path, one: str, other: str) -> bool:
    """Return whether two commits have the same product code and the same code of this test. False if one is unknown."""
    return _same(checkout, one, other, (".", *NOT_RUN)) and _same(checkout, one, other, HARNESS)


def _same(checkout: Path, one: str, other: str, paths: tuple[str, ...]) -> bool:
    command = ["git", "-C", str(checkout), "diff", "--quiet", one, other, "--", *paths]
    return one == other or subprocess.run(command, capture_output=True).returncode == 0
