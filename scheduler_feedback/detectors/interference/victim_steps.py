"""Correlation by the victim's steps: what the victim loses in each step, and a neighbour's mean load during that step.

A neighbour sends in bursts, once in each of its own steps. If a step of the victim covers many windows of counters, the
neighbour is busy and idle several times within it. Then only the mean load during whole steps can correlate. Few such
steps fit into the time for which windows are kept. Therefore windows are also joined into blocks, which are kept
longer.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray, IntArray
from scheduler_feedback.core.telemetry.telemetry import Float32Array
from scheduler_feedback.detectors.stats.correlation import KEPT_WINDOWS

LONG_STEP_WINDOWS = 3.0
"""The loss in each step is tracked only for jobs whose steps are at least this number of counter windows long."""

BLOCK_WINDOWS = 5
"""Number of consecutive counter windows that are averaged into one block of a job's load. With one window per second,
the kept blocks cover an hour."""

BLOCK_STEP_WINDOWS = 8.0
"""A neighbour's load is taken from blocks instead of counter windows if the victim's steps are at least this number of
windows long."""

KEPT_STEPS = 450
"""Maximum number of steps that are kept of each job."""

NEWEST_SHARE = 0.25
"""Weight of a new sample in a rank's newest congestion marks: these are a mean over about four samples. One sample is
taken per block."""

USUAL_SHARE = 1 / KEPT_WINDOWS
"""Weight of a new sample in a rank's usual congestion marks: these are a mean over about KEPT_WINDOWS samples. One
sample is taken per block."""

LEAST_MARKS = 0.7
"""A rank has more congestion marks than usual if log(1 + marks per second) exceeds its usual value by at least this:
about twice as many marks."""


@dataclass(slots=True)
class Marks:
    """Newest and usual congestion marks of each rank of a job: float32 [n ranks]; NaN if unknown."""

    usual: Float32Array
    newest: Float32Array
    taken: int = 0

    def take(self, marked: Float32Array) -> None:
        """Add one sample: congestion marks per second of each rank."""
        found = np.log1p(marked)
        self.taken += 1
        self.usual = _nearer(self.usual, found, max(USUAL_SHARE, 1 / self.taken))
        self.newest = _nearer(self.newest, found, NEWEST_SHARE)

    def more(self, ranks: IntArray) -> bool:
        """Return whether the median of these ranks has clearly more marks than usual. Returns False if the marks of one
        of them are unknown."""
        grown = self.newest[ranks] - self.usual[ranks]
        return bool(np.isfinite(grown).all()) and float(np.median(grown)) >= LEAST_MARKS


@dataclass(slots=True)
class Steps:
    """Newest steps of one job, with its loss in each."""

    begin_ns: deque[int] = field(default_factory=lambda: deque(maxlen=KEPT_STEPS))
    """Time in ns at which each step began."""
    end_ns: deque[int] = field(default_factory=lambda: deque(maxlen=KEPT_STEPS))
    """Time in ns at which each step ended."""
    lost: dict[str, deque[float]] = field(default_factory=dict)
    """Loss in each step. The key is a shared host, or '' for communication. NaN if unknown."""
    marks: Marks | None = None
    """Congestion marks of the job's ranks; None if they are not tracked."""

    def add(self, begin_ns: int, end_ns: int, lost: dict[str, float]) -> None:
        """Add one step.

        lost: loss in the step, by shared host; the key '' is for communication.
        """
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
        """Return the median length of the steps in ns; 0 without steps."""
        lengths = np.fromiter(self.end_ns, np.int64) - np.fromiter(self.begin_ns, np.int64)
        return float(np.median(lengths)) if len(lengths) else 0.0

    def values(self, key: str) -> FloatArray:
        """Return the loss in each step on this shared host, or in communication if the key is ''."""
        ring = self.lost.get(key, ())
        return np.fromiter(ring, np.float64, len(ring))

    def during(self, sent: FloatArray, ends_ns: IntArray, long_ns: int) -> FloatArray:
        """Return the neighbour's mean load during each step: [steps], NaN for steps outside of the kept time.

        sent: load in each window or block, newest last. ends_ns: time at which each of these ended. long_ns: length of
        one window or block in ns.
        """
        ends_ns = ends_ns[len(ends_ns) - len(sent) :]
        begin = np.fromiter(self.begin_ns, np.int64, len(self.begin_ns))
        end = np.fromiter(self.end_ns, np.int64, len(self.end_ns))
        known = np.flatnonzero(np.isfinite(sent))
        if not len(known):
            return np.full(len(end), np.nan)
        sent, ends_ns = sent[known[0] :], ends_ns[known[0] :]
        first = int(ends_ns[0]) - long_ns
        at = np.concatenate([[0.0], (ends_ns - first) * 1e-9])
        # The newest step ends within an incomplete block: use the known part of the step.
        until = (np.minimum(end, int(ends_ns[-1])) - first) * 1e-9
        since = (begin - first) * 1e-9
        summed = np.concatenate([[0.0], np.cumsum(np.nan_to_num(sent) * np.diff(at))])
        length = until - since
        with np.errstate(invalid="ignore", divide="ignore"):
            means = (np.interp(until, at, summed) - np.interp(since, at, summed)) / length
        found: FloatArray = np.where((since >= 0) & (length > (end - begin) * 0.5e-9), means, np.nan)
        return found


def _nearer(mean: Float32Array, found: Float32Array, share: float) -> Float32Array:
    """Return `mean` moved towards `found` by this share of the difference. Where `found` is unknown, `mean` does not
    change."""
    before = np.where(np.isfinite(mean), mean, found)
    moved: Float32Array = np.where(np.isfinite(found), before + np.float32(share) * (found - before), before)
    return moved
