"""Totals of the log of ordinary days."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ordinary import runlog


def git(folder: Path, *arguments: str) -> str:
    names = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    return subprocess.run(
        ["git", "-C", str(folder), *names, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "docs").mkdir()
    return tmp_path


def commit(checkout: Path, name: str, text: str) -> str:
    (checkout / name).write_text(text)
    git(checkout, "add", "-A")
    git(checkout, "commit", "-qm", name)
    return git(checkout, "rev-parse", "HEAD")


def run(commit: str, seed: int, failed: bool = False, clean: bool = True, **activities: int) -> dict[str, Any]:
    failures = [{"check": "slots_once", "subject": "j-1", "text": "twice", "minute": 1.0}] if failed else []
    return {
        "seed": seed,
        "minutes": 30.0,
        "jobs": 300,
        "starts_a_minute": 10.0 + seed,
        "failures": failures,
        "activities": activities,
        "commit": commit,
        "clean": clean,
    }


def test_a_commit_of_only_documents_does_not_restart_the_count(checkout: Path) -> None:
    old = commit(checkout, "a.py", "1")
    code = commit(checkout, "a.py", "2")
    page = commit(checkout, "docs/page.md", "words")
    log = commit(checkout, "docs/log.jsonl", "{}")
    readme = commit(checkout, "README.md", "words")
    runs = [run(old, 1), run(code, 2), run(page, 3), run(log, 4), run(readme, 4)]
    summed = runlog.summary(runs, checkout)
    assert summed["all"]["hours"] == 2.5
    assert summed["all"]["seeds"] == 4
    since = summed["since_last_change_of_code"]
    assert (since["runs"], since["hours"], since["seeds"]) == (4, 2.0, 3)


def test_commits_to_tests_restart_the_count_of_code_but_not_of_the_product(checkout: Path) -> None:
    for folder in ("tests", "benchmarks/ordinary"):
        (checkout / folder).mkdir(parents=True)
    first = commit(checkout, "a.py", "1")
    test = commit(checkout, "tests/test_a.py", "1")
    other = commit(checkout, "benchmarks/other.py", "1")
    summed = runlog.summary([run(first, 1), run(test, 2), run(other, 3)], checkout)
    assert summed["since_last_change_of_code"]["runs"] == 1
    assert summed["since_last_change_of_what_a_day_runs"]["runs"] == 3
    harness = commit(checkout, "benchmarks/ordinary/day.py", "1")
    for earlier in (first, "0" * 40):
        assert not runlog.same_day(checkout, earlier, harness) and not runlog.same_code(checkout, earlier, harness)


def test_a_run_with_uncommitted_changes_counts_for_no_version(checkout: Path) -> None:
    code = commit(checkout, "a.py", "1")
    summed = runlog.summary([run(code, 1, clean=False), run(code, 2)], checkout)
    assert summed["since_last_change_of_code"]["runs"] == 1
    assert summed["all"]["runs"] == 2


def test_failures_remain_in_the_summary(checkout: Path) -> None:
    old = commit(checkout, "a.py", "1")
    new = commit(checkout, "a.py", "2")
    summed = runlog.summary([run(old, 1, failed=True, cancel=0, gang=2), run(new, 2, cancel=3)], checkout)
    assert summed["all"]["failed_runs"] == 1
    assert summed["since_last_change_of_code"]["failed_runs"] == 0
    assert [failure["seed"] for failure in summed["failures"]] == [1]
    assert {kind: count for kind, count in summed["activities"].items() if count} == {"cancel": 3, "gang": 2}


def test_an_activity_not_run_since_the_last_change_is_named(checkout: Path) -> None:
    old = commit(checkout, "a.py", "1")
    new = commit(checkout, "a.py", "2")
    summed = runlog.summary([run(old, 1, gang=2), run(new, 2, cancel=3)], checkout)
    assert "gang" in summed["never_done"]
    assert "cancel" not in summed["never_done"]


def test_appended_runs_are_read_back(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    for seed in (1, 2):
        runlog.append(file, {"seed": seed, "failures": []}, "abc", True)
    assert [(one["seed"], one["commit"], one["clean"]) for one in runlog.read(file)] == [
        (1, "abc", True),
        (2, "abc", True),
    ]
    assert all(json.loads(line)["at"].endswith("Z") for line in file.read_text().splitlines())
