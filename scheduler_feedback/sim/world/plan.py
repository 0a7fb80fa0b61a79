"""Plan of a training job: its division over ranks, and the work of each rank in a step.

Ranks are numbered as in Megatron-LM: the tensor rank changes fastest, then the data rank, then the stage. Arrays over
the ranks of a job therefore have the shape [stages, data, tensor]. The work follows from the arithmetic of a
transformer (Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters", 2021): for b sequences
of s tokens and hidden size h, 24 b s h^2 (1 + s/6h) FLOPs per layer forward, twice that backward, and two all-reduces
of b s h elements per layer and direction in a tensor group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from scheduler_feedback.sim.world.arrays import FloatArray, IntArray
from scheduler_feedback.sim.world.physics import hardware
from scheduler_feedback.sim.world.physics.hardware import GpuModel

Workload = Literal["balanced", "dp2", "unequal-stages", "long-context", "long-context-untold", "moe", "moe-untold"]
WORKLOADS: tuple[Workload, ...] = (
    "balanced",
    "dp2",
    "unequal-stages",
    "long-context",
    "long-context-untold",
    "moe",
    "moe-untold",
)
"""Names of the simulated workloads. 'dp2' has only two replicas; jobs of a kind '...-untold' do not report tokens."""

BYTES_PER_ELEMENT = 2
"""Number of bytes per element: activations, gradients and gathered weights are BF16."""

OPTIMIZER_BYTES = 16
"""Bytes read and written per parameter by mixed-precision Adam, sharded over the data ranks (ZeRO-1)."""

MOST_DP2_GPUS = 256
"""Maximum number of GPUs of a job with two replicas: in practice a replica has at most 16 pipeline stages, here of 8
GPUs."""

DATA_OVERLAP = 0.3
"""Share of the gradient exchange that is hidden because it overlaps with the last backwards."""

OVERLAP = 0.6
"""Share of a tensor group's all-reduces that is hidden because it overlaps with matrix products."""


MEMORY_PART = 0.12
"""Time of memory-bound kernels, as a share of the time of matrix products."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Parallel layout of a simulated job, and the work of its parts.

    Seconds are for one microbatch of weight 1 at the boost clock, full memory bandwidth and an idle host:
    product_seconds [stages]: forward matrix products of a rank. memory_seconds [stages]: memory-bound forward kernels.
    launch_seconds [stages]: host time to launch a forward. A backward takes twice as long.

    tensor_bytes: all-reduced in a tensor group, per microbatch and direction.
    stage_bytes: sent by a rank to the next stage, per microbatch.
    data_bytes: gradients and weights that a rank exchanges with its replicas per step. rounds: number of parts of this
    exchange.
    exchange_bytes: expert all-to-all per microbatch and direction; 0 without experts.
    expert_share: share of the matrix products in experts.
    attention_share: share of a microbatch's time that grows with the squares of its sequence lengths.
    tokens: per rank and step. per_node: ranks on a node.
    """

    name: str
    workload: Workload
    gpus: int
    tensor: int
    stages: int
    data: int
    expert: int
    microbatches: int
    product_seconds: FloatArray
    memory_seconds: FloatArray
    launch_seconds: FloatArray
    tensor_bytes: float
    stage_bytes: float
    data_bytes: float
    rounds: int
    exchange_bytes: float
    expert_share: float
    optimizer_seconds: float
    attention_share: float
    tokens: float
    reports_tokens: bool
    per_node: int
    model: GpuModel = hardware.H100
    chunks: int = 1
    """Number of parts of the model on each rank (virtual stages of an interleaved pipeline); 1 without interleaving."""
    contention: float = 0.0
    """Increase of a kernel's time while a collective runs on the same GPU (0.19: 19 %)."""
    layers: int = 0
    """Number of layers of a sharded model; 0 if the model is not sharded."""
    gathered_bytes: float = 0.0
    """Parameters of one layer of a sharded model that pass through each NIC when they are gathered; 0 without
    sharding."""
    sync_steps: int = 1
    """Number of steps from one exchange between replicas to the next (local SGD); 1: in each step."""
    reports_waits: bool = True
    """Whether the ranks report how long they wait in collectives."""

    @property
    def sharded(self) -> bool:
        """Whether the parameters are sharded over all ranks and gathered layer by layer (FSDP)."""
        return self.gathered_bytes > 0

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the parallel layout: (stages, data, tensor)."""
        return self.stages, self.data, self.tensor

    def coordinates(self) -> tuple[IntArray, IntArray, IntArray]:
        """Return the coordinates (stage, data, tensor) of each rank: three arrays int64 [gpus]."""
        stage, data, tensor = np.indices(self.shape).reshape(3, -1)
        return stage.astype(np.int64), data.astype(np.int64), tensor.astype(np.int64)

    @property
    def varies(self) -> bool:
        """Whether microbatches differ by the lengths of their sequences."""
        return self.attention_share > 0


def _cut(name: str, gpus: int, workload: Workload, per_node: int, random: np.random.Generator) -> tuple[int, int, int]:
    """Return the numbers of (tensor ranks, stages, data ranks) for a job of this size. Raises ValueError.

    Tensor groups stay inside a node, as NVLink does.
    """
    if gpus < 16 or gpus % 16:
        raise ValueError(f"{name}: {gpus} GPUs; a multiple of 16")
    if workload == "dp2" and gpus > MOST_DP2_GPUS:
        raise ValueError(f"{name}: {gpus} GPUs in two replicas; at most {MOST_DP2_GPUS}")
    tensor = per_node if gpus >= 32 or workload == "dp2" else int(random.choice([2, 4]))
    units = gpus // tensor
    if workload == "dp2":
        return tensor, units // 2, 2
    wanted = 4 if workload == "unequal-stages" else int(random.choice([1, 2, 4, 8] if gpus > 16 else [1]))
    replicas = 2 if workload == "unequal-stages" else 4
    stages = max(s for s in range(1, min(wanted, max(1, units // replicas)) + 1) if units % s == 0)
    return tensor, stages, units // stages


def _layer_seconds(hidden: int, tensor: int, model: GpuModel) -> tuple[float, float, float]:
    """Return the seconds that one rank needs for one layer and token in the forward pass.

    Three parts: matrix products, memory traffic, and the part of the all-reduce that compute does not hide.
    """
    product = 24.0 * hidden**2 / tensor / (model.peak_flops * model.achieved)
    moved = 2 * 2 * hidden * BYTES_PER_ELEMENT * (tensor - 1) / tensor * 2 * (1 - OVERLAP) / 2
    return product, MEMORY_PART * product, moved / model.nvlink_bytes_per_second


def _expert_ranks(most: int, ranks: int) -> int:
    """Return the size of an expert group. It is at most `most` and divides the number of ranks of a stage."""
    return next(size for size in (64, 32, 16, 8, 4, 2, 1) if size <= most and ranks % size == 0)


def _stage_weights(stages: int, workload: Workload, random: np.random.Generator) -> FloatArray:
    """Return the work of each stage relative to an even division: [stages]."""
    weights = 1.0 + 0.01 * np.clip(random.standard_normal(stages), -2.0, 2.0)
    if workload == "unequal-stages":
        weights[-1] *= float(random.uniform(1.15, 1.40))  # the last stage has the vocabulary layer and the loss
    return weights


def _microbatches(stages: int, step_seconds: float) -> int:
    """Return the number of microbatches: enough to keep the idle time of stages short, fewer in short steps."""
    return int(np.clip(round(2.0 * stages + step_seconds * 1.5), 2 * stages, 24 if stages < 16 else 2 * stages))


def make(
    name: str,
    gpus: int,
    workload: Workload,
    step_seconds: float,
    random: np.random.Generator,
    per_node: int = hardware.GPUS_PER_NODE,
    communication: float | None = None,
    cut: tuple[int, int, int] | None = None,
) -> Plan:
    """Create a job of this size and workload whose step takes about `step_seconds`, with `per_node` GPUs per node.

    communication: share of the step for the gradient exchange; random if None. cut: numbers of (tensor ranks, stages,
    data ranks); random if None.
    Raises ValueError unless `gpus` is a multiple of 16, and at most MOST_DP2_GPUS for workload 'dp2' (two replicas).
    """
    tensor, stages, data = _cut(name, gpus, workload, per_node, random) if cut is None else cut
    microbatches = _microbatches(stages, step_seconds)
    hidden = 4096 if gpus <= 32 else int(random.choice([8192, 12288]))
    bubble = (microbatches + stages - 1) / microbatches
    drawn = float(random.uniform(0.08, 0.22))  # in any case, so that the next draws do not depend on it
    communication = drawn if communication is None else communication
    busy = step_seconds * (1.0 - communication) / bubble / microbatches
    product, memory, exposed = _layer_seconds(hidden, tensor, hardware.H100)
    layer_tokens = busy / (3.0 * (product + memory) + 2.0 * exposed)
    layers = max(1, int(np.clip(round(layer_tokens / 16384.0), 1, 96 // stages)))
    tokens = layer_tokens / layers
    weights = _stage_weights(stages, workload, random)
    products = product * layer_tokens * weights
    launch = layers * hardware.KERNELS_PER_LAYER * hardware.LAUNCH_SECONDS * np.ones(stages)
    parameters = layers * 12.0 * hidden**2 / tensor
    exchange, expert_share, expert = 0.0, 0.0, 1
    if workload.startswith("moe"):
        communication *= 0.5
        expert, expert_share = _expert_ranks(gpus // stages // 2, data * tensor), 0.55
        exchange = communication * step_seconds / bubble / microbatches / 2 * hardware.NIC_GOODPUT
    data_bytes = 0.5 * communication * step_seconds * hardware.NIC_GOODPUT * max(1, min(data, per_node // tensor))
    optimizer_seconds = parameters / data * OPTIMIZER_BYTES / hardware.H100.memory_bytes_per_second
    return Plan(
        name=name,
        workload=workload,
        gpus=gpus,
        tensor=tensor,
        stages=stages,
        data=data,
        expert=expert,
        microbatches=microbatches,
        product_seconds=products,
        memory_seconds=memory * layer_tokens * weights,
        launch_seconds=np.minimum(launch, 0.5 * products),
        tensor_bytes=2.0 * tokens * layers * hidden * BYTES_PER_ELEMENT * (1 - OVERLAP),
        stage_bytes=tokens * hidden * BYTES_PER_ELEMENT / tensor if stages > 1 else 0.0,
        data_bytes=data_bytes if data > 1 else 0.0,
        rounds=max(1, round(data_bytes / (2.0 * parameters * BYTES_PER_ELEMENT))),
        exchange_bytes=exchange,
        expert_share=expert_share,
        optimizer_seconds=min(0.03 * step_seconds, optimizer_seconds),
        attention_share=0.4 if workload.startswith("long-context") else 0.0,
        tokens=tokens * microbatches,
        reports_tokens=not workload.endswith("untold"),
        per_node=per_node,
    )
