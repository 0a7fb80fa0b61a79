"""Agents that have stopped reporting.

If many agents stop at once, the cause is a rollout or a network fault. If one agent stops, its node is lost only if a
job on the node has stopped as well.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from scheduler_feedback.core.telemetry.telemetry import JobTelemetry, Telemetry
from scheduler_feedback.core.verdict import MASS_LOSS, Abstention, Cause
from scheduler_feedback.detectors.hang.certain_hangs import is_inside
from scheduler_feedback.detectors.hang.hang import at_fault
from scheduler_feedback.detectors.health.job_speed import Speeds
from scheduler_feedback.detectors.health.suspicion import Suspicion

STALE_SECONDS = 15.0
"""Time in seconds without a report after which an agent is stale."""

STILL_SECONDS = 30.0
"""A node with a stale agent is lost only if a job on it has finished no step for thirty seconds and for three usual
steps. Shorter pauses can be step records that arrive late. If collectives are reported, the other ranks must also have
waited in a collective."""

OWN_GAP_SECONDS = STALE_SECONDS / 2
"""If the detectors, which run twice a second, have not run for this many seconds, the controller was suspended and has
not read the agents' reports yet. Agents then become stale only after STALE_SECONDS more."""

STOOD_STEPS, STOOD_SECONDS = 2.0, 5.0
"""A node with a stale agent is lost only if its agent stopped soon after the job's last step: at most STOOD_STEPS usual
steps plus STOOD_SECONDS later. If the agent reported for longer, the job had stopped before the node was lost."""

MASS_SHARE = 0.05
"""If more than this share of all agents becomes stale within MASS_SECONDS, the cause is a rollout or a network fault.
The detector then calls no node lost for MASS_SECONDS."""

MASS_SECONDS = 60.0
MASS_LEAST = 3
"""MASS_SHARE applies only if at least this number of agents is stale. With fewer agents the share means nothing."""


class StaleAgents:
    """Detector of agents that have stopped reporting, and of the nodes that are lost with them."""

    def __init__(self) -> None:
        self._lost: dict[str, int] = {}
        self._mass_until_ns = 0
        self._ticked_ns: int | None = None
        self._awake_ns = 0

    def mass(self, telemetry: Telemetry) -> Abstention | None:
        """Return an abstention if many agents became stale at once, which freezes all actions; else None."""
        now_ns = telemetry.now_ns
        if self._ticked_ns is not None and (now_ns - self._ticked_ns) * 1e-9 > OWN_GAP_SECONDS:
            self._awake_ns = now_ns
        self._ticked_ns = now_ns
        stale_before_ns = now_ns - round(STALE_SECONDS * 1e9)
        received = (
            (node, max(received_ns, self._awake_ns)) for node, received_ns in telemetry.last_received_ns.items()
        )
        stale = {node for node, at_ns in received if at_ns < stale_before_ns}
        for node in stale - self._lost.keys():
            self._lost[node] = now_ns
        for node in self._lost.keys() - stale:
            del self._lost[node]
        recent = [node for node, at in self._lost.items() if (now_ns - at) * 1e-9 <= MASS_SECONDS]
        agents = len(telemetry.last_received_ns)
        if len(recent) < MASS_LEAST or len(recent) <= MASS_SHARE * agents:
            return None
        already_reported = now_ns < self._mass_until_ns
        self._mass_until_ns = now_ns + round(MASS_SECONDS * 1e9)
        if already_reported:
            return None
        words = (
            f"{len(recent)} of {agents} agents stopped reporting within {MASS_SECONDS:.0f} s: suspect a rollout or the "
            "network, not the nodes; all actions are frozen"
        )
        return Abstention("", 0, None, now_ns, words, (), MASS_LOSS)

    def lost(self, telemetry: Telemetry, speeds: Speeds) -> Iterator[Suspicion]:
        """Yield suspicions against nodes with a stale agent on which a job has stopped finishing steps."""
        now_ns = telemetry.now_ns
        if now_ns < self._mass_until_ns or not self._lost:
            return
        for job in telemetry.jobs:
            speed = speeds.of.get(job.shape.job)
            if speed is None or not len(speed.newest):
                continue
            still = (now_ns - speed.finished_ns) * 1e-9
            for node in dict.fromkeys(job.shape.nodes):
                lost_ns = self._lost.get(node)
                # Second source of evidence: the job has finished no step since, for longer than its steps take.
                if lost_ns is None or speed.finished_ns > lost_ns or (now_ns - lost_ns) * 1e-9 < STILL_SECONDS:
                    continue
                reported_after = (telemetry.last_received_ns[node] - speed.finished_ns) * 1e-9
                if reported_after > STOOD_STEPS * speed.usual + STOOD_SECONDS:
                    continue
                if still < 3 * speed.usual or not _waited_for(job, telemetry, max(STILL_SECONDS, speed.usual)):
                    continue
                words = f"its agent is not reporting, and {job.shape.job} has finished no step for {still:.0f} s"
                yield Suspicion(node, "node", node, Cause.LOST, words, still)


def _waited_for(job: JobTelemetry, telemetry: Telemetry, seconds: float) -> bool:
    """Return whether ranks have waited in a collective for `seconds`, and no reporting rank delays them.

    Returns True if no collectives are reported.
    """
    opened = job.open_collectives
    if opened is None:
        return True
    inside = is_inside(opened, telemetry.now_ns)
    if not inside.any() or float(np.median(telemetry.now_ns - opened[inside, 1])) * 1e-9 < seconds:
        return False
    stale_before_ns = telemetry.now_ns - round(STALE_SECONDS * 1e9)
    lost = np.array([telemetry.last_received_ns.get(one, 0) < stale_before_ns for one in job.shape.nodes])
    absent = np.flatnonzero(~inside)
    return not len(absent) or bool(lost[at_fault(absent, lost, job.shape)].any())
