"""Small simulations whose results can be computed by hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.core.state import Backfilling, Estimates, Order, Policy
from scheduler_feedback.sim.engine import Engine
from scheduler_feedback.sim.job_trace import SIMULATED_COMMAND, Trace, TraceJob
from scheduler_feedback.sim.simulated_nodes import grid
from scheduler_feedback.sim.simulation import Simulation

FIFO_EASY = Policy(order=Order.FIFO, backfill=Backfilling.EASY, estimates=Estimates.EXACT)


def job(job_id: str, at: float, ranks: int, run_seconds: float, **specification: Any) -> TraceJob:
    """Return a job that is submitted `at` seconds after the start of the simulation."""
    spec = JobSpec(job_id, SIMULATED_COMMAND, ranks, **specification)
    return TraceJob(job_id, 0, round(at * 1e9), run_seconds, spec)


def simulation(jobs: Iterable[TraceJob], nodes: int, slots: int, **settings: Any) -> Simulation:
    """Return a simulation; by default with FIFO order, EASY backfill and exact run time estimates."""
    settings.setdefault("policy", FIFO_EASY)
    return Simulation(Trace("scenario", tuple(jobs)), grid(nodes, slots), spans=True, **settings)


def starts(engine: Engine) -> dict[str, float]:
    """Return each job's first start, in seconds after the start of the simulation."""
    return {
        job_id: (course.first_start_ns - engine.first_ns) / 1e9
        for job_id, course in engine.courses.items()
        if course.first_start_ns is not None
    }


def ends(engine: Engine) -> dict[str, float]:
    """Return each job's end, in seconds after the start of the simulation."""
    return {
        job_id: (course.ended_ns - engine.first_ns) / 1e9
        for job_id, course in engine.courses.items()
        if course.ended_ns is not None
    }
