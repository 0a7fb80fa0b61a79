"""OpenB: pods of Alibaba's production clusters (cluster-trace-gpu-v2023; Weng et al., ATC'23). Times in seconds.

A pod runs from scheduled_time to deletion_time. Pods that were never scheduled have no known run time and are refused,
as are pods without a GPU. A pod that requests a share of one GPU (gpu_milli below 1000) may share a slot, and declares
this share. Its run time is that with the share; a whole GPU does not shorten it. gpu_spec contains the allowed GPU
types, separated by '|'. qos is the queue: BE pods are best effort and may be preempted.
"""

from __future__ import annotations

from pathlib import Path

from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.policies.shares.gpu_room import GPU_MILLI
from scheduler_feedback.sim.job_trace import SIMULATED_COMMAND, Trace, TraceJob, collect, jobs_of
from scheduler_feedback.sim.table import Row, rows

_NEEDED = ("num_gpu", "creation_time", "deletion_time", "scheduled_time")


def read(path: Path) -> Trace:
    """Return the trace in this file. Raises TraceError."""
    trace = collect(str(path), jobs_of(rows(path, _NEEDED), "name", _job))
    shared = _shared(path)
    if not shared:
        return trace
    note = f"{shared} pods request a share of a GPU; the sharing rules fgd and best-fit give it, others a whole GPU"
    return Trace(trace.name, trace.jobs, trace.refused, (*trace.notes, note))


def _job(row: Row, job_id: str) -> TraceJob:
    if row.count("num_gpu") == 0:
        raise row.wrong("num_gpu", "requests no GPU")
    if not row.text("scheduled_time"):
        raise row.wrong("scheduled_time", "was never scheduled, so its run time is unknown")
    run_seconds = row.number("deletion_time") - row.number("scheduled_time")
    if run_seconds < 0:
        raise row.wrong("deletion_time", "was deleted before it was scheduled")
    quality, milli = row.text("qos"), _milli(row)
    spec = JobSpec(
        job_id,
        SIMULATED_COMMAND,
        row.count("num_gpu", 1),
        queue=quality or "default",
        gpu_types=tuple(filter(None, row.text("gpu_spec").split("|"))),
        restartable=quality == "BE",
        preemptible=quality == "BE",
        shareable=milli < GPU_MILLI,
        slot_share=milli / GPU_MILLI if milli < GPU_MILLI else 0.0,
    )
    return TraceJob(job_id, row.line, round(row.number("creation_time") * 1e9), run_seconds, spec)


def _milli(row: Row) -> int:
    """Return the requested thousandths of one GPU; GPU_MILLI for whole GPUs."""
    if row.text("num_gpu") != "1" or not row.text("gpu_milli"):
        return GPU_MILLI
    milli = row.count("gpu_milli", 1)
    if milli > GPU_MILLI:
        raise row.wrong("gpu_milli", f"{milli} thousandths of one GPU; at most {GPU_MILLI}")
    return milli


def _shared(path: Path) -> int:
    return sum(
        isinstance(row, Row) and row.text("num_gpu") == "1" and row.text("gpu_milli") not in ("", "1000")
        for row in rows(path, ())
    )
