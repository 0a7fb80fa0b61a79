"""Multi-node period: iteration time from several nodes that sample at different times.

Samples of one node cannot separate a period from its aliases, whose frequencies differ by a whole number a sample. For
nodes that sample at other times each alias has another phase. In an iteration all ranks of a role transfer their bytes
together, so that only the true frequency is in phase on all nodes. The samples are fitted with a sinusoid at each
frequency, up to far above the Nyquist limit (a Lomb-Scargle periodogram in which the nodes of a role share amplitude
and phase). The strongest one is checked: it must be a line, fit all nodes, and fit better than its aliases. There must
be no line at its half, third and quarter, of which it would be a harmonic.

Samples are means over their windows. This damps fast periods by the reciprocal of their frequency, and hides only those
that fit into a window a whole number of times. Iterations of unequal lengths have no line: they are tracked instead
(period_estimation.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.telemetry.gang_attempts import FloatArray, IntArray
from scheduler_feedback.core.telemetry.telemetry import FEATURE, Float32Array, IndexArray, Shape

VOICES = 16
"""Maximum number of signals that are used. Two nodes can suffice to identify an alias; sixteen nodes always suffice
where two can."""

KEPT, LEAST_SAMPLES = 512, 64
LEAST_KNOWN = 0.8
LEAST_CYCLES, LOWEST_CYCLES = 32, 6
"""Minimum number of cycles in the whole time: for a result, and for a fundamental whose harmonic it may be. A line is
one cycle wide, so that fewer cycles are not accurate to two per cent. Longer periods can be tracked."""

MOST_A_SAMPLE = 6.0
"""Maximum number of iterations per sample: the window damps a period that fast to a twentieth."""

FINER = 4
"""Number of bins of the spectrum for each frequency that the sampled time can resolve."""

STEADY = 0.05
"""Maximum standard deviation of a node's sample times within the windows, as a share of a window. Below it the node
samples at a fixed time of each window."""

ALIKE, RIVAL = 0.97, 0.95
"""Minimum share of the line's power, over all nodes, that is in phase; and most power of an alias, relative to the
line."""

CLEAR = 100.0
"""Minimum height above the surroundings. The highest of ten thousand bins of noise is ten times above its median."""

SUBHARMONIC = 0.05
DIVISORS = (2, 3, 4)
WIDTH, BESIDE = 2.5, 40.0
"""Half of a line's width under a Hann window, and width of its surroundings on each side, in cycles over the whole
time."""


@dataclass(slots=True)
class NodeSignals:
    """Traffic signals of one job's nodes: one signal for each role on a node."""

    shape: Shape
    members: tuple[IndexArray, ...] = field(init=False)
    """Indices of the ranks of each signal."""
    role: IntArray = field(init=False)
    """Role of each signal."""
    ring: Float32Array = field(init=False)
    """Means over the ranks of a signal: float32 [KEPT, signals]."""
    lag: FloatArray = field(init=False)
    """Sum of the time from sample to end of the window, in windows: float64 [signals]."""
    square: FloatArray = field(init=False)
    """Sum of the squared time from sample to end of the window: float64 [signals]."""
    counted: FloatArray = field(init=False)
    """Number of windows in which the time from sample to end of the window was known: float64 [signals]."""
    taken: int = 0
    """Number of windows so far."""
    counter: str = ""
    """Counter in use; '' before the first traffic."""

    def __post_init__(self) -> None:
        by_voice: dict[tuple[int, str], list[int]] = {}
        for rank, (role, node) in enumerate(zip(self.shape.roles.tolist(), self.shape.nodes, strict=True)):
            by_voice.setdefault((role, node), []).append(rank)
        of_role: dict[int, list[list[int]]] = {}
        for (role, _), ranks in sorted(by_voice.items()):
            of_role.setdefault(role, []).append(ranks)
        # Largest roles first. A role on one node is not used: it has no other signal to be in phase with.
        largest = sorted((role for role in of_role if len(of_role[role]) > 1), key=lambda role: -len(of_role[role]))
        most = VOICES // max(1, min(len(largest), VOICES // 4))
        chosen = [(role, ranks) for role in largest for ranks in of_role[role][:most]][:VOICES]
        self.role = np.array([role for role, _ in chosen], np.int64)
        self.members = tuple(np.array(ranks, np.intp) for _, ranks in chosen)
        self.ring = np.full((KEPT, len(chosen)), np.nan, np.float32)
        self._reset_lags()

    def take(self, values: Float32Array, lag_seconds: Float32Array, seconds: float) -> None:
        """Add one window of `seconds`.

        values: [features, ranks]. lag_seconds: time from each rank's sample to the end of the window, [ranks].
        """
        if not self.counter:
            self.counter = next((name for name in COUNTERS if np.nansum(values[FEATURE[name]]) > 0), "")
        row = self.ring[self.taken % KEPT]
        row[:] = np.nan
        self.taken += 1
        if not self.counter:
            return
        moved = values[FEATURE[self.counter]]
        for voice, ranks in enumerate(self.members):
            row[voice] = moved[ranks].mean()
            lag = float(lag_seconds[ranks[0]]) / seconds
            if math.isfinite(lag):
                self.lag[voice] += lag
                self.square[voice] += lag * lag
                self.counted[voice] += 1.0

    def forget(self) -> None:
        """Drop all samples: the length of windows has changed."""
        self.ring[:] = np.nan
        self.taken = 0
        self._reset_lags()

    def period(self, seconds: float) -> float | None:
        """Return the iteration time in seconds; None if no period is reliable. seconds: length of a window."""
        count = min(self.taken, KEPT)
        counted = np.maximum(self.counted, 1.0)
        lag = self.lag / counted
        steady = self.square / counted - lag**2 <= STEADY**2
        course = np.roll(self.ring, -(self.taken % KEPT), axis=0)[KEPT - count :].T.astype(np.float64)
        known = np.isfinite(course)
        if count < LEAST_SAMPLES:
            return None
        usable = steady & (2 * self.counted > self.taken) & (known.mean(axis=1) >= LEAST_KNOWN)
        if usable.sum() < 2:
            return None
        found = strongest(_even(course[usable], known[usable]), -lag[usable], self.role[usable])
        return None if found is None else seconds / found

    def _reset_lags(self) -> None:
        self.lag, self.square, self.counted = (np.zeros(len(self.members)) for _ in range(3))


COUNTERS = ("nvlink_bytes", "nic_transmit_bytes")


def strongest(course: FloatArray, phase: FloatArray, role: IntArray) -> float | None:
    """Return the frequency, in cycles a sample, that all signals share; None if none is reliable.

    course: [signals, samples], around zero. Sample i of a signal was taken at i + phase, in samples. Signals of a role
    are in phase.
    """
    count = course.shape[1]
    size = 1 << math.ceil(math.log2(FINER * count))
    spectrum = np.fft.fft(course * np.hanning(count), size, axis=1)
    places = np.arange(math.ceil(LOWEST_CYCLES / count * size), int(MOST_A_SAMPLE * size))
    frequency = places / size
    line, voices = np.zeros(len(places)), np.zeros(len(places))
    for one in np.unique(role):
        of_role = np.flatnonzero(role == one)
        if len(of_role) < 2:
            continue
        together = np.zeros(len(places), np.complex128)
        for voice in of_role.tolist():
            signal = spectrum[voice, places % size]
            together += signal * np.exp(-2j * math.pi * frequency * phase[voice])
            voices += np.abs(signal) ** 2
        line += np.abs(together) ** 2 / len(of_role)
    place = int(np.argmax(np.where(frequency >= LEAST_CYCLES / count, line, 0.0)))
    here, height, width = frequency[place], float(line[place]), WIDTH / count
    if not height > 0 or height < ALIKE * float(voices[place]):
        return None
    away = np.abs(frequency - here)
    background = line[(away > 2.0 * width) & (away < BESIDE / count)]
    if not len(background) or height < CLEAR * float(np.median(background)):
        return None
    mirrors = np.minimum(np.abs(_around(frequency - here)), np.abs(_around(frequency + here))) < width
    if float(line[mirrors & (away > 2.0 * width)].max(initial=0.0)) > RIVAL * height:
        return None
    for divisor in DIVISORS:
        part = here / divisor
        if min(abs(_around(part - here)), abs(_around(part + here))) < 2.0 * width:
            return None  # an alias of the line is there, and would hide another line
        if float(line[np.abs(frequency - part) < width].max(initial=0.0)) > SUBHARMONIC * height:
            return None
    return float(here)


def _around(value: npt.NDArray[np.float64] | float) -> npt.NDArray[np.float64]:
    """Return the distance to the nearest whole number."""
    return np.asarray(value - np.round(value), np.float64)


def _even(course: FloatArray, known: npt.NDArray[np.bool_]) -> FloatArray:
    """Return each signal divided by its mean, minus one, with missing samples interpolated: [signals, samples]."""
    places = np.arange(course.shape[1])
    filled = np.stack([np.interp(places, places[k], row[k]) for row, k in zip(course, known, strict=True)])
    mean = filled.mean(axis=1, keepdims=True)
    found: FloatArray = np.divide(filled, mean, out=np.ones_like(filled), where=mean > 0) - 1.0
    return found
