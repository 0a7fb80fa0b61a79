"""Jobs: what was submitted, and where an attempt of it stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class JobState(StrEnum):
    """pending -> starting -> running -> stopping -> pending (another attempt) or one of the ends."""

    PENDING = "pending"
    STARTING = "starting"  # a start was decided; not all ranks are seen running yet
    RUNNING = "running"
    STOPPING = "stopping"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)

    @property
    def holds_slots(self) -> bool:
        return self in (JobState.STARTING, JobState.RUNNING, JobState.STOPPING)


class StopReason(StrEnum):
    """Why an attempt is being stopped: decides what it becomes once its ranks have exited."""

    CANCEL = "cancel"
    MIGRATE = "migrate"
    RANK_FAILED = "rank-failed"
    START_FAILED = "start-failed"


class JobKind(StrEnum):
    TRAINING = "training"
    PROBE = "probe"  # our own: measures a quarantined node before it is trusted again


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a user submits. A specification never changes.

    command: argument list, no shell. ranks: gang size, all or nothing; one slot a rank.
    time_limit_seconds: the user's estimate of the whole run; backfill plans by it; an overrun is not killed.
    restartable: the job may be stopped and started again (it resumes from its own checkpoint).
    checkpoint_signal: name of the signal that makes it save and exit; sent before SIGKILL, with grace_seconds between.
    restart_cost_seconds: the user's estimate of load and warm-up, for the cost test.
    max_retries: new attempts after a failure (migrations do not count).
    pinned_node: only on this node (probes).
    """

    name: str
    command: tuple[str, ...]
    ranks: int
    user: str = ""
    queue: str = "default"
    kind: JobKind = JobKind.TRAINING
    time_limit_seconds: float | None = None
    restartable: bool = False
    checkpoint_signal: str = "SIGTERM"
    grace_seconds: float = 30.0
    restart_cost_seconds: float = 10.0
    max_retries: int = 0
    working_directory: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    pinned_node: str | None = None


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """One place for one rank: a GPU (its UUID) or a share of CPU, on a node."""

    node: str
    slot: int


@dataclass(frozen=True, slots=True)
class RankRecord:
    """What is known of one rank of the newest attempt. start_time: clock ticks since boot (/proc/PID/stat field 22)."""

    rank: int
    slot: Slot
    pid: int | None = None
    start_time: int | None = None
    exit_code: int | None = None


@dataclass(slots=True)
class Job:
    """A job and its newest attempt. Owned and changed by the cycle alone.

    attempt: 0 before the first start. ranks: of the newest attempt, by rank.
    started_ns, submitted_ns, ended_ns, attempt_started_ns: the cycle's wall time. run_ns: time run in earlier attempts.
    excluded_nodes: where the next attempt must not go. retries: failures so far that were retried.
    first_step_ns: when the newest attempt was first seen making a step (observation), for restart time.
    not_before_ns: nothing is asked of the backend for this job before then. action_id: of the newest action about it.
    stop_reason: why the newest attempt is to stop; set before the stop is asked for, so that a freeze can delay it.
    stopping_ns, attempt_ended_ns: when the stop was asked for, when the newest attempt was gone. failure: what went
    wrong last. claim: the slots, by rank, that are kept for the restart of a gang on the move.
    """

    job_id: str
    spec: JobSpec
    state: JobState
    submitted_ns: int
    attempt: int = 0
    ranks: list[RankRecord] = field(default_factory=list)
    started_ns: int | None = None
    attempt_started_ns: int | None = None
    ended_ns: int | None = None
    run_ns: int = 0
    retries: int = 0
    stop_reason: StopReason | None = None
    end_reason: str = ""
    excluded_nodes: tuple[str, ...] = ()
    not_before_ns: int = 0
    waiting_because: str = ""
    expected_start_ns: int | None = None
    last_migration_ns: int | None = None
    first_step_ns: int | None = None
    stopping_ns: int | None = None
    attempt_ended_ns: int | None = None
    action_id: str = ""
    failure: str = ""
    claim: list[Slot] = field(default_factory=list)
