"""Victims of interference that report no steps: how much longer their iterations take, and what their counters show.

All ranks of a synchronous job slow down together, whichever rank is affected. The work rate alone would accuse any
neighbour that is busy at the time. Therefore the ranks on the shared resource must confirm the interference: they wait
for a CPU of the shared host, or have congestion marks on the shared path.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray, IntArray
from scheduler_feedback.core.telemetry.telemetry import FEATURE, Float32Array, Shape
from scheduler_feedback.detectors.iteration.work_rate import WorkRate, averaged
from scheduler_feedback.detectors.resource_users import Resource
from scheduler_feedback.detectors.stats.correlation import KEPT_WINDOWS, pad

LEAST_WAIT = 0.03
"""Interference on a shared host is confirmed only if the job's ranks there wait for CPUs longer while the neighbour is
busy. The increase must be at least this share of the time."""

LEAST_MARKS = 0.7
"""Interference on a shared network path is confirmed only if the ranks have more congestion marks while the neighbour
is busy. log(1 + marks per second) must increase by at least this: about twice as many marks."""


SLOW_OF_BUSY, BUSY_OF_SLOW = 0.6, 0.6
"""Interference is confirmed only if the job is slow for at least SLOW_OF_BUSY of the neighbour's busy time, and the
neighbour is busy for at least BUSY_OF_SLOW of the job's slow time. A work rate can fall for many other reasons."""

LEAST_NEWEST = 0.005
"""Lower limit of the weight of a new window in a rank's usual value: a usual value is a mean over about 200 windows."""


@dataclass(slots=True)
class Unreported:
    """State of one job without step reports that shares a resource."""

    shape: Shape
    """Ranks of the job, in the order of all arrays here."""
    rate: WorkRate = field(default_factory=WorkRate)
    seen: dict[Resource, deque[float]] = field(default_factory=dict)
    """For each shared resource, the job's CPU wait or congestion marks there, one value for each window, newest
    last."""
    usual: Float32Array = field(init=False)
    """Usual wait for CPUs and usual congestion marks of each rank: float32 [2, ranks], NaN if unknown."""
    taken: int = 0

    def __post_init__(self) -> None:
        self.usual = np.full((2, len(self.shape)), np.nan, np.float32)

    def take(self, values: Float32Array, shared: Mapping[Resource, Mapping[str, IntArray]]) -> None:
        """Add one window of counters, [features, n ranks].

        shared: for each shared resource, the indices of each job's ranks there.
        """
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
        """Return for each window how much longer than usual an iteration takes, as a share; empty if unknown."""
        found = self.rate.lost()
        return np.zeros(0) if found is None else found

    def averaged_load(self, sent: FloatArray) -> FloatArray:
        """Return the neighbour's load, averaged over as many windows as the victim's work rate."""
        known = np.flatnonzero(np.isfinite(sent))
        width = self.rate.width
        if not len(known) or width is None:
            return sent
        found = sent.copy()
        found[known[0] :] = averaged(np.nan_to_num(sent[known[0] :]), width)
        return found

    def witnessed(self, resource: Resource, sent: FloatArray, lost: FloatArray, cost: float) -> bool:
        """Return whether the job is slow mainly while the neighbour is busy, and the counters of its ranks on the
        resource confirm it.

        sent: load of the neighbour, from ``averaged_load``. lost: from ``lost``. cost: loss of the job while the
        neighbour is busy, as a share of an iteration.
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
