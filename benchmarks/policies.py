"""Compares the default policy with FIFO and EASY, Tiresias-L and a clairvoyant policy on public traces.

python -m benchmarks.policies --json

Simulates Muri's traces 1 and 3 (8 nodes of 8 GPUs) and the whole Philly trace (64 nodes of 8 GPUs) at 1, 1.5 and 2
times its load; every restart costs five minutes. Only the clairvoyant policy (shortest remaining service first) knows
how long jobs run. The other policies estimate it from ended jobs (``Estimates.HISTORY``). Takes half an hour on one
processor; ``--traces`` and ``--policies`` select a part.

The report contains the longest wait of any job, and the default policy's bound for it (``bound_seconds``), which
grows with the load.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from scheduler_feedback.core.state import FAIR_POLICY, Backfilling, Estimates, Order, Policy
from scheduler_feedback.sim.job_trace import Trace
from scheduler_feedback.sim.results import Report
from scheduler_feedback.sim.simulated_nodes import grid
from scheduler_feedback.sim.simulation import Simulation, read_trace

RESTART_COST_SECONDS = 300.0
"""Seconds that a restart costs: five minutes to save, to be placed, to load and to warm up."""

MOST_OF_CLAIRVOYANT = 1.35
"""Maximum average completion time with the default policy, divided by that of the clairvoyant policy, at load 1."""

_UNBLIND = Policy(
    order=Order.SRSF,
    backfill=Backfilling.GREEDY,
    estimates=Estimates.EXACT,
    preempt=True,
    replan_seconds=60.0,
    starvation_seconds=math.inf,
)
POLICIES: dict[str, Policy] = {
    "default": FAIR_POLICY,
    "fifo-easy": Policy(order=Order.FIFO, backfill=Backfilling.EASY, estimates=Estimates.HISTORY),
    "tiresias-l": replace(_UNBLIND, order=Order.LAS, estimates=Estimates.HISTORY, las_thresholds=(3250.0, 7200.0)),
    "clairvoyant-srsf": _UNBLIND,
}
"""Compared policies by name. Tiresias-L has the queues of its published runs. It and the clairvoyant plan once a
minute, like the default policy."""

TRACES: dict[str, tuple[str, str, int, float]] = {
    "muri-1": ("muri-trace1.csv", "muri", 8, 1.0),
    "muri-3": ("muri-trace3.csv", "muri", 8, 1.0),
    "philly": ("philly.csv", "philly", 64, 1.0),
    "philly x1.5": ("philly.csv", "philly", 64, 1.5),
    "philly x2": ("philly.csv", "philly", 64, 2.0),
}
"""Compared traces by name: (file, format, number of nodes with 8 GPUs, load)."""


def data_folder() -> Path:
    """Return the folder of public traces: GANGWATCH_DATA, or a folder next to the checkout.

    Raises SystemExit if neither exists.
    """
    folder = Path(os.environ.get("GANGWATCH_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    if not folder.is_dir():
        sys.exit(f"{folder} is absent: set GANGWATCH_DATA to the folder of public traces")
    return folder


def read(trace_name: str) -> Trace:
    """Return the trace as it is in its file."""
    file, format_name, _, _ = TRACES[trace_name]
    return read_trace(data_folder() / "jobs" / file, format_name)


def backlog_seconds(trace: Trace, slots: int, load: float) -> float:
    """Return the maximum, over the trace, of the pending work divided by the cluster's capacity, in seconds.

    A first-come-first-served scheduler cannot avoid a wait of this length in the worst case.
    """
    most = left = 0.0
    before_ns = trace.jobs[0].submitted_ns
    for job in trace.jobs:
        left = max(left - (job.submitted_ns - before_ns) / 1e9 / load, 0.0) + job.run_seconds * job.spec.ranks / slots
        most, before_ns = max(most, left), job.submitted_ns
    return most


def bound_seconds(policy: Policy, backlog: float) -> float:
    """Return the longest time for which the policy lets a job wait, in seconds.

    It is the configured starvation bound, plus the time for the work that is ahead of the job.
    """
    return policy.starvation_seconds + backlog / policy.starvation_share


def simulate(trace_name: str, policy: Policy, jobs: int | None = None) -> Report:
    """Run one simulation. jobs: number of jobs, counted from the first; None: all jobs."""
    _, _, nodes, load = TRACES[trace_name]
    trace = read(trace_name)
    trace = trace if jobs is None else replace(trace, jobs=trace.jobs[:jobs])
    return Simulation(trace, grid(nodes, 8), policy, load=load, restart_cost_seconds=RESTART_COST_SECONDS).run()


def measure(traces: list[str], policies: list[str], jobs: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield one row for each trace and policy."""
    for trace_name in traces:
        _, _, nodes, load = TRACES[trace_name]
        backlog = backlog_seconds(read(trace_name), nodes * 8, load)
        for name in policies:
            report = simulate(trace_name, POLICIES[name], jobs)
            yield {
                "trace": trace_name,
                "policy": name,
                "avg_jct_seconds": report.avg_jct_seconds,
                "p50_jct_seconds": report.p50_jct_seconds,
                "p99_jct_seconds": report.p99_jct_seconds,
                "max_queue_seconds": report.max_queue_seconds,
                "bound_seconds": bound_seconds(FAIR_POLICY, backlog) if name == "default" else None,
                "backlog_seconds": backlog,
                "makespan_seconds": report.makespan_seconds,
                "preemptions": report.preemptions,
                "unfinished": report.unfinished,
                "wall_seconds": report.wall_seconds,
            }


def judge(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return for each trace whether the default policy fulfils its targets.

    Also return the average completion time of its jobs, divided by that of each other policy.
    """
    found: dict[str, dict[str, Any]] = {}
    for trace_name in dict.fromkeys(row["trace"] for row in rows):
        jct = {row["policy"]: row["avg_jct_seconds"] for row in rows if row["trace"] == trace_name}
        mine = jct.get("default")
        if mine is None:
            continue
        others = {name: mine / value for name, value in jct.items() if name != "default" and value}
        below = all(others[name] < 1 for name in ("fifo-easy", "tiresias-l") if name in others)
        near = TRACES[trace_name][3] > 1 or others.get("clairvoyant-srsf", 1.0) <= MOST_OF_CLAIRVOYANT
        waits = next(row for row in rows if row["trace"] == trace_name and row["policy"] == "default")
        bounded = waits["max_queue_seconds"] <= waits["bound_seconds"]
        found[trace_name] = {"times": others, "below_both": below, "near_clairvoyant": near, "bounded": bounded}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", nargs="+", choices=list(TRACES), default=list(TRACES))
    parser.add_argument("--policies", nargs="+", choices=list(POLICIES), default=list(POLICIES))
    parser.add_argument("--jobs", type=int, help="only this many jobs of each trace, from the first on")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = []
    for row in measure(arguments.traces, arguments.policies, arguments.jobs):
        rows.append(row)
        waited = f"longest wait {row['max_queue_seconds'] / 86400:.1f} d"
        print(f"{row['trace']:<12} {row['policy']:<18} {row['avg_jct_seconds']:>12.0f} s  {waited}", file=sys.stderr)
    judged = judge(rows)
    document = {"restart_cost_seconds": RESTART_COST_SECONDS, "rows": rows, "default_against": judged}
    if arguments.json:
        print(json.dumps(document, indent=2))
    kept = all(one["below_both"] and one["near_clairvoyant"] and one["bounded"] for one in judged.values())
    return 0 if kept or arguments.jobs is not None else 1


if __name__ == "__main__":
    sys.exit(main())
