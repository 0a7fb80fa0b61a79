"""The scheduler's benchmark at a small size: both schedulers get the same gangs, and the limits are printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.scheduler.slurm import PACKAGES
from tests import needs

ROOT = Path(__file__).resolve().parents[2]
SIZE = ("--nodes", "100", "--gangs", "40", "--behind", "60", "--pass-seconds", "10")


def run(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.scheduler", "--json", *SIZE, *options],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=280,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_real_slurm_decides_about_the_same_gangs() -> None:
    for program, package in PACKAGES.items():
        needs.component(program, package)
    done = run()
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    theirs, mine = document["beside_slurm"]["slurm"], document["beside_slurm"]["gangwatch"]
    assert theirs["gangs"] == mine["gangs"] == 40, "both have started all of them"
    assert theirs["gang_ms"] > 0 and theirs["large_gang_ms"] > 0 and theirs["limits"]
    assert theirs["easy"]["seen"] == mine["easy"]["seen"] == 61, "the head and all jobs behind it"
    assert theirs["planning"]["tried"] > 10 * theirs["easy"]["tried"], (
        "a planned start for each job, not only for the head"
    )


def test_without_slurm_the_missing_package_is_named(tmp_path: Path) -> None:
    done = run(PATH=str(tmp_path), GANGWATCH_REQUIRE="")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["beside_slurm"] == {"skipped": "slurmctld is absent: apt-get install slurmctld"}
    assert {peer["engine"].split()[0] for peer in document["published"]} >= {
        "kube-scheduler", "KAI-Scheduler", "Kueue", "Slurm",
    }  # fmt: skip
    assert all(peer["source"] for peer in document["published"])
    assert run(PATH=str(tmp_path), GANGWATCH_REQUIRE="all").returncode == 1
