"""Work rate of a job that reports no steps, by the traffic and tensor activity of its iterations.

An iteration transfers the same bytes over NVLink and uses the tensor cores for the same time, whatever it waits for.
The means of both over whole iterations therefore fall as iterations get longer. A sample covers a part of an iteration:
samples are averaged over as few neighbours as are needed for steady averages.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from scheduler_feedback.core.telemetry.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import FEATURE, Float32Array
from scheduler_feedback.detectors.stats.correlation import KEPT_WINDOWS

COUNTERS = ("nvlink_bytes", "tensor_active")
"""NIC counters may include a neighbour's traffic. NVLink traffic and tensor activity belong to the job."""

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 22, 24, 28, 32, 36, 40, 48, 56, 64)
STEADY, STEADY_SHARE = 0.05, 0.9
LEAST_BLOCKS = 8
"""A width is sufficient if nine in ten of at least eight averages differ from the next by less than this share. The
rest are real changes, not effects of where an iteration is cut."""

LEAST_KNOWN = 0.7
USUAL = 0.8
"""The usual rate of a job is the rate that it exceeds for a fifth of the time."""

MOST_LOST = 3.0


def _ring() -> deque[float]:
    return deque(maxlen=KEPT_WINDOWS)


@dataclass(slots=True)
class WorkRate:
    """Work rate of one job by windows: means over its ranks of the counters of COUNTERS, NaN if unknown.

    width: number of windows of an average in the last call of `lost`.
    """

    rings: tuple[deque[float], ...] = field(default_factory=lambda: tuple(_ring() for _ in COUNTERS))
    width: int | None = None

    def take(self, values: Float32Array) -> None:
        """Add one window: [features, ranks]."""
        for ring, name in zip(self.rings, COUNTERS, strict=True):
            row = values[FEATURE[name]]
            known = row[np.isfinite(row)]
            ring.append(float(known.mean()) if 2 * len(known) > len(row) else np.nan)

    def lost(self) -> FloatArray | None:
        """Return how much longer than usual an iteration takes, as a share of the usual time: [windows].

        None if the job's work has no steady rate.
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
    """Return the least number of neighbours to average for a steady rate, for this share of the time.

    None if no width of WIDTHS is sufficient.
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
    """Return the mean of each value and its neighbours, `width` in all; of fewer at the ends."""
    sums = np.concatenate([[0.0], np.cumsum(rate)])
    places = np.arange(len(rate))
    first, last = np.maximum(places - width // 2, 0), np.minimum(places + (width + 1) // 2, len(rate))
    found: FloatArray = (sums[last] - sums[first]) / (last - first)
    return found
