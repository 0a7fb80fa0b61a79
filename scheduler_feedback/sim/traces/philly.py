"""Philly: Microsoft's multi-tenant GPU cluster, 2017 (Jeon et al., ATC'19), in the form that siasosp23/artifacts has.

Columns: timestamp (local time, no zone), duration (seconds), num_gpus, cluster (the virtual cluster, here the queue).
It has no job ids, so the line number is the id. It has no users, time limits or model names.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.sim.job_trace import SIMULATED_COMMAND, Trace, TraceJob, collect, jobs_of
from scheduler_feedback.sim.table import Row, rows

_NEEDED = ("timestamp", "duration", "num_gpus", "cluster")


def read(path: Path) -> Trace:
    """Return the trace in this file. Raises TraceError."""
    return collect(str(path), jobs_of(rows(path, _NEEDED), "job_id", _job))


def _job(row: Row, job_id: str) -> TraceJob:
    queue = row.text("cluster") or "default"
    spec = JobSpec(job_id, SIMULATED_COMMAND, row.count("num_gpus", 1), queue=queue, restartable=True, preemptible=True)
    return TraceJob(job_id, row.line, _instant_ns(row), row.number("duration"), spec)


def _instant_ns(row: Row) -> int:
    """Return the time in nanoseconds. Local time is read as UTC, because only differences matter."""
    try:
        instant = datetime.fromisoformat(row.text("timestamp"))
    except ValueError:
        raise row.wrong("timestamp", f"{row.text('timestamp')[:40]!r} is not a date and time") from None
    instant = instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)
    return round(instant.timestamp() * 1e9)
