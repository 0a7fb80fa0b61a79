"""Only "
" ends a line: names chosen by users can contain U+2028, form feeds and carriage returns.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from agent.sources.proc.cgroup import parse_cgroup, user_of_cgroup

ROOT = Path(__file__).resolve().parents[2]
DELEGATED = "0::/user.slice/user-1000.slice/user@1000.service/x"
OTHERS_JOB = "y:z:/system.slice/slurmstepd.scope/job_7/step_0/user/task_0"


@pytest.mark.parametrize("separator", ["\u2028", "\x85", "\x0c", "\x0b", "\x1c", "\r"])
def test_a_cgroup_name_attests_no_other_job(separator: str) -> None:
    """Any user with a systemd session can create control groups of any name below the user's slice."""
    assert parse_cgroup(f"{DELEGATED}{separator}{OTHERS_JOB}\n") is None
    found = parse_cgroup(f"{DELEGATED}\n{OTHERS_JOB}\n")
    assert found is not None and found.slurm_job == "7", "a genuine line attests the job"


def test_the_product_never_calls_splitlines() -> None:
    """str.splitlines() splits at eleven characters; external text must be split at "
    " only.
    """
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in ("agent", "exporter", "scheduler_feedback", "gangwatch", "dashboards")
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "splitlines"
    ]
    assert found == []


@pytest.mark.parametrize("separator", ["\u2028", "\x85", "\x0c", "\r"])
def test_a_cgroup_name_selects_no_other_user(separator: str) -> None:
    text = f"0::/kubepods/burstable/x{separator}0::/user.slice/user-7.slice/session-1.scope\n"
    assert user_of_cgroup(text) is None
    assert user_of_cgroup("0::/user.slice/user-7.slice/session-1.scope\n") == 7
