"""Our detectors as production runs them. Their verdicts are converted to claims."""

from __future__ import annotations

from collections.abc import Sequence

from agent.schema.verdicts.kinds import OF_OWN_JOB
from benchmarks.detection.claims import Claim
from scheduler_feedback import detectors
from scheduler_feedback.core.state import Policy
from scheduler_feedback.core.telemetry.telemetry import Telemetry
from scheduler_feedback.core.verdict import Abstention, Finding, Verdict
from scheduler_feedback.detectors.ablation_switches import Switches
from scheduler_feedback.policies.remediation.mitigation_options import lacks
from scheduler_feedback.sim.world.outputs.node_events import NS, WALL_START_NS


class Ours:
    """All of our detectors, which process one stream of telemetry.

    switches: parts that are turned off for an ablation.
    """

    name = "ours"

    def __init__(self, switches: Switches | None = None) -> None:
        self._detection = detectors.make_detection(switches=switches)

    def look(self, telemetry: Telemetry) -> list[Claim]:
        """Run the detectors. Return the new verdicts as claims, and a claim if the controller would freeze all
        actions."""
        now = (telemetry.now_ns - WALL_START_NS) / NS
        found = []
        for finding in self.tick(telemetry):
            if isinstance(finding, Verdict):
                found.append(claim_of(finding, now))
            elif isinstance(finding, Abstention) and not finding.gang:
                # A freeze applies to the whole fleet: no action is taken from now on.
                found.append(Claim(now, "freeze", "", "freeze", cause=finding.detector))
        return found

    def tick(self, telemetry: Telemetry) -> Sequence[Finding]:
        """Run the detectors, and return their results."""
        return self._detection.tick(telemetry)

    def periods(self) -> dict[str, float]:
        """Return the inferred duration of an iteration in seconds, by job."""
        return self._detection.shared.speeds.periods()


def claim_of(verdict: Verdict, now: float) -> Claim:
    """Convert a verdict to a claim that was reported at this simulated time in seconds."""
    # The same accusation of one member is one alarm, whatever the ids: an operator is paged once for it. Slowness
    # caused by the job itself may recur: unequal stages become more unequal.
    about = verdict.aggressor or verdict.device or str(verdict.rank)
    if verdict.kind in OF_OWN_JOB:
        about = verdict.verdict_id
    return Claim(
        at=now,
        key=f"{verdict.gang}/{verdict.kind}/{verdict.node}/{about}",
        job=verdict.gang,
        kind=str(verdict.kind),
        rank=verdict.rank,
        node=verdict.node,
        device=verdict.device,
        level=verdict.level,
        aggressor=verdict.aggressor,
        cause=str(verdict.cause),
        confidence=verdict.confidence,
        suspects=verdict.suspects,
        moves=lacks(verdict, Policy()) is None,
        ranks=verdict.ranks,
    )
