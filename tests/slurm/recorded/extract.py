"""Extraction of recorded Slurm output from a checkout of Slurm-web, whose tests have responses of slurmrestd.

    python tests/slurm/recorded/extract.py CHECKOUT

slurmrestd prints jobs and nodes in the same form as `squeue --json` and `scontrol show nodes --json` do, by the same
data parser. Source: https://github.com/rackslab/Slurm-web, commit 69c8c03aa715be721f26987403deb0acfec7b161
(2026-04-30), folder tests/assets/slurmrestd; MIT licence, copyright (c) 2022-2025 Rackslab. Each extract has the fields
that gangwatch reads, of one job in each state and of jobs that request GPUs, and of one node in each state.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

NEWEST = {"24.05": "0.0.41", "24.11": "0.0.42", "25.05": "0.0.43", "25.11": "0.0.44"}
"""Data parser of each release: that of its own version, which the commands use without an option."""

OF_JOB = (
    "job_id", "job_state", "nodes", "gres_detail", "time_limit", "restart_cnt", "comment", "batch_flag", "requeue",
    "user_name", "name", "partition", "start_time", "eligible_time", "excluded_nodes", "node_count", "priority",
    "exit_code", "state_reason", "tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task", "tasks",
    "submit_time",
)  # fmt: skip
OF_NODE = ("name", "state", "gres", "reason", "weight", "features", "active_features", "comment", "partitions")


def extracted(document: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the document with a part of its records and fields. kind: 'jobs' or 'nodes'."""
    chosen: dict[str, Any] = {}
    for record in document[kind]:
        state = " ".join(record["job_state" if kind == "jobs" else "state"])
        gpus = next((record[key] for key in OF_JOB if key.startswith("tres_per") and record.get(key)), "")
        chosen.setdefault(f"{state} {gpus or record.get('gres', '')}", record)
    fields = OF_JOB if kind == "jobs" else OF_NODE
    records = [{key: record[key] for key in fields if key in record} for record in chosen.values()]
    meta = {"plugin": document["meta"]["plugin"], "slurm": document["meta"]["slurm"]}
    return {kind: records, "meta": meta, "errors": document["errors"], "warnings": document["warnings"]}


def main(checkout: Path) -> None:
    for release, parser in NEWEST.items():
        folder = Path(__file__).with_name(release)
        folder.mkdir(exist_ok=True)
        for kind in ("jobs", "nodes"):
            source = checkout / "tests" / "assets" / "slurmrestd" / release / parser / f"slurm-{kind}.json"
            found = extracted(json.loads(source.read_text()), kind)
            (folder / f"{kind}.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
