"""Hardware under a trace: GPU models, the cause of the fault, and healthy effects that only counters show.

The numbers are published ones: boost clocks and power limits of NVIDIA's data sheets (H100 SXM 1,980 MHz and 700 W,
A100 SXM 1,410 MHz and 400 W), idle power of these GPUs as nvidia-smi reports it, and NCCL's polling kernels, which
occupy one SM a channel. The shares of the causes follow Minder's table (NSDI'25), with classes merged and a share
without any explaining counter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from benchmarks.traces.job import Job
from benchmarks.traces.model import FloatArray

Origin = Literal["thermal", "power", "clock", "memory", "pcie", "cpu", "storage", "silent", "nic", "stuck", "none"]
"""Cause of a fault. thermal, power, clock: a lower clock, with or without a throttle reason; memory: slow or failing
device memory; pcie, cpu, storage: the GPU has nothing to run for the additional time; silent: kernels take longer, and
no counter shows why; nic: a slow NIC; stuck: a rank that hangs."""

SHARES: dict[str, dict[Origin, float]] = {
    "rank": {"thermal": 0.2, "power": 0.17, "clock": 0.13, "memory": 0.14, "pcie": 0.1, "cpu": 0.12, "silent": 0.14},
    "node": {"cpu": 0.3, "storage": 0.25, "power": 0.25, "thermal": 0.2},
    "outlier": {"clock": 0.4, "thermal": 0.2, "silent": 0.2, "memory": 0.2},
}

IDLE: frozenset[Origin] = frozenset({"pcie", "cpu", "storage", "stuck"})
"""Causes for which the GPU runs nothing in the additional time."""

PAUSES = frozenset({"recompiles", "loader-stalls", "checkpoints", "restarts", "long-step"})
"""Healthy classes in which a long step is time without anything to run on the GPU."""


@dataclass(frozen=True, slots=True)
class Model:
    """A GPU model. clock_hertz, limit_watts: boost clock and power limit; idle_watts: power without work."""

    clock_hertz: float
    limit_watts: float
    idle_watts: float


H100 = Model(1.98e9, 700.0, 90.0)
A100 = Model(1.41e9, 400.0, 60.0)


@dataclass(slots=True)
class Hardware:
    """Properties of the n ranks of a job that its step times do not show."""

    rng: np.random.Generator
    """Source of all random choices about counters. It is not the job's, so that seeds keep their step times."""
    origin: Origin
    clock: FloatArray
    """float64 [n]: SM clock of each GPU at work, in hertz."""
    boost: FloatArray
    """float64 [n]: SM clock of each GPU without much work, in hertz."""
    limit: FloatArray
    """float64 [n]: power limit in watts."""
    idle: FloatArray
    """float64 [n]: power in watts without work."""
    busy_power: FloatArray
    """float64 [n]: power at work, as a share of the limit."""
    tensor: FloatArray
    """float64 [n]: tensor activity at work."""
    sm: float
    """SM activity at work."""
    dram: float
    """Memory activity at work."""
    poll_sm: float
    """SM activity of a rank that waits in a collective."""
    poll_power: float
    """Power of such a rank, as a share of the limit."""
    capped: FloatArray
    """float64 [n]: share of its work in which a healthy GPU runs at its power limit."""
    warmer: FloatArray
    """float64 [n]: difference of a healthy GPU's temperature from the usual one, in kelvins."""
    mixed: bool
    """Whether work, waits and transfers alternate within a step, layer by layer. If not, they follow each other."""
    interval: float
    """Seconds between two samples."""
    lacking: frozenset[str] = field(default_factory=frozenset)
    """Groups of counters that this cluster does not collect."""


def origin_of(job: Job, rng: np.random.Generator) -> Origin:
    """Return the cause of the job's fault, drawn at random among those that fit its class."""
    name = job.truth.name
    if job.truth.healthy or name == "neighbours":
        return "none"
    if name in ("slow-nic", "hang"):
        return "nic" if name == "slow-nic" else "stuck"
    shares = SHARES["node" if name == "slow-node" else "outlier" if name == "gpu-outlier" else "rank"]
    causes = list(shares)
    return causes[int(rng.choice(len(causes), p=list(shares.values())))]


def intervals(seconds: float, rng: np.random.Generator) -> float:
    """Return the seconds between two samples: one of the usual intervals that gives at least 60 samples, or one second.

    seconds: length of the trace.
    """
    possible = [one for one in (1.0, 2.0, 5.0, 10.0, 15.0) if one * 60 <= seconds] or [1.0]
    return float(rng.choice(possible))


def make_hardware(job: Job, rng: np.random.Generator, seconds: float) -> Hardware:
    """Return the hardware of a job. Healthy ranks that are always slower have lower clocks.

    seconds: length of the trace.
    """
    n, name = job.layout.ranks, job.truth.name
    newer = [H100, A100][int(rng.random() < 0.3)]
    models = [newer] * n
    usual = np.median(job.own, axis=0)
    relative = np.ones(n)
    if name == "mixed-gpus":
        models = [A100 if node % 2 else H100 for node in job.layout.node_of().tolist()]
    elif name in ("gpu-spread", "gpu-outlier"):
        stages = job.layout.stage_of()
        for stage in range(job.layout.stages):
            members = stages == stage
            relative[members] = usual[members] / usual[members].min()
    boost = np.array([one.clock_hertz for one in models])
    tensor = np.full(n, rng.uniform(0.25, 0.6))
    tensor *= (1.0 + rng.uniform(-0.1, 0.1, job.layout.stages))[job.layout.stage_of()]
    clock = boost * rng.uniform(0.85, 0.98) * (1.0 + rng.normal(0.0, 0.008, n)) / relative
    lacking = {group for group, share in (("profiling", 0.15), ("host", 0.15), ("rank", 0.2), ("network", 0.1))
               if rng.random() < share}  # fmt: skip
    return Hardware(
        rng=rng,
        origin=origin_of(job, rng),
        clock=clock,
        boost=boost,
        limit=np.array([one.limit_watts for one in models]),
        idle=np.array([one.idle_watts for one in models]) * (1.0 + rng.normal(0.0, 0.05, n)),
        busy_power=np.clip(rng.uniform(0.7, 0.95) + rng.normal(0.0, 0.02, n), 0.4, 1.0),
        tensor=tensor * (1.0 + rng.normal(0.0, 0.01, n)),
        sm=rng.uniform(0.85, 0.97),
        dram=rng.uniform(0.25, 0.6),
        poll_sm=rng.uniform(0.04, 0.24),
        poll_power=rng.uniform(0.25, 0.4),
        capped=np.clip(rng.normal(0.0, 0.15, n), 0.0, 0.6) if rng.random() < 0.5 else np.zeros(n),
        warmer=rng.normal(0.0, 3.0, n) + rng.normal(0.0, 2.5, job.nodes())[job.layout.node_of()],
        mixed=bool(rng.random() < 0.5) or job.layout.tensor > 1 or job.layout.experts > 1,
        interval=intervals(seconds, rng),
        lacking=frozenset(lacking),
    )
