"""Readers of job traces. Each format has one module in this package and one entry in TRACES."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from scheduler_feedback.sim.job_trace import Trace
from scheduler_feedback.sim.traces import gangwatch, gavel, kubernetes, muri, openb, pai, philly, sia, slurm


@dataclass(frozen=True, slots=True)
class Format:
    """A trace format. read: reads a file, or raises TraceError with file, line and column. about: text for `--help` and
    the docs."""

    name: str
    read: Callable[[Path], Trace]
    about: str


TRACES = (
    Format("philly", philly.read, "timestamp, duration (s), num_gpus, cluster; the Philly trace as siasosp23 has it"),
    Format("muri", muri.read, "submit_time and duration in ms, num_gpu, model_name; the traces of Muri"),
    Format("openb", openb.read, "pods of Alibaba's cluster-trace-gpu-v2023"),
    Format("pai", pai.read, "pai_task_table.csv of Alibaba's cluster-trace-gpu-v2020, and pai_job_table.csv beside it"),
    Format("sia", sia.read, "workload-*.csv of siasosp23/artifacts, with the artifact's measurements beside it"),
    Format("gavel", gavel.read, "*.trace of stanford-futuredata/gavel, with its throughputs beside it"),
    Format("slurm", slurm.read, "`sacct --parsable2` with its header, or `sacct --json`"),
    Format("kubernetes", kubernetes.read, "pods of `kubectl get pods -A -o json`, or its --watch with events"),
    Format("gangwatch", gangwatch.read, "JSON lines of submitted_seconds, run_seconds and a job specification"),
)
"""All trace formats that can be read."""
