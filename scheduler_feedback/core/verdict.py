"""Verdict: what a detector says, with the evidence that a person can check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What is the matter."""

    STRAGGLER = "straggler"  # a member slower than its peers for its own reason
    INTERFERENCE = "interference"  # slow because of another job, which is named
    HANG = "hang"  # a member that never arrived
    HEALTH = "health"  # a device that its own counters or events accuse
    STAGE_IMBALANCE = "stage_imbalance"  # a pipeline stage has more to do than the others
    SEQUENCE_IMBALANCE = "sequence_imbalance"  # ranks were given unequal work, another one each step
    WORKLOAD = "workload"  # the job's own doing: never acted on as hardware
    UNKNOWN = "unknown"  # slow, and it cannot be told why


OF_HARDWARE = frozenset({Kind.STRAGGLER, Kind.HANG, Kind.HEALTH})
"""Kinds that accuse a place; the others never move or quarantine anything for its own sake."""


class Cause(StrEnum):
    """Why a member is slow, as far as the counters tell."""

    SUSPENDED = "suspended"  # off the processor, not waiting for one: stopped by a signal, a tracer, a freezer
    CPU_CONTENTION = "cpu-contention"  # runnable, waiting for a processor
    COMPUTE = "compute"  # the work itself takes more processor time
    STORAGE = "storage"  # waiting for block I/O
    THERMAL = "thermal"  # the clock is held down by temperature
    POWER = "power"  # the clock is held down by a power limit or brake
    GPU = "gpu"  # computes more slowly, and no counter says why
    MEMORY = "gpu-memory"  # errors of the device's memory
    NVLINK = "nvlink"
    PCIE = "pcie"  # a link below its generation or width, or one that replays
    NIC = "nic"  # the port's own errors, or less than its rate
    LINK = "link"  # a network link that fails or flaps
    CONGESTION = "congestion"  # a shared network resource
    HOST_CONTENTION = "host-contention"  # another job on the same host
    LOST = "lost"  # no word from it
    XID = "xid"
    NEVER_ARRIVED = "never-arrived"  # at a step or collective that its peers are in
    DATA_LOADING = "data-loading"
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"
    PAUSES = "pauses"  # now one rank stops for a moment and now another: garbage collection, as a rule
    SEQUENCE_LENGTH = "sequence-length"
    STAGE_PARTITION = "stage-partition"
    STANDING_OFFSET = "standing-offset"  # a little slower than its peers all the time: its share of the work
    WHOLE_JOB = "whole-job"  # all ranks alike
    UNKNOWN = "unknown"


MASS_LOSS = "mass-loss"
"""Detector's name of an abstention about the whole cluster: many agents were lost at once. All actions are frozen."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One checkable fact: the measure, its value for the suspect, what it was compared with, and what it argues for.

    log_likelihood_ratio: natural log, positive where it argues for the verdict.
    unit: of value and reference. against: in words, whom or what the reference is.
    """

    measure: str
    value: float
    reference: float
    unit: str
    against: str
    log_likelihood_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """A finding about one member of one gang, or, with rank -1, about the gang.

    verdict_id: unique and deterministic (gang, attempt, rank, first_ns), so that a replay names it alike.
    attempt: the attempt it was seen in; a verdict never outlives it.
    slowdown: step time now over step time without the suspect (>= 1): what the cost test needs.
    confidence: in 0..1. first_wall_ns, last_wall_ns: the evidence window. frames: newest frame seq a node in it.
    step_seconds_before, step_seconds_now: mean step time of the gang when healthy and in the window.
    ranks: all members that are concerned, where it is more than `rank` alone (a node's, a stage's).
    device: what is accused: GPU UUID, NIC ('node-3/mlx5_0') or link; '' where it is the node or nothing.
    level: what `device` or `node` is: 'gpu', 'nic', 'link', 'node'; '' where nothing is accused.
    suspects: other places that it could be, the likelier first, as level:name.
    aggressor: the job that disturbs, for interference. resource: what the two share, as kind:name.
    first_step, last_step: of the evidence window, the job's own numbers; detected_step: the newest step that was known
    when the verdict was first told; -1 where steps are not reported.
    lasts_seconds: how long the fault is expected to last from first_wall_ns on, where the detector can tell; None: the
    policy's expectation holds.
    longest_pause_seconds: of a hang, the longest that the job ever made no step and then went on by itself, while none
    of its processes was stopped; None where the detector does not tell.
    """

    verdict_id: str
    kind: Kind
    gang: str
    attempt: int
    rank: int
    node: str
    cause: Cause
    confidence: float
    slowdown: float
    step_seconds_before: float
    step_seconds_now: float
    first_wall_ns: int
    last_wall_ns: int
    evidence: tuple[Evidence, ...] = ()
    frames: tuple[tuple[str, int], ...] = ()
    detector: str = "straggler"
    ranks: tuple[int, ...] = ()
    device: str = ""
    level: str = ""
    suspects: tuple[str, ...] = ()
    aggressor: str = ""
    resource: str = ""
    first_step: int = -1
    last_step: int = -1
    detected_step: int = -1
    lasts_seconds: float | None = None
    longest_pause_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Cleared:
    """A verdict no longer holds: the member kept pace again for the detector's holding time.

    last_step: the last step that still showed it; -1 where steps are not reported.
    """

    verdict_id: str
    gang: str
    wall_ns: int
    reason: str
    last_step: int = -1


@dataclass(frozen=True, slots=True)
class Abstention:
    """A detector saw slowness and could not tell whose or why; nothing is acted on, and the reason is kept."""

    gang: str
    attempt: int
    rank: int | None
    wall_ns: int
    reason: str
    evidence: tuple[Evidence, ...] = ()
    detector: str = "straggler"


Finding = Verdict | Cleared | Abstention
