"""Row of Philly and Dally: how long a gang should wait for slots on one node before it runs on several.

Gangs of 2 to 8 GPUs of the Philly trace prefer one node. On several nodes they take APART times as long, which is an
assumption: no public trace has both placements. Compared are a fixed requirement (always consolidated), no wait (packed
if possible), and a wait of a given time before the preference is relaxed (Philly: Jeon et al., ATC'19, section 2.3;
Dally tunes the time for each level).
"""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

from msgspec import structs

from benchmarks.policies import RESTART_COST_SECONDS, data_folder
from benchmarks.survey.row import Outcome, Row
from benchmarks.survey.shares import interval
from scheduler_feedback.core.cluster import Level
from scheduler_feedback.core.state import Backfilling, Estimates, Order, Policy
from scheduler_feedback.sim.job_trace import Trace, TraceJob
from scheduler_feedback.sim.simulated_nodes import grid
from scheduler_feedback.sim.simulation import Simulation, read_trace

JOBS = 2000
NODES = 24
APART = 1.5
PATIENCE_SECONDS = (600.0, 3600.0, 14_400.0)
PIECES = 10
"""Pieces of the trace, in place of seeds: the trace has nothing random."""

POLICY = Policy(order=Order.FIFO, backfill=Backfilling.EASY, estimates=Estimates.EXACT)


def rows() -> list[Row]:
    """Return the rows of this module."""
    measure = (
        f"average JCT, always on one node = 1, {PIECES} pieces of {JOBS} Philly jobs, {NODES}x8, {APART}x slower apart"
    )
    return [Row("Philly", "timed relaxation of locality", measure, None, "Jeon et al., ATC'19", _measured, slow=True)]


def _pieces(fixed: bool) -> list[Trace]:
    """Return the pieces. fixed: whether gangs require one node instead of preferring it."""
    trace = read_trace(data_folder() / "jobs" / "philly.csv", "philly")
    step = len(trace.jobs) // PIECES
    return [
        replace(trace, jobs=tuple(_local(job, fixed) for job in trace.jobs[at : at + JOBS]))
        for at in range(0, step * PIECES, step)
    ]


def _local(job: TraceJob, fixed: bool) -> TraceJob:
    if not 1 < job.spec.ranks <= 8:
        return job
    level = Level.NODE
    return replace(job, spec=structs.replace(job.spec, preferred_level=level, required_level=level if fixed else None))


def average_jct(trace: Trace, patience_seconds: float) -> float:
    """Return the average completion time in seconds."""
    policy = replace(POLICY, level_patience_seconds=patience_seconds)
    simulation = Simulation(
        trace, grid(NODES, 8), policy, restart_cost_seconds=RESTART_COST_SECONDS, apart_slowdown=APART
    )
    found = simulation.run().avg_jct_seconds
    assert found is not None, "all jobs end"
    return found


def _measured() -> Outcome:
    fixed = [average_jct(piece, 0.0) for piece in _pieces(fixed=True)]
    pieces = _pieces(fixed=False)
    shares = {
        patience: tuple(average_jct(piece, patience) / base for piece, base in zip(pieces, fixed, strict=True))
        for patience in (0.0, *PATIENCE_SECONDS)
    }
    best = min(PATIENCE_SECONDS, key=lambda patience: fmean(shares[patience]))
    text = ", ".join(f"{patience:g} s {fmean(found):.3f} +-{interval(found):.3f}" for patience, found in shares.items())
    return Outcome(None, round(fmean(shares[best]), 4), f"by time of the wait: {text}; the slowdown apart is assumed")
