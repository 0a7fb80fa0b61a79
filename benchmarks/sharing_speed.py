"""Time to simulate Philly with each rule for shared slots, divided by that of FIFO and EASY in the same run.

python -m benchmarks.sharing_speed [--jobs N] [--nodes N] [--rules NAME ...] [--unnamed] [--json]

82,247 jobs on 64 nodes of 8 GPUs. All jobs are shareable. The trace has no models, so each job gets one of the job
types that Gavel measured, by a hash of its number; their measured pairs are the true speeds. ``sjf-bsbf`` knows them,
as in its paper; the other rules measure them. ``antman``: 30 % of the jobs are opportunistic. ``muri``: stages by the
same hash, four jobs on a slot. --unnamed: jobs without a workload, so that nothing is learnt from other jobs.

`digest` is a hash of all starts and ends: equal digests mean equal decisions. Exits with 1 if a rule takes more than
MOST times the processor time of FIFO and EASY.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace

from msgspec import structs

from benchmarks.policies import RESTART_COST_SECONDS, data_folder
from benchmarks.survey.shared_slots import GPU_TYPE, OPPORTUNISTIC, pair_speeds
from scheduler_feedback.core.state import Backfilling, Estimates, Order, Policy, Sharing
from scheduler_feedback.journal.garbage_collection import collecting_rarely
from scheduler_feedback.sim.engine import Engine
from scheduler_feedback.sim.job_trace import Trace
from scheduler_feedback.sim.simulated_nodes import grid
from scheduler_feedback.sim.simulation import Simulation, read_trace
from scheduler_feedback.sim.speeds.co_location import CoSpeed, of_pairs, of_stages

MOST = 3.0
"""Largest time of a sharing rule, relative to FIFO and EASY (issue: every scheduler of the survey)."""

SLOTS = 8
FIFO = Policy(order=Order.FIFO, backfill=Backfilling.EASY, estimates=Estimates.EXACT)
RULES = {one.value: one for one in Sharing if one not in (Sharing.NONE, Sharing.MUXFLOW)}  # Philly has no services

STAGES = ((1.0, 2.0, 6.0, 1.0), (3.0, 3.0, 3.0, 3.0), (1.0, 6.0, 2.0, 1.0), (0.5, 1.0, 4.0, 4.0), (4.0, 1.0, 3.0, 0.5))
"""Seconds of one iteration on storage, processors, GPU and network of five made-up models. An assumption."""


def trace_of(jobs: int | None, rule: Sharing, unnamed: bool = False) -> Trace:
    """Return the first jobs of Philly, ready to share slots under this rule. jobs: None for all."""
    trace = read_trace(data_folder() / "jobs" / "philly.csv", "philly")
    models = sorted(pair_speeds())
    found = []
    for job in trace.jobs[:jobs]:
        number = int.from_bytes(hashlib.sha256(job.job_id.encode()).digest()[:8], "big")
        spec = structs.replace(
            job.spec,
            shareable=True,
            workload="" if unnamed else models[number % len(models)],
            stages=STAGES[number % len(STAGES)],
            opportunistic=rule is Sharing.ANTMAN and number // 1000 % 100 < 100 * OPPORTUNISTIC,
        )
        found.append(replace(job, spec=spec))
    return replace(trace, jobs=tuple(found))


def engine_of(trace: Trace, rule: Sharing, count: int = 64) -> Engine:
    """Return the engine that simulates the trace under this rule."""
    table: Mapping[str, Mapping[str, float]] = pair_speeds()
    policy = replace(FIFO, sharing=rule)
    if rule is Sharing.SJF_BSBF:
        policy = replace(policy, order=Order.SJF, pair_speeds={one: dict(row) for one, row in table.items()})
    together = {Sharing.NONE: 1, Sharing.MURI: 4}.get(rule, 2)
    co_speed: CoSpeed = of_stages if rule is Sharing.MURI else of_pairs({GPU_TYPE: table})
    nodes = grid(count, SLOTS, gpu_type=GPU_TYPE, jobs_per_slot=together)
    return Simulation(trace, nodes, policy, restart_cost_seconds=RESTART_COST_SECONDS, co_speed=co_speed).engine()


def measure(jobs: int | None, rule: Sharing, unnamed: bool = False, count: int = 64) -> dict[str, object]:
    """Simulate, and return processor seconds, counts and the digest of the result."""
    engine = engine_of(trace_of(jobs, rule, unnamed), rule, count)
    began, load = time.process_time(), os.getloadavg()[0]
    with collecting_rarely():
        report = engine.run()
    seconds = time.process_time() - began
    ended = sorted((job_id, one.starts, one.first_start_ns, one.ended_ns) for job_id, one in engine.courses.items())
    counts = engine.state.counts
    return {
        "cpu_seconds": round(seconds, 2),
        "load_average": round(load, 2),
        "jobs": report.jobs,
        "unfinished": report.unfinished,
        "avg_jct_seconds": report.avg_jct_seconds,
        "shares": counts.get("decisions/shares/applied", 0),
        "separations": counts.get("decisions/separate/applied", 0),
        "cycles": len(engine.account.cycle_seconds),
        "digest": hashlib.sha256(repr(ended).encode()).hexdigest()[:16],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, help="only the first jobs; default: all")
    parser.add_argument("--nodes", type=int, default=64, metavar="N", help="number of nodes of 8 GPUs; default: 64")
    parser.add_argument("--rules", nargs="+", choices=list(RULES), default=list(RULES))
    parser.add_argument("--unnamed", action="store_true", help="jobs without a workload")
    parser.add_argument("--json", action="store_true", help="accepted for compatibility: the output is always JSON")
    options = parser.parse_args()
    base = measure(options.jobs, Sharing.NONE, options.unnamed, options.nodes)
    print(json.dumps({"rule": "fifo-easy", **base}), flush=True)
    least, slow = float(str(base["cpu_seconds"])), []
    for name in options.rules:
        found = measure(options.jobs, RULES[name], options.unnamed, options.nodes)
        ratio = float(str(found["cpu_seconds"])) / max(least, 0.01)
        slow += [name] if ratio > MOST else []
        print(json.dumps({"rule": name, "ratio": round(ratio, 2), **found}), flush=True)
    print(json.dumps({"most": MOST, "slower": slow}))
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
