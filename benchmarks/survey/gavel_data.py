"""Gavel's measured throughputs and its generated jobs (Narayanan et al., OSDI'20; stanford-futuredata/gavel c4fa400).

Gavel's simulated runs use jobs that are generated as ``static_jobs`` describes, and the throughputs of
``data/gavel-simulation-throughputs.csv``. Throughputs of its physical cluster are in the public file
``physical_cluster_throughputs.json`` (`gavel-throughputs.json` in the folder of public data), with those of pairs.
"""

from __future__ import annotations

import csv
import json
import random
import re
from dataclasses import dataclass
from pathlib import Path

GPU_TYPES = ("k80", "p100", "v100")
"""GPU types of Gavel's clusters. Durations of generated jobs are those on a v100."""

_KEY = re.compile(r"\('(.+)', (\d+)\)")

Throughputs = dict[tuple[str, int], tuple[float, ...]]
"""Steps per second of one job alone by (job type, number of GPUs), for each of GPU_TYPES; 0 if it does not run."""

SIMULATION_FILE = Path(__file__).parent / "data" / "gavel-simulation-throughputs.csv"

_BATCHES = (
    ("ResNet-18", True, (16, 32, 64, 128, 256)),
    ("ResNet-50", True, (16, 32, 64, 128)),
    ("Transformer", True, (16, 32, 64, 128, 256)),
    ("LM", True, (5, 10, 20, 40, 80)),
    ("Recommendation", False, (512, 1024, 2048, 4096, 8192)),
)
JOB_TYPES: tuple[tuple[str, bool], ...] = (
    *((f"{model} (batch size {size})", several) for model, several, sizes in _BATCHES for size in sizes),
    ("A3C", False),
    ("CycleGAN", False),
)
"""Job types of Gavel (scheduler/job_table.py): (name, whether it runs on several GPUs)."""


@dataclass(frozen=True, slots=True)
class GavelJob:
    """One generated job."""

    job_type: str
    """Name of the job type."""
    gpus: int
    """Number of GPUs."""
    seconds: float
    """Run time alone on v100 GPUs, in seconds."""
    speeds: tuple[float, ...]
    """Steps per second on each of GPU_TYPES."""

    @property
    def steps(self) -> float:
        """Number of steps of the job."""
        return self.seconds * self.speeds[GPU_TYPES.index("v100")]


def read_simulation() -> Throughputs:
    """Return the throughputs of Gavel's simulated runs."""
    with SIMULATION_FILE.open() as file:
        found = csv.DictReader(line for line in file if not line.startswith("#"))
        return {(one["job_type"], int(one["gpus"])): tuple(float(one[name]) for name in GPU_TYPES) for one in found}


def read_physical(path: Path) -> Throughputs:
    """Return the throughputs of jobs that run alone, from a file in Gavel's own format.

    Raises ValueError if a job type or a throughput is not as in that format.
    """
    document = json.loads(path.read_text())
    found: Throughputs = {}
    for key in document[GPU_TYPES[-1]]:
        if (matched := _KEY.fullmatch(key)) is None:
            raise ValueError(f"{path}: {key!r} is not ('JOB TYPE', GPUS)")
        speeds = tuple(float(document[name].get(key, {}).get("null", 0.0)) for name in GPU_TYPES)
        if min(speeds) < 0:
            raise ValueError(f"{path}: {key}: a throughput is less than 0")
        found[matched[1], int(matched[2])] = speeds
    return found


def static_jobs(throughputs: Throughputs, count: int, seed: int) -> list[GavelJob]:
    """Return jobs that all arrive at once, drawn as in Gavel's static traces with several GPUs.

    70 % have one GPU, 10 % two, 15 % four and 5 % eight. 80 % take 10^1.5 to 10^3 minutes and 20 % take 10^3 to 10^4
    minutes, log-uniform in each range. The job type is uniform among those that can have this number of GPUs
    (scheduler/utils.py).
    """
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        share = chance.random()
        gpus = 1 if share < 0.7 else 2 if share < 0.8 else 4 if share < 0.95 else 8
        low, high = (3.0, 4.0) if chance.random() >= 0.8 else (1.5, 3.0)
        seconds = 60.0 * 10.0 ** chance.uniform(low, high)
        job_type = chance.choice([name for name, several in JOB_TYPES if several or gpus == 1])
        found.append(GavelJob(job_type, gpus, seconds, throughputs[job_type, gpus]))
    return found
