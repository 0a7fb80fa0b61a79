"""What a neighbour does to a job that reports no steps: how much longer its iterations take, and what its counters say.

All ranks of a synchronous job slow down together, whoever is disturbed: the work rate alone would blame any neighbour
that happens to be busy then. The ranks that stand where the neighbour is must see it, too: wait for a processor on the
host that they share, or have their packets marked on the way that they share.
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
"""Share of its time for which a rank waits for a processor more while the neighbour is busy: a window of the panel's
floor."""

LEAST_MARKS = 0.7
"""Marked packets are twice as many while the neighbour is busy: log(1 + marks a second)."""


SLOW_OF_BUSY, BUSY_OF_SLOW = 0.6, 0.6
"""It must be slow for so much of the time in which the neighbour is busy, and the neighbour busy for so much of the
time in which it is slow. Steps tell communication from computing; a work rate falls for any reason."""

LEAST_NEWEST = 0.005
"""What a rank usually sees is a mean over two hundred windows; it stands for the time before a neighbour came."""


@dataclass(slots=True)
class Unreported:
    """One job that reports no steps, on the common clock.

    shape: as of which its ranks are numbered. seen: for each thing that is shared what its ranks there see, the newest
    last. usual: float32 [2, ranks], what each rank usually sees of waits and of marks, NaN where not known yet.
    """

    shape: Shape
    rate: WorkRate = field(default_factory=WorkRate)
    seen: dict[Resource, deque[float]] = field(default_factory=dict)
    usual: Float32Array = field(init=False)
    taken: int = 0

    def __post_init__(self) -> None:
        self.usual = np.full((2, len(self.shape)), np.nan, np.float32)

    def take(self, values: Float32Array, shared: Mapping[Resource, Mapping[str, IntArray]]) -> None:
        """One more window: [features, ranks]. shared: for each thing that is shared, by whose ranks."""
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
        """[windows]: by how much longer than usual an iteration takes, as a share; empty where that is not known."""
        found = self.rate.lost()
        return np.zeros(0) if found is None else found

    def beside(self, sent: FloatArray) -> FloatArray:
        """What a neighbour does, over as many windows as the work rate is a mean of."""
        known = np.flatnonzero(np.isfinite(sent))
        width = self.rate.width
        if not len(known) or width is None:
            return sent
        found = sent.copy()
        found[known[0] :] = averaged(np.nan_to_num(sent[known[0] :]), width)
        return found

    def witnessed(self, resource: Resource, sent: FloatArray, lost: FloatArray, cost: float) -> bool:
        """Whether it is slow while the neighbour is busy and hardly else, and its ranks there see the neighbour.

        sent: as ``beside`` gives it. cost: what it loses then, as a share of an iteration.
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
