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

Level = Literal["gpu", "node", "nic", "link", "rack", "job", "fleet"]

RAMP_SHARE = 0.5
"""Share of a fault's duration in which its intensity rises, if the form is a ramp. It then stays at full intensity."""

INTERMITTENT_SHARE = 0.7
"""Share of each period in which an intermittent fault is active."""


@dataclass(frozen=True, slots=True)
class Disorder:
    """Class of faults that have the same effect and the same right verdicts."""

    name: str
    """Name of the fault class."""
    level: Level
    """Type of the faulty part, for example 'gpu', 'nic' or 'node'."""
    kinds: tuple[str, ...]
    """Kinds of verdicts that are right for this class."""
    cause: str
    """Short name of the cause, for example 'thermal' or 'pcie'."""
    family: str
    """Origin: 'hardware', 'interference', 'workload' (the job slows itself), 'hang', 'telemetry' or 'healthy'. Only for
    'hardware', a rank or node is to blame and actions against it are right."""
    lasting: bool = False
    """Whether the fault is only present or absent, without a severity."""
    expected: bool = True
    """Whether a verdict is due. If not, silence is right as well."""


ORIGINAL: dict[str, Disorder] = {
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
"""Classes of faults of the first version of the world, by name. Random draws from them stay reproducible. In
'agent-loss' and 'mass-loss' only telemetry is lost, so every verdict against a rank or node is wrong."""

ADDED: dict[str, Disorder] = {
    disorder.name: disorder
    for disorder in (
        Disorder("rank-recompiles", "job", ("workload",), "recompilation", "workload", lasting=True, expected=False),
        Disorder("loader-stalls", "job", ("workload",), "data-loader", "workload", lasting=True, expected=False),
        Disorder("async-saves", "job", ("workload",), "checkpoint", "workload", lasting=True, expected=False),
        Disorder("hot-expert", "job", ("workload", "sequence_imbalance"), "experts", "workload", expected=False),
        Disorder("rack-power-cap", "rack", ("straggler", "health"), "power", "hardware"),
        Disorder("none", "job", (), "none", "healthy", lasting=True, expected=False),
    )
}
"""Classes that were added later, by name. The first four are work of single ranks of a healthy job, so every verdict
against a rank or node is wrong. 'none' is a job without any fault."""

DISORDERS: dict[str, Disorder] = ORIGINAL | ADDED
"""All classes of faults, by name."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of one job."""

    disorder: str
    """Class of the fault: a name in DISORDERS, or an effect on the aggressor itself ('crowding', 'crossing')."""
    job: str
    """Name of the job that has the fault."""
    ranks: tuple[int, ...]
    """Faulty ranks; for a faulty node, all ranks on it. For interference and workload faults: the affected ranks."""
    begin: float
    """Start of the fault, in seconds on the world's clock."""
    seconds: float
    """Duration of the fault in seconds."""
    form: Form = "step"
    """Shape of the intensity over time: 'step', 'ramp' or 'intermittent'."""
    severity: float = 0.2
    """Increase of the job's step time at full intensity (0.1: 10 %)."""
    period: float = 60.0
    """Period of an intermittent fault, in seconds."""
    magnitude: float = 0.0
    """Physical size of the fault. It is computed from the severity."""
    aggressor: str = ""
    """Name of the disturbing job, for interference; '' for other faults."""

    @property
    def end(self) -> float:
        """Time at which the fault ends, in seconds of simulated time."""
        return self.begin + self.seconds

    def intensity(self, times: FloatArray) -> FloatArray:
        """Return the fault's intensity at each of these times, from 0 (absent) to 1 (full)."""
        since = times - self.begin
        there = (since >= 0) & (since < self.seconds)
        if self.form == "ramp":
            return np.where(there, np.clip(since / (self.seconds * RAMP_SHARE), 0.0, 1.0), 0.0)
        if self.form == "intermittent":
            return np.where(there & ((since % self.period) < INTERMITTENT_SHARE * self.period), 1.0, 0.0)
        return np.where(there, 1.0, 0.0)
