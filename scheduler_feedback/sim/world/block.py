"""A block of a job's steps, as the outputs read it, and changes of its parts."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from scheduler_feedback.sim.world.arrays import FloatArray
from scheduler_feedback.sim.world.condition import Conditions
from scheduler_feedback.sim.world.fault import Fault
from scheduler_feedback.sim.world.physics import step_timing
from scheduler_feedback.sim.world.plan import Plan
from scheduler_feedback.sim.world.scene import Signal

FOREVER_SECONDS = 1e7
"""Simulated duration, in seconds, of the step in which a job hangs."""


@dataclass(slots=True)
class Block:
    """Consecutive steps of a job. The fields' shapes use b for the number of steps and n for the number of ranks."""

    first: int
    """Number of the first step in the block."""
    begin: FloatArray
    """Start of each step, in seconds on the world's clock: float64 [b]."""
    meet: FloatArray
    """Start of the gradient exchange in each step, in seconds on the world's clock: float64 [b]."""
    end: FloatArray
    """End of each step, in seconds on the world's clock: float64 [b]."""
    pause: FloatArray
    """Seconds of saving at the end of each step: float64 [b]."""
    without: FloatArray
    """Seconds that each step would take without faults: float64 [b]."""
    kernels: FloatArray
    """Seconds in which each rank computes, by step: float32 [b, n]."""
    products: FloatArray
    """Seconds in which each rank computes matrix products, by step: float32 [b, n]."""
    stall: FloatArray
    """Seconds by which the host delays each rank, by step: float32 [b, n], or [1, n] if equal in all steps."""
    clock: FloatArray
    """Clock of each GPU as a share of the boost clock: float32 [b, n], or [1, n] if equal in all steps."""
    nic: FloatArray
    """Available share of each NIC's line rate: float32 [b, n], or [1, n] if equal in all steps."""
    tokens: FloatArray | None
    """Number of tokens of each rank, by step: float32 [b, n]. None if all ranks have the same number."""
    squares: FloatArray | None
    """Sum of squared sequence lengths of each rank, by step: float32 [b, n]. None if all ranks have the same sum."""
    celsius: FloatArray
    """Temperature of each GPU in degrees Celsius: float32 [n]."""
    thermal: FloatArray
    """Reduction of each GPU's clock by heat, as a share of the boost clock: float32 [n]."""
    power: FloatArray
    """Reduction of each GPU's clock by the power cap, as a share of the boost clock: float32 [n]."""
    signals: list[Signal] = field(default_factory=list)
    """Changes of counter values by faults in this block."""
    hangs: tuple[int, str] | None = None
    """The hanging rank and the part of the step ('compute' or 'transport'), if the last step never ends; else None."""
    own_begin: FloatArray | None = None
    """Start of each step of each rank, in seconds on the world's clock: float64 [b, n]. None if equal for all ranks."""
    own_end: FloatArray | None = None
    """End of each step of each rank, as above."""
    exchanges: FloatArray | None = None
    """Number of gradient exchanges (0 or 1) at the end of each step: float64 [b]. None if each step has one."""

    def __len__(self) -> int:
        return len(self.begin)


def hang_first_step(hang: Fault, taken: step_timing.Steps, signals: list[Signal]) -> None:
    """Let the first of these steps never end, because of the fault `hang`."""
    steps, *shape = taken.kernels.shape
    taken.seconds[:1] = FOREVER_SECONDS
    stall = np.zeros((steps, int(np.prod(shape))), np.float32)
    stall[0, hang.ranks[0]] = FOREVER_SECONDS
    taken.stall = stall.reshape(steps, *shape)
    if hang.disorder == "hang-transport":
        where = np.asarray(hang.ranks[:1], np.intp)
        signals.append(Signal("nic_sequence_errors", where, np.full(steps, 8.0)))
    else:
        taken.meet[:1] = FOREVER_SECONDS


def given(
    plan: Plan, tokens: FloatArray | None, squares: FloatArray | None, before: Conditions, now: Conditions
) -> tuple[FloatArray | None, FloatArray | None]:
    """Return the tokens and squared lengths of each step and rank after faults have changed the replicas' work.

    Both have the shape [steps, stages, data, tensor]. A replica with longer documents reports more tokens, and so does
    a rank with a popular expert.
    """
    if now.load is not before.load and tokens is not None:
        tokens = tokens * (now.load / before.load)
    if now.weight is before.weight:
        return tokens, squares
    ratio = (now.weight.sum(axis=-1) / before.weight.sum(axis=-1))[:, None, :, None].astype(np.float32)
    if tokens is None:
        tokens = np.full((len(ratio), *plan.shape), plan.tokens, np.float32)
    return tokens * ratio, None if squares is None else squares * ratio


def add_own_times(block: Block, plan: Plan, begin: FloatArray, replica_seconds: FloatArray) -> None:
    """Add to the block when each rank takes its steps, if replicas only meet at the end of each round.

    begin [s] and replica_seconds [s, data]: start of each step of the job, and seconds of each step of each replica,
    for whole rounds. The block may have only the first of these steps.
    """
    steps, kept = len(replica_seconds), len(block)
    ends = replica_seconds.reshape(-1, plan.sync_steps, plan.data).cumsum(axis=1)
    ends = (ends + begin[:: plan.sync_steps, None, None]).reshape(steps, plan.data)
    of_rank = plan.coordinates()[1]
    block.own_end = ends[:kept, of_rank]
    block.own_begin = (ends - replica_seconds)[:kept, of_rank]
    block.exchanges = ((np.arange(block.first, block.first + kept) % plan.sync_steps) == 0).astype(np.float64)


def rows(values: FloatArray, steps: int) -> FloatArray:
    """Flatten an array [1 or steps, stages, data, tensor] to float32 [1 or steps, ranks]."""
    flat = values.reshape(len(values), -1).astype(np.float32, copy=False)
    return flat if len(flat) == 1 else flat[:steps]
