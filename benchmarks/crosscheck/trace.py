"""One generated step trace: how it is drawn from a seed, and how its file is written."""

from __future__ import annotations

import csv
import json
import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from benchmarks.crosscheck.effects import EFFECTS, FILE_EFFECTS, jitter
from benchmarks.crosscheck.faults import FAULTS, Fault, inject
from benchmarks.crosscheck.job import Array, Job, Load, times

SIZES = (8, 8, 16, 16, 24, 32, 32, 48, 64, 64, 96, 128, 256, 512)
WAITS = ("known", "absent", "own")
LEAST_STEPS, MOST_STEPS = 100, 2000
HEALTHY_SAMPLES = 210  # of pai-job3: later, workers 6 to 9 are slower by a fifth


@dataclass
class Generated:
    """A trace and its truth."""

    seed: int
    job: Job
    effects: list[str]
    fault: Fault | None
    waits: str
    seconds: Array  # (steps, positions), as written, except lost samples
    own: Array
    step: NDArray[np.int64]  # number of the step in each row; steps repeat after a restart
    lost: NDArray[np.bool_]
    cost: float  # job's time in the affected steps, divided by that without the fault
    healthy_own: Array  # the own seconds without the fault

    @property
    def culprits(self) -> set[int]:
        """Return the ranks that have the fault."""
        return {int(self.job.number[p]) for p in self.fault.positions} if self.fault else set()


@cache
def recorded_residuals() -> Array:
    """Return log residuals (samples, workers) of pai-job3, a public trace, before four of its workers become slow.

    Raises SystemExit if the file is absent.
    """
    folder = Path(os.environ.get("GANGWATCH_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
    recorded = folder / "steps" / "pai-job3.csv"
    if not recorded.is_file():
        sys.exit(f"{recorded} is absent: set GANGWATCH_DATA to the folder of public traces")
    with recorded.open() as file:
        rows = [(int(r["time"]), int(r["worker"]), float(r["batch_time_norm"])) for r in csv.DictReader(file)]
    steps = {n: k for k, n in enumerate(sorted({row[0] for row in rows}))}
    workers = {w: k for k, w in enumerate(sorted({row[1] for row in rows}))}
    table = np.full((len(steps), len(workers)), np.nan)
    for n, w, seconds in rows:
        table[steps[n], workers[w]] = np.log(seconds) if seconds > 0 else np.nan
    table = table[:HEALTHY_SAMPLES]
    table -= np.nanmedian(table, axis=0)
    return np.asarray(np.nan_to_num(table))


def generate(seed: int, most_ranks: int = 512, most_samples: int = 40_000, waits: str | None = None) -> Generated:
    """Draw the trace of this seed. Even seeds are healthy; odd seeds have a fault, each kind in turn."""
    rng = np.random.default_rng([seed, 20_261_128])
    job = _job(rng, most_ranks, most_samples)
    nothing = np.zeros((job.steps, job.ranks))
    load = Load(np.exp(jitter(job, rng, recorded_residuals())), nothing.copy(), nothing.copy(), nothing + 1)
    effects = _effects(job, rng)
    for name in effects:
        if name in EFFECTS:
            EFFECTS[name](job, load, rng)
    sick = load.copy()
    fault = inject(FAULTS[(seed // 2) % len(FAULTS)], job, sick, rng) if seed % 2 else None
    seconds, own = times(job, sick, seed)
    healthy_seconds, healthy_own = times(job, load, seed)
    cost = 1.0
    if fault is not None:
        cost = float(seconds[fault.active].mean() / healthy_seconds[fault.active].mean())
    chosen = waits or str(rng.choice(WAITS, p=(0.65, 0.25, 0.1)))
    trace = Generated(
        seed, job, effects, fault, chosen, seconds, own, np.arange(job.steps), nothing > 0, cost, healthy_own
    )
    _file_effects(trace, rng)
    if fault is not None and fault.kind in ("hang", "stall") and rng.random() < 0.5:
        _cut(trace, int(np.flatnonzero(fault.active)[0]) + 1)
    return trace


def _job(rng: Generator, most_ranks: int, most_samples: int) -> Job:
    ranks = int(rng.choice([n for n in SIZES if n <= most_ranks]))
    styles = ("ddp", "fsdp", "tree", "pipeline", "experts", "local")
    style = str(rng.choice(styles, p=(0.24, 0.14, 0.09, 0.29, 0.19, 0.05)))
    stages = int(rng.choice([2, 4, 8])) if style == "pipeline" or (style == "experts" and rng.random() < 0.3) else 1
    shards = int(rng.choice([1, 2, 4])) if stages > 1 or style == "ddp" else 1
    while ranks % (stages * shards) or ranks // (stages * shards) < 2:
        stages, shards = max(stages // 2, 1), max(shards // 2, 1)
    replicas = ranks // (stages * shards)
    steps = int(np.exp(rng.uniform(np.log(LEAST_STEPS), np.log(MOST_STEPS))))
    steps = max(min(steps, most_samples // ranks), LEAST_STEPS)
    number = rng.permutation(ranks) if rng.random() < 0.4 else np.arange(ranks)
    per_node = int(rng.choice([1, 4, 8, 8, 8])) if ranks > 8 else int(rng.choice([1, 2, 4, 8]))
    nodes = -(-ranks // per_node)
    names = [f"{rng.choice(['gpu', 'node-', 'ip-10-'])}{k:x}" for k in rng.choice(65536, nodes, replace=False)]
    group = max((g for g in (2, 4, 8) if replicas % g == 0), default=1)
    base = float(np.exp(rng.uniform(np.log(0.05), np.log(30))))
    transfer = base * float(rng.choice([0.01, 0.05, 0.2]))
    return Job(
        replicas, stages, shards, steps, int(rng.choice([2, 4, 8])), style, group, per_node, base, transfer, number,
        names,
    )  # fmt: skip


def _effects(job: Job, rng: Generator) -> list[str]:
    possible = [*EFFECTS, *FILE_EFFECTS]
    if job.style != "experts":
        possible.remove("hot-expert")
    if job.stages == 1:
        possible.remove("last-stage")
    count = int(rng.choice([0, 1, 2, 3], p=(0.15, 0.4, 0.3, 0.15)))
    return [str(e) for e in rng.choice(possible, count, replace=False)]


def _file_effects(trace: Generated, rng: Generator) -> None:
    job, shape = trace.job, trace.seconds.shape
    if "lost" in trace.effects:
        trace.lost = rng.random(shape) < rng.uniform(0.005, 0.05)
    if "clock-steps" in trace.effects:
        nodes = job.node()
        for node in range(nodes.max() + 1):
            for n in rng.integers(1, job.steps, int(rng.integers(0, 4))):
                shift = rng.normal(0, 0.05) * job.base
                trace.seconds[n, nodes == node] = np.maximum(
                    trace.seconds[n, nodes == node] + shift, trace.own[n, nodes == node]
                )
    if "restart" in trace.effects:
        n, back = int(rng.integers(job.steps // 4, job.steps)), int(rng.integers(1, 15))
        trace.step = np.where(np.arange(job.steps) < n, trace.step, trace.step - back)
        extra = max(30.0, job.base * rng.uniform(5, 50)) * np.exp(0.02 * rng.standard_normal(job.ranks))
        trace.seconds[n] += extra.max()
        trace.own[n] += extra


def _cut(trace: Generated, length: int) -> None:
    for name in ("seconds", "own", "step", "lost", "healthy_own"):
        setattr(trace, name, getattr(trace, name)[:length])
    if trace.fault is not None:
        trace.fault.active = trace.fault.active[:length]


def write(trace: Generated, path: Path) -> None:
    """Write the trace as JSON lines: by step, or, for each tenth seed, by rank."""
    job = trace.job
    rng = np.random.default_rng([trace.seed, 7])
    replica, stage, shard = job.place()
    node = job.node()
    laid_out = rng.random() < 0.85 or job.stages > 1
    nothing = rng.choice(["absent", "null"])
    tokens = job.notes.get("tokens")
    fixed: list[dict[str, object]] = []
    for p in range(job.ranks):
        one: dict[str, object] = {"rank": int(job.number[p]), "node": job.names[node[p]]}
        if laid_out:
            one |= {"dp_rank": int(replica[p]), "stage": int(stage[p])}
            one |= {"tp_rank": int(shard[p])} if job.shards > 1 else {}
            one |= {"ep_rank": int(replica[p] % job.group)} if job.style == "experts" else {}
        fixed.append(one)
    lines = []
    for n in range(trace.seconds.shape[0]):
        for p in rng.permutation(job.ranks):
            if trace.lost[n, p]:
                continue
            total, own = float(trace.seconds[n, p]), float(trace.own[n, p])
            row = fixed[p] | {"step": int(trace.step[n]), "seconds": round(own if trace.waits == "own" else total, 6)}
            if trace.waits == "known":
                row["wait_seconds"] = round(max(total - own, 0.0), 6)
            elif nothing == "null":
                row["wait_seconds"] = None
            if isinstance(tokens, np.ndarray):
                row["tokens"] = float(tokens[n, p])
            lines.append((p, json.dumps(row)))
    if trace.seed % 20 in (8, 9):
        lines.sort(key=lambda line: line[0])
    path.write_text("\n".join(line for _, line in lines) + "\n")
