"""Row of HiveD: the time that tenants of a shared cluster wait longer than in a private cluster of their own size.

HiveD (Zhao et al., OSDI'20) calls it the sharing anomaly: a tenant with a quota of GPUs waits although it is below the
quota, because the free GPUs are spread over nodes and its job needs them on one node. Input: the first jobs of the
Philly trace, whose virtual clusters are the tenants. The trace has no sizes of virtual clusters, so each gets whole
nodes in proportion to its GPU-seconds, and at least as many as its largest job needs. A job of at most one node's GPUs
must be on one node; larger jobs use any GPUs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean

from msgspec import structs

from benchmarks.policies import RESTART_COST_SECONDS, data_folder
from benchmarks.survey.row import Outcome, Row
from benchmarks.survey.shares import interval
from scheduler_feedback.core.cluster import Level
from scheduler_feedback.core.state import FAIR_POLICY, Backfilling, Cell, Estimates, Order, Policy, Queue
from scheduler_feedback.sim.job_trace import Trace, TraceJob
from scheduler_feedback.sim.simulated_nodes import grid
from scheduler_feedback.sim.simulation import Simulation, read_trace

JOBS = 10_000
"""Number of jobs of the trace, counted from the first."""

NODE_GPUS = 8
"""GPUs of one node."""

NODES = 44
"""Nodes that are divided among the virtual clusters in proportion to their work: 352 GPUs, and the jobs use 348 on
average."""

PIECES, PIECE_JOBS = 10, 1_000
"""Number of pieces of the trace, and of jobs of each, for the row of cells."""

EASY = Policy(order=Order.FIFO, backfill=Backfilling.EASY, estimates=Estimates.EXACT)
QUOTAS = replace(FAIR_POLICY, estimates=Estimates.EXACT)


@dataclass(frozen=True, slots=True)
class Excess:
    """Waits in a shared cluster, minus those of the same jobs in private clusters, in minutes."""

    tenant: float
    """Largest difference of the mean waits of one tenant."""
    job: float
    """Largest difference of one job."""
    mean: float
    """Mean difference of all jobs: below 0 if sharing is better."""


def rows() -> list[Row]:
    """Return the rows of this module."""
    source = "Zhao et al., OSDI'20 (other virtual clusters; up to 1,000 minutes without cells, 0 with them)"
    return [
        Row("HiveD", "guaranteed virtual clusters (quotas, reclaimed at once)",
            f"largest excess of a tenant's mean wait over its private cluster, {JOBS} Philly jobs, min", None, source,
            _measured, slow=True),
        Row("HiveD", "buddy cells",
            f"largest excess of a tenant's mean wait, {PIECES} x {PIECE_JOBS} Philly jobs, min",
            0.0, source, _with_cells, slow=True),
    ]  # fmt: skip


@cache
def tenants_jobs() -> Trace:
    """Return the jobs, each on one node if it fits there."""
    trace = read_trace(data_folder() / "jobs" / "philly.csv", "philly")
    return replace(trace, jobs=tuple(_together(job) for job in trace.jobs[:JOBS]))


def _together(job: TraceJob) -> TraceJob:
    level = Level.NODE if job.spec.ranks <= NODE_GPUS else None
    return replace(job, spec=structs.replace(job.spec, required_level=level))


def sizes(jobs: Sequence[TraceJob], nodes: int = NODES) -> dict[str, int]:
    """Return the number of nodes of each tenant's virtual cluster."""
    work: Counter[str] = Counter()
    largest: Counter[str] = Counter()
    for job in jobs:
        work[job.spec.queue] += math.ceil(job.run_seconds * job.spec.ranks)
        largest[job.spec.queue] = max(largest[job.spec.queue], job.spec.ranks)
    total = work.total() or 1
    return {
        queue: max(-(-largest[queue] // NODE_GPUS), round(nodes * work[queue] / total)) for queue in sorted(largest)
    }


def waits(trace: Trace, nodes: int, policy: Policy) -> dict[str, float]:
    """Return the time in seconds that each job of the trace is pending, by job id."""
    engine = Simulation(trace, grid(nodes, NODE_GPUS), policy, restart_cost_seconds=RESTART_COST_SECONDS).engine()
    engine.run()
    return {job_id: course.waiting_ns / 1e9 for job_id, course in engine.courses.items()}


def excess(shared: Mapping[str, float], private: Mapping[str, float], tenant_of: Mapping[str, str]) -> Excess:
    """Compare the waits of jobs, by job id, in seconds. tenant_of: tenant of each job."""
    more = {job_id: (shared[job_id] - wait) / 60 for job_id, wait in private.items()}
    of_tenant: dict[str, list[float]] = {}
    for job_id, minutes in more.items():
        of_tenant.setdefault(tenant_of[job_id], []).append(minutes)
    worst = max(math.fsum(minutes) / len(minutes) for minutes in of_tenant.values())
    return Excess(worst, max(more.values()), math.fsum(more.values()) / len(more))


def piece(number: int) -> Trace:
    """Return one of the pieces of the trace, at equal distances, each job on one node if it fits there."""
    trace = read_trace(data_folder() / "jobs" / "philly.csv", "philly")
    first = number * (len(trace.jobs) // PIECES)
    return replace(trace, jobs=tuple(_together(job) for job in trace.jobs[first : first + PIECE_JOBS]))


def excess_of(trace: Trace, alone: Policy, shared: Policy, cells: bool) -> Excess:
    """Return the excess of the trace's jobs over private clusters with the policy `alone`.

    In the shared cluster with the policy `shared`, the tenants have their nodes as cells, or as quotas.
    """
    nodes = sizes(trace.jobs)
    private: dict[str, float] = {}
    for name, count in nodes.items():
        own = tuple(job for job in trace.jobs if job.spec.queue == name)
        private |= waits(replace(trace, jobs=own), count, alone)
    queues = tuple(
        Queue(name, cells={Cell.NODE: count}) if cells else Queue(name, quota=count * NODE_GPUS)
        for name, count in nodes.items()
    )
    found = waits(trace, sum(nodes.values()), replace(shared, queues=queues))
    return excess(found, private, {job.job_id: job.spec.queue for job in trace.jobs})


def anywhere(trace: Trace) -> Trace:
    """Return the trace with jobs that may use any slots."""
    return replace(
        trace, jobs=tuple(replace(job, spec=structs.replace(job.spec, required_level=None)) for job in trace.jobs)
    )


def _with_cells() -> Outcome:
    """Return the largest excess with cells. The reason has that of quotas, of other orders, and without guarantees."""
    traces = [piece(number) for number in range(PIECES)]
    free = [anywhere(trace) for trace in traces]
    shortest, fair = replace(EASY, order=Order.SRTF), replace(QUOTAS, preempt=False)
    found = {
        "cells": [excess_of(trace, EASY, EASY, cells=True) for trace in traces],
        "cells, srtf": [excess_of(trace, shortest, shortest, cells=True) for trace in traces],
        "cells, fair without preemption": [excess_of(trace, fair, fair, cells=True) for trace in traces],
        "quotas": [excess_of(trace, QUOTAS, QUOTAS, cells=False) for trace in traces],
        "quotas, jobs on any slots": [excess_of(trace, QUOTAS, QUOTAS, cells=False) for trace in free],
        "no guarantees": [excess_of(trace, EASY, EASY, cells=False) for trace in traces],
    }
    text = []
    for name, all_of_them in found.items():
        tenant, mean = tuple(one.tenant for one in all_of_them), tuple(one.mean for one in all_of_them)
        text.append(
            f"{name}: worst tenant {fmean(tenant):+.1f} +-{interval(tenant):.1f}, at most {max(tenant):+.1f}, "
            f"worst job {max(one.job for one in all_of_them):+.1f}, all jobs {fmean(mean):+.1f} +-{interval(mean):.1f}"
        )
    return Outcome(None, round(max(one.tenant for one in found["cells"]), 2), "; ".join(text))


def _measured() -> Outcome:
    """Return the excess with quotas. The reason has that without guarantees."""
    trace = tenants_jobs()
    nodes = sizes(trace.jobs)
    before, after = (excess_of(trace, policy, policy, cells=False) for policy in (EASY, QUOTAS))
    cells = excess_of(trace, EASY, EASY, cells=True)
    reason = (
        f"sizes of the {len(nodes)} virtual clusters are ours, {sum(nodes.values())} nodes of {NODE_GPUS}; mean of all "
        f"jobs {after.mean:+.1f}, one job {after.job:+.0f}; FIFO and EASY without guarantees: tenant "
        f"{before.tenant:+.1f}, mean {before.mean:+.1f}, one job {before.job:+.0f}; private "
        f"clusters use the same policy; cells, FIFO and EASY: tenant {cells.tenant:+.1f}, mean {cells.mean:+.1f}, "
        f"one job {cells.job:+.0f}"
    )
    return Outcome(None, round(after.tenant, 1), reason)
