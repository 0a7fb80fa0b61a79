"""Short soak run: it detects no leak and no failure, and prints all documented keys."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs


@pytest.mark.slow
@pytest.mark.serial
def test_a_short_soak_finds_no_leak_and_no_failure() -> None:
    """Use a separate process, because the run shortens intervals and must measure only the agent's memory."""
    needs.component("gcc", "gcc")
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.soak", "--ticks", "1500", "--thread-seconds", "4", "--json"],
        cwd=Path(__file__).resolve().parents[2],
        env={**os.environ, "MALLOC_ARENA_MAX": "2"},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert ran.stdout, ran.stderr
    result = json.loads(ran.stdout)
    assert result["within_ranges"] and ran.returncode == 0, result
    assert len(result["faults"]) >= 10, "every kind of fault occurs"
    assert result["threads"]["most_abandoned_at_once"] >= 1
    assert result["rates"]["counted"] > 100_000
