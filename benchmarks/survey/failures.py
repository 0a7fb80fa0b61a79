"""Row of failing nodes: GPU-hours that jobs lose by them, and what checkpoints at intervals save.

No survey row has a published figure for this trace. The rates are published (``scheduler_feedback.sim.failures``).
"""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

from benchmarks.policies import RESTART_COST_SECONDS, data_folder
from benchmarks.survey.row import Outcome, Row
from benchmarks.survey.shares import interval
from scheduler_feedback.core.state import Backfilling, Estimates, Order, Policy
from scheduler_feedback.sim.comparison import compared
from scheduler_feedback.sim.simulated_nodes import grid
from scheduler_feedback.sim.simulation import Simulation, read_trace

JOBS = 10_000
NODES = 64
RETRIES = 100
"""Enough retries that every job completes."""
CHECKPOINT_SECONDS = 3600.0
SEEDS = range(10)
POLICY = Policy(order=Order.FIFO, backfill=Backfilling.EASY, estimates=Estimates.EXACT)


def rows() -> list[Row]:
    """Return the rows of this module."""
    measure = f"GPU-hours lost by failing nodes, first {JOBS} Philly jobs, {NODES}x8, checkpoints every hour"
    return [
        Row("Philly", "retries after failures, checkpoints", measure, None, "Jeon et al., ATC'19", _lost, slow=True)
    ]


def _lost() -> Outcome:
    """Return the mean over the seeds. The reason has the loss without checkpoints at intervals."""
    trace = read_trace(data_folder() / "jobs" / "philly.csv", "philly")
    simulation = Simulation(
        replace(trace, jobs=trace.jobs[:JOBS]),
        grid(NODES, 8),
        POLICY,
        restart_cost_seconds=RESTART_COST_SECONDS,
        faults="failures",
        retries=RETRIES,
    )
    hours: dict[float | None, tuple[float, ...]] = {}
    for every in (None, CHECKPOINT_SECONDS):
        found = [compared("", replace(simulation, checkpoint_seconds=every, seed=seed))[0] for seed in SEEDS]
        assert not any(one.unfinished for one in found), "each failure is followed by a retry"
        hours[every] = tuple(one.lost_slot_hours for one in found)
    saved, lost = hours[CHECKPOINT_SECONDS], hours[None]
    reason = (
        f"10 seeds, +-{interval(saved):.0f}; without checkpoints {fmean(lost):.0f} +-{interval(lost):.0f}; rates by "
        f"component from Llama 3's training, repairs of a day on average are assumed; FIFO and EASY"
    )
    return Outcome(None, round(fmean(saved), 1), reason)
