"""Whole runs of the test "ordinary day": three minutes of the product, and one of a scheduler that books a slot
twice."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.ordinary.__main__ import lacks
from benchmarks.ordinary.day import python_with_torch, revision
from tests.needs import absent

# Runs next to other tests: a day is judged by the CPU time that the machine really gives it, and other load is part of
# ordinary days. It starts first and has priority: see tests/distribution.py.
pytestmark = [pytest.mark.xdist_group("ordinary"), pytest.mark.slow]

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGES = ("agent", "exporter", "scheduler_feedback", "dashboards", "gangwatch")

TWICE = """

def _commit_and_forget_one(self: Plan) -> None:
    taken = [number for number, _ in self._journal]
    _commit(self)
    for number in taken[:1]:
        self._put(number, self._mask[number] | 1)
    _commit(self)


_commit = Plan.commit
Plan.commit = _commit_and_forget_one
"""
"""Code appended to policies/index/slot_plan.py: the first slot of a node counts as free again after each placement."""


def run_day(*arguments: str) -> tuple[int, dict[str, object]]:
    """Run a day in a separate process. Return its exit code and its report."""
    command = [sys.executable, "-m", "benchmarks.ordinary", "--json", *arguments]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert done.stdout, done.stderr[-2000:]
    return done.returncode, json.loads(done.stdout)


@pytest.mark.timeout(1200)
def test_three_minutes_of_an_ordinary_day() -> None:
    for text in lacks(python_with_torch()):
        if os.environ.get("GANGWATCH_REQUIRE") == "all":
            absent(text)
    commit, _ = revision(CHECKOUT)
    seed = int(commit[:7], 16) if commit != "unknown" else 1  # each commit has another day, which can be repeated
    code, report = run_day("--minutes", "3", "--seed", str(seed))
    assert not report["failures"], json.dumps(report, indent=2)
    assert code == 0
    assert report["jobs"]
    assert report["checks"]


@pytest.mark.timeout(600)
def test_a_scheduler_that_books_a_slot_twice_is_caught_on_a_real_cluster(tmp_path: Path) -> None:
    for package in PACKAGES:
        shutil.copytree(CHECKOUT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    plan = tmp_path / "scheduler_feedback" / "policies" / "index" / "slot_plan.py"
    plan.write_text(plan.read_text() + TWICE)
    code, report = run_day(
        *("--minutes", "4", "--seed", "3", "--only", "one_rank,gang,burst", "--checkout", str(tmp_path))
    )
    failures = report["failures"]
    assert isinstance(failures, list)
    shutil.rmtree(str(report["kept"]), ignore_errors=True)
    assert code == 1
    assert {failure["check"] for failure in failures} & {"slots_once", "processes_fit"}, failures
