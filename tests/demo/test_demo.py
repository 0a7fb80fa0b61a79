"""The demonstration as a whole, with the real programs.

Whether it detects within its bounds depends on what else the machine does, and it says so itself: here it must not lie.
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
def test_the_disturbed_rank_is_found_or_nobody_is_accused(tmp_path: Path) -> None:
    code, report = demo(tmp_path, "--seed", "5")
    assert report["false_verdicts"] == 0, report
    assert report["training"]["weights_match_uninterrupted"] is True
    assert (code == 0) == report["passed"] == (report["failures"] == [])
    if report["verdict"] is None:
        assert report["abstentions"], "it can't tell, and must say so"
        return
    assert report["verdict"]["correct"] is True
    assert report["migrations"] == 1
    assert report["step_seconds"]["during"] > report["step_seconds"]["before"]
    assert report["backfilled"]["head_delay_seconds"] <= 0.5
    assert report["training"]["steps_repeated"] == 0


def test_undisturbed_it_stays_silent(tmp_path: Path) -> None:
    """Beside other tests: a busy machine is no reason to accuse anybody."""
    code, report = demo(tmp_path, "--seed", "6", "--no-disturbance", "--seconds", "40")
    assert (code, report["verdicts"], report["migrations"]) == (0, 0, 0), report
    assert report["training"]["steps"] > 0
    assert report["training"]["weights_match_uninterrupted"] is True
