"""State: everything that the cycle knows. One owner, changed only by the cycle, rebuilt from the journal."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from scheduler_feedback.core.cluster import Node
from scheduler_feedback.core.job import Job, Slot
from scheduler_feedback.core.verdict import Verdict


class Mode(StrEnum):
    OBSERVE = "observe"  # feedback's decisions are logged and scored, never applied
    ACT = "act"


@dataclass(frozen=True, slots=True)
class Policy:
    """The cycle's settings. Part of what is journalled: a replay decides by the settings of its time.

    default_time_limit_seconds: for jobs that name none. migration_margin: h of benefit > (1 + h) cost.
    migration_cooldown_seconds: least time between two migrations of one job.
    minimum_confidence: of a verdict that may lead to an action on a running job.
    expected_persistence_seconds: D, how long a fault is expected to last if nothing is done.
    quarantine_seconds: first quarantine; doubles with each repetition up to quarantine_max_seconds.
    quarantine_max_fraction: most nodes in quarantine, as a share of all, at least one.
    start_timeout_seconds: an attempt whose ranks are not all seen by then is given up.
    retry_backoff_seconds: pause after the backend refused an action.
    probe_command: measures a node whose quarantine has ended, one rank a slot; exit 0 of all is a pass. Empty: no
    probe, straight to probation. probe_timeout_seconds: a probe that takes longer has failed.
    ended_jobs_kept: most ended jobs kept in the state; the journal's story of older ones stays.
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
    probation_seconds: float = 600.0
    start_timeout_seconds: float = 60.0
    retry_backoff_seconds: float = 5.0
    probe_command: tuple[str, ...] = ("gangwatch-probe",)
    probe_timeout_seconds: float = 120.0
    ended_jobs_kept: int = 10_000


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


@dataclass(slots=True)
class State:
    """jobs, nodes: by id and name. verdicts: those that stand, by id. now_ns: the newest cycle's time; never falls.

    cycle: number of the newest cycle. action_count: actions ever decided; gives their ids.
    cases: what each standing verdict has led to, by verdict id. judged: operators' rulings on verdicts, by id.
    decision_count: gives the decisions' ids. frozen_by: who froze the actions.
    reserved_for, reserved_from_ns, reserved_nodes, reserved_slots: what is held for the head of the queue and from
    when, None and empty where nothing waits. counts: of verdicts, abstentions and decisions, for the metrics.
    past_verdicts: the newest of those that stood once, at most PAST_VERDICTS.
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
