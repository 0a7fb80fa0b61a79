"""Fake Slurm commands for the controller's Slurm backend, which print the simulated jobs.

They only list jobs and nodes, since the controller changes nothing in advise mode.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks.ingest.frames import GPUS
from benchmarks.ingest.timeline import Run
from benchmarks.slurm.printed import Printed, as_json, nodes_in_json

_SQUEUE = """#!/bin/sh
case "$*" in
*--version*) echo "slurm 22.05.8" ;;
*--json*) exec cat "{folder}/jobs.json" ;;
*) exec cat "{folder}/running" ;;
esac
"""
_SINFO = """#!/bin/sh
case "$*" in
*--version*) echo "slurm 22.05.8" ;;
*) exec cat "{folder}/nodes.json" ;;
esac
"""
_OTHER = """#!/bin/sh
echo "$0 $*: this Slurm only lists jobs and nodes" >&2
exit 1
"""
_PROGRAMS = {"squeue": _SQUEUE, "sinfo": _SINFO, "scontrol": _OTHER, "scancel": _OTHER, "sbatch": _OTHER}


def node_name(number: int) -> str:
    return f"node-{number:05d}"


class FakeSlurm:
    """A folder with the fake commands, and the files that the commands print."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder = folder
        folder.mkdir()
        for name, script in _PROGRAMS.items():
            program = folder / name
            program.write_text(script.format(folder=folder))
            program.chmod(0o755)
        self._replace("nodes.json", nodes_in_json([node_name(number) for number in range(nodes)]))

    def list_jobs(self, running: Iterable[Run]) -> None:
        """Make the fake commands print these running jobs from now on."""
        to_wall_ns = time.time_ns() - time.monotonic_ns()
        jobs = [
            Printed(
                run.number, f"train-{run.number}".encode(), gpus=tuple(range(GPUS)), batch=False,
                nodes=tuple(node_name(number) for number in range(run.first_node, run.first_node + run.nodes)),
                submitted=(run.begun_ns + to_wall_ns) // 1_000_000_000,
            )
            for run in running
        ]  # fmt: skip
        self._replace("jobs.json", as_json(jobs))
        self._replace("running", b"".join(b"%d|RUNNING|%d|\n" % (job.number, len(job.nodes)) for job in jobs))

    def _replace(self, name: str, content: bytes) -> None:
        new = self.folder / f"{name}.new"
        new.write_bytes(content)
        new.replace(self.folder / name)
