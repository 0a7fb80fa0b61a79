"""Interference in a job that reports no steps: how much longer its iterations take, and what its counters show.

All ranks of a synchronous job slow down together, whichever rank is affected. The work rate alone would accuse any
neighbour that is busy at the time. Therefore the ranks on the shared resource must confirm it: by waiting for a CPU on
the shared host, or by congestion marks on the shared path.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from scheduler_feedback.core.telemetry.gang_attempts import FloatArray, IntArray
from scheduler_feedback.core.telemetry.telemetry import FEATURE, Float32Array, Shape
from scheduler_feedback.detectors.interference.shared_resources import Resource
from scheduler_feedback.detectors.iteration.work_rate import WorkRate, averaged
from scheduler_feedback.detectors.stats.correlation import KEPT_WINDOWS, pad

LEAST_WAIT = 0.03
"""Minimum increase of a rank's CPU wait while the neighbour is busy, as a share of time: one scale floor of the
counter."""

LEAST_MARKS = 0.7
"""Minimum increase of log(1 + congestion marks per second) while the neighbour is busy: twice as many marks."""


SLOW_OF_BUSY, BUSY_OF_SLOW = 0.6, 0.6
"""The job must be slow for this share of the time in which the neighbour is busy, and the neighbour busy for this share
of the time in which the job is slow. Step reports separate communication from computing; a work rate falls for any
reason."""

LEAST_NEWEST = 0.005
"""Weight of a new window in a rank's usual value: a mean over 200 windows, used for the time before a neighbour
started."""


@dataclass(slots=True)
class Unreported:
    """One job without step reports, on the common clock."""

    shape: Shape
    """Shape of the job that gives the order of its ranks."""
    rate: WorkRate = field(default_factory=WorkRate)
    seen: dict[Resource, deque[float]] = field(default_factory=dict)
    """Counter values of the job's ranks on each shared resource, newest last."""
    usual: Float32Array = field(init=False)
    """Usual CPU wait and congestion marks of each rank: float32 [2, ranks], NaN if unknown."""
    taken: int = 0

    def __post_init__(self) -> None:
        self.usual = np.full((2, len(self.shape)), np.nan, np.float32)

    def take(self, values: Float32Array, shared: Mapping[Resource, Mapping[str, IntArray]]) -> None:
        """Add one window, [features, ranks]. shared: ranks of each job on each shared resource."""
        self.rate.take(values)
        sees = np.stack([values[FEATURE["runqueue_wait"]], np.log1p(values[FEATURE["nic_congestion"]])])
        for resource, members in shared.items():
            ranks = members.get(self.shape.job)
            if ranks is None:
                continue
            which = 0 if resource[0] == "host" else 1
            ring = self.seen.get(resource)
            if ring is None:
                ring = self.seen[resource] = deque(maxlen=KEPT_WINDOWS)
                pad(ring, self.taken, _mean(self.usual[which, ranks]))
            ring.append(_mean(sees[which, ranks]))
        for gone in self.seen.keys() - shared.keys():
            del self.seen[gone]
        self.taken += 1
        share = max(1.0 / self.taken, LEAST_NEWEST)
        known = np.isfinite(sees)
        before = np.where(np.isfinite(self.usual), self.usual, sees)
        self.usual = np.where(known, before + share * (sees - before), self.usual).astype(np.float32)

    def lost(self) -> FloatArray:
        """Return how much longer than usual an iteration takes, as a share: [windows]; empty if unknown."""
        found = self.rate.lost()
        return np.zeros(0) if found is None else found

    def averaged_load(self, sent: FloatArray) -> FloatArray:
        """Return the neighbour's load, averaged over as many windows as the work rate."""
        known = np.flatnonzero(np.isfinite(sent))
        width = self.rate.width
        if not len(known) or width is None:
            return sent
        found = sent.copy()
        found[known[0] :] = averaged(np.nan_to_num(sent[known[0] :]), width)
        return found

    def witnessed(self, resource: Resource, sent: FloatArray, lost: FloatArray, cost: float) -> bool:
        """Return whether the job is slow mainly while the neighbour is busy, and its ranks there confirm the
        neighbour's load.

        sent: load as returned by ``averaged_load``. cost: loss of the job while the neighbour is busy, as a share of an
        iteration.
        """
        seen = np.array(self.seen.get(resource, ()))
        length = min(len(seen), len(sent), len(lost))
        seen, sent, lost = (values[len(values) - length :] for values in (seen, sent, lost))
        known = np.isfinite(seen) & np.isfinite(sent)
        seen, sent, lost = seen[known], sent[known], lost[known]
        if not len(seen):
            return False
        busy = sent > (np.quantile(sent, 0.05) + np.quantile(sent, 0.95)) / 2
        slow = lost > float(np.median(lost[~busy])) + cost / 2 if not busy.all() else busy
        if busy.all() or not busy.any() or not slow.any():
            return False
        if slow[busy].mean() < SLOW_OF_BUSY or busy[slow].mean() < BUSY_OF_SLOW:
            return False
        more = float(np.median(seen[busy]) - np.median(seen[~busy]))
        return more >= (LEAST_WAIT if resource[0] == "host" else LEAST_MARKS)


def _mean(values: Float32Array) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else np.nan
