"""Report of the time that feedback would have saved, from a dump of sacct. No Slurm needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gangwatch.cli import cli
from scheduler_feedback.sim.traces import slurm

HEADER = "JobID|JobName|User|Partition|Submit|Start|End|ElapsedRaw|TimelimitRaw|AllocTRES|NNodes|State|Comment"


def dump(folder: Path, jobs: int = 60) -> Path:
    """Write a dump of gangs of four nodes, one after another. Every second gang has opted in."""
    lines = [HEADER]
    for number in range(jobs):
        at = f"2026-10-{1 + number // 24:02d}T{number % 24:02d}:00:00"
        comment = "run gangwatch:restartable,grace=5" if number % 2 else ""
        lines.append(
            f"{number}|train|ann|batch|{at}|{at}|Unknown|7200|240|cpu=8,gres/gpu=32,node=4|4|COMPLETED|{comment}"
        )
    path = folder / "jobs.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_opt_in_is_read_from_the_comment(tmp_path: Path) -> None:
    jobs = slurm.read(dump(tmp_path, 4)).jobs
    assert [job.spec.restartable for job in jobs] == [False, True, False, True]
    document = {
        "jobs": [
            {
                "job_id": number,
                "name": "train",
                "comment": comment,
                "time": {"start": 1, "submission": 1, "elapsed": 60, "limit": 10},
                "tres": {"allocated": [{"type": "gres", "name": "gpu", "count": 8}]},
            }
            for number, comment in enumerate(
                ("gangwatch:restartable", {"administrator": "", "job": "gangwatch:restartable", "system": ""}, None), 1
            )
        ]
    }
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps(document))
    assert [job.spec.restartable for job in slurm.read(path).jobs] == [True, True, False]


def simulated(path: Path, faults: Path, nodes: int, *options: str) -> dict[str, float]:
    result = CliRunner().invoke(
        cli,
        ["simulate", "--jobs", str(path), "--format", "slurm", "--nodes", f"{nodes}x8", "--order", "fifo", "--faults",
         str(faults), "--restart-cost", "60", "--json", *options],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    found: dict[str, float] = json.loads(result.stdout)
    return found


def slow_nodes(folder: Path, nodes: int, slowdown: float) -> Path:
    """Return nodes of which the first two are slow from ten minutes on."""
    faults = folder / "faults.csv"
    names = (f"n{number:0{len(str(nodes - 1))}d}" for number in range(2))
    faults.write_text("node,begin_seconds,seconds,slowdown\n" + "".join(f"{n},600,4000000,{slowdown}\n" for n in names))
    return faults


def test_feedback_off_and_on_are_compared_on_the_same_dump(tmp_path: Path) -> None:
    path, faults = dump(tmp_path), slow_nodes(tmp_path, 16, 1.5)
    off = simulated(path, faults, 16, "--feedback", "off")
    on = simulated(path, faults, 16, "--feedback", "on", "--restartable")
    assert on["jobs"] == off["jobs"] == 60
    assert on["avg_jct_seconds"] < off["avg_jct_seconds"]


@pytest.mark.parametrize("slowdown", [1.3, 1.5, 2.0])
@pytest.mark.parametrize("estimates", ["limit", "exact"])
def test_in_a_full_cluster_two_slow_nodes_are_worth_more_in_use(
    tmp_path: Path, slowdown: float, estimates: str
) -> None:
    """Gangs of four fill eight nodes. Without the two slow nodes only one gang can run at a time."""
    path, faults = dump(tmp_path), slow_nodes(tmp_path, 8, slowdown)
    off = simulated(path, faults, 8, "--estimates", estimates)
    on = simulated(path, faults, 8, "--estimates", estimates, "--feedback", "on", "--restartable")
    assert on["avg_jct_seconds"] <= off["avg_jct_seconds"]
    assert on["makespan_seconds"] <= off["makespan_seconds"]
