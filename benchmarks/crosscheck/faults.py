"""Faults of ranks, nodes and ports, and the positions that each one slows down."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from benchmarks.crosscheck.job import Job, Load

FAULTS = (
    "one", "several-of-node", "node", "port", "hang", "stall", "gradual", "intermittent", "from-start", "neighbours",
)  # fmt: skip


@dataclass
class Fault:
    """A fault: its kind, its positions, the steps it affects, and its severity."""

    kind: str
    positions: list[int]
    active: NDArray[np.bool_]
    severity: float


def inject(kind: str, job: Job, load: Load, rng: Generator) -> Fault:
    """Add a fault of this kind to the load, and return it."""
    nodes = job.node()
    severity = float(np.exp(rng.uniform(np.log(0.05), np.log(1.0))))
    onset = int(rng.uniform(0.3, 0.65) * job.steps)
    victim = int(rng.integers(0, job.ranks))
    node = np.flatnonzero(nodes == nodes[victim])
    who = np.array([victim])
    active = np.arange(job.steps) >= onset
    if kind == "several-of-node":
        who = rng.choice(node, min(int(rng.integers(2, 4)), node.size), replace=False)
    elif kind in ("node", "port"):
        who = node
    elif kind == "neighbours":
        firsts = np.unique(nodes, return_index=True)[1]
        who = rng.choice(firsts, min(int(rng.integers(2, 4)), firsts.size), replace=False)
        who = who + rng.integers(0, min(job.per_node, job.ranks % job.per_node or job.per_node), who.size)
    if kind == "port":
        load.link[np.ix_(active, who)] *= 1 + severity * rng.uniform(4, 20)
        return Fault(kind, sorted(map(int, who)), active, severity)
    if kind in ("hang", "stall"):
        active = np.arange(job.steps) == min(onset + int(rng.integers(0, job.steps // 3)), job.steps - 1)
        # PyTorch gives up after ten minutes by default; a rank that works alone for longer stops the job.
        length = rng.uniform(700, 3600) if kind == "hang" else min(job.base * rng.uniform(40, 400), 500)
        load.start[np.ix_(active, who)] += length
        return Fault(kind, [victim], active, severity)
    strength = active.astype(float)
    if kind == "gradual":
        strength = np.clip((np.arange(job.steps) - onset) / rng.uniform(30, 150), 0, 1)
    elif kind == "intermittent":
        on, n = True, onset
        while n < job.steps:
            length = int(rng.integers(6, 30))
            strength[n : n + length] = on
            on, n = not on, n + length
    elif kind == "from-start":
        strength = np.ones(job.steps)
    load.factor[:, who] *= 1 + severity * strength[:, None]
    return Fault(kind, sorted(map(int, who)), strength > 0, severity)
