"""The scheduler at 40,000 GPUs: cost of a gang, a large gang, an unschedulable gang and a long queue.

python -m benchmarks.scheduler [--nodes N] [--no-slurm] [--json]

5,000 nodes of 8 GPUs in racks of 32 and spines of 20 racks. Every figure is the time of ``cycle.run`` with topology on,
as production calls it, without the journal (see ``benchmarks.loop`` for that). Prints one JSON document; exits with 1
if a figure is out of its range.

gang_ms: 3,000 gangs of 3 submitted at once to the empty cluster, the whole cycle over the number of started gangs.
gang512_ms: a gang of 512 nodes into a cluster fragmented by running jobs. unschedulable_ms: a gang that needs more GPUs
inside one rack than a rack has, from its submission to the sentence with the reason. explain_ms: the whole response to
``gangwatch explain`` for the last pending job. cycle10k_seconds: a cycle in which a job ends while 10,000 gangs wait
behind a reservation, and each has to be considered.

beside_slurm: a real slurmctld and ours on the same gangs, one after the other, on this machine (``slurm.py`` describes
how, and the limits of the comparison). gang_ms: of as many of `--gangs` gangs of 3 as it starts within the time limit
of a pass over the queue. large_gang_ms: one of 512 nodes into the empty cluster. too_large_ms: until a gang is reported
as larger than the cluster. easy, planning: one pass of backfill over `--behind` gangs that wait behind a reservation of
the whole cluster and may not start. easy reserves for the first gang only; planning plans a start for others too (Slurm
for all of them; ours, conservative, for the first 100). Skipped, with the package's name, if Slurm is not installed;
with GANGWATCH_REQUIRE=all that is an error.

published: figures from the other engines' own tests and issues, for other machines.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys

from benchmarks.scheduler import ours, slurm
from benchmarks.scheduler.published import PUBLISHED

RANGES = {
    "gang_ms": 1.0,
    "gang512_ms": 100.0,
    "unschedulable_ms": 100.0,
    "explain_ms": 100.0,
    "cycle10k_seconds": 2.0,
    "rss_mib": 500.0,
}
SLACK = 3.0
"""Factor by which a figure may exceed its target before it fails, because the machine may run other load."""


def compare_with_slurm(nodes: int, gangs: int, behind: int, pass_seconds: int) -> tuple[dict[str, object], bool]:
    """Return the figures of our scheduler and of Slurm for the same gangs, and whether they are in range."""
    try:
        theirs = slurm.measure(nodes, gangs, behind, pass_seconds)
    except slurm.AbsentError as error:
        return {"skipped": str(error)}, os.environ.get("GANGWATCH_REQUIRE") != "all"
    mine = ours.measure_slurm_cases(nodes, gangs, behind)
    return {"submitted": gangs, "behind": behind, "slurm": theirs, "gangwatch": mine}, True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--no-slurm", action="store_true", help="skip the real Slurm")
    parser.add_argument("--gangs", type=int, default=1000, help="gangs of 3, submitted to both at once")
    parser.add_argument("--behind", type=int, default=500, help="gangs that wait behind a reservation in both")
    parser.add_argument(
        "--pass-seconds", type=int, default=30, help="most that Slurm may take for a pass over its queue"
    )
    parser.add_argument("--json", action="store_true", help="accepted for compatibility: the output is always JSON")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that slurmctld is stopped too
    load = os.getloadavg()[0]
    figures = ours.measure(options.nodes)
    late = {name: most for name, most in RANGES.items() if figures[name] > most * SLACK}
    document: dict[str, object] = {
        **figures,
        "load_average": round(load, 2),
        "targets": RANGES,
        "out_of_range": sorted(late),
    }
    fine = True
    if not options.no_slurm:
        document["beside_slurm"], fine = compare_with_slurm(
            options.nodes, options.gangs, options.behind, options.pass_seconds
        )
    document["published"] = [peer._asdict() for peer in PUBLISHED]
    print(json.dumps(document, indent=2))
    return 1 if late or not fine else 0


if __name__ == "__main__":
    raise SystemExit(main())
