"""Properties that only some jobs have: unequal GPUs, slow drift, wrong clocks, restarts, work of single ranks.

A job without them is the same as before they existed: all of their random choices come from a generator of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_feedback.sim.world.fault import Fault
from scheduler_feedback.sim.world.physics.hardware import GpuModel


@dataclass(frozen=True, slots=True)
class Restart:
    """A crash of the job's processes, after which the launcher starts them again on the same nodes."""

    at: float
    """Time of the crash, in seconds on the world's clock."""
    seconds: float
    """Time in seconds until the first step after the crash."""
    back: int
    """Number of finished steps that the job repeats, because it continues from its last checkpoint."""


@dataclass(frozen=True, slots=True)
class Traits:
    """Properties of one job. By default it has none of them."""

    seed: int = 0
    """Seed of all random choices about these properties."""
    spread: bool = False
    """Whether the speeds of the GPUs differ as much as in published measurements."""
    drift: bool = False
    """Whether speeds drift: each GPU's over minutes, and each rack's with the time of day."""
    other_model: GpuModel | None = None
    """Model of the GPUs on a part of the nodes; None if all GPUs are of one model."""
    wrong_clocks: bool = False
    """Whether the wall clocks of some hosts are wrong."""
    restarts: tuple[Restart, ...] = ()
    """Crashes of the job, in order of time."""
    habits: tuple[Fault, ...] = ()
    """Work of single ranks that belongs to the healthy job, as effects of these classes."""


NO_TRAITS = Traits()
"""A job without any of these properties."""
