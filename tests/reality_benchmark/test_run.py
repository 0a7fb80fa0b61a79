"""One real benchmark run with controller, agents and a training; and each training program for some steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.reality import campaign, run, score, steps
from benchmarks.reality.cases import case
from tests import needs
from tests.ports import held_neighbours
from tests.reality_benchmark.test_faults import left_of

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]


def test_a_short_run_measures_the_fault_and_removes_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    needs.virtual_nodes()
    monkeypatch.setattr(run, "AFTER_SECONDS", 5.0)
    monkeypatch.setattr(run, "FAULT_SECONDS", 5.0)
    monkeypatch.setattr(run, "LEAST_STEPS", 5)
    monkeypatch.setattr(run, "MOST_DRIFT", 100.0)  # a short run on a machine that runs other tests
    one = next(c for c in map(case, range(0, 2000, 2)) if c.name == "cpu-quota-node" and c.framework == "numpy")
    row = run.perform(replace(one, numbers=one.numbers | {"factor": 4.0}, before_seconds=4.0))
    assert "discarded" not in row, row
    assert row["severity"] > 1.3
    periods = row["jobs"]["disturbed"]
    assert periods["step_seconds_during"] > 1.3 * periods["step_seconds_after"], "the fault has ended"
    assert score.outcome(row) in ("right", "missed"), row
    assert json.loads(json.dumps(row)) == row
    assert "cpu-quota-node (numpy" in campaign.describe(row, 1)
    assert left_of(os.getpid()) == []
    assert not list((run.CHECKOUT / ".cache" / "reality").glob("reality-*"))


def test_a_program_that_fails_discards_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    needs.virtual_nodes()
    monkeypatch.setattr(run, "PROGRAMS", tmp_path)
    (tmp_path / "enter.py").write_text("import sys\nsys.exit('no such dataset')\n")
    one = next(c for c in map(case, range(1, 2000, 2)) if c.name == "quiet" and c.framework == "numpy")
    row = run.perform(one)
    assert row["discarded"] == "the job did not start: no such dataset"
    assert left_of(os.getpid()) == []


def train(folder: Path, framework: str, own: dict[str, Any], count: int = 6) -> None:
    """Run a training program with two ranks for some steps, and check that both have recorded them."""
    plan = {
        "framework": framework, "seed": 1, "work": 16, "layers": 2, "gradient_floats": 1 << 16, "loader": "memory",
        "own": own, "steps": count, "folder": str(folder), "datasets": str(folder),
    }  # fmt: skip
    program = [str(run.PROGRAMS / "train_numpy.py")]
    python = sys.executable
    if framework != "numpy":
        python, program = needs.cpu_torch(), ["-m", "gangwatch.torch", str(run.PROGRAMS / "train_torch.py")]
    port = held_neighbours(2)  # of the rendezvous, or of the two ranks of the ring
    ranks = [
        subprocess.Popen(
            [python, *program, json.dumps(plan)],
            env={
                "PATH": os.environ["PATH"], "PYTHONPATH": str(run.CHECKOUT), "HOME": str(folder),
                "OMP_NUM_THREADS": "1", "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port), "REALITY_PORT": str(port), "GANGWATCH_JOB": f"j-{port % 1000}",
                "REALITY_ADDRESSES": "127.0.0.1,127.0.0.1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        said = [rank.communicate(timeout=300)[0] for rank in ranks]
    finally:
        for one in ranks:
            one.kill()
    assert [one.returncode for one in ranks] == [0, 0], said
    ends = steps.read(folder, f"j-{port % 1000}", 1)
    assert len(ends) == count
    assert (ends[1:] > ends[:-1]).all()


@pytest.mark.parametrize(
    ("framework", "own"),
    [
        ("numpy", {"class": "evaluation", "every": 2, "batches": 2}),
        ("ddp", {"class": "checkpoint-asynchronous", "every": 2}),
        ("fsdp2", {"class": "checkpoint-synchronous", "every": 2, "times": 1}),
        ("pipeline", {"class": "evaluation", "every": 2, "batches": 2}),
        ("moe", {"class": "hot-expert", "from": 2, "expert": 1, "popularity": 3.0}),
        ("ddp", {"class": "recompiles", "every": 2, "ranks": [1], "backend": "inductor"}),
        ("numpy", {"class": "garbage-collection", "every": 2, "objects": 1000}),
        ("numpy", {"class": "loader-hiccups", "every": 2, "mebibytes": 2}),
    ],
)
def test_a_training_makes_its_steps(tmp_path: Path, framework: str, own: dict[str, Any]) -> None:
    train(tmp_path, framework, own)


def test_severity_is_relative_to_the_undisturbed_periods() -> None:
    assert steps.severity(0.1, 0.2, 0.1) == pytest.approx(2.0)
    assert steps.severity(0.1, 0.24, 0.144) == pytest.approx(2.0), "the machine itself became slower"
    assert steps.severity(0.1, None, 0.1) is None


def test_step_times_of_a_killed_rank_are_read(tmp_path: Path) -> None:
    path = tmp_path / "j-1.0.steps"
    path.write_bytes(b"".join(n.to_bytes(8, "little") for n in (0, 10**9, 1, 2 * 10**9)) + b"half")
    assert steps.read(tmp_path, "j-1", 0).tolist() == [10**9, 2 * 10**9]
    assert steps.count(tmp_path, "j-1", 2) == 0, "rank 1 has not started"
    assert steps.mean_seconds(steps.read(tmp_path, "j-1", 0), 0, 4 * 10**9) == 2.0
    assert steps.mean_seconds(steps.read(tmp_path, "j-1", 0), 0, 10**9) is None
