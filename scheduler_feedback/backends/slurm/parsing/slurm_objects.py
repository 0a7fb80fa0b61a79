"""Slurm's nodes and jobs, in one form for all versions. parse_json.py, columns.py and parse_text.py produce them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

RUNS = frozenset({"RUNNING", "SUSPENDED"})
"""Base states of a job that holds its nodes. With COMPLETING, its processes are being ended."""

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
"""Flags of a job (squeue(1), JOB STATE CODES), and the base state of a job of which only the flag is printed."""

FOR_ROOM = frozenset({"Resources", "Priority"})
FOR_ROOM_SINCE = ("ReqNodeNotAvail", "Nodes_required_for_job", "Nodes required for job")
"""Reasons of jobs that wait only for nodes (squeue(1), JOB REASON CODES); a job that was just submitted has none."""

OUT = frozenset(
    {"DOWN", "FAIL", "FAILING", "FUTURE", "MAINTENANCE", "MAINT", "REBOOT_ISSUED", "NOT_RESPONDING", "ERROR",
     "UNKNOWN", "POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "INVALID_REG"}
)  # fmt: skip
"""States and flags of a node on which nothing new starts, whatever the cause (scontrol(1), NODES: State)."""


def base_state(states: Iterable[str]) -> str:
    """Return the base state among a job's state and flags; '' if there is neither."""
    listed = list(states)
    for state in listed:
        if state not in _ALONE:
            return state
    return _ALONE[listed[0]] if listed else ""


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node."""

    name: str
    gpus: int
    gpu_type: str = ""
    """Type in gres.conf; '' if it has none."""

    states: frozenset[str] = frozenset()
    """Base state and flags, in capitals ('IDLE', 'DRAIN')."""

    reason: str = ""
    weight: int = 1
    features: tuple[str, ...] = ()
    """Active features."""

    comment: str = ""
    partitions: tuple[str, ...] = ()

    @property
    def drained(self) -> bool:
        """Whether it takes no new jobs because it was drained."""
        return bool(self.states & {"DRAIN", "DRAINED", "DRAINING"})


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job, or a task of a job array."""

    number: int
    """The argument of scontrol and scancel, which is also in slurmstepd's title."""

    state: str
    """Base state."""

    completing: bool = False
    """Whether processes of an attempt are still being ended."""

    nodes: tuple[str, ...] = ()
    gpus: tuple[tuple[int, ...], ...] = ()
    """Indices of its GPUs, for each of `nodes`."""

    restarts: int = 0
    """How often it was requeued."""

    comment: str = ""
    batch: bool = True
    requeue: bool = True
    user: str = ""
    name: str = ""
    partition: str = ""
    time_limit_seconds: float | None = None
    started_seconds: float = 0.0
    """Since the epoch; 0 if it has not started."""

    begins_seconds: float = 0.0
    """Earliest start, since the epoch; 0 for none."""

    excluded: tuple[str, ...] = ()
    """Nodes in its --exclude."""

    least_nodes: int = 1
    """Nodes that it requests."""

    held: bool = False
    """Whether it waits for a person to release it."""

    exit_code: int | None = None
    reason: str = ""
    """Slurm's word for why it is pending; '' for none."""

    gpus_wanted: int = 0
    """GPUs that it requests in all; 0 if it requests none."""

    submitted_seconds: float = 0.0
    """Since the epoch; 0 if unknown. With `user` it identifies a job, because numbers are reused."""

    @property
    def runs(self) -> bool:
        return self.state in RUNS and not self.completing

    @property
    def waits(self) -> bool:
        return self.state == "PENDING" and not self.completing

    @property
    def waits_for_room(self) -> bool:
        """Whether only nodes are missing: neither a person, nor another job, a limit or a start time."""
        return self.waits and not self.held and (self.reason in FOR_ROOM or self.reason.startswith(FOR_ROOM_SINCE))


@dataclass(frozen=True, slots=True)
class Refused:
    """A record that could not be read. Nothing is concluded about its job or node; other records are used."""

    where: str
    """Command and record: 'squeue --json: jobs[7]'."""

    why: str
    kind: str
    """'job' or 'node'."""

    key: int | str | None = None
    """The job's number or the node's name; None if not even that could be read."""


_Key = TypeVar("_Key", int, str)
_Record = TypeVar("_Record", "SlurmJob", "SlurmNode")


@dataclass(frozen=True)
class Listed(Generic[_Key, _Record]):
    """Result of one command that lists all jobs or all nodes."""

    records: dict[_Key, _Record]
    """By job number or node name."""

    refused: tuple[Refused, ...] = ()
    unread: frozenset[int] = frozenset()
    """Jobs of which some values are not read yet. One of the next listings requests them."""


Jobs = Listed[int, SlurmJob]
Nodes = Listed[str, SlurmNode]


def unreadable(jobs: Jobs) -> frozenset[int]:
    """Return the numbers of jobs that Slurm has and whose records are missing."""
    refused = (one.key for one in jobs.refused if isinstance(one.key, int))
    return frozenset((*refused, *jobs.unread)) - jobs.records.keys()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of the cluster in one scan."""

    at_ns: int
    """Monotonic time at which the scan began."""

    nodes: dict[str, SlurmNode] = field(default_factory=dict)
    jobs: dict[int, SlurmJob] = field(default_factory=dict)
    """By number; includes some jobs that have ended."""

    unreadable: frozenset[int] = frozenset()
    """Jobs that Slurm has and whose records were refused: they have not ended."""

    complete: bool = True
    """False if a refused record does not say which job it is: then an absent job may still exist."""

    def is_gone(self, number: int) -> bool:
        """Return whether Slurm no longer has this job."""
        return self.complete and number not in self.jobs and number not in self.unreadable
