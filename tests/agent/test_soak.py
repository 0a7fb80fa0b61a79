"""The soak runs, keeps its promises over a short way, and tells what it promises to tell."""

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
def test_a_short_soak_keeps_nothing_and_breaks_nothing() -> None:
    """In a process of its own: what a soak hurries stays hurried, and its memory is to be the agent's alone."""
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
    assert len(result["faults"]) >= 10, "every kind of fault there is"
    assert result["threads"]["most_abandoned_at_once"] >= 1
    assert result["rates"]["counted"] > 100_000
