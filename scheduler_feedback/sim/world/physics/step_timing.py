"""One step of a job under given conditions: computing, synchronisation and end.

Tensor groups synchronise after every layer, expert groups at every all-to-all, pipeline stages at every microbatch,
replicas at the gradient exchange, and all ranks at the norm of the gradients. A rank spends all other time waiting in a
collective. Sharded jobs (sharding.py) synchronise in every layer, and jobs with local SGD (local_rounds.py) only every
few steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler_feedback.sim.world.arrays import FloatArray
from scheduler_feedback.sim.world.condition import Conditions
from scheduler_feedback.sim.world.physics import collective, hardware, local_rounds, pipeline, sharding
from scheduler_feedback.sim.world.plan import DATA_OVERLAP, Plan


@dataclass(slots=True)
class Steps:
    """Timing of some simulated steps. The fields' shapes use b for the number of steps."""

    seconds: FloatArray
    """Seconds of each step, from barrier to barrier: float64 [b]."""
    meet: FloatArray
    """Seconds from the start of each step to its gradient exchange: float64 [b]."""
    pause: FloatArray
    """Seconds at the end of each step that are neither compute nor communication, such as a checkpoint: float64 [b]."""
    kernels: FloatArray
    """Seconds in which each rank's GPU computes: float32 [b, stages, data, tensor]."""
    stall: FloatArray
    """Seconds by which the host delays each rank; can be broadcast to the shape of `kernels`."""
    product_share: FloatArray
    """Share of `kernels` that the GPU spends on matrix products."""
    replica_seconds: FloatArray | None = None
    """Seconds of each step of each replica: float64 [b, data]. None if all replicas take the same time."""


def _spread(values: FloatArray) -> FloatArray:
    """Expand an array [stages] to [1, stages, 1, 1]."""
    return values.astype(np.float32)[None, :, None, None]


def _groups(plan: Plan, values: FloatArray, size: int) -> FloatArray:
    """Divide an array [..., stages, data, tensor] into groups of `size` neighbours: [..., stages, groups, size]."""
    return values.reshape(*values.shape[:-2], plan.data * plan.tensor // size, size)


def run(plan: Plan, conditions: Conditions) -> Steps:
    """Return the timing of steps under these conditions."""
    c = conditions
    product = _spread(plan.product_seconds) / c.clock
    if plan.expert_share:
        product = product * (1.0 + plan.expert_share * (c.load - 1.0))
    memory = _spread(plan.memory_seconds) / c.memory
    forward = product + memory
    forward = np.maximum(forward, _spread(plan.launch_seconds) * c.host) * c.noise
    product_share = product / (product + memory)
    total = c.weight.sum(axis=-1)[:, None, :, None].astype(np.float32)
    kernels = 3.0 * forward * total * c.extent[:, None, None, None].astype(np.float32)
    update = float(plan.optimizer_seconds) / c.memory.min(axis=(1, 2, 3))
    if plan.sharded:
        ready, added = sharding.finish(plan, c, forward)
        return _steps(plan, c, ready, ready + update, kernels + added, product_share)

    # In each layer, tensor groups and expert groups are as fast as their slowest rank.
    slowest = forward
    if plan.expert > 1:
        grouped = _groups(plan, np.broadcast_to(slowest, (*slowest.shape[:1], *plan.shape)), plan.expert)
        top = np.broadcast_to(grouped.max(axis=-1, keepdims=True), grouped.shape)
        slowest = top.reshape(slowest.shape)
    layer = slowest.max(axis=-1)
    meet = _layer_collectives(plan, c)
    extent = c.extent[:, None, None].astype(np.float32)
    ahead = np.moveaxis(layer + meet, -2, -1) * extent
    back = np.moveaxis(2.0 * layer + meet, -2, -1) * extent
    begin = np.moveaxis(c.stall.max(axis=-1), -2, -1)
    done = pipeline.finish(ahead, back, c.weight.astype(np.float32), _transfers(plan, c), begin)
    exposed, hidden = _gradients(plan, c.nic, c.nvlink)  # [b, stages] each
    if plan.sync_steps > 1:
        alone = done.max(axis=-1) + update[:, None] + c.pause[:, None]
        exchange = np.broadcast_to((exposed + hidden).max(axis=-1) * c.network, len(alone))
        lengths, own = local_rounds.finish(alone, exchange, plan.sync_steps)
        meets = lengths - c.pause
        meets[plan.sync_steps - 1 :: plan.sync_steps] -= exchange[plan.sync_steps - 1 :: plan.sync_steps]
        found = _steps(plan, c, meets, lengths - c.pause, kernels, product_share)
        found.replica_seconds = own
        return found
    ready = done.max(axis=-2)  # [b, stages]: the replicas of a stage have their gradients
    if plan.contention:
        # The exchange begins with the first gradients. While it runs beside the last backward, kernels take longer.
        beside = np.minimum(hidden * c.network[:, None], (2.0 * layer).max(axis=-1))
        added = (beside * plan.contention / (1.0 + plan.contention)).astype(np.float32)
        kernels = kernels + added[:, :, None, None]
        ready = ready + added
    over = (ready + exposed * c.network[:, None]).max(axis=-1) + update
    return _steps(plan, c, ready.max(axis=-1), over, kernels, product_share)


def _steps(
    plan: Plan, c: Conditions, ready: FloatArray, over: FloatArray, kernels: FloatArray, product_share: FloatArray
) -> Steps:
    """Return the timing of steps with gradients at `ready` [b] and an end, without the pause, at `over` [b]."""
    steps = max(len(over), len(c.pause))
    meeting = np.broadcast_to(ready, steps).astype(np.float64)
    return Steps(
        seconds=np.broadcast_to(over + c.pause, steps).astype(np.float64),
        meet=meeting,
        pause=np.broadcast_to(c.pause, steps).astype(np.float64),
        kernels=np.broadcast_to(kernels, (steps, *plan.shape)).astype(np.float32),
        stall=c.stall.astype(np.float32),
        product_share=product_share.astype(np.float32),
    )


def _layer_collectives(plan: Plan, c: Conditions) -> FloatArray:
    """Return the seconds that the collectives of tensor and expert groups take for one microbatch in one direction
    (forward or backward): [steps, stages, data].
    """
    nvlink = plan.model.nvlink_bytes_per_second * c.nvlink
    reduction = collective.ring(plan.tensor_bytes, nvlink, plan.tensor, hardware.LAUNCH_SECONDS)
    if plan.expert == 1:
        return reduction
    if plan.expert <= plan.per_node:
        width, latency = nvlink, collective.NVLINK_LATENCY_SECONDS
    else:
        width, latency = hardware.NIC_GOODPUT * c.nic, collective.NETWORK_LATENCY_SECONDS
    moved = np.broadcast_to(plan.exchange_bytes * c.load, np.broadcast_shapes(c.load.shape, width.shape))
    exchange = collective.all_to_all(
        _groups(plan, moved, plan.expert),
        _groups(plan, np.broadcast_to(width, moved.shape), plan.expert),
        plan.expert,
        latency,
    )
    if plan.expert >= plan.tensor:
        return reduction + np.repeat(exchange, plan.expert // plan.tensor, axis=-1)
    slowest: FloatArray = exchange.reshape(*exchange.shape[:-1], plan.data, plan.tensor // plan.expert).max(axis=-1)
    return reduction + slowest


def _transfers(plan: Plan, c: Conditions) -> FloatArray:
    """Return the seconds that it takes to send one microbatch to the next stage: [steps, data, stages - 1].

    In an interleaved pipeline, the last stage also sends to the first: [steps, data, stages].
    """
    if plan.stages == 1:
        return np.zeros((1, plan.data, 0))
    nic = c.nic if plan.chunks == 1 else np.concatenate([c.nic, c.nic[:, :1]], axis=1)
    pair = np.minimum(nic[:, 1:], nic[:, :-1]).min(axis=-1)
    transfer = plan.stage_bytes / (hardware.NIC_GOODPUT * pair) + collective.NETWORK_LATENCY_SECONDS
    return np.moveaxis(transfer, -2, -1)


def _gradients(plan: Plan, nic: FloatArray, nvlink: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the seconds of the gradient exchange after the last backward pass and beside it: [steps, stages] each."""
    if plan.data < 2 or not plan.data_bytes:
        return np.zeros((1, plan.stages)), np.zeros((1, plan.stages))
    local = local_replicas(plan)
    if local >= plan.data:
        width, latency, bytes_ = plan.model.nvlink_bytes_per_second * nvlink, collective.NVLINK_LATENCY_SECONDS, 1.0
    else:
        width, latency, bytes_ = hardware.NIC_GOODPUT * nic, collective.NETWORK_LATENCY_SECONDS, 1.0 / local
    bytes_ *= plan.data_bytes / plan.rounds
    members = np.swapaxes(width, -1, -2)  # [b, stages, tensor, data]
    taken = collective.all_reduce(bytes_, members, plan.data, latency) * plan.rounds
    best = collective.all_reduce(bytes_, np.full((1, plan.data), width.max()), plan.data, latency) * plan.rounds
    return (taken - DATA_OVERLAP * best).max(axis=-1), (DATA_OVERLAP * taken).max(axis=-1)


def local_replicas(plan: Plan) -> int:
    """Return the number of replicas in one node, for one stage and tensor rank. Their NICs share the group's
    traffic."""
    return max(1, min(plan.data, plan.per_node // plan.tensor))
