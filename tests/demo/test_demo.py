"""Complete demonstration with the real programs: its report must be correct.

Whether it detects the fault in time depends on other load, which the report states.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def demo(tmp_path: Path, *options: str) -> tuple[int, dict[str, Any]]:
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "gangwatch", "demo", "--report", str(report), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=380)
    assert report.exists(), done.stderr
    return done.returncode, json.loads(report.read_text())


@pytest.mark.serial
def test_the_demo_reports_the_disturbed_rank_or_abstains(tmp_path: Path) -> None:
    code, report = demo(tmp_path, "--seed", "5")
    assert report["false_verdicts"] == 0, report
    assert report["training"]["weights_match_uninterrupted"] is True
    assert (code == 0) == report["passed"] == (report["failures"] == [])
    if report["verdict"] is None:
        assert report["abstentions"], "without a verdict the report must list an abstention"
        return
    assert report["verdict"]["correct"] is True
    assert report["migrations"] == 1
    assert report["step_seconds"]["during"] > report["step_seconds"]["before"]
    assert report["backfilled"]["head_delay_seconds"] <= 0.5
    assert report["training"]["steps_repeated"] == 0


def test_an_undisturbed_demo_reports_no_verdict(tmp_path: Path) -> None:
    """Run next to other tests: load on the machine must not lead to a verdict."""
    code, report = demo(tmp_path, "--seed", "6", "--no-disturbance", "--seconds", "40")
    assert (code, report["verdicts"], report["migrations"]) == (0, 0, 0), report
    assert report["training"]["steps"] > 0
    assert report["training"]["weights_match_uninterrupted"] is True
