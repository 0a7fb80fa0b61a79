"""Readers of job traces. Each format has one module in this package and one entry in TRACES."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from scheduler_feedback.sim.job_trace import Trace


@dataclass(frozen=True, slots=True)
class Format:
    """A trace format. name: also that of its module. about: text for the docs."""

    name: str
    about: str

    def read(self, path: Path) -> Trace:
        """Read a file. Raises TraceError with file, line and column."""
        # Some readers need numpy, which takes longer to import than `--help` to print.
        trace: Trace = import_module(f"{__name__}.{self.name}").read(path)
        return trace


TRACES = (
    Format("philly", "timestamp, duration (s), num_gpus, cluster; the Philly trace as siasosp23 has it"),
    Format("muri", "submit_time and duration in ms, num_gpu, model_name; the traces of Muri"),
    Format("openb", "pods of Alibaba's cluster-trace-gpu-v2023"),
    Format("pai", "pai_task_table.csv of Alibaba's cluster-trace-gpu-v2020, and pai_job_table.csv beside it"),
    Format("sia", "workload-*.csv of siasosp23/artifacts, with the artifact's measurements beside it"),
    Format("gavel", "*.trace of stanford-futuredata/gavel, with its throughputs beside it"),
    Format("slurm", "`sacct --parsable2` with its header, or `sacct --json`"),
    Format("kubernetes", "pods of `kubectl get pods -A -o json`, or its --watch with events"),
    Format("gangwatch", "JSON lines of submitted_seconds, run_seconds and a job specification"),
)
"""All trace formats that can be read."""
