"""Muri: the traces of Rivendile/Muri (Zhao et al., SIGCOMM'22), derived from Philly's, with a model for each job.

Columns: job_id, num_gpu, submit_time and duration in milliseconds, model_name. duration is rounded to whole seconds. If
there are also iterations and iteration_time (milliseconds), their product is the run time, as in the published runs.
Other columns (the share of each resource) describe how jobs would share a GPU and are ignored.
"""

from __future__ import annotations

from pathlib import Path

from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.sim.job_trace import SIMULATED_COMMAND, Trace, TraceJob, collect, jobs_of
from scheduler_feedback.sim.table import Row, rows

_NEEDED = ("num_gpu", "submit_time", "duration")


def read(path: Path) -> Trace:
    """Return the trace in this file. Raises TraceError."""
    return collect(str(path), jobs_of(rows(path, _NEEDED), "job_id", _job))


def _job(row: Row, job_id: str) -> TraceJob:
    model = row.text("model_name")
    spec = JobSpec(
        job_id, SIMULATED_COMMAND, row.count("num_gpu", 1), workload=model, restartable=True, preemptible=True
    )
    run_ms = row.number("duration")
    if row.text("iterations") and row.text("iteration_time"):
        run_ms = row.number("iterations") * row.number("iteration_time")
    return TraceJob(job_id, row.line, round(row.number("submit_time") * 1e6), run_ms / 1e3, spec)
