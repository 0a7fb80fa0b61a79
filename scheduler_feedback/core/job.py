"""Jobs: what was submitted, and where an attempt of it stands.

Structs: they are made, compared and read back in a fifth of the time that dataclasses take, and a journal is full of
them. ``msgspec.structs.replace`` gives a changed copy.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from scheduler_feedback.core.cluster import Level


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
        return self in _ENDED

    @property
    def holds_slots(self) -> bool:
        return self in _HOLDING


# Asked of every job several times a second: a member of an enum is looked up anew wherever it is named.
_ENDED = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)
_HOLDING = (JobState.STARTING, JobState.RUNNING, JobState.STOPPING)


class StopReason(StrEnum):
    """Why an attempt is being stopped: decides what it becomes once its ranks have exited."""

    CANCEL = "cancel"
    MIGRATE = "migrate"
    RESIZE = "resize"  # an elastic gang goes on with another number of ranks
    PREEMPT = "preempt"  # its slots are for another gang; it waits again and resumes from its checkpoint
    RANK_FAILED = "rank-failed"
    START_FAILED = "start-failed"


class JobKind(StrEnum):
    TRAINING = "training"
    PROBE = "probe"  # our own: measures a quarantined node before it is trusted again
    HOSTED = "hosted"  # another scheduler's: that starts and places it; we watch it, and may ask for another place


class Packing(StrEnum):
    """How a gang that fits in several ways is laid out."""

    PACK = "pack"  # the fewest nodes, as near to each other as can be
    SPREAD = "spread"  # as many nodes as can be: for jobs that wait on something else than the wire


class After(StrEnum):
    """What a job waits for of another one."""

    OK = "ok"  # completed
    FAILED = "failed"  # failed or cancelled
    ENDED = "ended"  # however it ended
    STARTED = "started"


class Dependency(msgspec.Struct, frozen=True):
    """The job starts only once `job_id` is what `condition` says; a condition that can't be met any more ends it."""

    job_id: str
    condition: After = After.OK


class Group(msgspec.Struct, frozen=True):
    """Ranks of one role; the groups of a gang stand in the order of its ranks. An MPI launcher is a group of one.

    command: of its ranks, empty for the job's own. same_node: all of them on one node.
    """

    role: str
    ranks: int
    command: tuple[str, ...] = ()
    same_node: bool = False


class JobSpec(msgspec.Struct, frozen=True):
    """What a user submits. A specification never changes.

    command: argument list, no shell. ranks: gang size, all or nothing; one slot a rank.
    time_limit_seconds: the user's estimate of the whole run; backfill plans by it; an overrun is not killed.
    restartable: the job may be stopped and started again (it resumes from its own checkpoint).
    checkpoint_signal: name of the signal that makes it save and exit; sent before SIGKILL, with grace_seconds between.
    checkpoint_command: argument list, no shell; run beside rank 0 before the signal, so that the job is saved before it
    is moved; empty: none. checkpoint_timeout_seconds: the longest that is waited for it.
    restart_cost_seconds: the user's estimate of load and warm-up, for the cost test.
    max_retries: new attempts after a failure (migrations do not count).
    pinned_node: only on this node (probes).
    min_ranks, max_ranks: an elastic gang runs with any number from one to the other; `ranks` is what it asks for.
    array_size: so many jobs of this specification, each its own gang; 0: one job, no array. array_parallel: most of
    them that run at once; 0: no such limit.
    groups: roles, in the order of ranks; their ranks add up to `ranks`. Empty: all are alike.
    after: what must have happened before it may start.
    gpu_types: types that it can run on; empty: any. A gang runs on one type. throughput: speed on a type as a share of
    that on the type the estimates are for; what is not named is taken from the policy's matrix, else 1.
    checkpoint_interval_seconds: it saves on its own that often, and loses what came since; None: it saves when told.
    checkpoint_cost_seconds: what a save takes.
    priority: higher first, before anything else is looked at.
    preemptible: it may be stopped for another gang (if it is restartable too). min_run_seconds: but not before it has
    run so long in the attempt; None: the policy's.
    required_level: all ranks inside one domain of this level, or it waits. preferred_level: as far as it can be had.
    workload: what it trains, in a word: jobs alike in user, queue, workload and size are expected to run alike long.
    constraint: name of what a node must meet for the job, as the backend tells of each node that does not; '': nothing.
    exact_seconds: how long it really runs; known in a simulation alone, read only by `Estimates.EXACT`.
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
    environment: dict[str, str] = {}
    pinned_node: str | None = None
    min_ranks: int | None = None
    max_ranks: int | None = None
    array_size: int = 0
    array_parallel: int = 0
    groups: tuple[Group, ...] = ()
    after: tuple[Dependency, ...] = ()
    gpu_types: tuple[str, ...] = ()
    throughput: dict[str, float] = {}
    checkpoint_interval_seconds: float | None = None
    checkpoint_cost_seconds: float = 0.0
    priority: int = 0
    preemptible: bool = False
    min_run_seconds: float | None = None
    packing: Packing = Packing.PACK
    required_level: Level | None = None
    preferred_level: Level | None = None
    workload: str = ""
    exact_seconds: float | None = None
    constraint: str = ""
    checkpoint_command: tuple[str, ...] = ()
    checkpoint_timeout_seconds: float = 60.0

    @property
    def stop_seconds(self) -> float:
        """The longest from when it is asked to make room until all of it is killed."""
        return self.grace_seconds + (self.checkpoint_timeout_seconds if self.checkpoint_command else 0.0)


# There is one of each of these for every rank: nothing in them can lie in a circle, so Python need not look for one.


class Slot(msgspec.Struct, frozen=True, order=True, gc=False):
    """One place for one rank: a GPU (its UUID) or a share of CPU, on a node."""

    node: str
    slot: int


class HostedWait(msgspec.Struct, frozen=True, order=True, gc=False):
    """Gangs of one size that wait in a queue of another scheduler. seconds: the longest that one of them may run."""

    queue: str
    ranks: int
    seconds: float | None = None


class RankRecord(msgspec.Struct, frozen=True, gc=False):
    """What is known of one rank of the newest attempt. start_time: clock ticks since boot (/proc/PID/stat field 22)."""

    rank: int
    slot: Slot
    pid: int | None = None
    start_time: int | None = None
    exit_code: int | None = None


class Job(msgspec.Struct):
    """A job and its newest attempt. Owned and changed by the cycle alone.

    attempt: 0 before the first start. ranks: of the newest attempt, by rank.
    started_ns, submitted_ns, ended_ns, attempt_started_ns: the cycle's wall time. run_ns: time run in earlier attempts.
    excluded_nodes: where the next attempt must not go. retries: failures so far that were retried.
    first_step_ns: when the newest attempt was first seen making a step (observation), for restart time.
    not_before_ns: nothing is asked of the backend for this job before then. action_id: of the newest action about it.
    stop_reason: why the newest attempt is to stop; set before the stop is asked for, so that a freeze can delay it.
    stopping_ns, attempt_ended_ns: when the stop was asked for, when the newest attempt was gone. failure: what went
    wrong last. claim: the slots, by rank, that are kept for the restart of a gang on the move.
    done_seconds: work that is saved, in seconds of running alone at full speed; None: none yet. progress_ns: when the
    running attempt last told how far it is, which is then done_seconds.
    level, turn: of LAS: the queue that it has fallen to, and its place in it.
    urgency: of the fair order, GPU-seconds that are expected to be spent for it to end, when it was last looked at;
    appraise_ns: when it is worth another look.
    estimate_seconds: what jobs alike have taken in all, when it was last looked at; None: not looked at.
    preemptions, migrations: how often it was stopped for another gang, and moved.
    array_of, array_index: the array that it is a member of, '' where it is none.
    speed: at which the newest attempt works, as a share of what the estimates are for: by its ranks and GPU type.
    proposed: what observe mode last told that it would do about it.
    overdue: it has waited past the starvation bound, and goes before others by the share that is kept for such.
    """

    job_id: str
    spec: JobSpec
    state: JobState
    submitted_ns: int
    attempt: int = 0
    ranks: list[RankRecord] = []
    started_ns: int | None = None
    attempt_started_ns: int | None = None
    ended_ns: int | None = None
    run_ns: int = 0
    retries: int = 0
    stop_reason: StopReason | None = None
    end_reason: str = ""
    excluded_nodes: tuple[str, ...] = ()
    not_before_ns: int = 0
    expected_start_ns: int | None = None
    last_migration_ns: int | None = None
    first_step_ns: int | None = None
    stopping_ns: int | None = None
    attempt_ended_ns: int | None = None
    action_id: str = ""
    failure: str = ""
    claim: list[Slot] = []
    done_seconds: float | None = None
    progress_ns: int | None = None
    level: int = 0
    turn: int = 0
    estimate_seconds: float | None = None
    urgency: float = 0.0
    appraise_ns: int = 0
    preemptions: int = 0
    migrations: int = 0
    array_of: str = ""
    array_index: int = 0
    speed: float = 1.0
    proposed: str = ""
    overdue: bool = False
