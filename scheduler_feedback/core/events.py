"""Events: all input of the cycle. Immutable, journalled before the cycle acts on them, and replayable.

An event is a request of a user or operator, an observation of the backend, or a detector result. The cycle processes it
at the cycle's own ``now``.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from scheduler_feedback.core.cluster import Limit, Node
from scheduler_feedback.core.job import HostedWait, JobSpec, Slot
from scheduler_feedback.core.mig import MigProfile
from scheduler_feedback.core.power import SlotPower
from scheduler_feedback.core.state import Policy
from scheduler_feedback.core.verdict import Abstention, Cleared, Verdict

# --- requests of users and operators ---------------------------------------------------------------------------------


class Submitted(msgspec.Struct, frozen=True):
    """A submitted job. The sender of the event assigns the job's id, so that a response can contain the id before the
    cycle runs."""

    job_id: str
    spec: JobSpec
    array_of: str = ""
    """Id of the job array to which the job belongs; '' for none."""
    array_index: int = 0
    """Index of the job in its job array, from 0."""
    by: str = ""
    """User who submitted the job for its owner; '' if the owner submitted it."""
    attempt: int = 0
    """Number of the last attempt that an earlier controller began; 0 for none. The next attempt has the next number."""


class CancelRequested(msgspec.Struct, frozen=True):
    """A request to cancel a job."""

    job_id: str
    by: str = ""


class NodeCommand(StrEnum):
    """Operator's command for a node."""

    RELEASE = "release"  # back to healthy from any state
    QUARANTINE = "quarantine"
    MAINTENANCE = "maintenance"
    REMOVE = "remove"  # delete the node from the state, because it no longer exists


class NodeCommanded(msgspec.Struct, frozen=True):
    """An operator's command for a node. drain: whether MAINTENANCE also moves restartable jobs to other nodes."""

    node: str
    command: NodeCommand
    by: str = ""
    reason: str = ""
    drain: bool = False


class VerdictJudged(msgspec.Struct, frozen=True):
    """An operator's confirmation or rejection of a verdict. A rejection releases the accused node and resets the node's
    count of quarantines."""

    verdict_id: str
    confirmed: bool
    by: str = ""


class FreezeSet(msgspec.Struct, frozen=True):
    """Start or end of a freeze, which suspends all actions."""

    frozen: bool
    by: str = ""


class PolicySet(msgspec.Struct, frozen=True):
    """New settings from the configuration, at a start or a reload."""

    policy: Policy
    by: str = ""


# --- observations of the backend -------------------------------------------------------------------------------------


class NodeSeen(msgspec.Struct, frozen=True):
    """A node and its properties; sent at start and on every change. present: False if the node is gone."""

    node: str
    slots: int
    devices: tuple[str, ...] = ()
    machine: str = ""
    present: bool = True
    gpu_type: str = ""
    spine: str = ""
    rack: str = ""
    rail: str = ""
    island: str = ""
    island_slots: int = 0
    refuses: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()
    free: tuple[tuple[str, int], ...] = ()
    jobs_per_slot: int = 1
    slot_memory_mib: int = 0
    mig_profiles: tuple[MigProfile, ...] = ()


def as_seen(node: Node) -> NodeSeen:
    """Return the node's current properties as the event with which the backend reports them."""
    return NodeSeen(
        node.name,
        node.slots,
        node.devices,
        node.machine,
        node.present,
        node.gpu_type,
        node.spine,
        node.rack,
        node.rail,
        node.island,
        node.island_slots,
        node.refuses,
        node.queues,
        node.limits,
        node.free,
        node.jobs_per_slot,
        node.slot_memory_mib,
        node.mig_profiles,
    )


class RankSeen(msgspec.Struct, frozen=True, gc=False):
    """Slot and process of a started rank."""

    rank: int
    node: str
    slot: int
    pid: int
    start_time: int


class AttemptRunning(msgspec.Struct, frozen=True):
    """Report that every rank of the attempt has started. A rank that is not in `ranks` keeps its last known data."""

    job_id: str
    attempt: int
    ranks: tuple[RankSeen, ...]


class Hosted(msgspec.Struct, frozen=True):
    """An attempt of an external job: another scheduler chose these slots and started it."""

    job_id: str
    attempt: int
    """Number of the attempt, as the external scheduler counts."""
    spec: JobSpec
    """Job specification. Its `kind` is EXTERNAL."""
    placement: tuple[Slot, ...]
    began_wall_ns: int = 0
    """Wall time at which the attempt started, in nanoseconds."""


class HostWaits(msgspec.Struct, frozen=True):
    """Pending gangs of the external scheduler, by size; sent on every change."""

    waiting: tuple[HostedWait, ...]


class RankExit(msgspec.Struct, frozen=True, gc=False):
    """End of a rank. exit_code: as a shell reports it (128 + n for signal n); None if unknown."""

    rank: int
    exit_code: int | None


class Checkpointed(msgspec.Struct, frozen=True):
    """Result of an attempt's checkpoint command. exit_code: None if the command did not exit; `reason` says why."""

    exit_code: int | None
    seconds: float
    reason: str = ""


class AttemptEnded(msgspec.Struct, frozen=True):
    """End of an attempt: all of its processes have ended."""

    job_id: str
    attempt: int
    exits: tuple[RankExit, ...]
    """Exit codes of the ranks."""
    started: bool = True
    """Whether the gang ever ran. False if a rank could not be started; `reason` says which and why."""
    reason: str = ""
    """Why the attempt did not start or was stopped, in words; '' if neither applies."""
    ended_wall_ns: int = 0
    """Time at which the last process ended, by the shim's clock. The controller may have been down at that time."""
    signalled: bool = False
    """Whether a rank still ran when the stop signal was sent. If so, exit code 0 does not prove that the rank
    finished."""
    why: str = ""
    """Reason of the requested stop (a StopReason); '' if no stop was requested. `gangwatch down` stops jobs without the
    cycle."""
    done_seconds: float | None = None
    """All saved work of the job, in seconds of running alone at full speed; None: unknown."""
    all_exited_with: int | None = None
    """Exit code of every rank that `exits` omits; None: unknown."""
    checkpointed: Checkpointed | None = None
    """Result of the checkpoint command; None if it did not run."""
    out_of_memory: bool = False
    """Whether the output of a rank shows that it ran out of device memory."""


class RankFailed(msgspec.Struct, frozen=True):
    """Exit of one rank with an error while others still run: the gang cannot continue."""

    job_id: str
    attempt: int
    rank: int
    exit_code: int


class AttemptUnknown(msgspec.Struct, frozen=True):
    """An attempt of which the backend has no record, although the state contains it: it was never started."""

    job_id: str
    attempt: int


class FirstStep(msgspec.Struct, frozen=True):
    """First training step of an attempt. The time of a restart is measured up to this step."""

    job_id: str
    attempt: int
    step: int
    wall_ns: int


class Progressed(msgspec.Struct, frozen=True):
    """Progress report of a running job: total work of all attempts, in seconds of a run alone at full speed."""

    job_id: str
    attempt: int
    done_seconds: float


class SharedSpeed(msgspec.Struct, frozen=True):
    """Measured speed of a job that shares slots, as a share of its speed alone on the same slots."""

    job_id: str
    attempt: int
    partners: tuple[str, ...]
    """Ids of the jobs with which it shared all the time of the measurement, sorted."""
    speed: float


class LatencyMeasured(msgspec.Struct, frozen=True):
    """Measured latency of a running job with a latency objective, over its newest requests."""

    job_id: str
    attempt: int
    seconds: float
    """Time in which 95 % of the requests were answered."""
    busy: float
    """Share (0 to 1) of the time in which the ranks answered requests."""


class SpeedMeasured(msgspec.Struct, frozen=True):
    """Measured speed of a running attempt, over a time in which its speed was steady."""

    job_id: str
    attempt: int
    per_second: float
    """Work of the whole gang per second."""
    seconds: float
    """Time over which the speed was measured."""
    unit: str = ""
    """Unit of the work, such as tokens or steps. Speeds in another unit replace those of the class."""
    wait_share: float | None = None
    """Share (0 to 1) of that time for which all ranks wait in collectives, which is that of the rank that waits least
    in each step; None if a rank does not report its waits."""
    interval_seconds: float = 0.0
    """Mean time from the end of a step to the end of the next, in seconds; 0 if not measured."""
    network_seconds: float | None = None
    """Time for which all ranks wait in collectives in the steps with least wait (the lowest tenth), in seconds; None if
    a rank does not report its waits."""
    delay_seconds: float = 0.0
    """Mean time for which a step was delayed by a time shift, in seconds. It is part of the waits and intervals."""


class MemoryMeasured(msgspec.Struct, frozen=True):
    """Measured device memory of a running attempt. It never contains memory of the host."""

    job_id: str
    attempt: int
    mib: int
    """Largest device memory of a rank so far in this attempt, in MiB."""


class PowerSeen(msgspec.Struct, frozen=True):
    """Power limits and idle power of a node's GPUs, as its agent reports them; sent on every change."""

    node: str
    slots: tuple[SlotPower, ...] = ()
    """The GPU of each slot; empty if the node has none any more."""


class ActionFailed(msgspec.Struct, frozen=True):
    """An action that the backend could not carry out. The cycle makes the decision again."""

    action_id: str
    job_id: str
    reason: str


class Tick(msgspec.Struct, frozen=True):
    """Passage of time without any other event."""


Event = (
    Submitted
    | CancelRequested
    | NodeCommanded
    | VerdictJudged
    | FreezeSet
    | PolicySet
    | NodeSeen
    | AttemptRunning
    | Hosted
    | HostWaits
    | AttemptEnded
    | RankFailed
    | AttemptUnknown
    | FirstStep
    | Progressed
    | SharedSpeed
    | LatencyMeasured
    | SpeedMeasured
    | MemoryMeasured
    | PowerSeen
    | ActionFailed
    | Verdict
    | Cleared
    | Abstention
    | Tick
)
