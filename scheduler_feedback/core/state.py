"""State of the cycle: jobs, nodes, verdicts and settings. Only the cycle changes it; the journal rebuilds it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from scheduler_feedback.core.cluster import Level, Node
from scheduler_feedback.core.job import HostedWait, Job, Slot
from scheduler_feedback.core.power import PowerRates, SlotPower
from scheduler_feedback.core.verdict import Verdict


class Mode(StrEnum):
    """Mode of the controller: whether decisions about verdicts are applied."""

    OBSERVE = "observe"  # decisions about verdicts are logged and scored, never applied
    ACT = "act"


class Order(StrEnum):
    """Order of the pending jobs. Each order has a module in ``policies/queue/order``."""

    FIFO = "fifo"
    SJF = "sjf"  # shortest estimate first
    SRTF = "srtf"  # shortest remaining time
    SRSF = "srsf"  # shortest remaining time x GPUs
    LAS = "las"  # least attained time x GPUs, in queues (Tiresias-L)
    THEMIS = "themis"  # worst slowdown first, compared with running alone on its share
    ROUND_ROBIN = "round-robin"  # longest wait first; with preemption, gangs run in turn, each for a time slice
    FAIR = "fair"  # queues with quota and weight; inside a queue the least expected GPU-seconds first


class Backfilling(StrEnum):
    """Rule for which jobs may start ahead of a waiting job."""

    NONE = "none"
    GREEDY = "greedy"  # any job that fits; nothing is reserved (as in the simulators of Tiresias and Muri)
    EASY = "easy"  # any job that does not delay the head of the queue
    CONSERVATIVE = "conservative"  # any job that delays no job before it


class Sizes(StrEnum):
    """Choice of the numbers of ranks of elastic gangs. All but `IDLE` choose those of all jobs together."""

    IDLE = "idle"  # grow into idle slots, and shrink for the first pending job
    SPEEDUP = "speedup"  # largest sum of speed-ups over the smallest size
    REMAINING = "remaining"  # largest reduction of remaining run times (Optimus)
    GOODPUT = "goodput"  # fair goodput, of sizes and GPU types (Sia)


class Estimates(StrEnum):
    """Source of the expected run times of jobs."""

    EXACT = "exact"  # the true run time; only in a simulation
    LIMIT = "limit"  # the user's time limit
    HISTORY = "history"  # run times of similar jobs, at most the limit


class Sharing(StrEnum):
    """Rule for which shareable jobs share slots. Each rule has a module in ``policies/sharing``."""

    NONE = "none"  # no job shares a slot
    GANDIVA = "gandiva"  # try any pair, keep it while it is measured to be faster than one after the other
    ANTMAN = "antman"  # opportunistic jobs beside others, which they must not slow down
    SJF_BSBF = "sjf-bsbf"  # only if the mean completion time of both is expected to be shorter
    MURI = "muri"  # jobs whose stages use different resources at the same time
    IADEEP = "iadeep"  # beside the job with the least predicted interference
    MUXFLOW = "muxflow"  # opportunistic jobs beside services, while these keep their latency objective
    FGD = "fgd"  # declared parts of slots, where the fragmentation of free GPUs grows least
    BEST_FIT = "best-fit"  # declared parts of slots, on the fullest slot and node

    @property
    def opportunistic(self) -> bool:
        """Whether opportunistic jobs, and only these, join other jobs under this rule."""
        return self in (Sharing.ANTMAN, Sharing.MUXFLOW)

    @property
    def divides(self) -> bool:
        """Whether jobs get the parts of slots that they declare, on free slots and on shared ones."""
        return self in (Sharing.FGD, Sharing.BEST_FIT)


class TypeQuotas(StrEnum):
    """How the quotas of queues apply to GPU types, in the order `fair` with preemption."""

    ALIKE = "alike"  # a quota counts the slots of all types alike
    OWN = "own"  # each queue owns a part of every type, in proportion to its quota
    TRADED = "traded"  # the same, and queues trade these parts where both gain (Gandiva_fair)


class Cell(StrEnum):
    """Kind of a cell: a part of the cluster that is assigned as a whole. Each divides into cells of the kind before."""

    GPU = "gpu"  # one slot
    PAIR = "pair"  # two neighbouring slots of a node
    QUAD = "quad"  # four neighbouring slots of a node
    NODE = "node"  # all slots of a node with the most slots
    RACK = "rack"  # as many whole nodes of one rack as the smallest rack has


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue in the hierarchy. Jobs whose queue the policy does not name share one queue of weight 1 below the
    root."""

    name: str
    """Unique name of the queue."""
    parent: str = ""
    """Name of the parent queue; '': the root."""
    weight: float = 1.0
    """Share of the parent's slots, relative to the other children."""
    quota: int | None = None
    """Number of slots that the queue is entitled to, even while other queues borrow them; None: its weight's share of
    the parent's slots."""
    limit: int | None = None
    """Maximum number of slots that the queue may hold; None: no limit."""
    borrow: bool = True
    """Whether the queue may hold more slots than its quota."""
    cells: dict[Cell, int] = field(default_factory=dict)
    """Number of cells of each kind that the queue is guaranteed, like a private cluster. Its jobs start in its cells as
    if no other queue existed. Other cells are used by preemptible, restartable jobs while their owners do not need
    them."""


START_SECONDS = 60.0
"""Time limit of a start if neither the policy nor the backend sets one: enough to start processes on a machine."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Settings of the cycle. They are journalled, so that a replay uses the settings that were in force."""

    mode: Mode = Mode.ACT
    """Whether decisions about verdicts are applied or only logged."""
    default_time_limit_seconds: float = 3600.0
    """Time limit of jobs without a time limit of their own, in seconds."""
    migration_margin: float = 0.2
    """Safety margin h of migrations: the benefit must exceed (1 + h) times the cost."""
    migration_cooldown_seconds: float = 300.0
    """Minimum time between two migrations of one job."""
    minimum_confidence: float = 0.9
    """Minimum confidence of a verdict that may lead to an action on a running job."""
    expected_persistence_seconds: float = 1800.0
    """Expected duration of a fault if nothing is done."""
    suspect_seconds: float = 300.0
    """Time for which a node stays suspect after its verdict has cleared."""
    quarantine_seconds: float = 600.0
    """Length of the first quarantine. Each further quarantine of the node doubles the length."""
    quarantine_max_seconds: float = 86400.0
    """Longest quarantine, in seconds. A quarantine of this length is not doubled any more."""
    quarantine_max_fraction: float = 0.25
    """Maximum share of all nodes that may be in quarantine; at least one node may be. More accused nodes suggest a
    faulty detector rather than that many faulty nodes."""
    quarantine_max_rack_fraction: float = 0.5
    """Maximum share of a rack's nodes that may be in quarantine; at least one node may be."""
    quarantine_slowdown: float = 3.0
    """A slow node stays in use while jobs wait for slots if its slowdown is below this value."""
    probation_seconds: float = 600.0
    """Length of a node's probation, in seconds."""
    start_timeout_seconds: float | None = None
    """An attempt fails if not all of its ranks have been seen running within this time. None: the backend's limit,
    which it sets before the cycle gets the policy (60 s; 900 s on Kubernetes). 0: no limit."""
    retry_backoff_seconds: float = 5.0
    """Delay between the backend's refusal of an action and the cycle's next decision about the action."""
    probe_command: tuple[str, ...] = ("gangwatch-probe",)
    """Command that measures a node after its quarantine, one rank per slot. The node passes if every rank exits with
    code 0. Empty: no probe; probation follows immediately."""
    probe_timeout_seconds: float = 120.0
    """Maximum duration of a probe, in seconds. A longer probe has failed."""
    ended_jobs_kept: int = 10_000
    """Maximum number of ended jobs in the state. The journal keeps the stories of older ones."""
    order: Order = Order.FIFO
    """Order of the pending jobs."""
    backfill: Backfilling = Backfilling.EASY
    """Which jobs may start ahead of a waiting job."""
    estimates: Estimates = Estimates.LIMIT
    """Source of the expected run times of jobs."""
    preempt: bool = False
    """Whether restartable and preemptible gangs may be stopped for other gangs."""
    replan_seconds: float = 0.0
    """Minimum time between two preemption passes; 0: one pass in every cycle. Starts are never delayed."""
    drift_seconds: float = 60.0
    """Minimum time between two preemption passes that only the passing of time causes, in the order `themis`, which
    changes with time; infinity: only events cause a pass."""
    min_run_seconds: float = 0.0
    """Minimum run time of an attempt before it may be preempted."""
    starvation_seconds: float = 7 * 86400.0
    """Starvation limit: a job that has waited this long in total goes before all other jobs."""
    starvation_share: float = 1.0
    """Share of the slots that jobs past the starvation limit (overdue jobs) may hold; the earliest submitted go first.
    A value below 1 leaves slots to other jobs, but an overdue job may then wait up to W / share longer than the limit.
    W is the work of the overdue jobs submitted earlier."""
    usage_half_life_seconds: float = 7 * 86400.0
    """Half-life of a queue's past usage, in seconds: usage of this age counts half."""
    queues: tuple[Queue, ...] = ()
    """Hierarchy of queues. The field `borrow` of a queue determines whether the queue may borrow slots."""
    type_quotas: TypeQuotas = TypeQuotas.ALIKE
    """How the quotas of queues apply to GPU types."""
    trade_seconds: float = 3600.0
    """Minimum time between two divisions of the GPU types among the queues, in seconds, while the nodes do not
    change."""
    las_thresholds: tuple[float, ...] = (3600.0,)
    """Attained GPU-seconds at which a job falls into the next queue of the order `las` (least attained service).
    Tiresias, section 5, has two queues."""
    throughput: dict[str, dict[str, float]] = field(default_factory=dict)
    """Speed of a job relative to the speed that the estimates assume: workload ('' for all other workloads) -> GPU type
    -> speed."""
    slice_seconds: float = 1800.0
    """Time slice of the order `round-robin`: a gang that has run this long is stopped if another job waits."""
    history_quantile: float = 0.6
    """Quantile of the run times of similar jobs that is used as the estimate."""
    preempt_gain: float = 4.0
    """A gang is stopped for another gang only if the stopped gang's remaining GPU-seconds exceed this many times the
    other gang's."""
    defragmentation_moves: int = 4
    """Maximum number of gangs moved at once to free slots in one domain for another gang; 0: none."""
    uplink_slowdown: float = 0.0
    """Expected slowdown of a gang, as a share of its speed, per other gang that crosses the same uplinks, while their
    traffic is unknown. Measured traffic replaces it. 0: placement ignores uplinks."""
    network_classes: int = 0
    """Number of priority classes of the network, at most 8. A gang that crosses uplinks gets the number of one in
    GANGWATCH_NETWORK_CLASS; the highest number goes to the gang with most computation per time of communication. 0 or
    1: none."""
    time_shifts: bool = False
    """Whether the steps of gangs on one uplink may be delayed, so that one communicates while the others compute. Only
    gangs whose programs report their steps and waits (``gangwatch.steps``, ``gangwatch.torch``) are delayed, for a
    quarter of their time at most."""
    uplink_rails: int = 1
    """Number of rails of a node, at most 64: in a rail-optimised network each rail of a rack has its own uplinks. The
    slots of a node are divided evenly over them, in the order of their numbers. Gangs that use no common rail do not
    slow each other down. 1: all slots of a rack share its uplinks."""
    uplink_gangs: float = 1.0
    """Number of gangs that can communicate at once over one uplink without slowing each other down, for time_shifts."""
    spare_nodes: int = 0
    """Minimum number of nodes kept in each domain of spare_level for gangs that leave a bad node. Preemptible jobs may
    use these nodes meanwhile."""
    spare_level: Level = Level.RACK
    """Network level, such as rack: each domain of this level (each rack) keeps spare nodes."""
    spare_failures_per_day: float = 0.0
    """Failures of one node per day. If this is above 0, a domain gets enough spares that simultaneous failures exceed
    them with a probability of at most spare_risk_fraction."""
    spare_repair_seconds: float = 86400.0
    """Expected time to repair a failed node, in seconds."""
    spare_risk_fraction: float = 0.01
    """Accepted probability that a domain has fewer spare nodes than failed nodes."""
    resize_horizon_seconds: float = 3600.0
    """Longest time ahead for which the evaluation of a move or resize counts idle slots and waiting, in seconds."""
    level_patience_seconds: float = 0.0
    """Time that a job waits for slots within its preferred level (such as one rack) before it uses wider placements; 0:
    it never waits for its preferred level."""
    type_patience: float = 1.0
    """Longest wait of a job for a faster GPU type while a slower one is free, as a share of the run time that the
    faster type is expected to save; 0: a job never waits for a faster type."""
    learn_speeds: bool = True
    """Whether measured speeds of similar jobs correct the assumed ones: those proportional to the number of ranks, and
    the given `throughput`."""
    sizes: Sizes = Sizes.IDLE
    """How the sizes of elastic gangs are chosen."""
    sizes_seconds: float = 120.0
    """Minimum time between two joint choices of sizes; `Sizes.IDLE` has none."""
    restart_on_hang: bool = True
    """Whether a hanging restartable gang is restarted on nodes without the culprit."""
    sharing: Sharing = Sharing.NONE
    """Which shareable jobs share slots."""
    separate_below: float = 1.0
    """Jobs that share slots are separated if their measured speeds, weighted by ranks and relative to running alone,
    add up to less than this many times the ranks of the largest."""
    move_guests: bool = True
    """Whether jobs that joined others move to slots that no pending job needs, if their measured gain pays."""
    dataset_cache_gib: float = 0.0
    """Size of each node's cache of datasets, in GiB. A job prefers nodes that have its dataset there, if it needs no
    more nodes and uplinks for that. 0: placement ignores datasets."""
    learnt_memory: bool = False
    """Whether a shareable job that declares no device memory shares slots by the learnt need of similar jobs. It is off
    by default, because a wrong need lets another job run out of memory."""
    pair_speeds: dict[str, dict[str, float]] = field(default_factory=dict)
    """Speeds that are known beforehand: workload -> other workload on the same slot -> speed of the first, relative to
    its speed alone. Measured speeds replace them."""

    mig: bool = False
    """Whether the scheduler divides idle GPUs into MIG instances, and places jobs that ask for a profile in them."""
    power_budget_watts: float = 0.0
    """Maximum sum of the power limits of all busy GPUs and the power of idle ones, in watts; 0: none. The scheduler
    sets the limits of GPUs whose agents allow it (`agent.power_limits`)."""

    @property
    def divides(self) -> bool:
        """Whether jobs get parts of slots: declared ones (`Sharing.divides`) or MIG instances."""
        return self.mig or self.sharing.divides

    @property
    def start_seconds(self) -> float:
        """Time limit of a start, in seconds; 0 for none."""
        return START_SECONDS if self.start_timeout_seconds is None else self.start_timeout_seconds


FAIR_POLICY = Policy(
    order=Order.FAIR,
    estimates=Estimates.HISTORY,
    preempt=True,
    replan_seconds=60.0,
    min_run_seconds=600.0,
    preempt_gain=4.0,
    starvation_seconds=28 * 86400.0,
    starvation_share=0.25,
)
"""Best settings of the fair order for preemptible jobs: the default of simulations."""


@dataclass(slots=True)
class Decision:
    """A migration that was decided, or that observe mode would have made. The predicted gain is later compared with the
    outcome."""

    decision_id: str
    """Unique id of the decision."""
    job_id: str
    """Id of the job to migrate."""
    verdict_id: str
    """Id of the verdict that led to the migration."""
    wall_ns: int
    """Wall time of the decision, in nanoseconds since 1970."""
    applied: bool
    """Whether the decision was applied; False in observe mode."""
    predicted_gain_seconds: float
    """Expected benefit of the migration minus its cost, in seconds."""
    slowdown: float
    """Slowdown of the job according to the verdict."""
    cost_seconds: float
    """Expected cost of the restart, in seconds."""
    outcome_seconds: float | None = None
    """In observe mode, the actual cost of the fault after the decision. In act mode, the time from the decision to the
    first step after the restart. None while the outcome is unknown."""
    attempt: int = 0
    """Number of the attempt that the migration stops."""
    fault_cost_seconds: float = 0.0
    """Cost of the fault up to the decision, in seconds."""


class OpenDecision(msgspec.Struct, rename={"choice": "ruling"}):
    """Decisions that an active verdict has led to so far."""

    marked: bool = False
    """Whether the accused node was marked suspect because of the verdict (in observe mode: would have been)."""
    choice: str = ""
    """'' while there is no decision about the gang; else 'migrate', 'frozen', or the reason code for not moving."""
    reason: str = ""
    """The decision in words."""


@dataclass(frozen=True, slots=True)
class PastVerdict:
    """A verdict that is no longer active. A node may still be in quarantine because of it."""

    verdict: Verdict
    """The verdict that is no longer active."""
    until_ns: int
    """Time at which the verdict ended."""
    why: str
    """Why the verdict ended, in words."""


PAST_VERDICTS = 256
"""Maximum number of past verdicts in the state, newest last; older ones are in the stories."""


REFUSED_VERDICTS = 256
"""Maximum number of refused verdicts in the state. The stories have all of them."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Run time record of an ended job, for estimates."""

    queue: str
    """Queue of the job."""
    user: str
    """User of the job."""
    workload: str
    """Short name of what the job trained; see `JobSpec.workload`."""
    ranks: int
    """Number of ranks of the job."""
    seconds: float
    """Run time of the job on healthy nodes, in seconds."""


class MeasuredSpeed(msgspec.Struct):
    """Measured speed of one configuration of a job class."""

    gpu_type: str
    """GPU type of the gangs."""
    ranks: int
    """Number of ranks of the gangs."""
    level: int
    """Placement level: 0 for one node, 1 for several nodes of one rack, 2 for several racks, 3 for several spines."""
    log_rate: float
    """Mean of the logarithm of the work per second."""
    weight: float
    """Number of measurements of the mean, the older ones discounted."""
    measured_ns: int
    """Time of the newest measurement, in nanoseconds."""
    unit: str = ""
    """Unit of the work."""


class MeasuredTraffic(msgspec.Struct, frozen=True):
    """Measured traffic of one job class, of its gangs on several nodes."""

    share: float
    """Mean share (0 to 1) of the time for which all ranks wait in collectives."""
    weight: float
    """Number of measurements of the mean, the older ones discounted."""


class MeasuredMemory(msgspec.Struct, frozen=True):
    """Measured device memory of the jobs of one class with the same number of ranks."""

    ranks: int
    """Number of ranks of the jobs."""
    peaks: dict[str, int]
    """Largest device memory of a rank of each of the newest jobs, in MiB, by job id; the newest job is last."""
    runs: int
    """Number of measured jobs, including the older ones that are no longer in `peaks`."""
    out_of_memory: int = 0
    """Number of times that a job ran out of device memory beside others."""


class TypeTrade(msgspec.Struct, frozen=True):
    """Trade of two queues: parts of their quotas on two GPU types."""

    seller: str
    """Queue that gives slots of the faster type."""
    buyer: str
    """Queue that gets them."""
    fast: str
    """The faster GPU type."""
    slow: str
    """The slower GPU type."""
    fast_slots: int
    """Slots of the faster type that the seller gives."""
    slow_slots: int
    """Slots of the slower type that the buyer gives for them."""


class CachedDataset(msgspec.Struct, frozen=True):
    """A dataset in the cache of a node, as far as the scheduler knows."""

    gib: float
    """Its size, in GiB."""
    used_ns: int
    """Time at which a job with this dataset last started or ended on the node."""


class SeenRequest(msgspec.Struct, frozen=True):
    """A kind of request for slots, and how many jobs have made it."""

    ranks: int
    """Number of ranks of the job."""
    share_milli: int
    """Requested thousandths of each slot; 0: not declared."""
    memory_mib: int
    """Requested device memory of each rank in MiB; 0: not declared."""
    cpu_milli: int
    """Requested thousandths of a processor of each rank; 0: not declared."""
    gpu_types: tuple[str, ...]
    """GPU types that the job can use; empty: any."""
    weight: float
    """Number of jobs, the older ones discounted."""


class SeenRequests(msgspec.Struct):
    """Requests of the jobs so far, from which `Sharing.FGD` learns the typical ones."""

    counts: dict[str, SeenRequest] = {}
    """Kinds of requests, by a key of all their properties."""
    typical: tuple[SeenRequest, ...] = ()
    """The kinds and weights that placement uses. They are replaced when half as many more jobs have been seen."""
    seen: float = 0.0
    """Sum of all weights."""
    typical_at: float = 0.0
    """Value of `seen` at which `typical` was replaced."""


class State(msgspec.Struct, dict=True, rename={"open_decisions": "cases", "recently_ended": "lately"}):
    """State of the cycle: all data on which its decisions depend. All times are the cycle's wall time, in nanoseconds
    since 1970.

    Values derived from a state, such as its scheduling index, are in its ``__dict__``. They are not part of its value,
    its encoding or its copies.
    """

    policy: Policy = msgspec.field(default_factory=Policy)
    """Current settings of the cycle."""
    now_ns: int = 0
    """Time of the newest cycle. It never decreases."""
    cycle: int = 0
    """Number of the newest cycle."""
    action_count: int = 0
    """Number of actions so far. The id of the next action contains the next number."""
    frozen: bool = False
    """Whether all actions are frozen."""
    jobs: dict[str, Job] = {}
    """Jobs by id."""
    nodes: dict[str, Node] = {}
    """Nodes by name."""
    verdicts: dict[str, Verdict] = {}
    """Active verdicts by id."""
    judged: dict[str, bool] = {}
    """Operators' judgements of verdicts, by id: True if confirmed."""
    decisions: list[Decision] = []
    """Migrations that were decided, or that observe mode would have made, oldest first."""
    reserved_for: str | None = None
    """Head job that the reservation is for; None if no job waits."""
    reserved_from_ns: int | None = None
    """Start of the reservation; None if there is none."""
    reserved_nodes: dict[str, int] = {}
    """Reserved slots by node."""
    counts: dict[str, int] = {}
    """Counts of verdicts, abstentions and decisions, for the metrics."""
    open_decisions: dict[str, OpenDecision] = {}
    """Decisions that each active verdict has led to, by the verdict's id."""
    decision_count: int = 0
    """Number of decisions so far. The id of the next decision contains the next number."""
    frozen_by: str = ""
    """User who froze the actions."""
    reserved_slots: list[Slot] = []
    """Slots reserved for the head job."""
    past_verdicts: list[PastVerdict] = []
    """Verdicts that are no longer active, newest last; at most PAST_VERDICTS."""
    idle: bool = False
    """Whether a scheduling pass would start no job, because no event since the last pass allows a start."""
    planned_ns: int = 0
    """Time of the last preemption pass."""
    renewed_ns: int = 0
    """Time at which the expected run times and positions of all pending jobs were last updated."""
    first_turn: int = 1
    """Position that a stopped job last received in the queues of the order `las` (least attained service). The next
    stopped job gets the next lower one."""
    last_turn: int = 0
    """Position that a job at the end of a queue last received in the queues of the order `las` (least attained
    service). The next job gets the next higher one."""
    chosen_turn: int = 0
    """Number of times that the order `las` (least attained service) chose a job to run and put it first in its
    queue."""
    history: dict[str, list[float]] = {}
    """Run time histogram of each group of similar jobs. The bounds of a bin differ by a factor of 1.4, and older jobs
    count less."""
    recently_ended: list[Ended] = []
    """Ended jobs that are not in the history yet."""
    trust: list[float] = []
    """Recent accuracy of each way to group similar jobs."""
    queue_use: dict[str, float] = {}
    """Slot-seconds that each queue has used, as of queue_use_ns. Older usage counts less."""
    queue_use_ns: int = 0
    """Time at which queue_use was last updated."""
    queue_turns: dict[str, int] = {}
    """Position of each queue in the order of the last evaluation: queues below their quota first, then by usage per
    weight."""
    waits: bool = False
    """Whether a job waits for slots."""
    emptied_ns: int = 0
    """Last time at which `waits` changed to False."""
    host_waits: tuple[HostedWait, ...] = ()
    """Pending gangs of the external scheduler, as last reported."""
    refused_verdicts: list[PastVerdict] = []
    """Verdicts that contradict the placement of their job, newest last; at most REFUSED_VERDICTS."""
    pair_speeds: dict[str, dict[str, float]] = {}
    """Measured speeds of jobs that share slots: workload -> other workload -> speed of the first, relative to its speed
    alone."""
    bound_cells: dict[str, Slot] = {}
    """First slot of each cell that is in use: the cell's name, such as 'research/node-0' -> slot."""
    speeds: dict[str, list[MeasuredSpeed]] = {}
    """Measured speeds by job class, the class with the newest measurement last; see `policies/speeds`."""
    traffic: dict[str, MeasuredTraffic] = {}
    """Measured traffic by job class, the class with the newest measurement last; see `policies/speeds`."""
    memory: dict[str, list[MeasuredMemory]] = {}
    """Measured device memory by job class, the class with the newest measurement last; see `policies/speeds`."""
    datasets: dict[str, dict[str, CachedDataset]] = {}
    """Datasets that nodes are expected to have in their caches: dataset -> node."""
    requests: SeenRequests = msgspec.field(default_factory=SeenRequests)
    """Requests of the jobs so far; empty unless `Policy.sharing` divides slots."""
    type_slots: dict[str, int] = {}
    """Slots of each GPU type that were last divided among the queues; empty: none were, or the policy has changed."""
    type_shares: dict[str, dict[str, int]] = {}
    """Slots of each GPU type to which each queue with a quota is entitled, after trades: queue -> GPU type -> slots."""
    type_trades: list[TypeTrade] = []
    """Trades of the last division."""
    traded_ns: int = 0
    """Time of the last division of GPU types among the queues."""
    sized_ns: int = 0
    """Time of the last joint choice of sizes."""
    types_ns: int = 0
    """Time as of which pending jobs compare GPU types: that of the last change of what the comparison depends on."""
    types_inputs: bytes = b""
    """Digest of what that comparison depends on, such as free slots, expected ends and the queue."""
    replan_owed: bool = False
    """Whether an event requires a preemption pass that `replan_seconds` still delays."""
    power: dict[str, tuple[SlotPower, ...]] = {}
    """Power of the GPU of each slot, by node, as agents last reported it."""
    power_rates: dict[str, list[PowerRates]] = {}
    """Measured speeds at several power limits by job class, the class with the newest measurement last; see
    `policies/power`."""
    mig_requests: dict[str, float] = {}
    """Number of MIG instances that jobs have asked for, by profile; the older ones count less."""
    power_rise_ns: int = 0
    """Time at which a power limit may be raised that has changed a short time ago; 0: none is to be raised."""
