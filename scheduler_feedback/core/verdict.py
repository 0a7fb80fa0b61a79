"""Detector results: verdicts with checkable evidence, their clearing, and abstentions."""

from __future__ import annotations

from dataclasses import dataclass

from agent.schema.verdicts.causes import Cause
from agent.schema.verdicts.kinds import Kind

__all__ = ["MASS_LOSS", "Abstention", "Cause", "Cleared", "Evidence", "Finding", "Kind", "Verdict"]

MASS_LOSS = "mass-loss"
"""Name of the detector that reports a cluster-wide abstention: many agents stopped reporting at once. The abstention
freezes all actions."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One checkable fact for or against a verdict."""

    measure: str
    """Name of the measured quantity."""
    value: float
    """Measured value of the suspect."""
    reference: float
    """Value with which the suspect's value is compared."""
    unit: str
    """Unit of value and reference."""
    against: str
    """Source of the reference, in words."""
    log_likelihood_ratio: float = 0.0
    """Weight of the evidence: natural logarithm of the likelihood ratio. Positive values support the verdict."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A detected fault of one rank or, with rank -1, of the whole gang. The verdict ends with its attempt at
    the latest.
    """

    verdict_id: str
    """Unique id. It is computed from gang, attempt, rank and first_ns, so that a replay produces the same id."""
    kind: Kind
    """Kind of problem, for example straggler or hang."""
    gang: str
    """Job id; '' if the verdict is about a node without a job."""
    attempt: int
    """Attempt in which the fault was detected."""
    rank: int
    """The accused rank; -1 for the whole gang or a node."""
    node: str
    """Node of the accused rank."""
    cause: Cause
    """Cause, as far as the counters show it."""
    confidence: float
    """Probability that the verdict is right, 0 to 1."""
    slowdown: float
    """Current step time of the job divided by its step time without the suspect; at least 1."""
    step_seconds_before: float
    """Mean step time of the gang before the fault, in seconds."""
    step_seconds_now: float
    """Mean step time of the gang in the evidence window. For a hang: time without a step."""
    first_wall_ns: int
    """Wall time at which the evidence window begins, in nanoseconds since 1970."""
    last_wall_ns: int
    """Wall time at which the evidence window ends, in nanoseconds since 1970."""
    evidence: tuple[Evidence, ...] = ()
    """Facts behind the verdict."""
    frames: tuple[tuple[str, int], ...] = ()
    """Newest frame of each node in the evidence: (node, sequence number)."""
    detector: str = "straggler"
    """Name of the detector."""
    ranks: tuple[int, ...] = ()
    """All accused members, if there are more than `rank` alone (all of a node or a stage)."""
    device: str = ""
    """The accused GPU UUID, NIC ('node-3/mlx5_0') or link; '' if the node or nothing is accused."""
    level: str = ""
    """Type of the accused part: 'gpu', 'nic', 'link' or 'node'; '' if nothing is accused."""
    suspects: tuple[str, ...] = ()
    """Other parts that may have caused the fault, as level:name, the most likely first."""
    aggressor: str = ""
    """Id of the job that disturbs this one; '' unless the verdict is interference."""
    resource: str = ""
    """Resource that this job and the aggressor share, as kind:name; '' unless the verdict is interference."""
    first_step: int = -1
    """First step of the evidence window, in the job's numbering; -1 if the job reports no steps."""
    last_step: int = -1
    """Last step of the evidence window; -1 if the job reports no steps."""
    detected_step: int = -1
    """Newest known step when the verdict was first reported; -1 if the job reports no steps."""
    lasts_seconds: float | None = None
    """Expected duration of the fault from first_wall_ns on; None: Policy.expected_persistence_seconds applies."""
    longest_pause_seconds: float | None = None
    """For a hang, the job's longest earlier pause that ended without help while no process was stopped; None if the
    detector does not report it."""


@dataclass(frozen=True, slots=True)
class Cleared:
    """End of a verdict: the accused ran at normal speed for as long as the detector requires."""

    verdict_id: str
    """Id of the verdict that ended."""
    gang: str
    """Id of the verdict's job."""
    wall_ns: int
    """Wall time at which the verdict ended, in nanoseconds since 1970."""
    reason: str
    """Why the verdict ended, in words."""
    last_step: int = -1
    """Last step that still showed the fault; -1 if the job reports no steps."""
    explained_by: str = ""
    """Id of the verdict that explains the slowdown better; '' if the slowdown ended."""
    confirmed: bool = True
    """False if the slowdown ended so soon, without a known cause, that it was more likely the job's own work than a
    fault."""


@dataclass(frozen=True, slots=True)
class Abstention:
    """Slowness without a verdict: the detector found no single culprit or cause.

    Only an abstention of `detector` MASS_LOSS has an effect: a freeze.
    """

    gang: str
    """Job id; '' for the whole cluster."""
    attempt: int
    """Attempt in which the slowness was detected."""
    rank: int | None
    """The slow rank; None if unknown."""
    wall_ns: int
    """Wall time of the report, in nanoseconds since 1970."""
    reason: str
    """Why the detector abstained."""
    evidence: tuple[Evidence, ...] = ()
    """Measured values that the report is based on."""
    detector: str = "straggler"
    """Name of the detector."""


Finding = Verdict | Cleared | Abstention
