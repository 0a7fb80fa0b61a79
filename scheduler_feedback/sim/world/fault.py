"""What breaks: in which shape over time, how hard, and the truth about it.

A fault's `severity` is what it adds to the job's step (0.1: a step takes 10 % longer while the fault is fully there);
the physical magnitude that does so is solved for. What the fault does stands in effect.py.
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
"""A ramp rises over this share of its length and stays up for the rest."""

INTERMITTENT_SHARE = 0.7
"""Share of each period in which an intermittent fault is there."""


@dataclass(frozen=True, slots=True)
class Disorder:
    """A class of fault.

    level: what is at fault. kinds: kinds of verdict that name it rightly. cause: what a person would call it.
    family: 'hardware' (a member, to be acted on), 'interference', 'workload' (the job's own), 'hang', 'telemetry'.
    lasting: whether there is no severity: it is there or not.
    """

    name: str
    level: Level
    kinds: tuple[str, ...]
    cause: str
    family: str
    lasting: bool = False


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
"""By name. The last two are no fault of the job: whoever names a member for them is wrong."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of one job.

    disorder: name in DISORDERS, or what an aggressor itself sees of its interference ('crowding', 'crossing').
    ranks: those at fault (a node's, where a node is); for interference and the workload's own, those it touches.
    begin, seconds: when and how long, on the world's clock. period: of an intermittent one. magnitude: solved for.
    aggressor: name of the job that disturbs, of interference.
    """

    disorder: str
    job: str
    ranks: tuple[int, ...]
    begin: float
    seconds: float
    form: Form = "step"
    severity: float = 0.2
    period: float = 60.0
    magnitude: float = 0.0
    aggressor: str = ""

    @property
    def end(self) -> float:
        """When it is over."""
        return self.begin + self.seconds

    def intensity(self, times: FloatArray) -> FloatArray:
        """How much of it is there at these times, 0..1."""
        since = times - self.begin
        there = (since >= 0) & (since < self.seconds)
        if self.form == "ramp":
            return np.where(there, np.clip(since / (self.seconds * RAMP_SHARE), 0.0, 1.0), 0.0)
        if self.form == "intermittent":
            return np.where(there & ((since % self.period) < INTERMITTENT_SHARE * self.period), 1.0, 0.0)
        return np.where(there, 1.0, 0.0)
