"""Rows of Gandiva's migration and time slicing, on the jobs and the cluster of ``shared_slots``.

Migration: guests move to idle slots if the measured gain pays. Compared is the same rule without moves, at two loads,
because slots are rarely idle at the load of the other rows. Time slicing: gangs run in turn, each for SLICE_SECONDS,
and pay for each restart. Compared is FIFO with EASY backfill, which knows all run times. Gandiva suspends a gang in
memory in about a second; that cost is the second figure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean

from benchmarks.policies import RESTART_COST_SECONDS
from benchmarks.survey.row import Outcome, Row
from benchmarks.survey.shared_slots import FIFO, GPU_TYPE, JOBS, NODES, engine_of, trace_of
from benchmarks.survey.shares import SEEDS, interval
from scheduler_feedback.core.state import Order, Policy, Sharing
from scheduler_feedback.sim.simulated_nodes import grid
from scheduler_feedback.sim.simulation import Simulation

SOURCE = "Xiao et al., OSDI'18 (26 % utilisation gain by all mechanisms, on its own cluster and trace)"

LOADS = (1.2, 0.6)
"""Work that arrives, relative to what the cluster can do alone: that of the other rows, and half of it."""

SLICE_SECONDS = 1800.0
"""Time slice of the policy's default."""

SUSPEND_SECONDS = 1.0
"""Cost of a restart if gangs are suspended in memory (Gandiva, section 6: about a second)."""


@dataclass(frozen=True, slots=True)
class Turns:
    """Figures of one simulation."""

    wait: float
    """Mean time from submission to the first start, in seconds."""
    jct: float
    """Average completion time, in seconds."""


def rows() -> list[Row]:
    """Return the rows of this module."""
    base = f"{JOBS} jobs of Gavel's distribution, {NODES}x8 v100, ten seeds"
    return [
        Row("Gandiva", "migration of jobs that share slots", f"average JCT, sharing without moves = 1, {base}", None,
            SOURCE, _migration, slow=True),
        Row("Gandiva", "time slicing of gangs", f"mean wait for the first start, FIFO and EASY = 1, {base}", None,
            SOURCE, _slicing, slow=True),
    ]  # fmt: skip


@cache
def moved(seed: int, load: float, moves: bool) -> tuple[float, int]:
    """Return the average completion time in seconds, and the number of moves."""
    policy = replace(FIFO, sharing=Sharing.GANDIVA, move_guests=moves)
    engine = engine_of(trace_of(seed, load=load), policy)
    report = engine.run()
    assert report.avg_jct_seconds is not None, "all jobs end"
    return report.avg_jct_seconds, engine.state.counts.get("decisions/guest-moves/applied", 0)


def turns(seed: int, policy: Policy, restart_seconds: float) -> Turns:
    """Return the figures of one policy."""
    nodes = grid(NODES, 8, gpu_type=GPU_TYPE)
    engine = Simulation(trace_of(seed), nodes, policy, restart_cost_seconds=restart_seconds).engine()
    report = engine.run()
    assert report.avg_jct_seconds is not None, "all jobs end"
    first = [(job.started_ns or 0) - job.submitted_ns for job in engine.state.jobs.values()]
    return Turns(fmean(first) / 1e9, report.avg_jct_seconds)


def _said(values: tuple[float, ...]) -> str:
    return f"{fmean(values):.3f} +-{interval(values):.3f}"


def _migration() -> Outcome:
    parts = []
    shares: dict[float, tuple[float, ...]] = {}
    for load in LOADS:
        shares[load] = tuple(moved(seed, load, True)[0] / moved(seed, load, False)[0] for seed in SEEDS)
        count = fmean(moved(seed, load, True)[1] for seed in SEEDS)
        parts.append(f"load {load:g}: {_said(shares[load])}, {count:.1f} moves")
    return Outcome(None, round(fmean(shares[LOADS[0]]), 4), "; ".join(parts))


def _slicing() -> Outcome:
    rule = replace(FIFO, order=Order.ROUND_ROBIN, preempt=True, slice_seconds=SLICE_SECONDS)
    base = [turns(seed, FIFO, RESTART_COST_SECONDS) for seed in SEEDS]
    parts, waits = [], tuple[float, ...]()
    for cost in (SUSPEND_SECONDS, RESTART_COST_SECONDS):
        found = [turns(seed, rule, cost) for seed in SEEDS]
        waits = tuple(a.wait / b.wait for a, b in zip(found, base, strict=True))
        jct = tuple(a.jct / b.jct for a, b in zip(found, base, strict=True))
        parts.append(f"restarts of {cost:g} s: wait {_said(waits)}, average JCT {_said(jct)}")
    return Outcome(None, round(fmean(waits), 4), f"{'; '.join(parts)}; slices of {SLICE_SECONDS:g} s")
