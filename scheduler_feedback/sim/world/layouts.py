"""Plans of jobs with other parallel layouts than ``plan.make`` draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from scheduler_feedback.sim.world import plan
from scheduler_feedback.sim.world.physics import hardware
from scheduler_feedback.sim.world.plan import BYTES_PER_ELEMENT, Plan

CONTENTION = (0.08, 0.19, 0.40)
"""Least, mean and largest increase of kernel times beside collectives. Lee et al., "Characterizing
Compute-Communication Overlap in GPU-Accelerated Distributed Deep Learning" (2025), measured 18.9 % on average and 40 %
at most."""

SYNC_STEPS = (8, 16, 32)
"""Steps from one exchange to the next in jobs with local SGD. DiLoCo uses hundreds; Stich (2019) up to tens."""

SHARDED_HIDDEN = 8192
"""Hidden size of sharded models, as in Llama 2 70B."""

SHARDED_LAYERS = 16
"""Largest number of layers of a sharded model. The layers of larger models are wrapped together, to gather fewer and
larger parts."""

Layout = Callable[[str, int, float, np.random.Generator], Plan]
"""Function that returns a plan: (name, gpus, step seconds, random)."""


def stage_a_node(name: str, gpus: int, step_seconds: float, random: np.random.Generator) -> Plan:
    """Return a job in which each node is one pipeline stage. Raises ValueError with fewer than four nodes."""
    if gpus < 32:
        raise ValueError(f"{name}: {gpus} GPUs; one stage a node needs 32")
    tensor = int(random.choice([2, 4, 8]))
    cut = tensor, gpus // hardware.GPUS_PER_NODE, hardware.GPUS_PER_NODE // tensor
    return plan.make(name, gpus, "balanced", step_seconds, random, cut=cut)


def interleaved(name: str, gpus: int, step_seconds: float, random: np.random.Generator) -> Plan:
    """Return a job with an interleaved pipeline of two or four stages, each with two or four chunks."""
    units = gpus // hardware.GPUS_PER_NODE
    stages = int(random.choice([s for s in (2, 4) if units % s == 0 and s <= max(2, units // 2)]))
    made = plan.make(name, gpus, "balanced", step_seconds, random, cut=(8, stages, units // stages))
    chunks = int(random.choice([2, 4]))
    microbatches = -(-made.microbatches // stages) * stages
    # The bubble is shorter than without chunks, so there is more time for each microbatch.
    share = (made.microbatches + stages - 1) / (microbatches + (stages - 1) / chunks)
    return replace(
        made,
        chunks=chunks,
        microbatches=microbatches,
        product_seconds=made.product_seconds * share,
        memory_seconds=made.memory_seconds * share,
        tensor_bytes=made.tensor_bytes * share,
        tokens=made.tokens * microbatches * share / made.microbatches,
    )


def sharded(name: str, gpus: int, step_seconds: float, random: np.random.Generator) -> Plan:
    """Return a job whose parameters are sharded over all ranks (FSDP). Its ranks do not report waits."""
    made = plan.make(name, gpus, "balanced", step_seconds, random, cut=(1, 1, gpus))
    parameters = 12.0 * SHARDED_HIDDEN**2
    forward = float(made.product_seconds[0] + made.memory_seconds[0])
    gathered = parameters * BYTES_PER_ELEMENT / hardware.GPUS_PER_NODE
    # The collectives of a layer take between a quarter and nine tenths of the time of its kernels.
    wanted = float(random.uniform(0.25, 0.9)) * forward / (gathered / hardware.NIC_GOODPUT)
    return replace(
        made,
        data_bytes=0.0,
        rounds=1,
        layers=max(1, min(SHARDED_LAYERS, round(wanted))),
        gathered_bytes=gathered * max(wanted / SHARDED_LAYERS, 1.0) if wanted >= 1 else gathered * wanted,
        contention=_contention(random),
        reports_waits=False,
    )


def local_sgd(name: str, gpus: int, step_seconds: float, random: np.random.Generator) -> Plan:
    """Return a job whose replicas, of one or two nodes each, exchange their parameters only every few steps."""
    units = gpus // hardware.GPUS_PER_NODE
    stages = int(random.choice([1, 2] if units >= 4 and units % 2 == 0 else [1]))
    made = plan.make(name, gpus, "balanced", step_seconds, random, cut=(8, stages, units // stages))
    return replace(made, sync_steps=int(random.choice(SYNC_STEPS)))


def contended(name: str, gpus: int, step_seconds: float, random: np.random.Generator) -> Plan:
    """Return a usual job whose kernels take longer while the gradient exchange runs on the same GPU."""
    return replace(plan.make(name, gpus, "balanced", step_seconds, random), contention=_contention(random))


def _contention(random: np.random.Generator) -> float:
    least, mean, most = CONTENTION
    return float(np.clip(least + random.gamma(2.0, (mean - least) / 2.0), least, most))


LAYOUTS: dict[str, Layout] = {
    "stage-a-node": stage_a_node,
    "interleaved": interleaved,
    "sharded": sharded,
    "local-sgd": local_sgd,
    "contended": contended,
}
"""Layouts by name."""
