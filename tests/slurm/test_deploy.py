"""Installation on a Slurm cluster: prolog and epilog under a real slurmd, systemd unit, sample configuration."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from agent.collectors.steps.step_collector import StepCollector
from agent.rank_attribution import Attribution
from gangwatch.cli import cli
from gangwatch.configuration.config_file import load
from scheduler_feedback.core.state import Mode
from tests import needs
from tests.slurm.bed import Bed

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "systemd" / "gangwatch-slurm.service"


@pytest.mark.xdist_group("slurm")
def test_prolog_and_epilog_report_the_gpus_of_jobs_to_the_agent(bed: Bed) -> None:
    folder = bed.folder / "jobs"
    for name in ("prolog", "epilog"):
        script = bed.folder / name
        script.write_text(f"#!/bin/sh\nGANGWATCH_JOB_FILES={folder}/$SLURMD_NODENAME exec {DEPLOY}/slurm/{name}\n")
        script.chmod(0o755)
    kept = bed.configuration.read_text()
    folder.mkdir()
    try:
        lines = f"Prolog={bed.folder}/prolog\nEpilog={bed.folder}/epilog\nPrologFlags=Alloc\n"
        bed.configuration.write_text(kept + lines)
        bed.ask("scontrol", "reconfigure")
        number = bed.submit("sleep 300", "--nodes=2", "--gpus-per-node=3", "--nodelist=gpu003,gpu004")
        at = folder / "gpu003"
        bed.wait_for("the prolog", lambda: len(list(at.glob("[0-9]"))) == 3)
        assert {path.name: path.read_text() for path in at.iterdir()} == dict.fromkeys("012", f"{number}\n")
        bed.ask("scancel", number)
        bed.wait_for("the epilog", lambda: not list(at.iterdir()))
        assert bed.nodes_in("drain") == []
    finally:
        bed.configuration.write_text(kept)
        bed.ask("scontrol", "reconfigure")


STEPS = """
import sys, time
sys.path.insert(0, sys.argv[1])
from gangwatch import steps
reporter = steps.reporter()
while True:
    with reporter.step():
        time.sleep(0.05)
"""


@pytest.mark.xdist_group("slurm")
def test_ranks_of_another_user_report_if_the_folder_is_accessible_to_all(bed: Bed) -> None:
    if not Path("/usr/bin/python3").exists():
        needs.absent("/usr/bin/python3 is absent: apt-get install python3")
    # Another user may not be able to read the checkout; steps.py is a separate wheel.
    package, sockets = bed.folder / "package" / "gangwatch", bed.folder / "steps"
    package.mkdir(parents=True)
    shutil.copy(Path(__file__).parents[2] / "gangwatch" / "steps.py", package)
    (package / "__init__.py").touch()
    (package.parent / "rank.py").write_text(STEPS)
    sockets.mkdir()
    sockets.chmod(0o711)
    bed.export({"GANGWATCH_SOCKET": f"{sockets}/{{node}}.sock"})
    names = bed.names[:2]
    collectors = [StepCollector(f"{sockets}/{name}.sock", Attribution(None)) for name in names]
    try:
        number = bed.submit(
            f"srun /usr/bin/python3 {package.parent}/rank.py {package.parent}",
            "--uid=nobody", "--gid=nogroup", "--chdir=/tmp", "--nodes=2", "--ntasks-per-node=1",
            f"--nodelist={','.join(names)}",
        )  # fmt: skip

        def members() -> list[tuple[str, str, int]]:
            found = []
            for block in [collector.collect() for collector in collectors]:
                for column, value in zip(block.counter_columns, block.counters.tolist(), strict=True):
                    if column.metric == "gangwatch_rank_steps_total":
                        labels = dict(column.labels)
                        found.append((labels["gang"], labels["rank"], value))
            return sorted(found)

        bed.wait_for("steps", lambda: len(members()) == 2 and min(steps for _, _, steps in members()) > 5)
        assert [(gang, rank) for gang, rank, _ in members()] == [(f"slurm-{number}.0", "0"), (f"slurm-{number}.0", "1")]
    finally:
        for collector in collectors:
            collector.close()


def test_the_task_prolog_exports_the_node_s_socket() -> None:
    done = subprocess.run(
        [DEPLOY / "slurm" / "task_prolog"], env={"SLURMD_NODENAME": "gpu7"}, capture_output=True, text=True, check=True
    )
    sample = load(DEPLOY / "slurm" / "gangwatch.toml")
    assert sample.agent.step_socket is not None
    assert done.stdout == f"export GANGWATCH_SOCKET={sample.agent.step_socket.replace('{node}', 'gpu7')}\n"


def test_the_sample_configuration_only_advises() -> None:
    sample = load(DEPLOY / "slurm" / "gangwatch.toml")
    assert sample.slurm.enabled
    assert sample.policy.mode is Mode.OBSERVE


def test_systemd_accepts_the_hardened_unit() -> None:
    program = needs.component("systemd-analyze", "systemd")
    judged = subprocess.run(
        [program, "security", "--offline=true", "--threshold=25", "--no-pager", str(UNIT)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert judged.returncode == 0, judged.stdout + judged.stderr
    assert "Unknown" not in judged.stderr and "Failed to parse" not in judged.stderr, judged.stderr


def test_the_unit_s_command_is_valid() -> None:
    found = re.search(r"^ExecStart=\S+/gangwatch (.*)$", UNIT.read_text(), re.MULTILINE)
    assert found is not None
    name, *words = shlex.split(found[1])
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    command.make_context(name, [word.replace("/etc/gangwatch/gangwatch.toml", "/dev/null") for word in words])
