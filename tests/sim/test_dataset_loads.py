"""Simulated caches of datasets: gangs load before their first step, and a preference for warm nodes saves that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gangwatch.cli import cli
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.sim.speeds.dataset_loads import DatasetLoads


def spec(name: str, gib: float = 40.0) -> JobSpec:
    return JobSpec("j", ("x",), 1, dataset=name, dataset_gib=gib)


def test_the_slowest_node_counts_and_old_datasets_make_room() -> None:
    loads = DatasetLoads(100.0, 0.5)
    assert loads.read(spec("a"), ["n0", "n1"]) == 80.0
    assert loads.read(spec("a"), ["n0"]) == 0.0
    assert loads.read(spec("a"), ["n0", "n2"]) == 80.0, "n2 loads, and n0 waits for it"
    assert loads.read(spec("b"), ["n0"]) == 80.0
    loads.left(spec("a"), ["n0"])
    assert loads.read(spec("c"), ["n0"]) == 80.0, "b makes room"
    assert loads.read(spec("a"), ["n0"]) == 0.0
    assert loads.read(spec("huge", 101.0), ["n0"]) == loads.read(spec("huge", 101.0), ["n0"]) == 202.0
    assert loads.read(JobSpec("j", ("x",), 1), ["n0"]) == 0.0
    loads.forget("n0")
    assert loads.read(spec("a"), ["n0"]) == 80.0
    assert loads.loaded_seconds == 80.0 * 5 + 202.0 * 2
    assert loads.empty() == DatasetLoads(100.0, 0.5)


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """Write three jobs of one dataset: the third one starts when both nodes are free."""
    path = tmp_path / "jobs.jsonl"
    common = {"run_seconds": 100, "ranks": 1, "dataset_gib": 50}
    lines = [
        {"submitted_seconds": 0, "dataset": "b", **common},
        {"submitted_seconds": 1, "dataset": "a", **common},
        {"submitted_seconds": 1000, "dataset": "a", **common},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_preference_for_warm_nodes_saves_loads(jobs: Path, tmp_path: Path) -> None:
    near = tmp_path / "near.toml"
    near.write_text('[policy]\norder = "fifo"\ndataset_cache_gib = 100\n')
    options = [
        "--jobs",
        str(jobs),
        "--format",
        "gangwatch",
        "--nodes",
        "2x1",
        "--dataset-cache",
        "100",
        "0.5",
        "--json",
    ]
    done = CliRunner().invoke(cli, ["simulate", "compare", *options, "fifo", str(near)])
    assert done.exit_code == 0, done.output
    blind, warm = (one["avg_jct_seconds"] for one in json.loads(done.stdout)["policies"])
    # Each first job loads for 100 s. The third one does, too, unless it runs where the second one ran.
    assert (blind, warm) == pytest.approx((200.0, (200 + 200 + 100) / 3))
    alone = CliRunner().invoke(cli, ["simulate", *options, "--order", "fifo", "--config", str(near)])
    assert json.loads(alone.stdout)["avg_jct_seconds"] == pytest.approx(warm)


def test_a_wrong_cache_is_refused(jobs: Path) -> None:
    options = ["--jobs", str(jobs), "--format", "gangwatch", "--nodes", "2x1"]
    done = CliRunner().invoke(cli, ["simulate", *options, "--dataset-cache", "inf", "1"])
    assert done.exit_code == 2 and "--dataset-cache: must be two numbers" in done.output
    done = CliRunner().invoke(cli, ["simulate", *options, "--dataset-cache", "0", "1"])
    assert done.exit_code == 2 and "0.0 is not in the range x>0" in done.output
