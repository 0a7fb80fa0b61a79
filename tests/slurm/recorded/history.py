"""Reading of the responses of Slurm 23.11.10 in the history of Slurm-web, by gangwatch's own parsers.

    python -m tests.slurm.recorded.history REPOSITORY

REPOSITORY: a clone of https://github.com/rackslab/Slurm-web with its history. Its commit
b80c9504561ed3f617408ede7e69854a8f8d3d3f (2025-05-07) has responses of slurmrestd with data parser v0.0.40, also of
jobs that run on GPUs. They are read here and not copied: at that commit, the licence was GPL 3. Prints each node and
job, and exits with 1 if a record is refused. Responses that report an error are left out.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from scheduler_feedback.backends.slurm.parsing import parse_json

COMMIT = "b80c9504561ed3f617408ede7e69854a8f8d3d3f"
FOLDER = "tests/assets/slurmrestd/23.11"


def _git(repository: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(repository), *arguments], check=True, stdout=subprocess.PIPE).stdout


def main(repository: Path) -> int:
    names = _git(repository, "ls-tree", "--name-only", f"{COMMIT}:{FOLDER}").decode().split()
    refused = 0
    for name in names:
        of_nodes = name.startswith("slurm-node") and "unfound" not in name
        if not of_nodes and not (name == "slurm-jobs.json" or name.startswith("slurm-job-gpus")):
            continue
        document = _git(repository, "show", f"{COMMIT}:{FOLDER}/{name}")
        content = json.loads(document)
        if content["errors"]:
            continue
        release = content["meta"]["slurm"]["release"]
        if of_nodes:
            nodes = parse_json.nodes(document, "scontrol show nodes --json")
            refused += len(nodes.refused)
            for node in nodes.records.values():
                sys.stdout.write(f"{release} {name} {node}\n")
        else:
            jobs = parse_json.jobs(document)
            refused += len(jobs.refused)
            for job in jobs.records.values():
                sys.stdout.write(f"{release} {name} {job}\n")
    sys.stdout.write(f"{refused} records were refused\n")
    return int(refused > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
