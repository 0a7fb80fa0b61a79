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
"""Job, attempt and rank."""


@dataclass(frozen=True, slots=True)
class Published:
    """Active verdicts after the previous tick, as the detectors read them."""

    accused: frozenset[Rank] = frozenset()
    """Ranks with an active straggler or health verdict; rank -1 where the verdict names none."""
    disturbed: frozenset[str] = frozenset()
    """Jobs with an active interference verdict."""
    rotating: Mapping[str, Cause] = field(default_factory=dict)
    """Cause of each job's active verdict about rotating slowness."""
    refused: frozenset[str] = frozenset()
    """Verdicts of the previous tick that were not published or were withdrawn. Their detectors forget them, and may
    propose them again."""


@dataclass(frozen=True, slots=True)
class DetectionContext:
    """Read-only inputs of the detectors in one tick."""

    telemetry: Telemetry
    counters: CounterStatistics
    """Counter statistics, including the telemetry of this tick."""
    speeds: Speeds
    """Speed of all jobs, including the telemetry of this tick."""
    fault_history: FaultHistory
    """Fault history of parts and nodes, up to the previous tick."""
    switches: Switches
    """Ablation switches."""
    published: Published


@dataclass(frozen=True, slots=True)
class Cover:
    """Additional ranks to which a verdict applies. A cover is not published: an operator is paged once for a slow
    node."""

    verdict_id: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PartFault:
    """A fault for the fault history, if the verdict is published."""

    verdict_id: str
    device: str
    node: str
    cause: Cause
    at_ns: int


Proposal = Verdict | Cleared | Abstention | Cover | PartFault
"""Result of a detector, before the arbiter."""
