"""Jobs: the submitted specification and the state of the newest attempt.

Jobs are msgspec structs, because a journal contains many of them: a struct is created, compared and decoded in a fifth
of the time of a dataclass. ``msgspec.structs.replace`` returns a changed copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from scheduler_feedback.core.cluster import Level


class JobState(StrEnum):
    """State of a job: pending -> starting -> running -> stopping -> pending (new attempt), completed, failed or
    cancelled."""

    PENDING = "pending"
    STARTING = "starting"  # the start was decided; not all ranks have been seen running
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


# Constants, because each mention of an enum member is an attribute lookup, and these run for every job several times a
# second.
_ENDED = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)
_HOLDING = (JobState.STARTING, JobState.RUNNING, JobState.STOPPING)


class StopReason(StrEnum):
    """Reason for stopping an attempt. It decides the job's next state once the ranks have exited."""

    CANCEL = "cancel"
    MIGRATE = "migrate"
    RESIZE = "resize"  # an elastic gang continues with another number of ranks
    PREEMPT = "preempt"  # another gang takes its slots; it becomes pending and resumes from its checkpoint
    RANK_FAILED = "rank-failed"
    START_FAILED = "start-failed"


class JobKind(StrEnum):
    """Origin of a job."""

    TRAINING = "training"
    PROBE = "probe"  # started by gangwatch to measure a quarantined node before it is used again
    EXTERNAL = "hosted"  # started and placed by another scheduler; gangwatch may request another placement


class Packing(StrEnum):
    """Placement preference of a gang that fits in several ways."""

    PACK = "pack"  # as few nodes as possible, close to each other
    SPREAD = "spread"  # as many nodes as possible: for jobs that the network does not limit


class After(StrEnum):
    """State that another job must reach before a dependent job may start."""

    OK = "ok"  # completed
    FAILED = "failed"  # failed or cancelled
    ENDED = "ended"  # completed, failed or cancelled
    STARTED = "started"


class Dependency(msgspec.Struct, frozen=True):
    """Condition on another job. The dependent job starts once the condition is met, and ends if the condition can no
    longer be met."""

    job_id: str
    """Id of the other job, or of an array: then each of its members must meet the condition."""
    condition: After = After.OK
    """State that the other job must reach."""


class Group(msgspec.Struct, frozen=True):
    """Ranks of one role. Groups are in rank order. An MPI launcher is a group of one rank."""

    role: str
    """Name of the role."""
    ranks: int
    """Number of ranks with this role."""
    command: tuple[str, ...] = ()
    """Argument list of these ranks; empty: the job's command."""
    same_node: bool = False
    """Whether all these ranks must be on one node."""


class JobSpec(msgspec.Struct, frozen=True):
    """Immutable job specification, as the user submitted it."""

    name: str
    """Name of the job, chosen by the user."""
    command: tuple[str, ...]
    """Command of the ranks, as an argument list without a shell."""
    ranks: int
    """Gang size, one slot per rank. All ranks start, or none."""
    user: str = ""
    """Name of the user who owns the job."""
    queue: str = "default"
    """Queue that the job waits in."""
    kind: JobKind = JobKind.TRAINING
    """Origin of the job: a user's training, a probe of gangwatch, or another scheduler."""
    time_limit_seconds: float | None = None
    """User's estimate of the whole run time, used by backfill. A job that exceeds its limit is not killed."""
    restartable: bool = False
    """Whether the job may be stopped and started again. It resumes from its own checkpoint."""
    checkpoint_signal: str = "SIGTERM"
    """Name of the signal that makes the job save and exit. SIGKILL follows after grace_seconds."""
    grace_seconds: float = 30.0
    """Time between the checkpoint signal and SIGKILL, in seconds."""
    restart_cost_seconds: float = 10.0
    """User's estimate of the time for loading and warm-up after a restart, in seconds. It is part of the cost of a
    move."""
    max_retries: int = 0
    """Maximum number of new attempts after failures. Migrations do not count."""
    working_directory: str = ""
    """Working directory of the ranks; '': the backend's default."""
    environment: dict[str, str] = {}
    """Environment variables of the ranks."""
    pinned_node: str | None = None
    """The only node that the job may use (probes); None: any node."""
    min_ranks: int | None = None
    """Minimum number of ranks of an elastic gang. The gang runs with any number from min_ranks to max_ranks."""
    max_ranks: int | None = None
    """Maximum number of ranks of an elastic gang. `ranks` is the number that it requests."""
    sizes: tuple[int, ...] = ()
    """Numbers of ranks for which an elastic gang has a layout (such as tensor by pipeline parallelism), ascending, from
    min_ranks to max_ranks; empty: it runs with any number between them."""
    reshard_seconds: float = 0.0
    """Time that a restart with another number of ranks takes longer than one with the same: the gang divides its
    checkpoint in another way."""
    array_size: int = 0
    """Number of jobs to create from this specification, each a separate gang. 0: a single job."""
    array_parallel: int = 0
    """Maximum number of jobs of the array that run at once. 0: no limit."""
    groups: tuple[Group, ...] = ()
    """Roles, in rank order. Their ranks add up to `ranks`. Empty: all ranks are alike."""
    after: tuple[Dependency, ...] = ()
    """Conditions that must hold before the job may start."""
    gpu_types: tuple[str, ...] = ()
    """GPU types that the job can run on; empty: any. A gang runs on one type."""
    throughput: dict[str, float] = {}
    """Speed by GPU type, as a share of the speed that the estimates assume. The speed on a type without an entry is in
    `Policy.throughput`; it is 1 if that has no entry either."""
    checkpoint_interval_seconds: float | None = None
    """Interval at which the job saves automatically; a stop loses the work since the last save. None: the job saves on
    request."""
    checkpoint_cost_seconds: float = 0.0
    """Time that one save takes, in seconds."""
    priority: int = 0
    """Priority of the job. Jobs with a higher number start first, whatever the order of the policy is."""
    preemptible: bool = False
    """Whether the job may be stopped for another gang. It must be restartable too."""
    min_run_seconds: float | None = None
    """Minimum run time of an attempt before it may be preempted; None: `Policy.min_run_seconds`."""
    packing: Packing = Packing.PACK
    """How to place a gang for which several placements are possible."""
    required_level: Level | None = None
    """Network level, such as rack: all ranks must be inside one domain (one rack). The job waits until they fit; None:
    anywhere."""
    preferred_level: Level | None = None
    """Network level, such as rack: if possible, all ranks are placed inside one domain (one rack); None: no
    preference."""
    workload: str = ""
    """Short name of what the job trains. Jobs with the same user, queue, workload and size are expected to have similar
    run times."""
    exact_seconds: float | None = None
    """True run time. Known only in a simulation; read only by `Estimates.EXACT`."""
    constraint: str = ""
    """Name of a condition that the job's nodes must meet; '': none. See `Node.refuses`."""
    requests: tuple[tuple[str, int], ...] = ()
    """Resources other than slots that one pod of the job requests, by name; empty: none, or unknown. All pods of a
    constraint request the same. See `Node.free`."""
    checkpoint_command: tuple[str, ...] = ()
    """Command that saves the job before it moves, as an argument list without a shell. It runs next to rank 0 before
    the checkpoint signal. Empty: no command."""
    checkpoint_timeout_seconds: float = 60.0
    """Longest wait for checkpoint_command, in seconds."""
    shareable: bool = False
    """Whether the job may share its slots with other shareable jobs. See `Policy.sharing` and `Node.jobs_per_slot`."""
    opportunistic: bool = False
    """Whether the job runs only beside other jobs, on what they leave of their slots. It must be shareable."""
    slot_memory_mib: int = 0
    """Device memory that each rank needs, in MiB; 0: unknown. Without it, the job shares no slot of a node whose memory
    is known."""
    slot_share: float = 0.0
    """Part (0 to 1) of a slot's computing power that each rank needs; 0: unknown. Declared parts add up to at most
    1."""
    latency_objective_seconds: float = 0.0
    """Longest time in which the job may answer requests, for 95 % of them; each step that it reports is one request. 0:
    it serves no requests. If it is also shareable, it lends its slots to opportunistic jobs (`Sharing.MUXFLOW`)."""
    stages: tuple[float, ...] = ()
    """Seconds that one iteration spends on each resource in turn, such as storage, processors, GPU and network; empty:
    unknown. Jobs that share a slot can use different resources at the same time."""
    dataset: str = ""
    """Name of the data that every node of the job reads, such as 'imagenet-22k'; '': none. See
    `Policy.dataset_cache_gib`."""
    dataset_gib: float = 0.0
    """Size of that data on one node, in GiB."""
    mig_profile: str = ""
    """Profile of the MIG instance that each rank runs in, such as '2g.20gb'; '': it uses whole slots. Several ranks may
    run in instances of one GPU. See `Policy.mig`."""

    @property
    def joins_slots(self) -> bool:
        """Whether other jobs may hold the same slots: jobs that share them, or jobs in MIG instances beside its own."""
        return self.shareable or bool(self.mig_profile)

    @property
    def unit(self) -> int:
        """Number of ranks by which an elastic gang grows or shrinks: those of one group, or 1 without groups."""
        return self.groups[0].ranks if self.groups else 1

    def size_at_most(self, ranks: int) -> int:
        """Return the largest number of ranks, up to `ranks`, with which the elastic gang can run; 0 if there is
        none."""
        if self.sizes:
            return max((size for size in self.sizes if size <= ranks), default=0)
        return ranks - ranks % self.unit

    def sizes_between(self, least: int, below: int) -> Sequence[int]:
        """Return the numbers of ranks, ascending, from `least` to below `below`, with which the elastic gang can
        run."""
        if self.sizes:
            return [size for size in self.sizes if least <= size < below]
        return range(least // self.unit * self.unit, below, self.unit)

    @property
    def stop_seconds(self) -> float:
        """Longest time from the request to stop the job until all of its ranks are killed, in seconds."""
        return self.grace_seconds + (self.checkpoint_timeout_seconds if self.checkpoint_command else 0.0)


def resized(spec: JobSpec, ranks: int) -> JobSpec:
    """Return the specification of an elastic gang that runs with this number of ranks, a multiple of `JobSpec.unit`."""
    if ranks == spec.ranks:
        return spec
    last = len(spec.groups) - 1
    groups = tuple(spec.groups[min(n, last)] for n in range(ranks // spec.unit)) if spec.groups else ()
    return msgspec.structs.replace(spec, ranks=ranks, groups=groups)


# gc=False: one object per rank, and none can be part of a reference cycle, so the garbage collector can skip them.


class Slot(msgspec.Struct, frozen=True, order=True, gc=False):
    """Place for one rank on a node: a GPU or a share of the CPU."""

    node: str
    """Name of the node."""
    slot: int
    """Number of the slot on that node, from 0."""


class HostedWait(msgspec.Struct, frozen=True, order=True, gc=False):
    """Gangs of one size that wait in a queue of an external scheduler."""

    queue: str
    """Name of the external scheduler's queue."""
    ranks: int
    """Number of ranks of each gang."""
    seconds: float | None = None
    """Longest time that one of these gangs may run; None if unlimited."""


class RankRecord(msgspec.Struct, frozen=True, gc=False):
    """Known data about one rank of the newest attempt."""

    rank: int
    """Number of the rank."""
    slot: Slot
    """Slot of the rank."""
    pid: int | None = None
    """Process id; None if unknown."""
    start_time: int | None = None
    """Start of the process in clock ticks since boot (/proc/PID/stat field 22)."""
    exit_code: int | None = None
    """Exit code; None while the rank runs or if the code is unknown."""


class TimeShift(msgspec.Struct, frozen=True):
    """Grid of times at which the steps of a gang begin, so that gangs on one uplink communicate in turn."""

    period_ns: int
    """Time between two begins, in nanoseconds."""
    offset_ns: int
    """First begin after the beginning of 1970, in nanoseconds."""
    since_ns: int = 0
    """Time of the decision, in nanoseconds."""
    before_seconds: float = 0.0
    """Mean time of a step without the shift, in seconds."""
    judged: bool = False
    """Whether its gain has been measured."""
    group: tuple[str, ...] = ()
    """Ids of the jobs that the decision was about, also those without a shift."""


class StepTimes(msgspec.Struct, frozen=True):
    """Measured steps of a running gang that uses uplinks. Times are in seconds."""

    interval_seconds: float
    """Mean time from the end of a step to the end of the next, with the delay of a time shift."""
    compute_seconds: float
    """Mean time of a step for which a rank does not wait in collectives."""
    network_seconds: float
    """Least time of a step for which all ranks wait in collectives."""
    since_ns: int
    """Begin of the newest measurement, in nanoseconds."""
    measured_ns: int
    """End of the newest measurement, in nanoseconds."""
    uplinks: tuple[str, ...] = ()
    """Names of the domains whose uplinks the gang uses."""
    undisturbed: bool = True
    """Whether network_seconds was measured without other traffic: with a time shift, or alone on its uplinks."""


class Job(msgspec.Struct):
    """A job and its newest attempt.

    Only the cycle changes a job. The scheduling index contains data derived from some fields; the cycle changes these
    fields only through methods of the index. All times are the cycle's wall time, in nanoseconds since 1970.
    """

    job_id: str
    """Unique id of the job."""
    spec: JobSpec
    """Specification, as submitted."""
    state: JobState
    """Current state of the job."""
    submitted_ns: int
    """Time at which the job was submitted."""
    attempt: int = 0
    """Number of the newest attempt; 0 before the first start."""
    ranks: list[RankRecord] = []
    """Ranks of the newest attempt, by rank."""
    started_ns: int | None = None
    """Time at which the first attempt started; None before it."""
    attempt_started_ns: int | None = None
    """Time at which the newest attempt started; None before it."""
    ended_ns: int | None = None
    """Time at which the job ended; None before it."""
    run_ns: int = 0
    """Time that all earlier attempts ran together, in nanoseconds."""
    limit_used_ns: int = 0
    """Part of the time limit that they used, in nanoseconds: their time multiplied by the given speed of their GPU
    types."""
    retries: int = 0
    """Number of failures so far that led to a new attempt."""
    stop_reason: StopReason | None = None
    """Why the newest attempt must stop. Set before the stop is requested, so that a freeze can delay the request."""
    end_reason: str = ""
    """Why the job ended, in words."""
    excluded_nodes: tuple[str, ...] = ()
    """Nodes that the next attempt must not use."""
    not_before_ns: int = 0
    """Earliest time of the next request to the backend about this job."""
    expected_start_ns: int | None = None
    """Expected start of a pending job; None if unknown."""
    last_migration_ns: int | None = None
    """Time of the last migration."""
    first_step_ns: int | None = None
    """Time of the first observed step of the newest attempt. Restart times are measured up to this time."""
    stopping_ns: int | None = None
    """Time at which the stop was requested."""
    attempt_ended_ns: int | None = None
    """Time at which the newest attempt ended; None before it."""
    action_id: str = ""
    """Id of the newest action about this job."""
    failure: str = ""
    """Reason for the last failure."""
    claim: list[Slot] = []
    """Slots, by rank, that are reserved for the restart of a moving gang."""
    done_seconds: float | None = None
    """Saved work, in seconds of running alone at full speed; None: none yet."""
    progress_ns: int | None = None
    """Time of the running attempt's last progress report. done_seconds has the reported value."""
    level: int = 0
    """Number of the job's discrete queue under least attained service (LAS), from 0."""
    turn: int = 0
    """Position of the job in its queue of the order `las` (least attained service). Lower positions go first."""
    estimate_seconds: float | None = None
    """Expected total run time in seconds, from similar jobs at the last evaluation; None: not evaluated."""
    urgency: float = 0.0
    """Sort key of the job in the fair order, lowest first: its expected remaining GPU-seconds at the last evaluation.
    In the themis order: minus rho (time from submission to the expected end, divided by the run time alone)."""
    appraise_ns: int = 0
    """Time at which the job's urgency and expected run time are evaluated again."""
    preemptions: int = 0
    """Number of times that the job was stopped for another gang."""
    migrations: int = 0
    """Number of migrations of the job so far."""
    array_of: str = ""
    """Id of the job array to which the job belongs; '' if none."""
    array_index: int = 0
    """Index of the job in its job array, from 0."""
    speed: float = 1.0
    """Speed of the newest attempt as a share of the speed that the estimates assume, given its ranks and GPU type."""
    proposed: str = ""
    """Last action that observe mode logged for this job."""
    awaited_type: str = ""
    """GPU type that the pending job waits for although a slower type is free; '': none."""
    awaited_until_ns: int = 0
    """Time until which the pending job waits for a faster GPU type at most; 0: it has not refused a slower one."""
    relaxed: bool = False
    """Whether the pending job has waited for its preferred level for `Policy.level_patience_seconds`, or cannot fit."""
    guest_of: tuple[str, ...] = ()
    """Ids of the jobs whose slots the newest attempt joined, and that still hold them; empty: it joined none, or they
    have left."""
    slot_part: float = 0.0
    """Part (0 to 1) of the computing power of each slot that the newest attempt may use; 0: not limited."""
    network_class: int = -1
    """Priority class of the newest attempt's network traffic, from 0; -1: none."""
    cell_slots: list[Slot] = []
    """Slots of the ranks within the cells of the job's queue, by rank; the node is the name of a cell. Empty: the job
    is not guaranteed to run."""
    latency_seconds: float | None = None
    """Newest measured time in which the running attempt answered 95 % of its requests; None: not measured yet."""
    alone_request_seconds: float | None = None
    """The latency without the wait for earlier requests, as last measured while no other job was on its slots."""
    busy: float = 0.0
    """Share (0 to 1) of the time in which it answered requests, as measured with latency_seconds."""
    learnt_mib: int = 0
    """Learnt device memory that is planned for each rank, in MiB; 0: the job declares its memory, or none is learnt."""
    peak_mib: int = 0
    """Largest measured device memory of a rank of the newest attempt, in MiB; 0: not measured."""
    alone: bool = False
    """Whether the job shares no slots, because it ran out of device memory beside other jobs."""
    overdue: bool = False
    """Whether the job has waited longer than Policy.starvation_seconds. It may then start before all other jobs, within
    Policy.starvation_share of the slots."""
    power_limit_watts: float = 0.0
    """Power limit that the scheduler has chosen for each GPU of the newest attempt, in watts; 0: none."""
    power_speed: float = 1.0
    """Expected speed with this limit, relative to the highest limit. `speed` includes it."""
    power_floor_watts: float = 0.0
    """Lowest limit that the newest attempt should get, because a lower one was seen to harm it; 0: any."""
    power_set_ns: int = 0
    """Time of the last change of the limit; 0 if it has not changed since the start of the attempt."""
    mig_starts: tuple[int, ...] = ()
    """First memory slice of the MIG instance of each rank of the newest attempt; empty: it uses whole slots."""
    step_times: StepTimes | None = None
    """Measured steps of the newest attempt, for time shifts; None: not measured, or it uses no uplinks."""
    time_shift: TimeShift | None = None
    """Time shift of the newest attempt; None: its steps begin at any time."""
    shift_again_ns: int = 0
    """Time before which the newest attempt gets no time shift, because one has brought nothing."""
