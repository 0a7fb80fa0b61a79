"""Tensor core cycles of each rank over many steps: how much more it computes than usual, or than its peers.

A fault does not change these cycles: they follow from the work, at any clock and with any kernel. In a window of
counters that is shorter than a step, a rank that takes longer works while its peers wait. Means over many steps do not
depend on this, because all ranks have the same step time. They are means of the cycles, not of their logarithms.
"""

from __future__ import annotations

import math

import numpy as np

from scheduler_feedback.core.telemetry.telemetry import Float32Array, Grouping

SECONDS = 120.0
"""Time constant of the newest mean in seconds, and time over which the usual mean is learned."""

LEAST_STEPS = 4
"""Least number of steps within the time constant. In fewer, the part of a step at the end of a window changes the mean
by more than some per cent."""

AVERAGED = ("usual", "learned", "newest")
"""Rows of the state: the mean over the first SECONDS, the number of its windows, and the newest mean."""


class TensorCycles:
    """Means of the tensor core cycles of all N ranks.

    state: float32 [3, N], changed in place; rows as in AVERAGED. peers: groups of ranks with the same work.
    """

    def __init__(self, state: Float32Array, peers: Grouping) -> None:
        self._usual, self._learned, self._newest = state
        self._peers = peers
        self._enough = math.inf

    def take(self, active: Float32Array, clock: Float32Array, seconds: float) -> None:
        """Add one window. active: [N], share of the time in which tensor cores were active. clock: [N], in any unit;
        NaN where it is not reported. seconds: length of the window."""
        self._enough = math.ceil(SECONDS / seconds)
        now = np.where(np.isnan(clock), active, active * clock)
        known = np.isfinite(now)
        if not known.any():
            return
        learning = known & (self._learned < self._enough)
        if learning.any():
            self._learned += learning
            change = (now - self._usual) / np.maximum(self._learned, np.float32(1.0))
            self._usual += np.where(learning, change, np.float32(0.0))
        change = (now - self._newest) * np.float32(min(1.0, seconds / SECONDS))
        self._newest += np.where(known, change, np.float32(0.0))
        np.copyto(self._newest, now, where=np.isnan(self._newest) & known)

    def more_than_usual(self, column: int, step_seconds: float) -> float:
        """Return the logarithm of this rank's cycles relative to its usual ones, compared with its peers; NaN if
        unknown."""
        if self._learned[column] < self._enough or not _averages(step_seconds):
            return math.nan
        peers = self._peers.members(int(self._peers.of[column]))
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.log(self._newest[peers] / self._usual[peers])
        known = (self._learned[peers] >= self._enough) & np.isfinite(ratios)
        own = ratios[np.searchsorted(peers, column)]
        return float(own - np.median(ratios[known])) if known.any() else math.nan

    def more_than_peers(self, column: int, step_seconds: float) -> float:
        """Return the logarithm of this rank's cycles relative to the median of its peers; NaN if unknown."""
        peers = self._newest[self._peers.members(int(self._peers.of[column]))]
        usual = float(np.median(peers[np.isfinite(peers)])) if np.isfinite(peers).any() else 0.0
        own = float(self._newest[column])
        return math.log(own / usual) if _averages(step_seconds) and own > 0 and usual > 0 else math.nan


def _averages(step_seconds: float) -> bool:
    return LEAST_STEPS * step_seconds <= SECONDS
