"""The link detector: finds the nodes whose slow network link delays a job that communicates over TCP.

A link that became slow without errors, for example because it negotiated a lower speed, a cloud provider limits it or
other traffic fills it, shows in two places. Data of the node's connections stays unacknowledged longer for each byte,
which the connections of its peers to it show too. And packets wait in the node's own transmit queue, which those of its
peers do not: they send at the speed of the node. Only a node with both, in a job whose steps became longer, is accused.

All comparisons are with the node's own first windows and with the other nodes. A job that fills its links equally on
all nodes, or that always sends more from one node, has no node that differs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from agent.schema.sample import Sample
from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import JobTelemetry, Telemetry
from scheduler_feedback.core.verdict import Cause, Cleared, Evidence, Kind, Verdict
from scheduler_feedback.detectors.context import DetectionContext, PartFault, Proposal
from scheduler_feedback.detectors.health.job_speed import Speed
from scheduler_feedback.detectors.links.path_history import BYTES, Paths
from scheduler_feedback.detectors.stats import log_odds

LEAST_SLOWDOWN = 1.07
"""A link is accused only if the job's steps take at least this many times its best time."""

LEAST_BUSY = 1.25
"""A link is accused only if its connections are busy at least this many times as long as usual for each byte."""

LEAST_QUEUE = 0.08
"""A link is accused only if packets wait in its queue for this share of the time more than usual, and than in the
queues of the other nodes."""

LEAST_DEVIATION = 3.5
"""The difference from the queues of the other nodes must exceed this number of its standard errors, over windows."""

MOST_TRAFFIC = 1.3
"""A node that sends more than this many times its usual share of the job's traffic is not accused: its queue may be
longer because of that."""

GONE = 1.1
"""A verdict is cleared when its job's steps take at most this many times the best time."""

SNAPSHOT_VERSION = 1


@dataclass(frozen=True, slots=True)
class SlowLink:
    """A node whose link is slow. Values are means of the newest windows."""

    node: int
    """Index of the node in `Paths.names`."""
    queue: float
    """Share of time in which packets waited in its queue."""
    usual_queue: float
    others_queue: float
    """Median of this share on the nodes that are not accused."""
    deviation: float
    """Difference from these nodes in standard errors."""
    busy: float
    """Busy time of its connections for each byte, divided by the usual one."""


def slow_links(paths: Paths) -> list[SlowLink]:
    """Return the nodes with a slow link; fewer than half of the job's nodes, or one of two."""
    if not paths.ready or paths.usual_busy is None or paths.usual_queue is None or paths.usual_bytes is None:
        return []
    recent = np.array(paths.newest)  # [windows, 3, nodes]
    if len(paths.names) < 2:
        return []
    traffic = recent[:, 0].mean(axis=0)
    share = (traffic / traffic.sum()) / (paths.usual_bytes / paths.usual_bytes.sum())
    busy = recent[:, 1].sum(axis=0) / recent[:, 0].sum(axis=0) / paths.usual_busy
    queues = recent[:, 2]
    grown = queues.mean(axis=0) - paths.usual_queue
    may_be = (busy >= LEAST_BUSY) & (grown >= LEAST_QUEUE) & (share <= MOST_TRAFFIC)
    order = [node for node in np.argsort(-grown).tolist() if may_be[node]]
    most = max(1, len(paths.names) // 2)
    found: list[SlowLink] = []
    for count in range(min(most, len(order)), 0, -1):
        accused = order[:count]
        others = [node for node in range(len(paths.names)) if node not in accused]
        of_others = float(np.median(queues[:, others].mean(axis=0)))
        found = [
            SlowLink(
                node=node,
                queue=float(queues[:, node].mean()),
                usual_queue=float(paths.usual_queue[node]),
                others_queue=of_others,
                deviation=_deviation(queues, paths.usual_queue, node, others),
                busy=float(busy[node]),
            )
            for node in accused
        ]
        least = grown[accused].min() - grown[others].max(initial=-1.0)
        if least >= LEAST_QUEUE and all(one.deviation >= LEAST_DEVIATION for one in found):
            return found
    return []


def _deviation(queues: FloatArray, usual: FloatArray, node: int, others: list[int]) -> float:
    """Return by how many standard errors the node's queue grew more than those of the others.

    queues: share of time with a queue, [windows, nodes]. usual: [nodes].
    """
    more = (queues[:, node] - usual[node]) - np.median(queues[:, others] - usual[others], axis=1)
    error = max(float(more.std(ddof=1)), 0.02) / math.sqrt(len(more))
    return float(more.mean()) / error


class LinkDetector:
    """Detector of slow links. Owned by one thread."""

    name = "link"

    def __init__(self, timed: bool = True) -> None:
        self._timed = timed
        self._paths: dict[str, Paths] = {}
        self._active: dict[tuple[str, str], Verdict] = {}

    def tick(self, context: DetectionContext) -> list[Proposal]:
        """Add the new windows of counters, and return new and cleared verdicts."""
        telemetry = context.telemetry
        if not self._timed:
            return []
        self._forget(context)
        # Most clusters have no rank that sends over TCP: then no job needs to be looked at.
        if not np.isfinite(telemetry.counters.values[BYTES]).any():
            return []
        found: list[Proposal] = []
        for job, columns in zip(telemetry.jobs, telemetry.columns(), strict=True):
            values = telemetry.counters.values[:, :, columns]
            paths = self._paths.get(job.shape.job)
            if paths is None or paths.shape.nodes != job.shape.nodes or paths.shape.attempt != job.shape.attempt:
                paths = self._paths[job.shape.job] = Paths(job.shape)
            for window, end_ns in enumerate(telemetry.counters.at_ns.tolist()):
                paths.take(values[:, window], end_ns)
            found += self._judge(job, paths, context)
        return found

    def measures(self) -> Iterator[Sample]:
        """Yield no samples: this detector has no metrics."""
        return iter(())

    def snapshot(self) -> bytes:
        """Encode the version only. After a restart, the usual state of the network is learned again."""
        return msgspec.msgpack.encode(SNAPSHOT_VERSION)

    def restore(self, data: bytes) -> None:
        """Restore a snapshot. Raises ValueError if the bytes are not a snapshot of this detector."""
        try:
            version = msgspec.msgpack.decode(data, type=int)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            version = -1
        if version != SNAPSHOT_VERSION:
            raise ValueError(f"link snapshot of {len(data)} bytes: version {version}")

    def _forget(self, context: DetectionContext) -> None:
        attempts = {job.shape.job: job.shape.attempt for job in context.telemetry.jobs}
        for gone in self._paths.keys() - attempts.keys():
            del self._paths[gone]
        refused = context.published.refused
        self._active = {
            key: one
            for key, one in self._active.items()
            if attempts.get(key[0]) == one.attempt and one.verdict_id not in refused
        }

    def _judge(self, job: JobTelemetry, paths: Paths, context: DetectionContext) -> list[Proposal]:
        name, telemetry = job.shape.job, context.telemetry
        speed = context.speeds.of.get(name)
        if speed is None or not paths.ready or not math.isfinite(speed.best):
            return []
        slower = speed.usual / speed.best
        active = {key: one for key, one in self._active.items() if key[0] == name}
        if slower <= GONE and active:
            for key in active:
                del self._active[key]
            reason = f"steps take {slower:.3g} times their best time again"
            return [Cleared(one.verdict_id, name, telemetry.now_ns, reason, speed.step) for one in active.values()]
        if slower < LEAST_SLOWDOWN or (active and len(active) == len(paths.names)):
            return []
        proposals: list[Proposal] = []
        for link in slow_links(paths):
            node = paths.names[link.node]
            before = active.get((name, node))
            made = _verdict(job, paths, link, slower, speed, telemetry, before)
            if made.confidence < log_odds.LEAST_CONFIDENCE:
                continue
            if before is not None and made.confidence <= before.confidence:
                continue
            self._active[name, node] = made
            proposals.append(made)
            if before is None:
                proposals.append(PartFault(made.verdict_id, "", node, Cause.LINK, telemetry.now_ns))
        return proposals


def _verdict(
    job: JobTelemetry, paths: Paths, link: SlowLink, slower: float, speed: Speed, telemetry: Telemetry,
    before: Verdict | None,
) -> Verdict:  # fmt: skip
    node, shape = paths.names[link.node], job.shape
    ranks = tuple(shape.ranks[[place for place, name in enumerate(shape.nodes) if name == node]].tolist())
    items = (
        Evidence("transmit_queue_share", link.queue, link.others_queue, "ratio",
                 f"median of the nodes that are not accused; usually {link.usual_queue:.3g} on this node, "
                 f"{link.deviation:.1f} standard errors apart",
                 log_odds.bounded(0.5 * (link.deviation - 1.5), 0.0, 3.0)),
        Evidence("busy_time_a_byte", link.busy, LEAST_BUSY, "ratio",
                 "least multiple of the usual time in which sent data is unacknowledged, for each byte",
                 log_odds.bounded(4.0 * math.log(link.busy), 0.0, 2.5)),
        Evidence("step_seconds", speed.usual, speed.best, "seconds", "the job's best steps",
                 log_odds.of_slowdown(slower)),
    )  # fmt: skip
    first_ns = paths.ends_ns[0] if before is None else before.first_wall_ns
    return Verdict(
        verdict_id=before.verdict_id if before else f"{shape.job}.{shape.attempt}.{ranks[0]}.link.{first_ns}",
        kind=Kind.STRAGGLER,
        gang=shape.job,
        attempt=shape.attempt,
        rank=ranks[0],
        node=node,
        cause=Cause.LINK,
        confidence=log_odds.confidence(items),
        slowdown=max(1.0, slower),
        step_seconds_before=speed.best,
        step_seconds_now=speed.usual,
        first_wall_ns=first_ns,
        last_wall_ns=telemetry.now_ns,
        evidence=items,
        frames=job.frames,
        detector=LinkDetector.name,
        ranks=ranks if len(ranks) > 1 else (),
        level="node",
        first_step=speed.step,
        last_step=speed.step,
        detected_step=before.detected_step if before else speed.step,
    )
