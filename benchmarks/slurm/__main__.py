"""``python -m benchmarks.slurm [--json]``. Needs root, and Debian's munge, slurmctld, slurmd and slurm-client."""

from __future__ import annotations

import argparse
import json
import sys

from benchmarks.slurm import gangs, load
from tests.slurm.bed import AbsentError, Bed

MOST_CORE_PERCENT = 2.0
MOST_REQUESTS_A_MINUTE = 6.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slurm", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--only", choices=("load", "feedback"), help="one half")
    parser.add_argument("--pending", type=int, default=1000, help="jobs that wait while the load is measured")
    parser.add_argument("--seconds", type=float, default=90.0, help="how long the load is measured")
    parser.add_argument("--gangs", type=int, default=10, help="number of gangs from the trace")
    parser.add_argument("--first", type=int, default=0, help="index of the first gang of the trace")
    parser.add_argument("--slowdown", type=float, default=1.3, help="slowdown of the slow node's steps")
    options = parser.parse_args()
    found: dict[str, object] = {}
    try:
        if options.only != "feedback":
            with Bed(64) as bed:
                found["load"] = load.measure(bed, options.pending, options.seconds)
        if options.only != "load":
            jobs = gangs.of_philly(gangs.data_folder() / "jobs" / "philly.csv", options.gangs, options.first)
            with Bed(16) as bed:
                found["feedback"] = {
                    "gangs": [{"nodes": gang.nodes, "run_seconds": round(gang.run_seconds, 1)} for gang in jobs],
                    "first": options.first,
                    "slowdown": options.slowdown,
                    "slurm_alone": gangs.run(bed, jobs, options.slowdown, feedback=False),
                    "slurm_with_feedback": gangs.run(bed, jobs, options.slowdown, feedback=True),
                }
    except (AbsentError, FileNotFoundError) as error:
        print(error, file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(found))
    else:
        print(json.dumps(found, indent=2))
    load_found = found.get("load")
    if isinstance(load_found, dict):
        within = (
            load_found["core_percent"] <= MOST_CORE_PERCENT
            and load_found["requests_per_minute"] <= MOST_REQUESTS_A_MINUTE
        )
        return 0 if within else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
