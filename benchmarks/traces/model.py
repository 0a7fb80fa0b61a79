"""Layouts of training jobs, and the length of a step as the longest path through its dependencies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

LayoutName = Literal["ddp", "pp", "pp-tp", "moe", "deep"]
LAYOUTS: tuple[LayoutName, ...] = ("ddp", "pp", "pp-tp", "moe")
"""Layouts that are chosen at random. "deep", a pipeline with one rank a stage, is chosen by an option. So the traces of
earlier seeds stay the same."""

MOE_LAYERS = 4
"""Expert layers in a step. All ranks of an expert group meet in each of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Position of each of n ranks in the job. The tensor index varies fastest, then the data index, then the stage."""

    name: LayoutName
    """Kind of parallelism."""
    stages: int
    """Number of pipeline stages."""
    data: int
    """Number of model replicas."""
    tensor: int
    """Ranks of a tensor-parallel group."""
    experts: int
    """Ranks of an expert-parallel group; 1: none."""
    per_node: int
    """Ranks of a node."""
    microbatches: int = 8
    """Microbatches of a pipeline step."""
    shares: FloatArray = field(default_factory=lambda: np.ones((1, 1)))
    """float64 [layers, n]: part of each rank's own time in each expert layer. Only for experts > 1."""

    @property
    def ranks(self) -> int:
        """Return the number of ranks."""
        return self.stages * self.data * self.tensor

    def index(self) -> IntArray:
        """Return the rank numbers: int64 [n]."""
        return np.arange(self.ranks, dtype=np.int64)

    def stage_of(self) -> IntArray:
        """Return the pipeline stage of each rank: int64 [n]."""
        return self.index() // (self.data * self.tensor)

    def data_of(self) -> IntArray:
        """Return the data-parallel index (replica) of each rank: int64 [n]."""
        return self.index() // self.tensor % self.data

    def tensor_of(self) -> IntArray:
        """Return int64 [n]: the tensor index of each rank."""
        return self.index() % self.tensor

    def expert_of(self) -> IntArray:
        """Return int64 [n]: the expert index of each rank."""
        return self.index() % self.experts

    def node_of(self) -> IntArray:
        """Return int64 [n]: the node of each rank."""
        return self.index() // self.per_node

    def ranks_of_node(self, node: int) -> list[int]:
        """Return the ranks of a node."""
        return np.flatnonzero(self.node_of() == node).tolist()


def make_layout(name: LayoutName, ranks: int, rng: np.random.Generator) -> Layout:
    """Return a layout of `ranks` ranks, a power of two of at least 8."""
    per_node = 8 if ranks >= 16 else 4
    if name == "ddp":
        return Layout(name, 1, ranks, 1, 1, per_node)
    if name == "moe":
        experts = min(8, ranks // 2)
        shares = rng.dirichlet(np.full(MOE_LAYERS, 40.0), size=ranks).T
        return Layout(name, 1, ranks, 1, experts, per_node, shares=shares)
    if name == "deep":
        return Layout(name, ranks, 1, 1, 1, per_node)
    stages = 4 if ranks >= 16 else 2
    tensor = 1 if name == "pp" else (8 if ranks >= 64 else 2)
    return Layout(name, stages, ranks // stages // tensor, tensor, 1, per_node)


def step_seconds(layout: Layout, own: FloatArray, comm: FloatArray) -> FloatArray:
    """Return the lengths of k steps in seconds: float64 [k].

    own: float64 [k, n], seconds that each rank computes. comm: float64 [k], seconds of the gradients' all-reduce, which
    begins when the last rank has finished.

    - Tensor group: its ranks meet in each layer, so the group computes for as long as its slowest rank.
    - Expert group: its ranks meet in each expert layer, so it takes the sum over layers of the slowest rank's time.
    - Pipeline: all forward passes, then all backward passes. A microbatch passes all stages; the slowest stage delays
      each of the other M - 1 microbatches.
    - The all-reduce waits for the slowest replica.
    """
    steps = len(own)
    if layout.experts > 1:
        groups = own.reshape(steps, -1, layout.experts)
        shares = layout.shares.reshape(len(layout.shares), -1, layout.experts)
        path = np.zeros(groups.shape[:2])
        for share in shares:
            path += (groups * share).max(axis=2)
        return np.asarray(path.max(axis=1) + comm)
    stage = own.reshape(steps, layout.stages, layout.data, layout.tensor).max(axis=3)
    micro = stage / layout.microbatches
    replica = micro.sum(axis=1) + (layout.microbatches - 1) * micro.max(axis=1)
    return np.asarray(replica.max(axis=1) + comm)
