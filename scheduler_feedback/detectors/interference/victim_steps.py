"""The clock of the victim: what it lost in each of its own steps, beside what a neighbour did during that step.

A neighbour sends in bursts, step after step of its own. Where the victim's steps are many windows long, each says one
thing of a time in which the neighbour was busy and quiet again and again; what can rise and fall together is a step and
the mean of what the neighbour did in it. Few such steps fit into the time for which single windows are kept, so that
blocks of windows are kept for longer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from scheduler_feedback.core.telemetry.gang_attempts import FloatArray, IntArray
from scheduler_feedback.core.telemetry.telemetry import Float32Array
from scheduler_feedback.detectors.interference.shared_resources import Resource
from scheduler_feedback.detectors.stats.correlation import KEPT_WINDOWS, pad

LONG_STEP_WINDOWS = 3.0
"""Steps of so many windows are followed by themselves, too."""

BLOCK_WINDOWS = 5
BLOCK_STEP_WINDOWS = 8.0
KEPT_STEPS = 450
"""Windows in a block: an hour is kept where counters come every second, eighty steps of three quarters of a minute.
Shorter ones than eight windows are held against single windows, which hold ninety of them."""

NEWEST_SHARE = 0.25
USUAL_SHARE = 1 / KEPT_WINDOWS
LEAST_MARKS = 0.7
"""Marked packets are twice as many as usual: log(1 + marks a second). What is newest is a mean over some four blocks,
what is usual one over as many as are kept."""


@dataclass(slots=True)
class Marks:
    """How many packets of each rank of a job are marked for congestion, float32 [n]; NaN where not known yet."""

    usual: Float32Array
    newest: Float32Array
    taken: int = 0

    def take(self, marked: Float32Array) -> None:
        """One more sample: marks a second of each rank."""
        found = np.log1p(marked)
        self.taken += 1
        self.usual = _nearer(self.usual, found, max(USUAL_SHARE, 1 / self.taken))
        self.newest = _nearer(self.newest, found, NEWEST_SHARE)

    def more(self, ranks: IntArray) -> bool:
        """Whether most of these ranks have more than usual."""
        grown = self.newest[ranks] - self.usual[ranks]
        return bool(np.isfinite(grown).all()) and float(np.median(grown)) >= LEAST_MARKS


@dataclass(slots=True)
class Steps:
    """Newest steps of one job: when each began and ended, and what it lost; NaN where not known. marks: of its
    packets."""

    begin_ns: deque[int] = field(default_factory=lambda: deque(maxlen=KEPT_STEPS))
    end_ns: deque[int] = field(default_factory=lambda: deque(maxlen=KEPT_STEPS))
    lost: dict[str, deque[float]] = field(default_factory=dict)
    marks: Marks | None = None

    def add(self, begin_ns: int, end_ns: int, lost: dict[str, float]) -> None:
        """One more step. lost: by what it was lost at: a shared host, or '' for communication."""
        self.begin_ns.append(begin_ns)
        self.end_ns.append(end_ns)
        for key, value in lost.items():
            ring = self.lost.get(key)
            if ring is None:
                ring = self.lost[key] = deque([np.nan] * (len(self.end_ns) - 1), maxlen=KEPT_STEPS)
            ring.append(value)
        for key in self.lost.keys() - lost.keys():
            self.lost[key].append(np.nan)

    def usual_ns(self) -> float:
        """The length of the middle one."""
        lengths = np.fromiter(self.end_ns, np.int64) - np.fromiter(self.begin_ns, np.int64)
        return float(np.median(lengths)) if len(lengths) else 0.0

    def values(self, key: str) -> FloatArray:
        """[steps]: what was lost there."""
        ring = self.lost.get(key, ())
        return np.fromiter(ring, np.float64, len(ring))

    def during(self, sent: Sequence[float], ends_ns: IntArray, long_ns: int) -> FloatArray:
        """[steps]: the mean of what a neighbour did in each; NaN for those of a time that is not kept.

        sent: in each block or window, the newest last. ends_ns: of all that are kept. long_ns: how long one is.
        """
        levels = np.fromiter(sent, np.float64, len(sent))
        ends_ns = ends_ns[len(ends_ns) - len(levels) :]
        begin = np.fromiter(self.begin_ns, np.int64, len(self.begin_ns))
        end = np.fromiter(self.end_ns, np.int64, len(self.end_ns))
        known = np.flatnonzero(np.isfinite(levels))
        if not len(known):
            return np.full(len(end), np.nan)
        levels, ends_ns = levels[known[0] :], ends_ns[known[0] :]
        first = int(ends_ns[0]) - long_ns
        at = np.concatenate([[0.0], (ends_ns - first) * 1e-9])
        # The newest step ends within a block that is not over: what is known of the step stands for it.
        until = (np.minimum(end, int(ends_ns[-1])) - first) * 1e-9
        since = (begin - first) * 1e-9
        summed = np.concatenate([[0.0], np.cumsum(np.nan_to_num(levels) * np.diff(at))])
        length = until - since
        with np.errstate(invalid="ignore", divide="ignore"):
            means = (np.interp(until, at, summed) - np.interp(since, at, summed)) / length
        found: FloatArray = np.where((since >= 0) & (length > (end - begin) * 0.5e-9), means, np.nan)
        return found


def _nearer(mean: Float32Array, found: Float32Array, share: float) -> Float32Array:
    """A mean that goes by this share towards what was found; what is not known changes nothing."""
    before = np.where(np.isfinite(mean), mean, found)
    moved: Float32Array = np.where(np.isfinite(found), before + np.float32(share) * (found - before), before)
    return moved


class Blocks:
    """What each job does on each thing that it shares, in blocks of BLOCK_WINDOWS windows; KEPT_WINDOWS of them."""

    def __init__(self) -> None:
        self.ends_ns: deque[int] = deque(maxlen=KEPT_WINDOWS)
        self._rings: dict[str, dict[Resource, deque[float]]] = {}
        self._of: Mapping[Resource, Mapping[str, IntArray]] = {}
        self._sums: FloatArray = np.zeros(0)
        self._counts: FloatArray = np.zeros(0)
        self._windows = 0

    def take(self, end_ns: int, sent: Sequence[float], shared: Mapping[Resource, Mapping[str, IntArray]]) -> bool:
        """One more window; whether it is the last one of its block.

        sent: by all on everything that is shared, in the order of `shared`; NaN for unknown.
        """
        levels = np.array(sent)
        if shared is not self._of:  # others share something now: what is left of the block is of them
            self._of, self._sums, self._counts = shared, np.zeros(len(levels)), np.zeros(len(levels))
        known = np.isfinite(levels)
        self._sums += np.where(known, levels, 0.0)
        self._counts += known
        self._windows += 1
        if self._windows < BLOCK_WINDOWS:
            return False
        with np.errstate(invalid="ignore"):
            means = (self._sums / self._counts).tolist()
        at = 0
        for resource, members in shared.items():
            for job in members:
                ring = self._rings.setdefault(job, {}).setdefault(resource, deque(maxlen=KEPT_WINDOWS))
                if len(ring) < len(self.ends_ns):
                    pad(ring, len(self.ends_ns), 0.0)  # before the job came it sent nothing
                ring.append(means[at] if means[at] == means[at] else ring[-1] if ring else np.nan)
                at += 1
        self.ends_ns.append(end_ns)
        self._windows = 0
        self._sums[:], self._counts[:] = 0.0, 0.0
        return True

    def forget(self, job: str) -> None:
        """It is gone, or began anew."""
        self._rings.pop(job, None)

    def sent(self, job: str, resource: Resource) -> deque[float]:
        """In each block, the newest last; empty where it shares nothing there yet."""
        return self._rings.get(job, {}).get(resource, deque())
