"""Slow stage or slow node: distinguishes the two where each stage of a job is on a separate node.

In such a job no other node has ranks of the same role to compare with. All ranks of a stage take longer together,
whether the stage has more work, waits for its input, or shares a slow disk or a busy CPU. The time that the node's
tasks wait for disks and CPUs shows which. If the node is slow, the cause is not within the job.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import FEATURE, Float32Array
from scheduler_feedback.core.verdict import Cause, Evidence, Kind
from scheduler_feedback.detectors.stats import log_odds
from scheduler_feedback.detectors.steps.places import Places
from scheduler_feedback.detectors.workload.workload_claim import Claim

WAITING = (FEATURE["io_waiting"], FEATURE["cpu_waiting"])
CAUSES = (Cause.STORAGE, Cause.CPU_CONTENTION)

KEPT_WINDOWS = 16
"""Number of newest windows of counters that are kept."""

USUAL_SHARE = 1 / 720
"""Smallest weight of a new window in the running average of the usual waiting time. It is small, so that the first slow
windows change the average little."""

LEAST_WAITING = 0.03
"""A node is slow only if the share of time for which its tasks wait grew by at least this much: three percentage
points."""

TIMES_USUAL = 3.0
"""A node is slow only if its tasks wait at least this many times as long as usual."""

APART = 3.0
"""A node is slow only if its compute time grew at least this many times as much as that of any other node of the job,
and its waiting time too."""

NODE = "node"
"""Prefix of the key of a claim (a suspected cause) about a slow node."""


@dataclass(slots=True)
class Pressure:
    """Waits of the tasks on each node of one job for disks and for CPUs, as shares of time: [2, nodes]."""

    newest: deque[tuple[int, FloatArray]] = field(default_factory=lambda: deque(maxlen=KEPT_WINDOWS))
    """Newest windows of counters: the midpoint of each in ns, and the shares of time for which tasks wait, [2,
    nodes]."""
    usual: FloatArray | None = None
    """Usual share of time for which tasks wait, [2, nodes]; None if unknown."""
    taken: int = 0

    def take(self, middle_ns: int, values: Float32Array, where: Places, calm: bool) -> None:
        """Add one window of counters, [features, n ranks].

        calm: whether steps take no longer than usual; only then the usual share is updated.
        """
        waiting = values[WAITING, :].astype(np.float64)
        ranks_on = np.bincount(where.index, minlength=len(where.names))
        found = np.stack([np.bincount(where.index, row, len(where.names)) / ranks_on for row in waiting])
        if not np.isfinite(found).all():
            return
        self.newest.append((middle_ns, found))
        if calm or self.usual is None:
            self.taken += 1
            before = found if self.usual is None else self.usual
            self.usual = before + max(USUAL_SHARE, 1 / self.taken) * (found - before)

    def more(self, since_ns: int) -> FloatArray | None:
        """Return by how much tasks have waited longer than usual since `since_ns`, as shares of time: [2, nodes]. None
        if there is no window since."""
        since = [found for middle_ns, found in self.newest if middle_ns >= since_ns]
        if not since or self.usual is None:
            return None
        return np.asarray(np.mean(since, axis=0) - self.usual)

    def open(self, since_ns: int, nodes: npt.NDArray[np.bool_]) -> bool:
        """Return whether one of these nodes may be slow, because its tasks wait or because no window has arrived yet.

        nodes: bool [nodes], which nodes to test.
        """
        if self.usual is None:
            return False
        more = self.more(since_ns) if since_ns else None
        return more is None or float(more[:, nodes].max()) >= LEAST_WAITING


def alone(where: Places) -> bool:
    """Return whether the job has several roles, and all ranks of each role are on one node."""
    return len(where.roles) > 1 and len(where.names) > 1 and all(len(nodes) == 1 for _, nodes, _ in where.by_node)


def slow_node(
    where: Places,
    ranks: tuple[int, ...],
    first: npt.NDArray[np.bool_],
    shift: FloatArray,
    sway: float,
    pressure: Pressure,
    since_ns: int,
    usual: float,
) -> Claim | None:
    """Return a claim that a node is slow, if its ranks all take longer and its tasks wait; else None.

    first: bool [n], whether each rank is in the first stage. shift: increase of each rank's compute time in log
    seconds, [n]. sway: variation of the median rank's time from step to step. usual: usual step time in seconds.
    """
    shifts = np.array([float(np.median(shift[where.index == node])) for node in range(len(where.names))])
    worst = int(shifts.argmax())
    others = float(np.abs(np.delete(shifts, worst)).max())
    members = np.flatnonzero(where.index == worst)
    more = pressure.more(since_ns)
    if (
        more is None
        or pressure.usual is None
        or float(shift[members].min()) <= others
        or shifts[worst] < APART * others
    ):
        return None
    kind = int(more[:, worst].argmax())
    waits, before = float(more[kind, worst]), float(pressure.usual[kind, worst])
    if waits < max(LEAST_WAITING, (TIMES_USUAL - 1.0) * before) or waits < APART * np.delete(more[kind], worst).max():
        return None
    name = where.names[worst]
    what = ("disks", "processors")[kind]
    evidence = [
        Evidence("compute_to_usual", math.exp(shifts[worst]), math.exp(others), "ratio",
                 "growth since warm-up; the next slowest node has this",
                 log_odds.of_residual(float(shifts[worst]) / sway)),
        Evidence(f"waits_for_{what}", before + waits, before, "ratio", "usual share of the time on this node", 2.0),
    ]  # fmt: skip
    if CAUSES[kind] is Cause.STORAGE and first[members].all():
        against = "only the first stage reads the job's input, and the input itself may be slow"
        evidence.append(Evidence("reads_alone", 1.0, 0.0, "", against, -2.0))
    return Claim(
        f"{NODE}-{name}", Kind.STRAGGLER, CAUSES[kind], ranks[members[0]], tuple(ranks[m] for m in members), usual,
        tuple(evidence), node=name,
    )  # fmt: skip
