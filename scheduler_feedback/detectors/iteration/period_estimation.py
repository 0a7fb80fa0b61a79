"""Period estimation: iteration time from the rate of traffic alone.

Each iteration transfers bytes in the same pattern, so that the rate repeats. But iterations are not equally long, which
smears the lines of a spectrum over time, the higher ones more. Therefore the phase of the rate is tracked around a
first guess, and a spectrum over phase is computed (order tracking). Over phase all iterations have one length, and the
pattern has sharp lines at whole orders. Lines between them indicate a longer period than the guess.

A sample is the mean of its window. A rate faster than the samples appears as an alias at a lower frequency, damped by
the window. A period that is stronger than such an alias can be is real.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.telemetry.gang_attempts import FloatArray

LEAST_SAMPLES = 64
LEAST_KNOWN = 0.8
LEAST_CYCLES = 11
LEAST_SAMPLES_A_CYCLE = 2.2
"""Two samples a period are the Nyquist limit. Below it a period looks like another, longer one."""

LEAST_VARIATION = 0.9
"""Standard deviation of the samples over their mean. If a window contains an iteration or more, samples vary far less
than their mean. Above this, most windows contain no traffic: they are shorter than the pauses of an iteration, and the
period is not an alias."""

MIRRORED = 1.1
"""Minimum strength of a period, as a multiple of the most that its aliases can have."""

MIXED = (2.6, 3.6)
"""With this number of samples a cycle, the alias of the second harmonic, at 1 - 2 / cycle, is in the tracked band of
the period itself, and the result would be between the two."""

QUALITY = 0.12
STRIDE = 0.12
HUMP = 0.05
"""First guesses are frequencies 12 % apart. The band around a guess, as wide as QUALITY of it on both sides, must hold
a twentieth of the power of the strongest band."""

ALIKE = 0.03
MOST_GUESSES = 6
"""Guesses with cycles of one length, within ALIKE, count as one. MOST_GUESSES are examined, the most regular first."""

ASIDE = (1.1, 0.9)
SAME, COARSE_SAME = 1.03, 1.015
"""Maximum ratio of cycle lengths when the tracked band is shifted by ASIDE. More means that the length depends on the
guess."""

EVEN = 0.02

DIVISORS = (4, 3, 2)

FOLLOWED = 0.25
"""Width of the tracked band around the guess: a bell over the log of the frequency."""

FADED = 0.3
"""If the signal fades below this share of its usual strength, cycles may have been counted wrongly."""

UNEVEN = 0.06
"""Maximum median deviation of cycle lengths, over their median. Healthy jobs with documents of very unequal lengths
stay below a twentieth; tracked noise has a sixth."""

COARSE_SAMPLES, COARSE_UNEVEN = 3.5, 0.015
"""With fewer samples a cycle, lengths that differ more than this are not accurate to two per cent."""

ORDERS = 8
A_CYCLE = 16
LEAST_COMB = 0.7
BETWEEN = 0.03
CLEAR = 6.0
MIRROR_BINS = 3.0
APART_BINS = 5.5
"""Whole orders hold at least seven tenths of the power. Lines at halves, thirds or quarters mean that an iteration is
longer, if they hold a thirtieth of the power of the whole orders, and are six times above their surroundings. Lines
within three bins of an aliased harmonic are ignored. A line is five bins wide."""

ORDINARY = 0.3
"""Cycles within 30 % of the median are ordinary. Others contain checkpoints or evaluations."""


@dataclass(frozen=True, slots=True, eq=False)
class EstimatedPeriod:
    """A reliable period."""

    seconds: float
    """Length of an ordinary cycle."""
    ends: FloatArray
    """Starts and ends of the cycles, counted in samples from the first sample: float64 [cycles + 1]."""
    strength: float
    """Share of the power that repeats."""


def estimate_period(rate: FloatArray, sample_seconds: float) -> EstimatedPeriod | None:
    """Return the period of a rate [samples], NaN if missing; None if there is none, or none that is reliable."""
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
    """Return the mean of the lengths near their median."""
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
    """A period that is tracked over several estimates."""

    phase: FloatArray
    """Rising phase, in cycles: float64 [samples]."""
    ends: FloatArray
    """Ends of the cycles, in samples from the first sample."""
    cycle: float
    """Median length of the cycles, in samples."""
    uneven: float
    """Median deviation of the lengths, over `cycle`."""
    strength: float
    """Strength of the periodic part, over the mean rate."""

    @property
    def length(self) -> float:
        """Length of an ordinary cycle. For regular cycles this is the median, which checkpoints do not change."""
        return self.cycle if self.uneven <= EVEN else ordinary(np.diff(self.ends))

    def like(self, other: _Followed) -> bool:
        """Return whether the two periods have cycles of the same length."""
        return abs(self.cycle / other.cycle - 1.0) <= ALIKE


def _follow(spectrum: npt.NDArray[np.complex128], guess: float) -> _Followed | None:
    """Track the signal near this frequency; None if it fades, or if its cycles are irregular."""
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
    """Return the share of the power at whole orders; 0 if it is too low, or if a longer period exists."""
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
    """Return a spectral line's power minus the median around it, and its height divided by that median."""
    at, half = round(place), 2
    if at - 6 < 1 or at + 7 > len(power):
        return 0.0, 0.0
    background = float(np.median(np.concatenate([power[at - 6 : at - half], power[at + half + 1 : at + 7]])))
    here = power[at - half : at + half + 1]
    return max(0.0, float(here.sum()) - (2 * half + 1) * background), float(here.max()) / max(background, 1e-300)


def _mirrored(cycle: float) -> float:
    """Return the maximum strength that aliases of faster periods can have at this cycle.

    A part that repeats f times a sample is damped to sin(pi f) / (pi f) of its strength, which is one at most.
    """
    apparent = 1.0 / cycle
    return MIRRORED * float(np.abs(np.sinc(1.0 - apparent)) + np.abs(np.sinc(1.0 + apparent)))
