"""Time to simulate the whole Philly trace: ``python -m benchmarks.simulation_speed [--runs NAME ...] --json``.

Simulates 82,247 jobs on 64 nodes of 8 GPUs in racks of 32, with the journal written: FIFO with EASY, the same at
twice the load, and the default policy (estimates from history, preemption, five minutes for a restart). Each is a
separate `gangwatch simulate`, timed from outside, which includes starting Python, reading the trace and writing the
journal. Exits with 1 if a run takes more than SLACK times its target, or if a job is lost.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.policies import data_folder


class Run(NamedTuple):
    """One simulation. options: of `gangwatch simulate`. most_seconds: target of the wall time on an idle machine."""

    options: tuple[str, ...]
    most_seconds: float


DEFAULT = ("--order", "fair", "--backfill", "easy", "--preempt", "--estimates", "history", "--restart-cost", "300")
RUNS = {
    "fifo-easy": Run(("--order", "fifo", "--backfill", "easy"), 30.0),
    "fifo-easy x2": Run(("--order", "fifo", "--backfill", "easy", "--load", "2"), 120.0),
    "default": Run(DEFAULT, 180.0),
}
SLACK = 3.0
"""Factor by which a run may exceed its target, because of other load on the machine. The report contains that load as
`load_average` and `cpu_seconds`."""


def measure(run: Run) -> dict[str, object]:
    """Run one simulation and return its figures."""
    with tempfile.TemporaryDirectory(prefix="gangwatch-simulation-") as folder:
        journal = Path(folder) / "journal.sqlite"
        command = [
            sys.executable, "-P", "-m", "gangwatch", "simulate", "--jobs", str(data_folder() / "jobs" / "philly.csv"),
            "--format", "philly", "--nodes", "64x8", "--journal", str(journal), *run.options, "--json",
        ]  # fmt: skip
        before, load = resource.getrusage(resource.RUSAGE_CHILDREN), os.getloadavg()[0]
        began = time.monotonic()
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        seconds = time.monotonic() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        report = json.loads(done.stdout)
        return {
            "wall_seconds": round(seconds, 1),
            "cpu_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
            "load_average": round(load, 2),
            "most_seconds": run.most_seconds,
            "journal_mib": round(journal.stat().st_size / 2**20, 1),
            "jobs": report["jobs"],
            "unfinished": report["unfinished"],
            "avg_jct_seconds": report["avg_jct_seconds"],
            "decisions": report["decisions"],
            "decision_ms": report["decision_ms"],
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", choices=list(RUNS), default=list(RUNS))
    parser.add_argument("--json", action="store_true", help="accepted for compatibility: the output is always JSON")
    options = parser.parse_args()
    found = {name: measure(RUNS[name]) for name in options.runs}
    late = [name for name in found if float(str(found[name]["wall_seconds"])) > RUNS[name].most_seconds * SLACK]
    lost = [name for name, figures in found.items() if figures["unfinished"]]
    print(json.dumps({"runs": found, "out_of_range": late, "lost_jobs_in": lost}, indent=2))
    return 1 if late or lost else 0


if __name__ == "__main__":
    sys.exit(main())
