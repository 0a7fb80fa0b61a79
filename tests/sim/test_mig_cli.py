"""`gangwatch simulate --mig`: jobs of a trace in MIG instances, a replay of its journal, and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from gangwatch.cli import cli
from scheduler_feedback.core.mig import MODELS
from scheduler_feedback.sim.simulated_nodes import nodes_of

JOBS = [
    ("a", 1, 1, 100, "3g.40gb"), ("b", 2, 1, 100, "4g.40gb"), ("c", 3, 7, 100, "1g.10gb"), ("d", 4, 2, 100, ""),
    ("e", 5, 1, 100, "5g.40gb"),
]  # fmt: skip


def simulated(folder: Path, *more: str) -> Any:
    trace = folder / "jobs.jsonl"
    lines = [
        {"job": job, "submitted_seconds": at, "ranks": ranks, "run_seconds": seconds, "mig_profile": name}
        for job, at, ranks, seconds, name in JOBS
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    arguments = ["simulate", "--jobs", str(trace), "--format", "gangwatch", "--nodes", "1x2", "--order", "fifo"]
    return CliRunner().invoke(cli, [*arguments, "--journal", str(folder / "j.db"), "--json", *more])


def test_jobs_run_in_instances_at_full_speed_and_the_replay_decides_the_same(tmp_path: Path) -> None:
    ran = simulated(tmp_path, "--mig", "A100-80GB")
    assert ran.exit_code == 0, ran.output
    report = json.loads(ran.stdout)
    assert report["makespan_seconds"] == 202 and report["unfinished"] == 1, "d waits for both GPUs; a and b share one"
    assert "5g.40gb, which no GPU of this cluster has" in json.dumps(report)
    replayed = CliRunner().invoke(cli, ["replay", "--journal", str(tmp_path / "j.db")])
    assert replayed.exit_code == 0 and "none differ" in replayed.output


def test_an_unknown_model_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    ran = simulated(tmp_path, "--mig", "A200")
    assert ran.exit_code != 0 and "A100-80GB" in str(ran.exception or ran.output)


def test_a_node_file_with_a_known_model_has_its_profiles(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text("node,gpu,model\nn0,8,H200-141GB\nn1,8,V100\n")
    first, second = nodes_of(str(tmp_path / "nodes.csv"))
    assert first.mig_profiles == MODELS["H200-141GB"] and second.mig_profiles == ()
