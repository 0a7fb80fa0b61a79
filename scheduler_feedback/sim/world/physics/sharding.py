"""Timing of jobs whose parameters are sharded over all ranks and gathered layer by layer (FSDP).

For each layer, all ranks gather its parameters before the forward and again before the backward pass, and scatter its
gradients afterwards. The collectives of a layer run beside the kernels of its neighbour (prefetching), so a layer takes
as long as the slower of the two, and only the first layer's parameters are waited for (Zhao et al., "PyTorch FSDP:
Experiences on Scaling Fully Sharded Data Parallel", VLDB 2023, sections 3 and 4). Each collective needs all ranks, so
all advance at the pace of the slowest one.
"""

from __future__ import annotations

import numpy as np

from scheduler_feedback.sim.world.arrays import FloatArray
from scheduler_feedback.sim.world.condition import Conditions
from scheduler_feedback.sim.world.physics import collective, hardware
from scheduler_feedback.sim.world.plan import Plan


def finish(plan: Plan, c: Conditions, forward: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the end of the last backward in each step, in seconds [b], and the kernel time that collectives add.

    forward: seconds of a microbatch of weight 1 on each rank, [b, 1, data, 1]. The added time is float32 [b, 1, 1, 1].
    """
    extent = c.extent[:, None]
    slowest = (forward[:, 0, :, 0, None] * c.weight).max(axis=1) * extent  # [b, microbatches]
    gather = _gather_seconds(plan, c)[:, None] * c.network[:, None]  # [b, 1]
    moved = plan.layers * gather
    beside = np.minimum(slowest, moved) + np.minimum(2.0 * slowest, 2.0 * moved)
    added = beside * plan.contention / (1.0 + plan.contention)
    # The backward pass moves twice as much as the forward pass: it gathers parameters and scatters gradients.
    passes = np.maximum(slowest, moved) + np.maximum(2.0 * slowest, 2.0 * moved) + 2.0 * gather + added
    begin = c.stall.max(axis=(1, 2, 3))
    return begin + passes.sum(axis=-1), added.sum(axis=-1)[:, None, None, None].astype(np.float32)


def _gather_seconds(plan: Plan, c: Conditions) -> FloatArray:
    """Return the seconds in which all ranks gather one layer: [b].

    NCCL stripes the rings over the NICs of a node, and each ring passes all ranks of the node over NVLink.
    """
    ranks = plan.data
    nic = hardware.NIC_GOODPUT * c.nic.reshape(len(c.nic), -1)
    nvlink = plan.model.nvlink_bytes_per_second * c.nvlink.reshape(len(c.nvlink), -1)
    inside = collective.gather(plan.gathered_bytes * plan.per_node, nvlink, ranks, collective.NVLINK_LATENCY_SECONDS)
    if ranks <= plan.per_node:
        return inside
    between = collective.gather(plan.gathered_bytes, nic, ranks, collective.NVLINK_LATENCY_SECONDS)
    return np.maximum(inside, between) + ranks // plan.per_node * collective.NETWORK_LATENCY_SECONDS
