"""Measured speeds and jobs of Sia's public artifact (Subramanya et al., SOSP'23; siasosp23/artifacts aaf7a0d).

The files in ``data`` are derived by ``sia_derive``: samples per second by model and global batch, GPU type, ranks and
placement, and ten traces of 160 jobs, which Sia's authors drew from the Helios Saturn trace. The artifact states no
licence of its own; it builds on petuum/adaptdl (Apache 2.0). The files contain measured facts only.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from scheduler_feedback.core.events import NodeSeen
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.sim.job_trace import SIMULATED_COMMAND, Trace, TraceJob
from scheduler_feedback.sim.speeds.measured_speeds import MeasuredSpeeds, read_speeds
from scheduler_feedback.sim.traces import sia

SPEEDS_FILE = Path(__file__).parent / "data" / "sia-speeds.csv"
JOBS_FILE = Path(__file__).parent / "data" / "sia-jobs.csv"

TRACES = 10
"""Number of traces, in place of seeds."""

GPUS = {"t4": 4, "rtx": 8, "a100": 8}
"""GPUs of a node, by GPU type."""
NODES = {"t4": 6, "rtx": 3, "a100": 2}
"""Number of nodes, by GPU type: Sia's default cluster of 64 GPUs."""

RESTART_SECONDS = {model: seconds for model, seconds in sia.RESTART_SECONDS.items() if model != "ncf"}
"""Cost of a restart by model of these traces."""


def nodes() -> tuple[NodeSeen, ...]:
    """Return the cluster: one rack for each GPU type."""
    return tuple(
        NodeSeen(f"{name}-{number}", GPUS[name], gpu_type=name, rack=name, machine=f"{name}-{number}")
        for name, count in NODES.items()
        for number in range(count)
    )


@cache
def speeds() -> MeasuredSpeeds:
    """Return the measured speeds."""
    return read_speeds(SPEEDS_FILE)


@dataclass(frozen=True, slots=True)
class SiaJob:
    """One job of the traces."""

    seconds: float
    """Time of the submission."""
    workload: str
    """Model and global batch."""
    ranks: int
    """Number of GPUs that the trace gives the job."""
    samples: float
    """Work of the job."""


@cache
def jobs(trace: int) -> tuple[SiaJob, ...]:
    """Return the jobs of a trace, 1 to TRACES."""
    with JOBS_FILE.open() as file:
        return tuple(
            SiaJob(float(row["seconds"]), row["workload"], int(row["ranks"]), float(row["samples"]))
            for row in csv.DictReader(file)
            if int(row["trace"]) == trace
        )


def given_speeds() -> dict[str, dict[str, float]]:
    """Return the speed of each workload on one GPU of each type, relative to the first type: an operator's knowledge
    without a measurement of several GPUs."""
    found: dict[str, dict[str, float]] = {}
    for workload, usual in speeds().usual.items():
        alone = {name: speeds().rate(workload, name, 1, 0) for name in GPUS}
        base = alone[usual]
        assert base is not None
        found[workload] = {name: rate / base for name, rate in alone.items() if rate is not None}
    return found


def trace(number: int, elastic: bool = True) -> Trace:
    """Return a trace for the simulator. elastic: whether jobs may run with any number of GPUs from 1 on."""
    table, found = speeds(), []
    for line, job in enumerate(jobs(number), 2):
        usual = table.usual[job.workload]
        rate = table.rate(job.workload, usual, job.ranks, 0 if job.ranks <= max(GPUS.values()) else 1)
        assert rate is not None
        spec = JobSpec(
            job.workload,
            SIMULATED_COMMAND,
            job.ranks,
            workload=job.workload,
            restartable=True,
            preemptible=True,
            restart_cost_seconds=RESTART_SECONDS[job.workload.split("-")[0]],
            grace_seconds=0.0,
            min_ranks=1 if elastic else None,
            max_ranks=_most(job) if elastic else None,
        )
        found.append(TraceJob(f"j{line}", line, round(job.seconds * 1e9), job.samples / rate, spec))
    return Trace(f"Sia's trace {number}", tuple(sorted(found, key=lambda one: one.submitted_ns)))


def _most(job: SiaJob) -> int:
    """Return the largest number of GPUs that was measured for the job's workload, at most those of one type."""
    largest = max(count * NODES[name] for name, count in GPUS.items())
    curves = speeds().curves.items()
    measured = max(round(math.exp(xs[-1])) for (name, _, _), (xs, _) in curves if name == job.workload)
    return max(min(measured, largest), job.ranks)
