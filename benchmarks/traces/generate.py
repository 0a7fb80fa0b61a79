"""Random choice of a trace's class, layout, size, wait times and severity, from one seed."""

from __future__ import annotations

import numpy as np

from benchmarks.traces.faults import FAULTS
from benchmarks.traces.job import WAITS, Job, Truth, Waits
from benchmarks.traces.model import LAYOUTS, LayoutName, make_layout
from benchmarks.traces.workloads import HEALTHY, base_times

CLASSES = (*HEALTHY, *FAULTS)

SIZES = (8, 16, 32, 64, 128, 256, 512)
SEVERITIES = (0.1, 0.2, 0.35, 0.5, 1.0)

STAGE_NODE_SIZES = {"pp": 32, "pp-tp": 32}
"""Sizes at which a node of eight ranks is one of four stages."""


def generate(
    seed: int,
    name: str,
    *,
    layout: LayoutName | None = None,
    ranks: int | None = None,
    waits: Waits | None = None,
    severity: float | None = None,
    most_ranks: int = SIZES[-1],
) -> Job:
    """Return the trace of a seed and class. Arguments that are None are chosen at random.

    The same arguments always give the same trace. Raises KeyError for an unknown class.
    """
    effect = HEALTHY[name] if name in HEALTHY else FAULTS[name]
    rng = np.random.default_rng([seed, CLASSES.index(name)])
    drawn_layout = LAYOUTS[int(rng.integers(len(LAYOUTS)))]
    allowed = [size for size in SIZES if size <= most_ranks]
    drawn_ranks = int(rng.choice(allowed))
    drawn_waits = WAITS[int(rng.choice(3, p=(0.6, 0.2, 0.2)))]
    drawn_severity = float(rng.choice(SEVERITIES))
    steps = int(rng.integers(160, 340))
    if name.startswith("hot-expert"):
        drawn_layout = "moe"
    if name == "sick-stage-node":
        drawn_layout = "pp" if drawn_layout in ("ddp", "pp") else "pp-tp"
        drawn_ranks = STAGE_NODE_SIZES[drawn_layout]
    if name == "checkpoints":
        steps = max(steps, 300)
    place = make_layout(layout or drawn_layout, ranks or drawn_ranks, rng)
    own, comm = base_times(rng, steps, place.ranks)
    truth = Truth(
        name, name in HEALTHY, place.name, place.ranks, steps, waits or drawn_waits, place.per_node,
        drawn_severity if severity is None else severity,
    )  # fmt: skip
    if truth.healthy:
        truth.severity = 0.0
    job = Job(rng, place, own, comm, truth)
    if place.stages > 1:
        own[:, place.stage_of() == place.stages - 1] *= 1.0 + rng.uniform(0.0, 0.12)
        truth.own_causes += ["stage-partition", "stage_imbalance"]
    if place.experts > 1:
        own *= np.exp(rng.normal(0.0, 0.015, own.shape))
        truth.own_causes += ["sequence-length", "sequence_imbalance"]
    effect(job)
    job.finish()
    return job
