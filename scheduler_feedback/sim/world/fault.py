"""Faults: their class, size and shape over time, as ground truth.

The `severity` of a fault is the increase of the job's step time (0.1: a step takes 10 % longer at full intensity). The
course solves for the physical magnitude that causes it. effect.py contains the effects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from scheduler_feedback.sim.world.arrays import FloatArray

Form = Literal["step", "ramp", "intermittent"]
FORMS: tuple[Form, ...] = ("step", "ramp", "intermittent")

Level = Literal["gpu", "node", "nic", "link", "job", "fleet"]

RAMP_SHARE = 0.5
"""A ramp rises over this share of its length and stays at full intensity for the rest."""

INTERMITTENT_SHARE = 0.7
"""Share of each period in which an intermittent fault is active."""


@dataclass(frozen=True, slots=True)
class Disorder:
    """Class of faults, with its effect."""

    name: str
    """Name of the class."""
    level: Level
    """Type of the faulty part."""
    kinds: tuple[str, ...]
    """Kinds of verdicts that are right for this class."""
    cause: str
    """Common name of the cause."""
    family: str
    """'hardware' (a member; actions are right), 'interference', 'workload' (the job's own), 'hang' or 'telemetry'."""
    lasting: bool = False
    """Whether the fault has no severity: it is only present or absent."""


DISORDERS: dict[str, Disorder] = {
    disorder.name: disorder
    for disorder in (
        Disorder("thermal", "gpu", ("straggler", "health"), "thermal", "hardware"),
        Disorder("power-brake", "gpu", ("straggler", "health"), "power", "hardware"),
        Disorder("clock-lock", "gpu", ("straggler", "health"), "clock", "hardware"),
        Disorder("memory-errors", "gpu", ("straggler", "health"), "memory", "hardware"),
        Disorder("nvlink", "link", ("straggler", "health"), "nvlink", "hardware"),
        Disorder("pcie", "nic", ("straggler", "health"), "pcie", "hardware"),
        Disorder("nic-flap", "nic", ("straggler", "health"), "nic", "hardware"),
        Disorder("nic-errors", "link", ("straggler", "health"), "nic", "hardware"),
        Disorder("pfc-storm", "nic", ("straggler", "health"), "pfc", "hardware"),
        Disorder("cpu-contention", "node", ("straggler", "health"), "cpu-contention", "hardware"),
        Disorder("storage", "node", ("straggler", "health"), "storage", "hardware"),
        Disorder("uplink-congestion", "job", ("interference",), "uplink", "interference"),
        Disorder("host-interference", "job", ("interference",), "host", "interference"),
        Disorder("nic-interference", "job", ("interference",), "nic", "interference"),
        Disorder("garbage-collection", "job", ("workload",), "gc", "workload"),
        Disorder("data-loader", "job", ("workload",), "data-loader", "workload"),
        Disorder("sequence-imbalance", "job", ("sequence_imbalance", "workload"), "sequence-lengths", "workload"),
        Disorder("stage-imbalance", "job", ("stage_imbalance", "workload"), "stage", "workload"),
        Disorder("job-change", "job", ("workload",), "job-change", "workload"),
        Disorder("checkpoint", "job", ("workload",), "checkpoint", "workload"),
        Disorder("evaluation", "job", ("workload",), "evaluation", "workload"),
        Disorder("hang-compute", "gpu", ("hang",), "compute", "hang", lasting=True),
        Disorder("hang-transport", "nic", ("hang", "health"), "transport", "hang", lasting=True),
        Disorder("detachment", "gpu", ("health", "hang"), "device-lost", "hang", lasting=True),
        Disorder("agent-loss", "node", (), "agent", "telemetry", lasting=True),
        Disorder("mass-loss", "fleet", ("freeze",), "rollout", "telemetry", lasting=True),
    )
}
"""Disorders by name. The last two are not faults of the job: a verdict against a member is wrong."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of one job."""

    disorder: str
    """Name in DISORDERS, or the effect of interference on the aggressor itself ('crowding', 'crossing')."""
    job: str
    """Name of the job."""
    ranks: tuple[int, ...]
    """Faulty ranks (all of a faulty node). For interference and workload faults: the affected ranks."""
    begin: float
    """Start of the fault, in seconds on the world's clock."""
    seconds: float
    """Duration of the fault in seconds."""
    form: Form = "step"
    """Shape of the intensity over time."""
    severity: float = 0.2
    """Increase of the step time at full intensity (0.1: 10 %)."""
    period: float = 60.0
    """Period of an intermittent fault, in seconds."""
    magnitude: float = 0.0
    """Physical size of the fault, computed from its severity."""
    aggressor: str = ""
    """Name of the disturbing job, for interference."""

    @property
    def end(self) -> float:
        """Time at which the fault ends."""
        return self.begin + self.seconds

    def intensity(self, times: FloatArray) -> FloatArray:
        """Return the intensity at these times, 0 to 1."""
        since = times - self.begin
        there = (since >= 0) & (since < self.seconds)
        if self.form == "ramp":
            return np.where(there, np.clip(since / (self.seconds * RAMP_SHARE), 0.0, 1.0), 0.0)
        if self.form == "intermittent":
            return np.where(there & ((since % self.period) < INTERMITTENT_SHARE * self.period), 1.0, 0.0)
        return np.where(there, 1.0, 0.0)
