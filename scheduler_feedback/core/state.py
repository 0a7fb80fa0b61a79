"""State: everything that the cycle knows. One owner, changed only by the cycle, rebuilt from the journal."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from scheduler_feedback.core.cluster import Level, Node
from scheduler_feedback.core.job import HostedWait, Job, Slot
from scheduler_feedback.core.verdict import Verdict


class Mode(StrEnum):
    OBSERVE = "observe"  # feedback's decisions are logged and scored, never applied
    ACT = "act"


class Order(StrEnum):
    """Who is first; one file each in ``policies/queue/order``."""

    FIFO = "fifo"
    SJF = "sjf"  # shortest estimate first
    SRTF = "srtf"  # shortest remaining time
    SRSF = "srsf"  # shortest remaining time x GPUs
    LAS = "las"  # least attained time x GPUs, in queues (Tiresias-L)
    THEMIS = "themis"  # who is treated worst against running alone on its share
    FAIR = "fair"  # queues with quota and weight; inside of them the least expected service


class Backfilling(StrEnum):
    """What may start ahead of one that must wait."""

    NONE = "none"
    GREEDY = "greedy"  # whoever fits: nothing is reserved (what the simulators of Tiresias and Muri do)
    EASY = "easy"  # whoever does not delay the first in the queue
    CONSERVATIVE = "conservative"  # whoever delays none of those before it


class Estimates(StrEnum):
    """Where run times come from."""

    EXACT = "exact"  # the truth; in a simulation alone
    LIMIT = "limit"  # the user's time limit
    HISTORY = "history"  # what jobs alike have run, at most the limit


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue of a hierarchy. Jobs of a queue that no policy names share the root as a queue of weight 1.

    quota: slots that it is never kept waiting for by others' borrowing; None: its weight's share of its parent's.
    limit: most slots that it may hold at all; None: no limit. borrow: whether it may hold more than its quota.
    """

    name: str
    parent: str = ""
    weight: float = 1.0
    quota: int | None = None
    limit: int | None = None
    borrow: bool = True


@dataclass(frozen=True, slots=True)
class Policy:
    """The cycle's settings. Part of what is journalled: a replay decides by the settings of its time.

    default_time_limit_seconds: for jobs that name none. migration_margin: h of benefit > (1 + h) cost.
    migration_cooldown_seconds: least time between two migrations of one job.
    minimum_confidence: of a verdict that may lead to an action on a running job.
    restart_on_hang: whether a gang that hangs is restarted away from the culprit, if it declared that it can be.
    expected_persistence_seconds: D, how long a fault is expected to last if nothing is done.
    quarantine_seconds: first quarantine; doubles with each repetition up to quarantine_max_seconds.
    quarantine_max_fraction, quarantine_max_rack_fraction: most nodes in quarantine, as a share of all, and of those of
    a rack; at least one of either. Who asks for more has a broken detector rather than so many broken nodes.
    quarantine_slowdown: what is merely slow, but less than so much, stays in use while others wait for slots.
    start_timeout_seconds: an attempt whose ranks are not all seen by then is given up.
    retry_backoff_seconds: pause after the backend refused an action.
    probe_command: measures a node whose quarantine has ended, one rank a slot; exit 0 of all is a pass. Empty: no
    probe, straight to probation. probe_timeout_seconds: a probe that takes longer has failed.
    ended_jobs_kept: most ended jobs kept in the state; the journal's story of older ones stays.
    order, backfill, estimates: who is first, who may go ahead, how long they are expected to run.
    preempt: whether gangs that are restartable and preemptible may be stopped for others.
    replan_seconds: least time between two looks at what to preempt; 0: at every cycle. Starts are never put off.
    min_run_seconds: least time an attempt runs before it may be preempted.
    starvation_seconds: a job that has waited so long in all goes before all others.
    starvation_share: of the slots, that jobs may hold which go before others for that; the longest submitted are called
    first. Less than 1 bounds what the oldest may take from all others; a job then waits no longer than the bound and
    the work of those called before it, divided by the share.
    usage_half_life_seconds: after which a queue's use counts half.
    queues: the hierarchy. borrowing is allowed where each queue's own `borrow` says so.
    las_thresholds: attained GPU-seconds at which a job falls into the next queue of LAS (Tiresias section 5: 2 queues).
    throughput: speed by workload ('' for all others) and GPU type.
    history_quantile: of the run times of jobs alike, what is taken for an estimate.
    defragmentation_moves: most gangs that are moved at once so that another finds its slots in one domain; 0: none.
    resize_horizon_seconds: how long slots that lie idle, and waits, are planned for when gangs are moved or resized.
    spare_nodes: so many nodes of each domain of spare_level are kept for gangs that leave a bad node, and lent to
    preemptible jobs meanwhile. spare_failures_per_day, spare_repair_seconds: of a node; where known, as many are kept
    as are out at once but with a probability of spare_risk_fraction.
    uplink_slowdown: what each gang that crosses a domain's uplinks is expected to cost another that does, as a share of
    its speed; 0: not known, and no reason to place a gang otherwise.
    preempt_gain: a gang stops for another only where that is expected to spend so many times less for its end.
    """

    mode: Mode = Mode.ACT
    default_time_limit_seconds: float = 3600.0
    migration_margin: float = 0.2
    migration_cooldown_seconds: float = 300.0
    minimum_confidence: float = 0.9
    expected_persistence_seconds: float = 1800.0
    suspect_seconds: float = 300.0
    quarantine_seconds: float = 600.0
    quarantine_max_seconds: float = 86400.0
    quarantine_max_fraction: float = 0.25
    quarantine_max_rack_fraction: float = 0.5
    quarantine_slowdown: float = 3.0
    probation_seconds: float = 600.0
    start_timeout_seconds: float = 60.0
    retry_backoff_seconds: float = 5.0
    probe_command: tuple[str, ...] = ("gangwatch-probe",)
    probe_timeout_seconds: float = 120.0
    ended_jobs_kept: int = 10_000
    order: Order = Order.FIFO
    backfill: Backfilling = Backfilling.EASY
    estimates: Estimates = Estimates.LIMIT
    preempt: bool = False
    replan_seconds: float = 0.0
    min_run_seconds: float = 0.0
    starvation_seconds: float = 7 * 86400.0
    starvation_share: float = 1.0
    usage_half_life_seconds: float = 7 * 86400.0
    queues: tuple[Queue, ...] = ()
    las_thresholds: tuple[float, ...] = (3600.0,)
    throughput: dict[str, dict[str, float]] = field(default_factory=dict)
    history_quantile: float = 0.6
    preempt_gain: float = 4.0
    defragmentation_moves: int = 4
    uplink_slowdown: float = 0.0
    spare_nodes: int = 0
    spare_level: Level = Level.RACK
    spare_failures_per_day: float = 0.0
    spare_repair_seconds: float = 86400.0
    spare_risk_fraction: float = 0.01
    resize_horizon_seconds: float = 3600.0
    restart_on_hang: bool = True


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
"""The fair order at its best, for jobs that may be stopped: the default of simulations."""


@dataclass(slots=True)
class Decision:
    """A migration that was decided, or that observe mode would have made: kept to be scored against what followed.

    predicted_gain_seconds: benefit minus cost at the decision. outcome_seconds: what the fault really cost afterwards
    (observe) or the restart really took, from the decision to the first step after it (act); None while open.
    attempt: the one that was to be left. fault_cost_seconds: what the fault had cost before the decision.
    """

    decision_id: str
    job_id: str
    verdict_id: str
    wall_ns: int
    applied: bool
    predicted_gain_seconds: float
    slowdown: float
    cost_seconds: float
    outcome_seconds: float | None = None
    attempt: int = 0
    fault_cost_seconds: float = 0.0


@dataclass(slots=True)
class Case:
    """What a standing verdict has led to so far.

    marked: its node has been made suspect for it (or, in observe mode, would have been).
    ruling: '' while nothing was decided about the gang, else 'migrate', 'frozen', or the reason code of a stay.
    """

    marked: bool = False
    ruling: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PastVerdict:
    """A verdict that stands no more, since when and why. A node may still be in quarantine for it."""

    verdict: Verdict
    until_ns: int
    why: str


PAST_VERDICTS = 256
"""Past verdicts that the state keeps, newest last; older ones are in the stories."""


REFUSED_VERDICTS = 256
"""Refused verdicts that the state keeps: each is in the story once."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Of a job that has ended: what kind it was of, and how much work it took."""

    queue: str
    user: str
    workload: str
    ranks: int
    seconds: float


class Derived:
    """A place for what follows from a state, kept by whoever derives it; no part of its value or its bytes."""

    __slots__ = ("derived", "remembered")
    derived: Any
    remembered: Any


@dataclass(slots=True)
class State(Derived):
    """jobs, nodes: by id and name. verdicts: those that stand, by id. now_ns: the newest cycle's time; never falls.

    cycle: number of the newest cycle. action_count: actions ever decided; gives their ids.
    cases: what each standing verdict has led to, by verdict id. judged: operators' rulings on verdicts, by id.
    decision_count: gives the decisions' ids. frozen_by: who froze the actions.
    reserved_for, reserved_from_ns, reserved_nodes, reserved_slots: what is held for the head of the queue and from
    when, None and empty where nothing waits. counts: of verdicts, abstentions and decisions, for the metrics.
    past_verdicts: the newest of those that stood once, at most PAST_VERDICTS.
    idle: whether nothing has happened since the last cycle looked that could let anything start.
    planned_ns, renewed_ns: when it was last looked at what to preempt, and at how all that wait stand.
    first_turn, last_turn, chosen_turn: of the queues of LAS.
    history: of each kind of jobs, how many ran how long, in bins of half an octave; old ones fade. lately: those that
    have ended and are not counted in it yet. trust: how well each way of telling jobs alike has foretold lately.
    waits: whether anybody waits for room. emptied_ns: when that was last so. host_waits: what waits with another
    scheduler, as it last said.
    queue_use, queue_use_ns: slot-seconds that each queue has used, fading, as of that instant. queue_turns: how the
    queues stand, the least first, as of the last look.
    """

    policy: Policy = field(default_factory=Policy)
    now_ns: int = 0
    cycle: int = 0
    action_count: int = 0
    frozen: bool = False
    jobs: dict[str, Job] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    judged: dict[str, bool] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    reserved_for: str | None = None
    reserved_from_ns: int | None = None
    reserved_nodes: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    cases: dict[str, Case] = field(default_factory=dict)
    decision_count: int = 0
    frozen_by: str = ""
    reserved_slots: list[Slot] = field(default_factory=list)
    past_verdicts: list[PastVerdict] = field(default_factory=list)
    idle: bool = False
    planned_ns: int = 0
    renewed_ns: int = 0
    first_turn: int = 1
    last_turn: int = 0
    chosen_turn: int = 0
    history: dict[str, list[float]] = field(default_factory=dict)
    lately: list[Ended] = field(default_factory=list)
    trust: list[float] = field(default_factory=list)
    queue_use: dict[str, float] = field(default_factory=dict)
    queue_use_ns: int = 0
    queue_turns: dict[str, int] = field(default_factory=dict)
    waits: bool = False
    emptied_ns: int = 0
    host_waits: tuple[HostedWait, ...] = ()
    refused_verdicts: list[PastVerdict] = field(default_factory=list)
    """Verdicts that contradict the placement of their job, newest last; at most REFUSED_VERDICTS."""
    replan_owed: bool = False
    """Whether something happened that asks for a preemption pass, less than `replan_seconds` after the last pass."""
