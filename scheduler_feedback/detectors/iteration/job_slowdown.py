"""The job gate: whether a job is slower than it was, and how long its iterations are, where it reports no steps.

Bytes over NVLink and NICs come in a rhythm of their own: what an iteration moves does not change, so that their mean
rate falls as iterations get longer, whatever the sampling. Where samples come faster than iterations, the length of an
iteration is that of the rate's rhythm.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from scheduler_feedback.core.telemetry.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import FEATURE, Float32Array, Shape
from scheduler_feedback.detectors.iteration.multi_node_period import Voices
from scheduler_feedback.detectors.iteration.period_estimation import rhythm
from scheduler_feedback.detectors.iteration.work_rate import steady_width

RATES = ("nvlink_bytes", "nic_transmit_bytes")
LEAST_WARM_UP, WARM_UP, WARM_UP_SECONDS = 8, 24, 240.0
"""Two dozen windows give a usual rate to compare with; eight of half a minute will."""

USUAL_WINDOWS = 32
"""So often is the usual rate, the middle of all that are kept, taken down."""

LASTS_SECONDS, LEAST_BLOCKS = 15.0, 2
LESS_SIGMAS, EACH_SIGMAS, EACH_SHARE = 4.0, 2.0, 0.04
LEAST_SIGMA = 0.005
"""A job is slower where its rate, averaged over whole iterations, has been lower for two averages and a quarter of a
minute: all of them by two standard deviations of those before and by four per cent, and in their mean by four
deviations. Saving lies in one average, as a rule."""

STEADY_SHARE = 0.97
"""Of the time in which the averages must not change: a pause of one window in ten belongs to the iteration."""

STANDING = 0.95
"""Where what is kept is slower than this of what was usual once, the job has been slow for long."""

KEPT = 512
COARSER = 4
"""So many samples are kept, and as many means of four of them: an iteration of half a minute shows in samples of a
second only over more of them, and one of three seconds needs them as they are."""

AGAIN_WINDOWS, AGAIN_PART = 16, 4
"""A look takes some milliseconds. It is due again after sixteen windows, and after a quarter of all those before."""

AGREE = 0.03
"""Two looks at one rhythm that differ by more than this are no finding."""


@dataclass(slots=True)
class JobGate:
    """One job without step reports. signals: for each counter its mean over the ranks in each window in which half of
    them are known; evenly: the same in every window, NaN where not known; coarsely: means of COARSER of those.
    best: the highest usual rate; widths: over how many windows a rate must be averaged to be steady.
    period_seconds: length of an iteration, by the newest look; None where none is sure. recent_windows: how many of the
    newest windows were held against those before when the job was last asked how slow it is, and judged_by: in which
    counter; 0 and none where it could not be told. voices: its nodes, each with the moments of its samples."""

    signals: dict[str, deque[float]] = field(default_factory=lambda: {name: deque(maxlen=KEPT) for name in RATES})
    evenly: dict[str, deque[float]] = field(default_factory=lambda: {name: deque(maxlen=KEPT) for name in RATES})
    coarsely: dict[str, deque[float]] = field(default_factory=lambda: {name: deque(maxlen=KEPT) for name in RATES})
    best: dict[str, float] = field(default_factory=dict)
    widths: dict[str, int] = field(default_factory=dict)
    taken: int = 0
    looked: int = 0
    window_seconds: float = 0.0
    period_seconds: float | None = None
    recent_windows: int = 0
    judged_by: str = ""
    voices: Voices | None = None

    def of(self, shape: Shape) -> None:
        """Whose counters they are from now on."""
        if self.voices is None or self.voices.shape is not shape:
            self.voices = Voices(shape)

    def take(self, values: Float32Array, seconds: float = 1.0, lag_seconds: Float32Array | None = None) -> None:
        """One window of this job's counters, of so many seconds: [features, ranks]; and how long before its end each
        rank was sampled, where that is known."""
        if seconds != self.window_seconds:
            self.window_seconds = seconds
            self.taken = self.looked = 0
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
        """By how many windows a look at the rhythm is overdue; below zero where it is too soon."""
        return self.taken - self.looked - max(AGAIN_WINDOWS, self.looked // AGAIN_PART)

    def look(self) -> None:
        """Look for the rhythm anew."""
        self.looked = self.taken
        self.period_seconds = None
        for name in reversed(RATES):  # what goes over the network pauses most
            found = [
                told
                for ring, seconds in (
                    (self.coarsely[name], COARSER * self.window_seconds),
                    (self.evenly[name], self.window_seconds),
                )
                if (told := rhythm(np.array(ring), seconds)) is not None
            ]
            if found and abs(found[0].seconds / found[-1].seconds - 1.0) > AGREE:
                return
            if found:
                self.period_seconds = max(found, key=lambda told: len(told.ends)).seconds
                return
        if self.voices is not None:
            self.period_seconds = self.voices.period(self.window_seconds)

    def slower(self) -> float:
        """Iteration time over its usual, by what the iterations move; 1 where that is not known, or may be chance."""
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
        """(means of a rate over whole iterations, newest last; how long each is); no mean where it is not steady."""
        rate, width = np.array(self.signals[name]), self.widths.get(name)
        if width is None:
            return np.zeros(0), 1.0
        count = len(rate) // width
        return rate[len(rate) - count * width :].reshape(count, width).mean(axis=1), width * self.window_seconds

    def _take_down(self, name: str) -> None:
        rate = np.array(self.signals[name])
        width = steady_width(rate, STEADY_SHARE) if len(rate) >= self._enough() and rate.mean() > 0 else None
        if width is not None:  # what was steady before something happened still is, but for that
            self.widths[name] = width
            self.best[name] = max(self.best.get(name, 0.0), float(np.median(self._blocks(name)[0])))

    def _soon(self, known: int) -> bool:
        """Whether to look for a first width with so many windows: as soon as there are enough, and then in between."""
        over = known - self._enough()
        return over >= 0 and over % AGAIN_PART == 0

    def _enough(self) -> int:
        seconds = self.window_seconds or 1.0
        return min(max(math.ceil(WARM_UP_SECONDS / seconds), LEAST_WARM_UP), WARM_UP)
