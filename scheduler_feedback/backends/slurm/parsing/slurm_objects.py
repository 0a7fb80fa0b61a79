"""Slurm's nodes and jobs, in one form for all versions; made by parse_json.py, columns.py and parse_text.py."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

RUNS = frozenset({"RUNNING", "SUSPENDED"})
"""Base states of a job that holds its nodes and works; of COMPLETING, its processes are being ended."""

_ALONE = {
    "COMPLETING": "COMPLETED",
    "CONFIGURING": "RUNNING",
    "REQUEUED": "PENDING",
    "REQUEUE_FED": "PENDING",
    "REQUEUE_HOLD": "PENDING",
    "RESV_DEL_HOLD": "PENDING",
    "SPECIAL_EXIT": "PENDING",
    "RESIZING": "RUNNING",
    "SIGNALING": "RUNNING",
    "STAGE_OUT": "COMPLETED",
    "STOPPED": "RUNNING",
    "POWER_UP_NODE": "RUNNING",
}
"""Flags of a job (squeue(1), JOB STATE CODES), and the base state of one of which only the flag is told."""

FOR_ROOM = frozenset({"Resources", "Priority"})
FOR_ROOM_SINCE = ("ReqNodeNotAvail", "Nodes_required_for_job", "Nodes required for job")
"""Reasons of jobs that wait for nodes alone (squeue(1), JOB REASON CODES); one that has just come has none yet."""

OUT = frozenset(
    {"DOWN", "FAIL", "FAILING", "FUTURE", "MAINTENANCE", "MAINT", "REBOOT_ISSUED", "NOT_RESPONDING", "ERROR",
     "UNKNOWN", "POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "INVALID_REG"}
)  # fmt: skip
"""States and flags of a node on which nothing new starts, whoever brought it there (scontrol(1), NODES: State)."""


def base_state(states: Iterable[str]) -> str:
    """The base state among a job's state and flags; '' where there is neither."""
    told = list(states)
    for state in told:
        if state not in _ALONE:
            return state
    return _ALONE[told[0]] if told else ""


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node. states: base state and flags, in capitals ('IDLE', 'DRAIN'). features: those that it has active.

    gpu_type: as gres.conf names it, '' where it does not. reason_user: who set the reason, '' where it is not told.
    """

    name: str
    gpus: int
    gpu_type: str = ""
    states: frozenset[str] = frozenset()
    reason: str = ""
    reason_user: str = ""
    weight: int = 1
    features: tuple[str, ...] = ()
    comment: str = ""
    partitions: tuple[str, ...] = ()

    @property
    def drained(self) -> bool:
        """Whether it takes no new job because somebody drained it."""
        return bool(self.states & {"DRAIN", "DRAINED", "DRAINING"})


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job, or a task of a job array. number: what scontrol and scancel take, and slurmstepd's title has.

    state: its base state. completing: whether processes of an attempt are still being ended. gpus: of each of `nodes`,
    the indices of its GPUs. restarts: times it was requeued. begins_seconds, started_seconds: since the epoch, 0 where
    there is none. excluded: what its --exclude names. least_nodes: that it asks for. held: it waits for a person.
    reason: why it waits, in Slurm's word, '' for none. gpus_wanted: that it asks for, in all; 0 where none are told.
    submitted_seconds: since the epoch, 0 where it is not told. With `user` it identifies a job: numbers are reused.
    """

    number: int
    state: str
    completing: bool = False
    nodes: tuple[str, ...] = ()
    gpus: tuple[tuple[int, ...], ...] = ()
    restarts: int = 0
    comment: str = ""
    batch: bool = True
    requeue: bool = True
    user: str = ""
    name: str = ""
    partition: str = ""
    time_limit_seconds: float | None = None
    started_seconds: float = 0.0
    begins_seconds: float = 0.0
    excluded: tuple[str, ...] = ()
    least_nodes: int = 1
    held: bool = False
    exit_code: int | None = None
    reason: str = ""
    gpus_wanted: int = 0
    submitted_seconds: float = 0.0

    @property
    def runs(self) -> bool:
        return self.state in RUNS and not self.completing

    @property
    def waits(self) -> bool:
        return self.state == "PENDING" and not self.completing

    @property
    def waits_for_room(self) -> bool:
        """Whether nothing but nodes are missing: neither a person, nor another job, nor a limit, nor an hour."""
        return self.waits and not self.held and (self.reason in FOR_ROOM or self.reason.startswith(FOR_ROOM_SINCE))


@dataclass(frozen=True, slots=True)
class Refused:
    """A record that could not be read. It costs this record alone; nothing is concluded about what it describes."""

    where: str
    """The command, and which of its records: 'squeue --json: jobs[7]'."""

    why: str
    kind: str
    """'job' or 'node'."""

    key: int | str | None = None
    """The job's number or the node's name; None where not even that could be read."""


_Key = TypeVar("_Key", int, str)
_Record = TypeVar("_Record", "SlurmJob", "SlurmNode")


@dataclass(frozen=True)
class Listed(Generic[_Key, _Record]):
    """What one listing contains."""

    records: dict[_Key, _Record]
    """By job number or node name."""

    refused: tuple[Refused, ...] = ()
    unread: frozenset[int] = frozenset()
    """Jobs of which a part is asked for with one of the next listings."""


Jobs = Listed[int, SlurmJob]
Nodes = Listed[str, SlurmNode]


def unreadable(jobs: Jobs) -> frozenset[int]:
    """Numbers of jobs that Slurm has and whose records are not there."""
    refused = (one.key for one in jobs.refused if isinstance(one.key, int))
    return frozenset((*refused, *jobs.unread)) - jobs.records.keys()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One look at the cluster."""

    at_ns: int
    """Monotonic, when it began."""

    nodes: dict[str, SlurmNode] = field(default_factory=dict)
    jobs: dict[int, SlurmJob] = field(default_factory=dict)
    """By number; of the jobs that have ended some."""

    unreadable: frozenset[int] = frozenset()
    """Jobs that Slurm has and whose records were refused: they have not ended."""

    complete: bool = True
    """False where a refused record does not say which job it is: then no job has ended for being absent."""

    def knows_that_gone(self, number: int) -> bool:
        """Whether Slurm has this job no more."""
        return self.complete and number not in self.jobs and number not in self.unreadable
