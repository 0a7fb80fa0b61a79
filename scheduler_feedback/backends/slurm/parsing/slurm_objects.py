"""Slurm's nodes and jobs, in one form for all versions. parse_json.py, columns.py and parse_text.py produce them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

RUNS = frozenset({"RUNNING", "SUSPENDED"})
"""A job runs if its base state is one of these and it does not have the flag COMPLETING (its processes are ending)."""

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
"""Base state of a job for which Slurm prints only flags and no base state, by flag (squeue(1), JOB STATE CODES)."""

FOR_ROOM = frozenset({"Resources", "Priority"})
FOR_ROOM_SINCE = ("ReqNodeNotAvail", "Nodes_required_for_job", "Nodes required for job")
"""A pending job waits only for nodes if its reason begins with one of these, or is one of FOR_ROOM (squeue(1), JOB
REASON CODES)."""

OUT = frozenset(
    {"DOWN", "FAIL", "FAILING", "FUTURE", "MAINTENANCE", "MAINT", "REBOOT_ISSUED", "NOT_RESPONDING", "ERROR",
     "UNKNOWN", "POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "INVALID_REG"}
)  # fmt: skip
"""States and flags of a node on which no new job starts (scontrol(1), NODES: State)."""


def base_state(states: Iterable[str]) -> str:
    """Return the base state among a job's states and flags; '' if the list is empty."""
    listed = list(states)
    for state in listed:
        if state not in _ALONE:
            return state
    return _ALONE[listed[0]] if listed else ""


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node of the Slurm cluster."""

    name: str
    gpus: int
    gpu_type: str = ""
    """Type of the node's GPUs in gres.conf; '' if it has none."""

    states: frozenset[str] = frozenset()
    """Base state and flags of the node, in capitals ('IDLE', 'DRAIN')."""

    reason: str = ""
    weight: int = 1
    features: tuple[str, ...] = ()
    """Active features of the node, which job constraints can name."""

    comment: str = ""
    partitions: tuple[str, ...] = ()

    @property
    def drained(self) -> bool:
        """Whether the node takes no new jobs because it was drained."""
        return bool(self.states & {"DRAIN", "DRAINED", "DRAINING"})


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A Slurm job, or one task of a job array."""

    number: int
    """Number of the job, for scontrol and scancel. The titles of its slurmstepd processes contain it."""

    state: str
    """Base state of the job, such as 'RUNNING', without flags."""

    completing: bool = False
    """Whether processes of the job's last attempt are still being ended."""

    nodes: tuple[str, ...] = ()
    gpus: tuple[tuple[int, ...], ...] = ()
    """Indices of the job's GPUs on each node, in the order of `nodes`."""

    restarts: int = 0
    """Number of times that the job was requeued."""

    comment: str = ""
    batch: bool = True
    requeue: bool = True
    user: str = ""
    name: str = ""
    partition: str = ""
    time_limit_seconds: float | None = None
    started_seconds: float = 0.0
    """Start of the job, in seconds since the epoch; 0 if it has not started."""

    begins_seconds: float = 0.0
    """Earliest start that the job allows, in seconds since the epoch; 0 for none."""

    excluded: tuple[str, ...] = ()
    """Nodes in the job's --exclude."""

    least_nodes: int = 1
    """Least number of nodes that the job requests."""

    held: bool = False
    """Whether the job is pending until a person releases it."""

    exit_code: int | None = None
    reason: str = ""
    """Reason in one word, from Slurm, why the job is pending; '' for none."""

    gpus_wanted: int = 0
    """Total number of GPUs that the job requests; 0 if it requests none."""

    submitted_seconds: float = 0.0
    """Submission time, in seconds since the epoch; 0 if unknown. Together with `user` it identifies a job, because
    Slurm reuses numbers."""

    @property
    def runs(self) -> bool:
        return self.state in RUNS and not self.completing

    @property
    def waits(self) -> bool:
        return self.state == "PENDING" and not self.completing

    @property
    def waits_for_room(self) -> bool:
        """Whether the job waits only for nodes: not for a person, another job, a limit or a start time."""
        return self.waits and not self.held and (self.reason in FOR_ROOM or self.reason.startswith(FOR_ROOM_SINCE))


@dataclass(frozen=True, slots=True)
class Refused:
    """A record that could not be read. The state of its job or node is then unknown. Other records are used."""

    where: str
    """Command that printed the record, and the record's position in the output: 'squeue --json: jobs[7]'."""

    why: str
    kind: str
    """Kind of the record: 'job' or 'node'."""

    key: int | str | None = None
    """The job's number or the node's name; None if it could not be read either."""


_Key = TypeVar("_Key", int, str)
_Record = TypeVar("_Record", "SlurmJob", "SlurmNode")


@dataclass(frozen=True)
class Listed(Generic[_Key, _Record]):
    """Result of one command that lists all jobs or all nodes."""

    records: dict[_Key, _Record]
    """Records that were read, by job number or node name."""

    refused: tuple[Refused, ...] = ()
    unread: frozenset[int] = frozenset()
    """Numbers of jobs whose GPUs have not been read yet. A later listing reads them."""


Jobs = Listed[int, SlurmJob]
Nodes = Listed[str, SlurmNode]


def unreadable(jobs: Jobs) -> frozenset[int]:
    """Return the numbers of jobs that Slurm listed, but whose record was refused or whose GPUs are not read yet."""
    refused = (one.key for one in jobs.refused if isinstance(one.key, int))
    return frozenset((*refused, *jobs.unread)) - jobs.records.keys()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of the cluster in one scan."""

    at_ns: int
    """Monotonic time at which the scan began."""

    nodes: dict[str, SlurmNode] = field(default_factory=dict)
    jobs: dict[int, SlurmJob] = field(default_factory=dict)
    """Jobs by number. Some of them may have ended."""

    unreadable: frozenset[int] = frozenset()
    """Jobs that exist in Slurm and are not in `jobs`: their records were refused, or their GPUs are not read yet."""

    complete: bool = True
    """False if a refused record does not say which job it is. Then a job that is not in `jobs` may still exist."""

    _identity: object = field(default_factory=object, init=False, compare=False)
    _identities: Mapping[str, object] = field(default_factory=dict, init=False, compare=False)
    """By node, an object that replaces `_identity` since the node's jobs last changed."""

    def after(self, before: Snapshot | None) -> Snapshot:
        """Return this snapshot. Nodes whose jobs are as before keep the object that ``jobs_of`` returns."""
        if before is None:
            return self
        changed: set[str] = set()
        for number in before.jobs.keys() | self.jobs.keys():
            old, new = before.jobs.get(number), self.jobs.get(number)
            if old is not new and old != new:
                changed.update(*(job.nodes for job in (old, new) if job is not None))
        identities = before._identities
        if changed:
            identities = {**identities, **{node: object() for node in changed}}
        object.__setattr__(self, "_identity", before._identity)
        object.__setattr__(self, "_identities", identities)
        return self

    def jobs_of(self, node: str) -> object:
        """Return an object that identifies the node's jobs, as listed: another one after each change of these jobs. It
        may be kept without the snapshot."""
        return self._identities.get(node, self._identity)

    def is_gone(self, number: int) -> bool:
        """Return whether Slurm no longer has this job."""
        return self.complete and number not in self.jobs and number not in self.unreadable
