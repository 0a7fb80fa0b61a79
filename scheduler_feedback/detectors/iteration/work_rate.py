"""Work rate of a job that reports no steps, measured by the traffic and tensor activity of its iterations.

An iteration transfers the same bytes over NVLink and uses the tensor cores for the same time, even if it is delayed.
The means of both over whole iterations therefore fall as iterations get longer. A sample covers only a part of an
iteration. Therefore neighbouring samples are averaged: as few as are needed for steady averages.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import FEATURE, Float32Array
from scheduler_feedback.detectors.stats.correlation import KEPT_WINDOWS

COUNTERS = ("nvlink_bytes", "tensor_active")
"""Counters that measure the work of a job. NIC counters are not used, because they may include another job's
traffic."""

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 22, 24, 28, 32, 36, 40, 48, 56, 64)
"""Numbers of neighbouring samples that are tried, in this order, as the length of an average."""

STEADY, STEADY_SHARE = 0.05, 0.9
"""A length of the average is steady if neighbouring averages differ by at most STEADY (as a share of the mean rate) for
at least STEADY_SHARE of the time."""

LEAST_BLOCKS = 8
"""A length of the average is tried only if there are at least this number of averages."""

LEAST_KNOWN = 0.7
"""A counter is used only if at least this share of its samples is known."""

USUAL = 0.8
"""The usual value of the work rate is this quantile of its values: the job exceeds it for a fifth of the time."""

MOST_LOST = 3.0


def _ring() -> deque[float]:
    return deque(maxlen=KEPT_WINDOWS)


@dataclass(slots=True)
class WorkRate:
    """Work rate of one job in each window: the mean over its ranks of each counter in COUNTERS, NaN if unknown.

    width: number of windows that were averaged in the last call of `lost`.
    """

    rings: tuple[deque[float], ...] = field(default_factory=lambda: tuple(_ring() for _ in COUNTERS))
    width: int | None = None

    def take(self, values: Float32Array) -> None:
        """Add one window of counters: [features, ranks]."""
        for ring, name in zip(self.rings, COUNTERS, strict=True):
            row = values[FEATURE[name]]
            known = row[np.isfinite(row)]
            ring.append(float(known.mean()) if 2 * len(known) > len(row) else np.nan)

    def lost(self) -> FloatArray | None:
        """Return for each window how much longer than usual an iteration takes, as a share of the usual time.

        Returns None if no average of the job's work is steady.
        """
        for ring in self.rings:
            rate = np.array(ring)
            known = np.isfinite(rate)
            if not len(rate) or known.mean() < LEAST_KNOWN or not rate[known].mean() > 0:
                continue
            rate = np.interp(np.arange(len(rate)), np.flatnonzero(known), rate[known])
            self.width = steady_width(rate)
            if self.width is None:
                continue
            smooth = averaged(rate, self.width)
            usual = float(np.quantile(smooth, USUAL))
            return np.clip(usual / np.maximum(smooth, 1e-3 * usual) - 1.0, -1.0, MOST_LOST)
        return None


def steady_width(rate: FloatArray, share: float = STEADY_SHARE) -> int | None:
    """Return the smallest number of neighbouring samples whose averages are steady.

    Averages are steady if they differ little from the next one for at least this share of the time. Returns None if no
    number in WIDTHS suffices.
    """
    mean = float(rate.mean())
    for width in WIDTHS:
        blocks = len(rate) // width
        if blocks < LEAST_BLOCKS:
            return None
        means = rate[len(rate) - blocks * width :].reshape(blocks, width).mean(axis=1)
        apart = np.sort(np.abs(np.diff(means)))
        if apart[int(share * (len(apart) - 1))] <= STEADY * mean:
            return width
    return None


def averaged(rate: FloatArray, width: int) -> FloatArray:
    """Return the mean of each value and its neighbours: `width` values, or fewer at the ends."""
    sums = np.concatenate([[0.0], np.cumsum(rate)])
    places = np.arange(len(rate))
    first, last = np.maximum(places - width // 2, 0), np.minimum(places + (width + 1) // 2, len(rate))
    found: FloatArray = (sums[last] - sums[first]) / (last - first)
    return found
