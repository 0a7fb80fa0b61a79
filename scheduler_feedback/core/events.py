"""Events: everything that the cycle is told. Frozen; journalled before anything is acted on; replayable.

An event says what happened outside: a user's or operator's wish, what the backend observed, what a detector found. The
time at which the cycle takes it in is the cycle's own ``now``.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from scheduler_feedback.core.cluster import Node
from scheduler_feedback.core.job import HostedWait, JobSpec, Slot
from scheduler_feedback.core.state import Policy
from scheduler_feedback.core.verdict import Abstention, Cleared, Verdict

# --- wishes of users and operators -----------------------------------------------------------------------------------


class Submitted(msgspec.Struct, frozen=True):
    """A job was submitted. The id is given by the shell, so that the answer can name it before the cycle runs.

    array_of, array_index: of a job that is a member of an array already, and which; '' for none. by: who submitted it
    for its user; '' where that was the user.
    """

    job_id: str
    spec: JobSpec
    array_of: str = ""
    array_index: int = 0
    by: str = ""


class CancelRequested(msgspec.Struct, frozen=True):
    job_id: str
    by: str = ""


class NodeCommand(StrEnum):
    RELEASE = "release"  # back to healthy, whatever it was
    QUARANTINE = "quarantine"
    MAINTENANCE = "maintenance"
    REMOVE = "remove"  # forgotten: it is gone for good


class NodeCommanded(msgspec.Struct, frozen=True):
    """An operator's command for a node. drain: with MAINTENANCE, also stop restartable jobs, to go on elsewhere."""

    node: str
    command: NodeCommand
    by: str = ""
    reason: str = ""
    drain: bool = False


class VerdictJudged(msgspec.Struct, frozen=True):
    """An operator confirmed or rejected a verdict. Rejected: its node is released and its backoff forgotten."""

    verdict_id: str
    confirmed: bool
    by: str = ""


class FreezeSet(msgspec.Struct, frozen=True):
    """All actions are frozen or allowed again."""

    frozen: bool
    by: str = ""


class PolicySet(msgspec.Struct, frozen=True):
    """The settings from here on: the configuration's at a start or a reload. Journalled, so that a replay is exact."""

    policy: Policy
    by: str = ""


# --- what the backend observed ---------------------------------------------------------------------------------------


class NodeSeen(msgspec.Struct, frozen=True):
    """A node exists with these slots; sent at start and whenever it changes. present False: it is gone."""

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


def as_seen(node: Node) -> NodeSeen:
    """What the backend last said of the node."""
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
    )


class RankSeen(msgspec.Struct, frozen=True, gc=False):
    rank: int
    node: str
    slot: int
    pid: int
    start_time: int


class AttemptRunning(msgspec.Struct, frozen=True):
    """Every rank of the attempt has been started. ranks: what is known of each; what is not told stays as it was."""

    job_id: str
    attempt: int
    ranks: tuple[RankSeen, ...]


class Hosted(msgspec.Struct, frozen=True):
    """Another scheduler runs this attempt of a job, at these slots: it chose them, the cycle watches.

    attempt: as that scheduler counts. spec: of kind HOSTED. began_wall_ns: when the attempt was started.
    """

    job_id: str
    attempt: int
    spec: JobSpec
    placement: tuple[Slot, ...]
    began_wall_ns: int = 0


class HostWaits(msgspec.Struct, frozen=True):
    """What waits for room with another scheduler, by size; told whenever that has changed."""

    waiting: tuple[HostedWait, ...]


class RankExit(msgspec.Struct, frozen=True, gc=False):
    """How a rank ended: exit code as a shell counts it (128 + n for signal n), None where it could not be learnt."""

    rank: int
    exit_code: int | None


class Checkpointed(msgspec.Struct, frozen=True):
    """What came of an attempt's checkpoint command. exit_code: None where it had none, and `reason` says why."""

    exit_code: int | None
    seconds: float
    reason: str = ""


class AttemptEnded(msgspec.Struct, frozen=True):
    """No process of the attempt is left.

    started: whether the gang ever ran; False where a rank could not be started, with `reason` saying which and why.
    ended_wall_ns: when the last process ended, by the shim's clock (the controller may have been away).
    why: the word of the StopReason for which the attempt was asked to stop, '' where it was not. Not only the cycle
    asks: `gangwatch down` stops jobs also where the controller is gone.
    signalled: whether a rank was still there to be told to save and stop: what exits with 0 then may not have finished.
    all_exited_with: of every rank that `exits` does not name; None: nothing is known of those.
    done_seconds: all work of the job that is saved, in seconds of running alone at full speed; None: not known.
    checkpointed: of its checkpoint command; None where none was run.
    """

    job_id: str
    attempt: int
    exits: tuple[RankExit, ...]
    started: bool = True
    reason: str = ""
    ended_wall_ns: int = 0
    signalled: bool = False
    why: str = ""
    done_seconds: float | None = None
    all_exited_with: int | None = None
    checkpointed: Checkpointed | None = None


class RankFailed(msgspec.Struct, frozen=True):
    """One rank exited with an error while others still run: the gang cannot go on."""

    job_id: str
    attempt: int
    rank: int
    exit_code: int


class AttemptUnknown(msgspec.Struct, frozen=True):
    """The backend holds nothing of an attempt that the cycle believes to exist: the start was never carried out."""

    job_id: str
    attempt: int


class FirstStep(msgspec.Struct, frozen=True):
    """The attempt has made its first training step (for restart times)."""

    job_id: str
    attempt: int
    step: int
    wall_ns: int


class Progressed(msgspec.Struct, frozen=True):
    """A running job tells how much of its work is done: of all attempts, in seconds of running alone at full speed."""

    job_id: str
    attempt: int
    done_seconds: float


class ActionFailed(msgspec.Struct, frozen=True):
    """The backend could not carry out an action; it will be decided again."""

    action_id: str
    job_id: str
    reason: str


class Tick(msgspec.Struct, frozen=True):
    """Time passed; nothing else happened."""


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
    | ActionFailed
    | Verdict
    | Cleared
    | Abstention
    | Tick
)
