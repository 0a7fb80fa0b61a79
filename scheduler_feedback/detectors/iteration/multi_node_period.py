"""Multi-node period: estimates the iteration time from several nodes that sample at different times.

Traffic that repeats faster than it is sampled looks like slower traffic: its frequency has *aliases*. One node alone
cannot distinguish a frequency from its aliases. Nodes that sample at different times can: all ranks of a role transfer
their bytes at the same time, so that only at the true frequency all nodes are in phase.

For each frequency, up to several cycles per sample, one wave is fitted to the samples of all nodes of a role (a
Lomb-Scargle periodogram). The strongest frequency is the result if it passes four checks. It must stand out as a narrow
line. All nodes must be in phase. Its aliases must be weaker. And there must be no line at a half, a third or a quarter
of it, because it would then be only a harmonic.

A sample is a mean over its window, which weakens fast periods. A period cannot be seen if a window contains a whole
number of cycles. Iterations of unequal length give no line; period_estimation.py handles them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray, IntArray
from scheduler_feedback.core.telemetry.telemetry import FEATURE, Float32Array, IndexArray, Shape

VOICES = 16
"""Maximum number of traffic signals that are used, one for each role on each node. Two can suffice to reject aliases;
more than sixteen add nothing."""

KEPT, LEAST_SAMPLES = 512, 64
"""KEPT: maximum number of samples that are kept of each signal. LEAST_SAMPLES: an iteration time is estimated only from
at least this number of samples."""

LEAST_KNOWN = 0.8
"""A node's signal is used only if at least this share of its samples is known."""

LEAST_CYCLES, LOWEST_CYCLES = 32, 6
"""An iteration time is accepted only if at least LEAST_CYCLES iterations fit into the sampled time. The search for a
slower period, of which the result could be a harmonic, goes down to LOWEST_CYCLES cycles in the sampled time."""

MOST_A_SAMPLE = 6.0
"""Frequencies up to this number of iterations per sample are searched. A sample is a mean over its window, and so
weakens a faster period to less than a twentieth."""

FINER = 4
"""Fineness of the search: number of tested frequencies for each frequency that the sampled time can distinguish."""

STEADY = 0.05
"""A node's signal is used only if the node samples at a steady time within the window: the standard deviation of that
time is at most this share of a window."""

ALIKE, RIVAL = 0.97, 0.95
"""ALIKE: a frequency is accepted only if nodes are in phase for at least this share of the power there. RIVAL: it is
rejected if an alias (a frequency that looks the same to one node) has more than this share of its power."""

CLEAR = 100.0
"""A frequency is accepted only if its power is at least this multiple of the median power of the frequencies around it.
Noise alone reaches ten."""

SUBHARMONIC = 0.05
"""A frequency is rejected if a half, third or quarter of it has more than this share of its power: it is then only a
harmonic of the slower frequency."""

DIVISORS = (2, 3, 4)
WIDTH, BESIDE = 2.5, 40.0
"""A frequency's power is compared with the frequencies around it, up to BESIDE away on each side. WIDTH: half of the
width of a peak in the spectrum. Both are in cycles over the sampled time."""


@dataclass(slots=True)
class NodeSignals:
    """Traffic of one job, as one signal for each role on each node: the mean over its ranks there."""

    shape: Shape
    members: tuple[IndexArray, ...] = field(init=False)
    """Indices of the ranks whose mean is each signal."""
    role: IntArray = field(init=False)
    """Number of the role that each signal belongs to."""
    ring: Float32Array = field(init=False)
    """Newest samples of each signal: float32 [KEPT, signals]. A sample is the mean over the ranks of the signal."""
    lag: FloatArray = field(init=False)
    """For each signal, the sum over all windows of the delay from its sample to the end of the window. The delay is a
    share of a window: float64 [signals]."""
    square: FloatArray = field(init=False)
    """For each signal, the sum over all windows of the squared delay from its sample to the end of the window. With
    `lag`, it gives the variation of the delay: float64 [signals]."""
    counted: FloatArray = field(init=False)
    """For each signal, the number of windows in which the delay in `lag` was known: float64 [signals]."""
    taken: int = 0
    """Number of windows so far."""
    counter: str = ""
    """Name of the traffic counter in use; '' before the first traffic."""

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
        """Add one window of counters, which is `seconds` long.

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
        """Drop all samples. Needed when the length of windows changes."""
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
    """Return the frequency, in cycles per sample, that all signals share; None if no frequency is reliable.

    course: [signals, samples], each signal relative to its mean. phase: time of a signal's samples relative to the end
    of their windows, in samples. role: role of each signal; signals of one role are in phase.
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
    """Return the signed difference from the nearest whole number."""
    return np.asarray(value - np.round(value), np.float64)


def _even(course: FloatArray, known: npt.NDArray[np.bool_]) -> FloatArray:
    """Return the deviation of each signal from its mean, as a share of the mean: [signals, samples]. Missing samples
    are interpolated."""
    places = np.arange(course.shape[1])
    filled = np.stack([np.interp(places, places[k], row[k]) for row, k in zip(course, known, strict=True)])
    mean = filled.mean(axis=1, keepdims=True)
    found: FloatArray = np.divide(filled, mean, out=np.ones_like(filled), where=mean > 0) - 1.0
    return found
