"""Time that defragmentation, elastic gangs and spare nodes save: ``python -m benchmarks.room --json``.

Simulates a part of the Philly trace twice for each policy, with the policy off and on. A restart costs 300 s.

================  ======================================================================================================
defragmentation   gangs of up to 8 must lie on one node; all can be restarted. Off: ``defragmentation_moves = 0``
elastic           gangs of 2 and more run with half to twice their ranks. Off: with as many as requested
spares            half of the jobs may be stopped; nodes become slow and stay so (the persistent preset), and the
                  detector reports them. On: one spare in each rack of eight nodes
================  ======================================================================================================
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from msgspec import structs

from benchmarks.policies import RESTART_COST_SECONDS, data_folder
from scheduler_feedback.core.cluster import Level
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.core.state import FAIR_POLICY, Backfilling, Estimates, Order, Policy
from scheduler_feedback.sim.job_trace import Trace
from scheduler_feedback.sim.simulated_nodes import grid
from scheduler_feedback.sim.simulation import Simulation, read_trace

PLAIN = Policy(order=Order.FIFO, backfill=Backfilling.EASY, estimates=Estimates.EXACT, min_run_seconds=600.0)
POLICIES = {"fifo and EASY": PLAIN, "default": FAIR_POLICY}
Change = Callable[[JobSpec, int], dict[str, Any]]


def narrow(spec: JobSpec, _number: int) -> dict[str, Any]:
    return {"restartable": True, "required_level": Level.NODE if 1 < spec.ranks <= 8 else None}


def elastic(spec: JobSpec, _number: int) -> dict[str, Any]:
    most = {"min_ranks": spec.ranks // 2, "max_ranks": 2 * spec.ranks} if spec.ranks > 1 else {}
    return {"restartable": True, **most}


def rigid(_spec: JobSpec, _number: int) -> dict[str, Any]:
    return {"restartable": True}


def half_stoppable(_spec: JobSpec, number: int) -> dict[str, Any]:
    return {"restartable": True, "preemptible": number % 2 == 0}


def with_declarations(trace: Trace, change: Change) -> Trace:
    """Return the trace with changed job specifications. change: function that returns the changed fields of a job."""
    jobs = (replace(job, spec=structs.replace(job.spec, **change(job.spec, n))) for n, job in enumerate(trace.jobs))
    return replace(trace, jobs=tuple(jobs))


def run(trace: Trace, policy: Policy, nodes: int, faults: str | None = None, seed: int = 0) -> dict[str, Any]:
    report = Simulation(
        trace,
        grid(nodes, 8, 8),
        policy,
        restart_cost_seconds=RESTART_COST_SECONDS,
        faults=faults,
        feedback="on" if faults else "off",
        seed=seed,
    ).run()
    return {
        "avg_jct_seconds": report.avg_jct_seconds,
        "avg_queue_seconds": report.avg_queue_seconds,
        "p99_jct_seconds": report.p99_jct_seconds,
        "utilization": report.utilization,
        "fragmentation": report.fragmentation,
        "migrations": report.migrations,
        "preemptions": report.preemptions,
        "unfinished": report.unfinished,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=40_000, help="first job of the stretch")
    parser.add_argument("--jobs", type=int, default=3000)
    parser.add_argument("--nodes", type=int, default=16, help="of 8 GPUs, 8 a rack")
    parser.add_argument("--load", type=float, default=1.0, help="factor of the arrival rate")
    parser.add_argument("--only", choices=("defragmentation", "elastic", "spares"))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    trace = read_trace(data_folder() / "jobs" / "philly.csv", "philly")
    trace = replace(trace, jobs=trace.jobs[arguments.first : arguments.first + arguments.jobs]).scaled(arguments.load)
    document: dict[str, Any] = {"jobs": len(trace.jobs), "nodes": arguments.nodes, "load": arguments.load}
    for name, policy in POLICIES.items():
        found: dict[str, Any] = {}
        if arguments.only in (None, "defragmentation"):
            jobs = with_declarations(trace, narrow)
            off = run(jobs, replace(policy, defragmentation_moves=0), arguments.nodes)
            found["defragmentation"] = {"off": off, "on": run(jobs, policy, arguments.nodes)}
        if arguments.only in (None, "elastic"):
            off = run(with_declarations(trace, rigid), policy, arguments.nodes)
            found["elastic"] = {"off": off, "on": run(with_declarations(trace, elastic), policy, arguments.nodes)}
        if arguments.only in (None, "spares"):
            jobs = with_declarations(trace, half_stoppable)
            off = run(jobs, policy, arguments.nodes, "persistent", 1)
            on = run(jobs, replace(policy, spare_nodes=1), arguments.nodes, "persistent", 1)
            found["spares"] = {"off": off, "on": on}
        document[name] = found
        for what, pair in found.items():
            shown = ", ".join(f"{k} {v['avg_jct_seconds']:.0f} s ({v['migrations']} moved)" for k, v in pair.items())
            print(f"{name}, {what}: average JCT {shown}", file=sys.stderr)
    if arguments.json:
        print(json.dumps(document, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
