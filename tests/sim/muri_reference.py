"""Independent implementation of the rules in Muri's published runs, as a reference for the simulator.

It follows Rivendile/Muri, simulator/run_sim.py, and shares no code with that file, the simulator or the cycle.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

from scheduler_feedback.sim.presets import MURI_LAS_GPU_SECONDS, MURI_SLOWER, OTHER_START_SECONDS, START_SECONDS

NEVER = math.inf


@dataclass
class _Job:
    name: str
    gpus: int
    submitted: float
    left: float
    stall: float
    runs: bool = False
    since: float = 0.0
    attained: float = 0.0
    level: int = 0


def read(path: Path) -> list[_Job]:
    with path.open() as file:
        rows = list(csv.DictReader(file))
    jobs = [
        _Job(
            row["job_id"],
            int(row["num_gpu"]),
            float(row["submit_time"]) / 1e3,
            int(row["iterations"]) * float(row["iteration_time"]) / 1e3 * MURI_SLOWER,
            START_SECONDS.get(row["model_name"], {}).get(int(row["num_gpu"]), OTHER_START_SECONDS),
        )
        for row in rows
    ]
    return sorted(jobs, key=lambda job: job.submitted)


def run(path: Path, order: str, gpus: int = 64) -> dict[str, tuple[float, float]]:
    """Return {job: (submission, end)} in seconds. order: 'srtf', 'srsf' or 'las'."""
    coming, live, done = read(path), list[_Job](), dict[str, tuple[float, float]]()
    ends_at = falls_at = NEVER
    levels: list[list[_Job]] = [[], [], []]
    while coming or live:
        arrives_at = coming[0].submitted if coming else NEVER
        now = min(arrives_at, ends_at, falls_at)
        if now == ends_at:
            for job in [job for job in live if job.runs and job.since + job.left <= now * (1 + 1e-12)]:
                done[job.name] = (job.submitted, now)
                live.remove(job)
                levels[job.level].remove(job)
        while coming and coming[0].submitted == now:
            job = coming.pop(0)
            live.append(job)
            levels[0].append(job)
        for job in live:
            if job.runs:
                job.left -= max(now - job.since - job.stall, 0.0)
                job.attained += now - job.since
                # Allow a microsecond, because sums of floats may be slightly below an exact limit.
                if job.level < 2 and job.attained * job.gpus >= MURI_LAS_GPU_SECONDS[job.level] - 1e-6:
                    levels[job.level].remove(job)
                    job.level += 1
                    levels[job.level].append(job)
            job.since = now
        if order == "las":
            line = [job for level in levels for job in level]
        else:
            live.sort(key=lambda job: job.left * (job.gpus if order == "srsf" else 1))
            line = live
        free = gpus
        for job in line:
            job.runs = free >= job.gpus
            free -= job.gpus if job.runs else 0
        for level in levels:
            level.sort(key=lambda job: not job.runs)
        running = [job for job in live if job.runs]
        ends_at = min((now + job.left for job in running), default=NEVER)
        falls_at = NEVER
        if order == "las":
            falls_at = min(
                (
                    now + math.ceil(MURI_LAS_GPU_SECONDS[job.level] / job.gpus) - job.attained
                    for job in running
                    if job.level < 2
                ),
                default=NEVER,
            )
    return done
