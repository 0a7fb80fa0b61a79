"""Slowdown test for jobs that report no steps, and an estimate of their iteration time.

Bytes over NVLink and NICs repeat with each iteration. An iteration always transfers the same bytes, so that the mean
rate falls as iterations get longer, at any sampling interval. If samples are shorter than iterations, the iteration
time is the period of the rate.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from scheduler_feedback.core.telemetry.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import FEATURE, Float32Array, Shape
from scheduler_feedback.detectors.iteration.multi_node_period import NodeSignals
from scheduler_feedback.detectors.iteration.period_estimation import estimate_period
from scheduler_feedback.detectors.iteration.work_rate import steady_width

RATES = ("nvlink_bytes", "nic_transmit_bytes")
LEAST_WARM_UP, WARM_UP, WARM_UP_SECONDS = 8, 24, 240.0
"""Number of windows for a usual rate: two dozen, or eight of half a minute."""

USUAL_WINDOWS = 32
"""Interval, in windows, at which the usual rate is recorded: the median of all kept averages."""

LASTS_SECONDS, LEAST_BLOCKS = 15.0, 2
LESS_SIGMAS, EACH_SIGMAS, EACH_SHARE = 4.0, 2.0, 0.04
LEAST_SIGMA = 0.005
"""A job is slower if its rate, averaged over whole iterations, has been lower for two averages and 15 seconds: each by
two standard deviations of the earlier averages and by four per cent, and their mean by four deviations. A checkpoint
usually affects one average."""

STEADY_SHARE = 0.97
"""Share of the time in which averages must not change. Pauses in one window of ten are part of the iteration."""

STANDING = 0.95
"""If the median of the kept averages is below this share of the best usual rate, the job has been slow for long."""

KEPT = 512
COARSER = 4
"""Number of kept samples, and of kept means of four samples. An iteration of half a minute shows in samples of a second
only over a long time; an iteration of three seconds needs single samples."""

AGAIN_WINDOWS, AGAIN_PART = 16, 4
"""A period estimate takes some milliseconds. It is repeated after sixteen windows, and after a quarter of all windows
before."""

AGREE = 0.03
"""Two estimates of a period that differ by more than this share are rejected."""


@dataclass(slots=True)
class SlowdownTest:
    """Slowdown test of one job without step reports."""

    signals: dict[str, deque[float]] = field(default_factory=lambda: {name: deque(maxlen=KEPT) for name in RATES})
    """For each counter, its mean over the ranks in each window in which at least half of them are known."""
    evenly: dict[str, deque[float]] = field(default_factory=lambda: {name: deque(maxlen=KEPT) for name in RATES})
    """As `signals`, with a value for every window: NaN if fewer than half of the ranks are known."""
    coarsely: dict[str, deque[float]] = field(default_factory=lambda: {name: deque(maxlen=KEPT) for name in RATES})
    """Means of COARSER consecutive values of `evenly`, for each counter."""
    best: dict[str, float] = field(default_factory=dict)
    """Highest usual rate so far, for each counter."""
    widths: dict[str, int] = field(default_factory=dict)
    """Number of windows over which the rate of each counter must be averaged to be steady."""
    taken: int = 0
    evaluated: int = 0
    window_seconds: float = 0.0
    period_seconds: float | None = None
    """Iteration time by the newest estimate; None if it is not reliable."""
    recent_windows: int = 0
    """Number of newest windows compared with earlier ones in the last call of `slower`; 0 if there was no result."""
    judged_by: str = ""
    """Counter used in the last call of `slower`."""
    voices: NodeSignals | None = None
    """Signals of the job's nodes, each with its sample times."""

    def of(self, shape: Shape) -> None:
        """Set the shape of the job that the counters belong to."""
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
        """Number of windows by which a period estimate is overdue; below zero if it is too early."""
        return self.taken - self.evaluated - max(AGAIN_WINDOWS, self.evaluated // AGAIN_PART)

    def evaluate(self) -> None:
        """Estimate the period again."""
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
        """Return iteration time over usual iteration time, by the traffic; 1 if it is unknown or may be chance."""
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
        """Return (means of a rate over whole iterations, newest last; length of each); no mean if the rate is not
        steady."""
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
        """Return whether to search for a first width at this number of windows: as soon as there are enough, then at
        intervals."""
        over = known - self._enough()
        return over >= 0 and over % AGAIN_PART == 0

    def _enough(self) -> int:
        seconds = self.window_seconds or 1.0
        return min(max(math.ceil(WARM_UP_SECONDS / seconds), LEAST_WARM_UP), WARM_UP)
