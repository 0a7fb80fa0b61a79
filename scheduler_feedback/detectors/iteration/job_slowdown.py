"""Slowdown test for jobs that report no steps, and an estimate of their iteration time.

The bytes that a job transfers over NVLink and NICs repeat with each iteration. An iteration always transfers the same
bytes. Therefore the mean rate falls as iterations get longer, at any sampling interval. If samples are shorter than
iterations, the rate repeats, and its period is the iteration time.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import FEATURE, Float32Array, Shape
from scheduler_feedback.detectors.iteration.multi_node_period import NodeSignals
from scheduler_feedback.detectors.iteration.period_estimation import estimate_period
from scheduler_feedback.detectors.iteration.work_rate import steady_width

RATES = ("nvlink_bytes", "nic_transmit_bytes")
LEAST_WARM_UP, WARM_UP, WARM_UP_SECONDS = 8, 24, 240.0
"""The usual traffic rate is learned once there are WARM_UP_SECONDS of windows, but not before LEAST_WARM_UP windows,
and at the latest after WARM_UP windows."""

USUAL_WINDOWS = 32
"""The usual traffic rate of a job is updated each time after this number of windows."""

LASTS_SECONDS, LEAST_BLOCKS = 15.0, 2
"""A job counts as slower only if its traffic rate is lower in all newest averages. These are the averages of the last
LASTS_SECONDS seconds, but at least LEAST_BLOCKS averages."""

LESS_SIGMAS, EACH_SIGMAS, EACH_SHARE = 4.0, 2.0, 0.04
"""A job counts as slower only if its traffic rate has decreased by more than these limits. LESS_SIGMAS: decrease of the
mean of the newest averages, in standard deviations. EACH_SIGMAS and EACH_SHARE: decrease of each of these averages, in
standard deviations and as a share of the usual rate."""

LEAST_SIGMA = 0.005
"""Lower limit of the standard deviation with which a decrease of the traffic rate is compared, as a share of the usual
rate. So tiny changes of a very regular rate do not count."""

STEADY_SHARE = 0.97
"""A number of windows is long enough for one average if neighbouring averages are nearly equal for at least this share
of the time. The average then covers whole iterations, with their regular pauses."""

STANDING = 0.95
"""If the job's earlier averages have a median below this share of its best usual rate, the job was already slow then.
Its newest averages are then compared with the best usual rate."""

KEPT = 512
"""Maximum number of samples that are kept for each traffic counter."""

COARSER = 4
"""Number of samples that are averaged into one coarser sample. Coarser samples cover a longer time, which long
iterations need; short iterations need single samples."""

AGAIN_WINDOWS, AGAIN_PART = 16, 4
"""The iteration time is estimated again after AGAIN_WINDOWS more windows, or after 1 / AGAIN_PART of the windows at the
last estimate, whichever is more. Each estimate takes milliseconds."""

AGREE = 0.03
"""The iteration time is estimated from single samples and from coarser samples. If the two results differ by more than
this share, both are rejected."""


@dataclass(slots=True)
class SlowdownTest:
    """Test whether one job that reports no steps is slower than usual, by its traffic."""

    signals: dict[str, deque[float]] = field(default_factory=lambda: {name: deque(maxlen=KEPT) for name in RATES})
    """For each counter, the mean over the ranks in each window. Windows in which fewer than half of the ranks are known
    are left out."""
    evenly: dict[str, deque[float]] = field(default_factory=lambda: {name: deque(maxlen=KEPT) for name in RATES})
    """For each traffic counter, the mean over the ranks in each window, with no window left out: NaN if fewer than half
    of the ranks are known."""
    coarsely: dict[str, deque[float]] = field(default_factory=lambda: {name: deque(maxlen=KEPT) for name in RATES})
    """For each counter, the means of COARSER consecutive windows of `evenly`."""
    best: dict[str, float] = field(default_factory=dict)
    """For each traffic counter, the best usual rate: the highest median rate that was measured at an update of the
    usual rate."""
    widths: dict[str, int] = field(default_factory=dict)
    """For each traffic counter, the number of windows in one average. It covers whole iterations, so that it does not
    matter where in an iteration the average begins."""
    taken: int = 0
    evaluated: int = 0
    window_seconds: float = 0.0
    period_seconds: float | None = None
    """Newest estimate of the iteration time in seconds; None if it is not reliable."""
    recent_windows: int = 0
    """Number of newest windows in which the last call of `slower` searched for a slowdown; 0 if there was too little
    data."""
    judged_by: str = ""
    """Name of the counter that the last call of `slower` used."""
    voices: NodeSignals | None = None
    """Traffic of each of the job's nodes, with the times of its samples; used if the traffic of the whole job shows no
    period."""

    def of(self, shape: Shape) -> None:
        """Set the ranks and nodes of the job that the counters belong to."""
        if self.voices is None or self.voices.shape is not shape:
            self.voices = NodeSignals(shape)

    def take(self, values: Float32Array, seconds: float = 1.0, lag_seconds: Float32Array | None = None) -> None:
        """Add one window of this job's counters: [features, ranks].

        seconds: length of the window. lag_seconds: time from each rank's sample to the end of the window, if known.
        """
        if seconds != self.window_seconds:
            self.window_seconds = seconds
            self.taken = self.evaluated = 0
            self.widths.clear()
            for ring in (*self.evenly.values(), *self.coarsely.values()):
                ring.clear()
            if self.voices is not None:
                self.voices.forget()
        self.taken += 1
        if self.voices is not None and lag_seconds is not None:
            self.voices.take(values, lag_seconds, seconds)
        for name, ring in self.signals.items():
            evenly = self.evenly[name]
            row = values[FEATURE[name]]
            known = row[np.isfinite(row)]
            if len(known) < max(1, len(row) // 2):
                evenly.append(math.nan)
            else:
                ring.append(float(known.mean()))
                evenly.append(ring[-1])
                if self.taken % USUAL_WINDOWS == 0 or (name not in self.widths and self._soon(len(ring))):
                    self._take_down(name)
            if self.taken % COARSER == 0:
                newest = [evenly[-place] for place in range(1, min(COARSER, len(evenly)) + 1)]
                self.coarsely[name].append(sum(newest) / len(newest))

    @property
    def due(self) -> int:
        """Number of windows since the next estimate of the iteration time became due; negative if it is not due yet."""
        return self.taken - self.evaluated - max(AGAIN_WINDOWS, self.evaluated // AGAIN_PART)

    def evaluate(self) -> None:
        """Estimate the iteration time of the job from its newest traffic."""
        self.evaluated = self.taken
        self.period_seconds = None
        for name in reversed(RATES):  # network traffic has the longest pauses
            found = [
                estimate
                for ring, seconds in (
                    (self.coarsely[name], COARSER * self.window_seconds),
                    (self.evenly[name], self.window_seconds),
                )
                if (estimate := estimate_period(np.array(ring), seconds)) is not None
            ]
            if found and abs(found[0].seconds / found[-1].seconds - 1.0) > AGREE:
                return
            if found:
                self.period_seconds = max(found, key=lambda estimate: len(estimate.ends)).seconds
                return
        if self.voices is not None:
            self.period_seconds = self.voices.period(self.window_seconds)

    def slower(self) -> float:
        """Return the iteration time divided by the usual iteration time, as shown by the traffic; 1 if it is unknown or
        if chance can explain the difference."""
        self.recent_windows, self.judged_by = 0, ""
        for name in RATES:
            blocks, seconds = self._blocks(name)
            newest = max(LEAST_BLOCKS, math.ceil(LASTS_SECONDS / seconds))
            if len(blocks) < 2 * newest:
                continue
            self.recent_windows, self.judged_by = newest * self.widths[name], name
            recent, before = blocks[-newest:], blocks[:-newest]
            usual = float(np.median(before))
            sigma = max(1.4826 * float(np.median(np.abs(before - usual))), LEAST_SIGMA * usual)
            if usual < STANDING * self.best.get(name, 0.0):
                usual = self.best[name]
            less = usual - recent
            if float(less.mean()) > LESS_SIGMAS * sigma and float(less.min()) > max(
                EACH_SIGMAS * sigma, EACH_SHARE * usual
            ):
                return usual / max(float(recent.mean()), 1e-3 * usual)
            return 1.0
        return 1.0

    def _blocks(self, name: str) -> tuple[FloatArray, float]:
        """Return averages of a counter's rate over whole iterations, newest last, and the length of an average in
        seconds.

        There are no averages if the rate is not steady.
        """
        rate, width = np.array(self.signals[name]), self.widths.get(name)
        if width is None:
            return np.zeros(0), 1.0
        count = len(rate) // width
        return rate[len(rate) - count * width :].reshape(count, width).mean(axis=1), width * self.window_seconds

    def _take_down(self, name: str) -> None:
        rate = np.array(self.signals[name])
        width = steady_width(rate, STEADY_SHARE) if len(rate) >= self._enough() and rate.mean() > 0 else None
        if width is not None:  # keep the last steady width
            self.widths[name] = width
            self.best[name] = max(self.best.get(name, 0.0), float(np.median(self._blocks(name)[0])))

    def _soon(self, known: int) -> bool:
        """Return whether to search now for the number of windows that an average must cover.

        known: number of windows so far. The first search is made as soon as there are enough windows, further ones at
        every fourth window.
        """
        over = known - self._enough()
        return over >= 0 and over % AGAIN_PART == 0

    def _enough(self) -> int:
        seconds = self.window_seconds or 1.0
        return min(max(math.ceil(WARM_UP_SECONDS / seconds), LEAST_WARM_UP), WARM_UP)
