"""The job gate: whether a job is slower than it was, and how long its iterations are, where it reports no steps.

Bytes over NVLink and NICs come in a rhythm of their own: what an iteration moves does not change, so that their mean
rate falls as iterations get longer, whatever the sampling; and where samples come faster than iterations, the period
itself is in their autocorrelation.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from scheduler_feedback.core.gangs import FloatArray
from scheduler_feedback.core.telemetry import FEATURE, Float32Array

RATES = ("nvlink_bytes", "nic_transmit_bytes")
LEVELS = ("power", "tensor_active")
RECENT = 8
WARM_UP = 24
"""As for steps: eight windows are the present; two dozen give a best to compare with."""

KEPT = 512
LEAST_CORRELATION = 0.5
LEAST_PERIODS = 3
LEAST_SAMPLES_A_PERIOD = 3
"""A peak of the autocorrelation below a half is no rhythm; fewer than three periods are none either; and below three
samples a period it can't be told from its own mirror image (two are Nyquist's bound, with no room for noise)."""


@dataclass(slots=True)
class JobGate:
    """One job without step reports. signals: for each counter its mean over the ranks in each window."""

    signals: dict[str, deque[float]] = field(
        default_factory=lambda: {name: deque(maxlen=KEPT) for name in (*RATES, *LEVELS)}
    )
    best: dict[str, float] = field(default_factory=dict)

    def take(self, values: Float32Array) -> None:
        """One window of this job's counters: [features, ranks]."""
        for name, ring in self.signals.items():
            row = values[FEATURE[name]]
            known = row[np.isfinite(row)]
            if len(known) < max(1, len(row) // 2):
                continue
            ring.append(float(known.mean()))
            if name in RATES and len(ring) >= WARM_UP:
                recent = float(np.mean(list(ring)[-2 * RECENT :]))
                self.best[name] = max(self.best.get(name, 0.0), recent)

    def slower(self) -> float:
        """Iteration time over its best, by what the iterations move; 1 where that is not known."""
        for name in RATES:
            ring, best = self.signals[name], self.best.get(name, 0.0)
            if best > 0 and len(ring) >= WARM_UP:
                recent = float(np.mean(list(ring)[-RECENT:]))
                return best / max(recent, 1e-3 * best)
        return 1.0

    def period_seconds(self, sample_seconds: float) -> float | None:
        """Length of an iteration, from the counter with the clearest rhythm; None where samples come too slowly."""
        found = [period(np.array(ring), sample_seconds) for ring in self.signals.values()]
        known = [one for one in found if one is not None]
        return max(known, key=lambda one: one[1])[0] if known else None


def period(signal: FloatArray, sample_seconds: float) -> tuple[float, float] | None:
    """(period in seconds, its correlation) of a signal sampled evenly; None where it has no clear one.

    The first high peak of the autocorrelation, refined by the furthest multiple of it that is still a peak: counting
    whole periods over a long time is what makes it exact.
    """
    signal = signal[np.isfinite(signal)]
    count = len(signal)
    if count < LEAST_PERIODS * LEAST_SAMPLES_A_PERIOD + 1 or not signal.std() > 1e-9 * max(abs(signal.mean()), 1e-12):
        return None
    centred = signal - signal.mean()
    spectrum = np.fft.rfft(centred, 2 * count)
    raw = np.fft.irfft(np.abs(spectrum) ** 2)[:count]
    overlap = count - np.arange(count)
    correlation = raw / overlap / (raw[0] / count)
    longest = count // LEAST_PERIODS
    peaks = [
        lag
        for lag in range(LEAST_SAMPLES_A_PERIOD, longest + 1)
        if correlation[lag] >= LEAST_CORRELATION
        and correlation[lag] >= correlation[lag - 1]
        and correlation[lag] > correlation[lag + 1]
    ]
    if not peaks:
        return None
    highest = max(correlation[lag] for lag in peaks)
    first = next(lag for lag in peaks if correlation[lag] >= 0.7 * highest)
    lag = _refined(correlation, first)
    multiple = 1
    while (multiple + 1) * lag < 0.75 * count:
        guess = round((multiple + 1) * lag)
        near = range(max(1, guess - max(1, first // 4)), min(count - 2, guess + max(1, first // 4)) + 1)
        top = max(near, key=lambda one: correlation[one])
        if correlation[top] < 0.5 * highest or top in (near[0], near[-1]):
            break
        multiple += 1
        lag = _refined(correlation, top) / multiple
    return lag * sample_seconds, float(correlation[first])


def _refined(correlation: FloatArray, lag: int) -> float:
    """Where the parabola through a peak and its neighbours is highest."""
    before, here, after = (float(correlation[lag + one]) for one in (-1, 0, 1))
    bend = before - 2 * here + after
    return lag + (0.5 * (before - after) / bend if bend < 0 else 0.0)
