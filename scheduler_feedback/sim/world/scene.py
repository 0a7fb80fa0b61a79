"""The scene of an effect: the job, ranks and steps to which it applies, and the counter values that it adds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from scheduler_feedback.sim.world.arrays import FloatArray, IndexArray
from scheduler_feedback.sim.world.condition import Conditions
from scheduler_feedback.sim.world.fault import Fault
from scheduler_feedback.sim.world.plan import Plan


@dataclass(frozen=True, slots=True)
class Signal:
    """Values of one counter that a fault adds or replaces."""

    feature: str
    """Name of the counter, for example 'nic_congestion'."""
    ranks: IndexArray
    """Ranks whose counters get the values."""
    values: FloatArray
    """Value in each step: [steps]. NaN leaves the counter unchanged in that step."""
    adds: bool = True
    """Whether the values are added to the counter; if not, they replace its values."""


@dataclass(slots=True)
class Scene:
    """Job, ranks and steps to which the effect of a fault is applied."""

    plan: Plan
    """Parallel layout and work of the job."""
    conditions: Conditions
    """State of the job's devices; effects change it."""
    ranks: IndexArray
    """Ranks that have the fault."""
    node_mates: IndexArray
    """Other ranks of the job on the nodes of the faulty ranks."""
    leaf_mates: IndexArray
    """Other ranks of the job whose NICs connect to the leaf switches of the faulty ranks."""
    usual: float
    """Duration of a healthy step in seconds."""
    random: np.random.Generator
    """Random generator of the fault."""
    overlap: FloatArray
    """Share of each step's collective in which the aggressor sends too: [steps]. It is 1 without an aggressor."""
    first: int = 0
    """Number of the first step to which the effect is applied."""
    signals: list[Signal] = field(default_factory=list)
    """Result of the effect: its changes of counter values."""

    def change(self, name: str, ranks: IndexArray, factor: FloatArray) -> None:
        """Multiply the condition `name` of some ranks by a factor for each step: [steps]."""
        values = self._widened(name, len(factor))
        values.reshape(len(factor), -1)[:, ranks] *= factor[:, None].astype(values.dtype)

    def lower(self, name: str, ranks: IndexArray, bound: FloatArray) -> None:
        """Limit the condition `name` of some ranks to an upper bound for each step: [steps]."""
        values = self._widened(name, len(bound)).reshape(len(bound), -1)
        values[:, ranks] = np.minimum(values[:, ranks], bound[:, None])

    def delay(self, ranks: IndexArray, seconds: FloatArray) -> None:
        """Delay the processes of some ranks at the start of each step: seconds [steps] or [steps, ranks]."""
        values = self._widened("stall", len(seconds))
        flat = values.reshape(len(seconds), -1)
        flat[:, ranks] += seconds if seconds.ndim == 2 else seconds[:, None]

    def add_signal(self, feature: str, ranks: IndexArray, values: FloatArray, adds: bool = True) -> None:
        """Add values of one counter, for these ranks, to the result of the effect."""
        self.signals.append(Signal(feature, ranks, values, adds))

    def _widened(self, name: str, steps: int) -> FloatArray:
        values: FloatArray = getattr(self.conditions, name)
        if len(values) != steps or not values.flags.writeable:
            values = np.repeat(values, steps, axis=0) if len(values) == 1 else values.copy()
        else:
            values = values.copy()
        setattr(self.conditions, name, values)
        return values


Effect = Callable[[Scene, Fault, FloatArray, float], None]
"""Function that applies a fault to some steps: (scene, fault, intensity [steps], magnitude)."""
