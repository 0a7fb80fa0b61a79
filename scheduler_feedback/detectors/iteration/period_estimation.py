"""Period estimation: estimates the iteration time from the rate of a job's traffic.

Each iteration transfers bytes in the same pattern, so that the rate repeats. But iterations are not equally long, which
blurs an ordinary spectrum. Therefore the method (order tracking) has three steps:

1. Guess frequencies near which the rate may repeat.
2. Follow the signal near each guess, and count its cycles. This gives the start and end of each cycle.
3. Stretch all cycles to the same length, and compute the spectrum of the result. If the cycles are iterations, the
power is at whole multiples of the cycle's frequency (*whole orders*). Power at other places means that an iteration is
longer than a cycle.

A sample is a mean over its window. A rate that repeats faster than it is sampled looks like a slower one (an *alias*),
but weaker. A period is accepted if it is stronger than an alias can be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray

LEAST_SAMPLES = 64
"""Minimum number of samples for an estimate."""

LEAST_KNOWN = 0.8
"""A period is estimated only if at least this share of the samples is known."""

LEAST_CYCLES = 11
"""A period is accepted only if more than this number of its cycles fit into the sampled time."""

LEAST_SAMPLES_A_CYCLE = 2.2
"""A period is accepted only if its cycle has at least this number of samples. With fewer than two (the Nyquist limit),
it would look like a longer period."""

LEAST_VARIATION = 0.9
"""If the standard deviation of the rate, divided by its mean, is at least this, most samples contain no traffic.
Samples are then shorter than iterations, and a period is accepted without the test for an alias."""

MIRRORED = 1.1
"""A period is accepted only if it is stronger than this multiple of the maximum strength of an alias."""

MIXED = (2.6, 3.6)
"""A period is rejected if the number of samples in its cycle is between these two values. The alias of its second
harmonic then has nearly the same frequency and would falsify the result."""

QUALITY = 0.12
"""Half of the width of the frequency band in which the power near a guess is added up, as a share of the guessed
frequency."""

STRIDE = 0.12
"""Distance between neighbouring guesses of the frequency, as a share: 12 %."""

HUMP = 0.05
"""A guess is examined only if the frequency band around it has at least this share of the power of the strongest
band."""

ALIKE = 0.03
"""Two guesses count as the same period if the lengths of their cycles differ by at most this share."""

MOST_GUESSES = 6
"""Maximum number of different periods that are examined, starting with the period whose cycles are the most equal."""

ASIDE = (1.1, 0.9)
"""An accepted period is searched again from guesses changed by these factors. All searches must find the same
period."""

SAME, COARSE_SAME = 1.03, 1.015
"""A period is rejected if the searches from changed guesses find cycle lengths with a ratio above SAME, or above
COARSE_SAME if a cycle has few samples."""

EVEN = 0.02

DIVISORS = (4, 3, 2)

FOLLOWED = 0.25
"""Width of the frequency band in which the signal near a guess is followed (standard deviation of the logarithm of the
frequency)."""

FADED = 0.3
"""A guess is dropped if the signal near it fades below this share of its median strength for more than a twentieth of
the time. Its cycles could be counted wrongly."""

UNEVEN = 0.06
"""A guess is dropped if its cycles are more unequal than this (median deviation of the cycle lengths over their
median). Healthy jobs with documents of very unequal lengths stay below 0.05; noise reaches about 0.17."""

COARSE_SAMPLES, COARSE_UNEVEN = 3.5, 0.015
"""If a cycle has fewer than COARSE_SAMPLES samples, COARSE_UNEVEN is used instead of UNEVEN. Otherwise the result would
not be accurate to two per cent."""

ORDERS = 8
"""Maximum number of multiples of the cycle's frequency at which power is added up."""

A_CYCLE = 16
"""Number of points to which each cycle is stretched or compressed before the spectrum is computed."""

LEAST_COMB = 0.7
"""A period is accepted only if at least this share of the power is at whole multiples of the cycle's frequency."""

BETWEEN = 0.03
"""A period is rejected if a peak of the spectrum between whole multiples of the cycle's frequency has at least this
share of the power at whole multiples. An iteration is then longer than a cycle."""

CLEAR = 6.0
"""A peak between whole multiples counts only if it is at least this multiple of the median power around it."""

MIRROR_BINS = 3.0
"""A peak between whole multiples is ignored if it is at most this number of points of the spectrum away from an alias
of a harmonic."""

APART_BINS = 5.5
"""Peaks between whole multiples are searched only if they are at least this number of points of the spectrum apart.
Nearer peaks cannot be distinguished: each is five points wide."""

ORDINARY = 0.3
"""A cycle counts as ordinary if its length differs from the median length by at most this share. Other cycles contain
checkpoints or evaluations."""


@dataclass(frozen=True, slots=True, eq=False)
class EstimatedPeriod:
    """A reliable period of a job's traffic."""

    seconds: float
    """Length of an ordinary cycle, in seconds."""
    ends: FloatArray
    """Time of the first cycle's start and of each cycle's end, in samples since the first sample: float64 [cycles +
    1]."""
    strength: float
    """Share of the traffic's variation (its power) that repeats in each cycle."""


def estimate_period(rate: FloatArray, sample_seconds: float) -> EstimatedPeriod | None:
    """Return the period of a rate, given as one value for each sample (NaN if missing); None if no period is
    reliable."""
    known = np.isfinite(rate)
    count = len(rate)
    if count < LEAST_SAMPLES or known.mean() < LEAST_KNOWN or not (mean := float(rate[known].mean())) > 0:
        return None
    relative = np.interp(np.arange(count), np.flatnonzero(known), rate[known]) / mean
    relative -= relative.mean()
    variation = float(relative.std())
    if variation < 1e-3:
        return None
    spectrum = np.fft.fft(relative)
    distinct: list[_Followed] = []
    for guess in _guesses(relative):
        one = _follow(spectrum, guess)
        if one is None or any(one.like(other) for other in distinct):
            continue
        one = _follow(spectrum, 1.0 / one.cycle)  # centre the band on it
        if one is not None and not any(one.like(other) for other in distinct):
            distinct.append(one)
    distinct.sort(key=lambda one: one.uneven)
    shares = [_whole_orders(relative, one.phase, one.cycle) for one in distinct[:MOST_GUESSES]]
    best = max(range(len(shares)), key=lambda index: shares[index], default=-1)
    if best < 0 or not shares[best] > 0:
        return None
    one = distinct[best]
    if MIXED[0] < one.cycle < MIXED[1] or (one.strength <= _mirrored(one.cycle) and variation < LEAST_VARIATION):
        return None
    shifted = [_follow(spectrum, aside / one.cycle) for aside in ASIDE]
    lengths = [other.length for other in (one, *shifted) if other is not None]
    if max(lengths) > (COARSE_SAME if one.cycle < COARSE_SAMPLES else SAME) * min(lengths):
        return None
    return EstimatedPeriod(one.length * sample_seconds, one.ends, shares[best])


def ordinary(lengths: FloatArray) -> float:
    """Return the mean of the lengths that are near their median. Other lengths contain checkpoints or evaluations."""
    middle = float(np.median(lengths))
    return float(lengths[np.abs(lengths - middle) <= ORDINARY * middle].mean())


def _guesses(relative: FloatArray) -> list[float]:
    """Return frequencies, in cycles a sample, near which there may be a period."""
    count = len(relative)
    size = 1 << math.ceil(math.log2(4 * count))
    power = np.abs(np.fft.rfft(relative * np.hanning(count), size)) ** 2
    sums = np.concatenate([[0.0], np.cumsum(power)])
    low, high = LEAST_CYCLES / count, 1.0 / LEAST_SAMPLES_A_CYCLE
    if low >= high:
        return []
    grid = np.exp(np.arange(math.log(low), math.log(high), STRIDE))
    first = np.floor(grid * (1.0 - QUALITY) * size).astype(np.intp)
    last = np.minimum(np.ceil(grid * (1.0 + QUALITY) * size).astype(np.intp) + 1, len(power))
    hump = sums[last] - sums[first]
    found: list[float] = grid[hump >= HUMP * hump.max()].tolist()
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Followed:
    """A signal that was followed near a guessed frequency, with the cycles that were counted in it."""

    phase: FloatArray
    """Number of cycles completed until each sample, with fractions; it never decreases: float64 [samples]."""
    ends: FloatArray
    """Time of the first cycle's start and of each cycle's end, in samples since the first sample."""
    cycle: float
    """Median length of the cycles, in samples."""
    uneven: float
    """Median deviation of the cycle lengths, as a share of `cycle`."""
    strength: float
    """Strength of the part of the rate that repeats with each cycle, relative to the mean rate."""

    @property
    def length(self) -> float:
        """Length of an ordinary cycle, in samples. For regular cycles it is the median, which checkpoints do not
        change."""
        return self.cycle if self.uneven <= EVEN else ordinary(np.diff(self.ends))

    def like(self, other: _Followed) -> bool:
        """Return whether the cycles of the two signals have nearly the same length."""
        return abs(self.cycle / other.cycle - 1.0) <= ALIKE


def _follow(spectrum: npt.NDArray[np.complex128], guess: float) -> _Followed | None:
    """Follow the signal near the guessed frequency (cycles per sample); None if it fades or its cycles are
    irregular."""
    count = len(spectrum)
    frequency = np.fft.fftfreq(count)[1 : (count + 1) // 2]
    bell = np.zeros(count)
    bell[1 : len(frequency) + 1] = np.exp(-0.5 * (np.log(frequency / guess) / FOLLOWED) ** 2)
    turning = np.fft.ifft(2.0 * spectrum * bell)
    force = np.abs(turning)[2:-2]
    if float(np.quantile(force, 0.05)) < FADED * float(np.median(force)):
        return None
    phase = np.unwrap(np.angle(turning)) / (2.0 * math.pi)
    phase = np.maximum.accumulate(phase) + 1e-9 * np.arange(count)
    numbers = np.arange(math.ceil(phase[2]), math.floor(phase[-3]) + 1)
    if len(numbers) <= LEAST_CYCLES:
        return None
    ends = np.interp(numbers, phase, np.arange(count))
    lengths = np.diff(ends)
    cycle = float(np.median(lengths))
    uneven = float(np.median(np.abs(lengths - cycle))) / cycle
    if cycle < LEAST_SAMPLES_A_CYCLE or uneven > (COARSE_UNEVEN if cycle < COARSE_SAMPLES else UNEVEN):
        return None
    return _Followed(phase, ends, cycle, uneven, 0.5 * math.sqrt(float(np.mean(force**2))))


def _whole_orders(relative: FloatArray, phase: FloatArray, cycle: float) -> float:
    """Return the share of the power at whole multiples of the cycle's frequency; 0 if it is too low, or if an iteration
    is longer than a cycle."""
    turns = np.arange(math.ceil(phase[0] * A_CYCLE), math.floor(phase[-1] * A_CYCLE) + 1) / A_CYCLE
    over_phase = np.interp(turns, phase, relative)
    over_phase -= over_phase.mean()
    power = np.abs(np.fft.rfft(over_phase * np.hanning(len(turns)))) ** 2
    per_order = len(turns) / A_CYCLE
    total = float(power[math.ceil(0.2 * per_order) : math.ceil(0.5 * cycle * per_order)].sum())
    highest = min(ORDERS, max(1, int(0.5 * cycle)))
    comb = sum(_line(power, order * per_order)[0] for order in range(1, highest + 1))
    if not total > 0 or comb < LEAST_COMB * total:
        return 0.0
    # Harmonics above the Nyquist limit are aliased, possibly between whole orders.
    mirrors = np.abs((np.arange(2, ORDERS + 1) + 0.5 * cycle) % cycle - 0.5 * cycle)
    for part in DIVISORS:
        if per_order < APART_BINS * part:
            continue
        for order in (k / part for k in range(1, 2 * part) if k % part and k / part < 0.5 * cycle):
            line, above = _line(power, order * per_order)
            mirrored = float(np.min(np.abs(mirrors - order))) * per_order <= MIRROR_BINS
            # Unequal halves and an aliased harmonic look the same.
            if above >= CLEAR and line >= BETWEEN * comb and (part == 2 or not mirrored):
                return 0.0
    return comb / total


def _line(power: FloatArray, place: float) -> tuple[float, float]:
    """Return the power of a peak of the spectrum above its surroundings, and its height divided by their median.

    place: position of the peak in `power`, not necessarily a whole number.
    """
    at, half = round(place), 2
    if at - 6 < 1 or at + 7 > len(power):
        return 0.0, 0.0
    background = float(np.median(np.concatenate([power[at - 6 : at - half], power[at + half + 1 : at + 7]])))
    here = power[at - half : at + half + 1]
    return max(0.0, float(here.sum()) - (2 * half + 1) * background), float(here.max()) / max(background, 1e-300)


def _mirrored(cycle: float) -> float:
    """Return the maximum strength that an alias of a faster period can have, if its cycle looks `cycle` samples long.

    The mean over a sample weakens a part that repeats f times per sample to sin(pi f) / (pi f) of its strength, which
    is at most one.
    """
    apparent = 1.0 / cycle
    return MIRRORED * float(np.abs(np.sinc(1.0 - apparent)) + np.abs(np.sinc(1.0 + apparent)))
