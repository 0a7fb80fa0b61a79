"""How fast a job that reports no steps works, by what its iterations move.

An iteration moves the same bytes over NVLink and keeps the tensor cores busy for as long, whatever it waits for; so
both fall, in their mean over whole iterations, as iterations get longer. Samples hold parts of iterations: they are
averaged over as few neighbours as it takes for the averages to stay the same.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from scheduler_feedback.core.telemetry.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import FEATURE, Float32Array
from scheduler_feedback.detectors.stats.correlation import KEPT_WINDOWS

COUNTERS = ("nvlink_bytes", "tensor_active")
"""What goes over NICs may be counted together with a neighbour's; what goes over NVLink and what is computed is the
job's own."""

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 22, 24, 28, 32, 36, 40, 48, 56, 64)
STEADY, STEADY_SHARE = 0.05, 0.9
LEAST_BLOCKS = 8
"""Averages over so many windows each do, where one differs from the next by less than this share for nine in ten of
eight and more: what remains is when something happened, and not where an iteration was cut."""

LEAST_KNOWN = 0.7
USUAL = 0.8
"""A job's usual rate is the one that it exceeds for a fifth of the time."""

MOST_LOST = 3.0


def _ring() -> deque[float]:
    return deque(maxlen=KEPT_WINDOWS)


@dataclass(slots=True)
class WorkRate:
    """One job, window by window: means over its ranks of the counters of COUNTERS, NaN where unknown. width: over how
    many windows the rate was averaged when it was last asked for."""

    rings: tuple[deque[float], ...] = field(default_factory=lambda: tuple(_ring() for _ in COUNTERS))
    width: int | None = None

    def take(self, values: Float32Array) -> None:
        """One more window: [features, ranks]."""
        for ring, name in zip(self.rings, COUNTERS, strict=True):
            row = values[FEATURE[name]]
            known = row[np.isfinite(row)]
            ring.append(float(known.mean()) if 2 * len(known) > len(row) else np.nan)

    def lost(self) -> FloatArray | None:
        """[windows]: by how much longer than usual an iteration takes, as a share of the usual; None where the job's
        work shows no steady rate."""
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
    """Over how many neighbours a rate must be averaged to be steady for this share of the time; None where no width of
    WIDTHS does."""
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
    """Mean of each value and its neighbours, `width` in all; of fewer at the ends."""
    sums = np.concatenate([[0.0], np.cumsum(rate)])
    places = np.arange(len(rate))
    first, last = np.maximum(places - width // 2, 0), np.minimum(places + (width + 1) // 2, len(rate))
    found: FloatArray = (sums[last] - sums[first]) / (last - first)
    return found
