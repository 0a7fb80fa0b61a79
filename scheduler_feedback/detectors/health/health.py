"""The health detector: reports faulty devices by their events and counters, even before a step is slower, and lost
nodes.

An XID event leads to a verdict if NVIDIA's catalogue, or the recovery action of the driver, asks for a reset, a reboot
or a drain. Most XIDs are caused by the application (13, 31, 43). A link that flaps is reported once, and then ignored
for a while. A node whose agent stops reporting is called lost only if a second source confirms it, because an agent can
fail while its node continues to train. If many agents stop reporting at once, the cause is a rollout or the network:
the detector reports that once, and all actions are frozen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from agent.schema.sample import Sample
from agent.schema.xid_codes import describe
from scheduler_feedback.core.telemetry.telemetry import (
    DEVICE_LOST,
    LINK,
    PART_REPLACED,
    RECOVERY_ACTION,
    XID,
    JobTelemetry,
    NodeEvent,
    Telemetry,
)
from scheduler_feedback.core.verdict import Cause, Cleared, Evidence, Verdict
from scheduler_feedback.detectors.context import DetectionContext, PartFault, Proposal
from scheduler_feedback.detectors.health.apart_ranks import ApartRanks
from scheduler_feedback.detectors.health.device_outliers import DifferingCounters
from scheduler_feedback.detectors.health.failing_from_start import FailingFromStart
from scheduler_feedback.detectors.health.job_speed import Speed
from scheduler_feedback.detectors.health.port_health import Ports
from scheduler_feedback.detectors.health.stale_agents import StaleAgents
from scheduler_feedback.detectors.health.suspicion import Suspicion
from scheduler_feedback.detectors.stats import log_odds

ACTING_BUCKETS = frozenset({"RESET_GPU", "RESTART_BM"})
"""Buckets of NVIDIA's XID catalogue that ask for a reset or reboot. The buckets RESTART_APP and IGNORE concern the
application. Catalogue entries that are workflows (48, 45, NVLink) end in a bucket or in none: the driver's recovery
action decides."""

ACTING_RECOVERIES = frozenset(
    {"gpu-reset", "node-reboot", "drain-p2p", "drain-and-reset", "bus-reset", "system-reboot"}
)
"""Values of the driver's recovery action that ask for a reset, reboot or drain; 'none' and 'imex' do not."""

SNAPSHOT_VERSION = 3


class HealthDetector:
    """Detector of faulty devices, links and nodes. Owned by one thread."""

    name = "health"

    def __init__(self, timed: bool = True) -> None:
        self._timed = timed
        self._ports = Ports()
        self._silence = StaleAgents()
        self._counted = DifferingCounters()
        self._apart = ApartRanks()
        self._from_start = FailingFromStart()
        self._active: dict[tuple[str, str], Verdict] = {}

    def tick(self, context: DetectionContext) -> list[Proposal]:
        """Evaluate events, counters and agents that do not report, and return the new results."""
        findings: list[Proposal] = []
        if not self._timed:
            return findings
        telemetry, refused = context.telemetry, context.published.refused
        if refused:
            self._active = {key: one for key, one in self._active.items() if one.verdict_id not in refused}
        for event in telemetry.events:
            findings += self._event(event, context)
        for why in self._ports.failing(telemetry.now_ns):
            findings += self._accuse(why, context)
        if (mass := self._silence.mass(telemetry)) is not None:
            findings.append(mass)
        for why in self._silence.lost(telemetry, context.speeds):
            findings += self._accuse(why, context)
        for why in self._counted.failing(context):
            findings += self._accuse(why, context)
        for why in self._apart.failing(context):
            findings += self._accuse(why, context)
        for why in self._from_start.failing(context):
            findings += self._accuse(why, context)
        jobs = {job.shape.job for job in telemetry.jobs}
        for key in [key for key, one in self._active.items() if one.gang and one.gang not in jobs]:
            del self._active[key]
        return findings

    def measures(self) -> Iterator[Sample]:
        """Yield no samples: this detector has no metrics."""
        return iter(())

    def snapshot(self) -> bytes:
        """Encode the version only. After a restart, events and counters show a lasting fault again."""
        return msgspec.msgpack.encode((SNAPSHOT_VERSION,))

    def restore(self, data: bytes) -> None:
        """Restore a snapshot. Raises ValueError if the bytes are not a snapshot of this detector.

        Also accepts a snapshot of release 0.1.0 (version 2), whose other data ``SharedState.restore`` reads.
        """
        try:
            version, *_ = msgspec.msgpack.decode(data, type=list[msgspec.Raw])
            if msgspec.msgpack.decode(version, type=int) not in (2, SNAPSHOT_VERSION):
                raise ValueError("of another version")
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
            raise ValueError(f"health snapshot of {len(data)} bytes: {error}") from None

    def _event(self, node_event: NodeEvent, context: DetectionContext) -> list[Proposal]:
        event, detail = node_event.event, node_event.event.detail
        if event.kind == XID:
            try:
                code = int(detail.get("code", ""))
            except ValueError:
                return []
            known = describe(code)
            action = detail.get("action") or known.action
            if action not in ACTING_BUCKETS:
                return []
            words = f"XID {code} {known.name}: {known.meaning}; NVIDIA's catalogue asks for {action}"
            return self._accuse(Suspicion(node_event.node, "gpu", event.entity, Cause.XID, words, float(code)), context)
        if event.kind == RECOVERY_ACTION:
            action = detail.get("action", "")
            if action not in ACTING_RECOVERIES:
                return []
            words = f"the driver's recovery action asks for {action}"
            return self._accuse(Suspicion(node_event.node, "gpu", event.entity, Cause.XID, words, 1.0), context)
        if event.kind == DEVICE_LOST:
            words = f"{event.entity} is no longer present"
            return self._accuse(Suspicion(node_event.node, "gpu", event.entity, Cause.LOST, words, 1.0), context)
        if event.kind == LINK:
            self._ports.take(node_event, context.telemetry.now_ns)
        elif event.kind == PART_REPLACED:
            return self._replaced(node_event, context.telemetry.now_ns)
        return []

    def _replaced(self, node_event: NodeEvent, now_ns: int) -> list[Proposal]:
        """Clear the active verdicts of a replaced part and its node."""
        gone = [key for key in self._active if key[1] in (node_event.event.entity, node_event.node)]
        return [
            Cleared(one.verdict_id, one.gang, now_ns, "the part was replaced")
            for one in (self._active.pop(key) for key in gone)
        ]

    def _accuse(self, why: Suspicion, context: DetectionContext) -> list[Proposal]:
        """Report a verdict on a device in every job that uses the device. If no job uses it, report the verdict on the
        node alone."""
        findings: list[Proposal] = []
        node, level, device, telemetry = why.node, why.level, why.device, context.telemetry
        affected: list[tuple[JobTelemetry | None, int]] = [(why.job, why.index)]
        if why.job is None:
            affected = [*_members_on(telemetry, node, level, device)] or [(None, -1)]
        past = context.fault_history.weight(device, node)
        periods = context.speeds.periods()
        for one, rank in affected:
            gang = "" if one is None else one.shape.job
            key = (gang, device or node)
            if key in self._active:
                continue
            cause_evidence = Evidence("event", why.value, float("nan"), "", why.words, 3.0 if why.more else 6.0)
            items = (cause_evidence, *why.more, *past)
            speed = context.speeds.of.get(gang, Speed())
            before, now = speed.best if math.isfinite(speed.best) else speed.usual, speed.usual
            if (period := periods.get(gang)) is not None:
                before, now = period, period * max(1.0, why.slower)
                words = "inferred from the job's traffic: it reports no steps; best iteration, times its slowdown"
                items = (*items, Evidence("inferred_step_seconds", now, before, "seconds", words))
            number = -1 if one is None or rank < 0 else int(one.shape.ranks[rank])
            attempt = 0 if one is None else one.shape.attempt
            verdict = Verdict(
                verdict_id=f"{gang}.{attempt}.{why.cause}.{device or node}.{telemetry.now_ns}",
                kind=why.kind,
                gang=gang,
                attempt=attempt,
                rank=number,
                node=node,
                cause=why.cause,
                confidence=(log_odds.without_waits if why.without_waits else log_odds.confidence)(items),
                slowdown=max(1.0, why.slower),
                step_seconds_before=before,
                step_seconds_now=now,
                first_wall_ns=telemetry.now_ns,
                last_wall_ns=telemetry.now_ns,
                evidence=items,
                frames=() if one is None else one.frames,
                detector=self.name,
                level=level,
                device="" if level == "node" else device,
                suspects=() if level == "node" else (f"node:{node}",),
                first_step=speed.step,
                last_step=speed.step,
                detected_step=speed.step,
            )
            if verdict.confidence < log_odds.LEAST_CONFIDENCE:
                continue
            self._active[key] = verdict
            findings += [verdict, PartFault(verdict.verdict_id, device, node, why.cause, telemetry.now_ns)]
        return findings


def _members_on(telemetry: Telemetry, node: str, level: str, device: str) -> Iterator[tuple[JobTelemetry, int]]:
    """Yield each job with a rank on the device, and its first such rank. If no rank uses the device, yield each job on
    the node, with -1.

    A device belongs to its own node only, even if another node's agent reports the same name.
    """
    for job in telemetry.jobs:
        names = {"gpu": job.shape.gpus, "nic": job.shape.nics}.get(level, ())
        ranks = [rank for rank, name in enumerate(names) if name == device and job.shape.nodes[rank] == node]
        if ranks:
            yield job, ranks[0]
        elif node in job.shape.nodes:
            yield job, job.shape.nodes.index(node) if level == "node" else -1
