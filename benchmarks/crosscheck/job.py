"""Shape of a generated job: its size, layout, nodes, and the time of its steps in a queue model."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass
class Job:
    """A job's layout. Positions are ordered (replica, stage, tensor shard); `number` maps a position to its rank."""

    replicas: int
    stages: int
    shards: int
    steps: int
    micro: int  # micro-batches of a pipeline
    style: str  # ddp, fsdp, tree, pipeline, experts, local (ranks meet only after each `micro` steps)
    group: int  # replicas that exchange tokens with each other (style experts)
    per_node: int
    base: float  # seconds of a rank's work in a step
    transfer: float  # seconds of the gradients' transfer
    number: NDArray[np.int64]
    names: list[str]  # of nodes
    notes: dict[str, object] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """Return the number of ranks."""
        return self.replicas * self.stages * self.shards

    def node(self) -> NDArray[np.int64]:
        """Return each position's node index."""
        return np.arange(self.ranks) // self.per_node

    def first(self) -> int:
        """Return the position of rank 0, which logs, evaluates and saves for all."""
        return int(np.flatnonzero(self.number == 0)[0])

    def place(self) -> tuple[NDArray[np.int64], ...]:
        """Return each position's replica, stage and shard."""
        return tuple(np.unravel_index(np.arange(self.ranks), (self.replicas, self.stages, self.shards)))


@dataclass
class Load:
    """What a job's ranks do: arrays of shape (steps, positions), in seconds except `factor`."""

    factor: Array  # of a rank's work
    start: Array  # before the first micro-batch: input, compilation
    end: Array  # after the backward pass: evaluation, checkpoints
    link: Array  # factor of the transfer time at a rank's port

    def copy(self) -> Load:
        """Return a copy with arrays of its own."""
        return Load(self.factor.copy(), self.start.copy(), self.end.copy(), self.link.copy())


def times(job: Job, load: Load, seed: int) -> tuple[Array, Array]:
    """Return seconds and own seconds, each (steps, positions), of the queue model.

    The same seed gives the same jitter below a step, so that a run with a fault can be paired with one without.
    """
    rng = np.random.default_rng(seed)
    shape = (job.steps, job.replicas, job.stages, job.shards)
    work, start, end = (a.reshape(shape) for a in (load.factor * job.base, load.start, load.end))
    own = work + start + end
    if job.style == "local":
        return _local(job, own)
    if job.style == "fsdp":
        layers = 6
        share = rng.dirichlet(np.full(layers, 8.0))
        done = np.zeros(job.steps)
        spent = np.zeros(shape)
        for layer in range(layers):
            piece = work * share[layer] * np.exp(0.01 * rng.standard_normal(shape))
            piece = piece + (start if layer == 0 else 0)
            spent += piece
            done += piece.max(axis=(1, 2, 3))
        own = spent + end
        arrival = done[:, None, None, None] + end
    elif job.stages > 1:
        arrival = _pipeline(job, work, start) + end
    else:
        slowest = work + start
        if job.style == "experts":
            slowest = _exchange(slowest, job.group)
        arrival = slowest.max(axis=3, keepdims=True) + end
    ports = load.link.reshape(shape).max(axis=1, keepdims=True)
    hops = np.log2(max(job.replicas, 2)) / 2 if job.style == "tree" else 1.0
    reduced = arrival.max(axis=1, keepdims=True) + job.transfer * hops * ports
    finish = np.broadcast_to(reduced.max(axis=(2, 3), keepdims=True), shape)
    stagger = np.abs(rng.normal(0, 0.0005, shape)) * job.base
    before = np.concatenate([np.zeros((1, *shape[1:])), stagger[:-1]])
    seconds = finish + stagger - before
    flat = (job.steps, job.ranks)
    return seconds.reshape(flat), np.minimum(own, seconds).reshape(flat)


def _local(job: Job, own: Array) -> tuple[Array, Array]:
    """Return seconds and own seconds of a job that averages its models after each `micro` steps."""
    own = own.reshape(job.steps, job.ranks)
    seconds = own.copy()
    for last in range(job.micro - 1, job.steps, job.micro):
        spent = own[last - job.micro + 1 : last + 1].sum(axis=0)
        seconds[last] += spent.max() - spent + job.transfer
    return seconds, own


def _exchange(time: Array, group: int) -> Array:
    """Return the time after an all-to-all among each `group` of replicas."""
    steps, replicas, stages, shards = time.shape
    grouped = time.reshape(steps, replicas // group, group, stages, shards)
    slowest = grouped.max(axis=2, keepdims=True)
    return np.broadcast_to(slowest, grouped.shape).reshape(time.shape)


def _pipeline(job: Job, work: Array, start: Array) -> Array:
    """Return when each rank ends its last backward pass: all forward passes, then all backward passes."""
    piece = work.max(axis=3) / job.micro  # tensor shards wait for each other in each layer
    if job.style == "experts":
        piece = _exchange(piece[..., None], job.group)[..., 0]
    first = start.max(axis=3)
    send = 0.002 * job.base
    steps, replicas, stages = piece.shape
    free = first.copy()
    ready = np.zeros((job.micro, steps, replicas))
    for s in range(stages):
        for m in range(job.micro):
            at = np.maximum(free[..., s], ready[m] + (send if s else 0)) + piece[..., s] / 3
            free[..., s] = at
            ready[m] = at
    ready = np.zeros((job.micro, steps, replicas))
    for s in reversed(range(stages)):
        for m in range(job.micro):
            at = np.maximum(free[..., s], ready[m] + send) + piece[..., s] * 2 / 3
            free[..., s] = at
            ready[m] = at
    return np.broadcast_to(free[..., None], work.shape).copy()
