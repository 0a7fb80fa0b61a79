"""The job gate: whether a job is slower than it was, and how long its iterations are, where it reports no steps.

Bytes over NVLink and NICs come in a rhythm of their own: what an iteration moves does not change, so that their mean
rate falls as iterations get longer, whatever the sampling. Where samples come faster than iterations, the period itself
is a line of their spectrum.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from scheduler_feedback.core.gangs import FloatArray
from scheduler_feedback.core.telemetry import FEATURE, Float32Array

RATES = ("nvlink_bytes", "nic_transmit_bytes")
BEST = 16
LEAST_WARM_UP, WARM_UP, WARM_UP_SECONDS = 8, 24, 240.0
"""The best is the highest mean of sixteen windows. Two dozen give one to compare with; eight of half a minute will."""

LOOKS = (2, 4, 8, 16)
LESS_SIGMAS = 4.0
"""The present is the mean of as many newest windows as it takes to be below the best by four standard errors: a window
that is shorter than an iteration, or not much longer, varies by the phase that it falls into."""

KEPT = 512
LEAST_KEPT = 48
AGAIN_WINDOWS = 16
"""So often is the period looked for anew; it takes a third of a millisecond."""

LEAST_KNOWN = 0.5
LEAST_PERIODS = 6
LEAST_SAMPLES_A_PERIOD = 2.5
"""Two samples a period are Nyquist's bound; below it a rhythm looks like another one, longer."""

LEAST_VARIATION = 0.9
"""Standard deviation of the samples over their mean. A sample is the mean rate of its window: as soon as a window holds
an iteration or more, samples vary by far less than their mean. One above this says that most windows hold no traffic at
all, so that they are shorter than the pauses of an iteration, and the line is no mirror image."""

LEAST_LINE = 0.1
LEAST_OVER_FLOOR = 100.0
"""The strongest line holds a tenth of the variance at least; each is a hundredfold above the middle of the spectrum."""

SUBHARMONIC = 0.02
"""Iterations of two alike halves show a strong second harmonic: a line at a half, third or quarter of the frequency is
the iteration's own where it is a fiftieth as strong, and clear."""

HARMONIC = 0.05
FINER = 8
"""The spectrum is interpolated so many times over, by zeros behind the samples."""


@dataclass(slots=True)
class JobGate:
    """One job without step reports. signals: for each counter its mean over the ranks in each window in which half of
    them are known; evenly: the same in every window, NaN where not known. period_seconds: length of an iteration, from
    the counter that varies most; None where none of them is sure."""

    signals: dict[str, deque[float]] = field(default_factory=lambda: {name: deque(maxlen=KEPT) for name in RATES})
    evenly: dict[str, deque[float]] = field(default_factory=lambda: {name: deque(maxlen=KEPT) for name in RATES})
    best: dict[str, float] = field(default_factory=dict)
    taken: int = 0
    window_seconds: float = 0.0
    period_seconds: float | None = None

    def take(self, values: Float32Array, seconds: float = 1.0) -> None:
        """One window of this job's counters, of so many seconds: [features, ranks]."""
        if seconds != self.window_seconds:
            self.window_seconds = seconds
            for ring in self.evenly.values():
                ring.clear()
        for name, ring in self.signals.items():
            row = values[FEATURE[name]]
            known = row[np.isfinite(row)]
            if len(known) < max(1, len(row) // 2):
                self.evenly[name].append(math.nan)
                continue
            ring.append(float(known.mean()))
            self.evenly[name].append(ring[-1])
            if len(ring) >= self._enough():
                recent = float(np.mean(list(ring)[-BEST:]))
                self.best[name] = max(self.best.get(name, 0.0), recent)
        self.taken += 1
        if self.taken % AGAIN_WINDOWS == 0:
            found = [told for ring in self.evenly.values() if (told := period(np.array(ring), seconds)) is not None]
            self.period_seconds = max(found, key=lambda told: told[1])[0] if found else None

    def slower(self) -> float:
        """Iteration time over its best, by what the iterations move; 1 where that is not known, or may be chance."""
        for name in RATES:
            ring, best = np.array(self.signals[name]), self.best.get(name, 0.0)
            if best <= 0 or len(ring) < self._enough():
                continue
            for count in LOOKS:
                recent, spread = float(ring[-count:].mean()), float(ring[:-count].std()) if len(ring) > count else 0.0
                if best - recent > LESS_SIGMAS * spread / math.sqrt(count):
                    return best / max(recent, 1e-3 * best)
            return 1.0
        return 1.0

    def _enough(self) -> int:
        seconds = self.window_seconds or 1.0
        return min(max(math.ceil(WARM_UP_SECONDS / seconds), LEAST_WARM_UP), WARM_UP)


def period(rate: FloatArray, sample_seconds: float) -> tuple[float, float] | None:
    """(period in seconds, variation) of a rate of traffic, sampled evenly, NaN where missing; None where it is not
    sure.

    The strongest line of the spectrum, or the one of which it is a harmonic; then as exactly as its highest harmonic
    tells, whose place is known m times as well.
    """
    known = np.isfinite(rate)
    count = len(rate)
    if count < LEAST_KEPT or known.mean() < LEAST_KNOWN or not (mean := float(rate[known].mean())) > 0:
        return None
    centred = np.where(known, rate - mean, 0.0)
    variation = math.sqrt(float(centred @ centred) / int(known.sum())) / mean
    if variation < LEAST_VARIATION:
        return None
    size = 1 << math.ceil(math.log2(FINER * count))
    power = np.abs(np.fft.rfft(centred * np.hanning(count), size)) ** 2
    half = size // count  # of a line as wide as the window makes it
    low, high = math.ceil(LEAST_PERIODS * size / count), int(size / LEAST_SAMPLES_A_PERIOD)
    if high - low < 4 * half:
        return None
    strongest = low + int(power[low:high].argmax())
    line, clear = strongest, LEAST_OVER_FLOOR * float(np.median(power[low:]))
    for part in (4, 3, 2):
        at = _top(power, strongest / part, half, low)
        if at is not None and power[at] >= max(SUBHARMONIC * power[strongest], clear):
            line = at
            break
    share = float(power[max(0, strongest - 2 * half) : strongest + 2 * half + 1].sum() / power[1:].sum())
    if share < LEAST_LINE or power[line] < clear:
        return None
    frequency = _peak(power, line)
    harmonic = 2
    while harmonic * frequency < high:
        at = _top(power, harmonic * frequency, half, low)
        if at is None or power[at] < HARMONIC * power[strongest]:
            break
        frequency = _peak(power, at) / harmonic
        harmonic += 1
    return size / frequency * sample_seconds, variation


def _top(power: FloatArray, place: float, half: int, low: int) -> int | None:
    """Where the spectrum has a peak within half a line of a place; None where it has none there."""
    first = round(place) - half
    if first <= low:
        return None
    top = first + int(power[first : first + 2 * half + 1].argmax())
    return top if first < top < first + 2 * half else None


def _peak(power: FloatArray, at: int) -> float:
    """Where the parabola through the logarithms of a peak and its neighbours is highest."""
    before, here, after = (math.log(max(float(power[at + one]), 1e-300)) for one in (-1, 0, 1))
    bend = before - 2 * here + after
    return at + (0.5 * (before - after) / bend if bend < 0 else 0.0)
