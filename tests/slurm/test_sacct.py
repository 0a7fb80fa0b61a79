"""What feedback would have gained, from a dump of sacct: no Slurm needed."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from gangwatch.cli import cli
from scheduler_feedback.sim.traces import slurm

HEADER = "JobID|JobName|User|Partition|Submit|Start|End|ElapsedRaw|TimelimitRaw|AllocTRES|NNodes|State|Comment"


def dump(folder: Path, jobs: int = 60) -> Path:
    """A made dump: gangs of four nodes, one after the other, every second of which has opted in."""
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


def test_who_has_opted_in_is_read_from_the_comment(tmp_path: Path) -> None:
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


def test_feedback_off_and_on_are_compared_on_the_same_dump(tmp_path: Path) -> None:
    path = dump(tmp_path)
    faults = tmp_path / "faults.csv"
    faults.write_text("node,begin_seconds,seconds,slowdown\n" + "".join(f"n{n:02d},600,400000,1.5\n" for n in (0, 1)))
    found = {}
    for name, options in {
        "off": ("--feedback", "off"),
        "on": ("--feedback", "on", "--restartable"),
    }.items():
        result = CliRunner().invoke(
            cli,
            ["simulate", "--jobs", str(path), "--format", "slurm", "--nodes", "16x8", "--order", "fifo", "--faults",
             str(faults), "--restart-cost", "60", "--json", *options],
        )  # fmt: skip
        assert result.exit_code == 0, result.output
        found[name] = json.loads(result.stdout)
    assert found["on"]["jobs"] == found["off"]["jobs"] == 60
    assert found["on"]["avg_jct_seconds"] < found["off"]["avg_jct_seconds"]
