"""Detection context: the inputs of all detectors in one tick.

The inputs are computed once, before the detectors run, and no detector changes them. They include the verdicts that
the arbiter published after the previous tick. So the order in which the detectors run does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler_feedback.core.telemetry.telemetry import Telemetry
from scheduler_feedback.core.verdict import Abstention, Cause, Cleared, Verdict
from scheduler_feedback.detectors.ablation_switches import Switches
from scheduler_feedback.detectors.counters.counter_statistics import CounterStatistics
from scheduler_feedback.detectors.counters.fault_history import FaultHistory
from scheduler_feedback.detectors.health.job_speed import Speeds

Rank = tuple[str, int, int]
"""Identifies a rank: name of the job, number of the attempt, number of the rank."""


@dataclass(frozen=True, slots=True)
class Published:
    """Active verdicts after the previous tick, in the form that the detectors read."""

    accused: frozenset[Rank] = frozenset()
    """Ranks with an active straggler or health verdict. The rank number is -1 if the verdict names no rank."""
    disturbed: frozenset[str] = frozenset()
    """Names of the jobs with an active interference verdict."""
    rotating: Mapping[str, Cause] = field(default_factory=dict)
    """Cause of the active verdict about rotating slowness, by name of the job."""
    refused: frozenset[str] = frozenset()
    """Ids of verdicts that were refused or withdrawn in the previous tick. Their detectors forget them and may propose
    them again."""


@dataclass(frozen=True, slots=True)
class DetectionContext:
    """Read-only inputs of the detectors in one tick."""

    telemetry: Telemetry
    counters: CounterStatistics
    """Counters of all ranks, compared with their peers and their past, including the telemetry of this tick."""
    speeds: Speeds
    """Current speed of each job relative to its best, including the telemetry of this tick."""
    fault_history: FaultHistory
    """Earlier faults of each part and node, up to the previous tick."""
    switches: Switches
    """Parts of the detectors that a benchmark has turned off."""
    published: Published
    by_counters: frozenset[str] = frozenset()
    """Names of the jobs whose ranks are judged by counters, because they report no steps, or no waits."""


@dataclass(frozen=True, slots=True)
class Cover:
    """Additional ranks to which a verdict applies. They are not published, so that an operator is paged once for a slow
    node."""

    verdict_id: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PartFault:
    """A fault of a part. It is added to the fault history if its verdict is published."""

    verdict_id: str
    device: str
    node: str
    cause: Cause
    at_ns: int


Proposal = Verdict | Cleared | Abstention | Cover | PartFault
"""A result of a detector that the arbiter has not yet checked."""
