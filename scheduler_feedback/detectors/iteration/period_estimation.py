"""Rhythm: how long iterations are, told from a rate of traffic alone.

Bytes move in every iteration in the same way, so that their rate repeats itself; but iterations are not equally long,
and lines of a spectrum that is taken over time are smeared the more the higher they are. The rate's phase is therefore
followed through time, around a first guess, and the rate is looked at again over its phase (order tracking): there an
iteration has one length, and what repeats with it stands in sharp lines at whole orders. What repeats less often than
the guess shows as lines between them.

A sample is the mean of its window, so that a rhythm faster than the samples is weakened by what fits into a window of
its mirror image: a rhythm that is stronger than that leaves is no mirror image.
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
"""Two samples a period are Nyquist's bound; below it a rhythm looks like another one, longer."""

LEAST_VARIATION = 0.9
"""Standard deviation of the samples over their mean. As soon as a window holds an iteration or more, samples vary by
far less than their mean. One above this says that most windows hold no traffic at all, so that they are shorter than
the pauses of an iteration, and the rhythm is no mirror image."""

MIRRORED = 1.1
"""A rhythm must be so many times as strong as its mirror images can be."""

MIXED = (2.6, 3.6)
"""With so many samples a cycle the mirror image of the second harmonic, at 1 - 2 / cycle, stands so near to the rhythm
itself that the band in which that is followed holds both, and what is told lies between them."""

QUALITY = 0.12
STRIDE = 0.12
HUMP = 0.05
"""A first guess is any frequency, an eighth apart, around which a stretch of the spectrum, as wide as this share of it
to both sides, holds a twentieth of what the strongest holds."""

ALIKE = 0.03
MOST_GUESSES = 6
"""Guesses that led to cycles of one length count as one; so many are looked at closely, the evenest first."""

ASIDE = (1.1, 0.9)
SAME, COARSE_SAME = 1.03, 1.015
"""Where the bell stands a tenth aside, the cycles must be as long, or their length depends on the guess."""

EVEN = 0.02

DIVISORS = (4, 3, 2)

FOLLOWED = 0.25
"""The phase is followed in a band around the guess: a bell over the logarithm of the frequency, of this width."""

FADED = 0.3
"""Where the rhythm fades below this share of its usual strength, a cycle may have been counted too many or too few."""

UNEVEN = 0.06
"""Median deviation of the cycles' lengths over their median. Healthy jobs with documents of very unequal lengths stay
below a twentieth; noise that is followed has a sixth."""

COARSE_SAMPLES, COARSE_UNEVEN = 3.5, 0.015
"""With fewer samples a cycle, lengths that differ by more than this are not followed well enough for two per cent."""

ORDERS = 8
A_CYCLE = 16
LEAST_COMB = 0.7
BETWEEN = 0.03
CLEAR = 6.0
MIRROR_BINS = 3.0
APART_BINS = 5.5
"""Whole orders hold seven tenths of the power at least. Lines at halves, thirds or quarters that hold a thirtieth of
what whole orders do, and stand six times above what lies between, say that an iteration is longer than this; those
within three places of where a mirrored harmonic stands say nothing. Lines are five places wide."""

ORDINARY = 0.3
"""Cycles within 30 % of the median are ordinary ones; others are those in which the job saved or evaluated."""


@dataclass(frozen=True, slots=True, eq=False)
class Rhythm:
    """A rhythm that is sure. seconds: of an ordinary cycle. ends: float64 [cycles + 1], in samples from the first one,
    where cycles begin and end. strength: share of the power that repeats."""

    seconds: float
    ends: FloatArray
    strength: float


def rhythm(rate: FloatArray, sample_seconds: float) -> Rhythm | None:
    """The rhythm of a rate [samples], NaN where missing; None where there is none, or none that is sure."""
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
        one = _follow(spectrum, 1.0 / one.cycle)  # the bell in its middle
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
    beside = [_follow(spectrum, aside / one.cycle) for aside in ASIDE]
    lengths = [other.length for other in (one, *beside) if other is not None]
    if max(lengths) > (COARSE_SAME if one.cycle < COARSE_SAMPLES else SAME) * min(lengths):
        return None
    return Rhythm(one.length * sample_seconds, one.ends, shares[best])


def ordinary(lengths: FloatArray) -> float:
    """Mean of the lengths that are near to their median."""
    middle = float(np.median(lengths))
    return float(lengths[np.abs(lengths - middle) <= ORDINARY * middle].mean())


def _guesses(relative: FloatArray) -> list[float]:
    """Frequencies, in cycles a sample, around which there may be a rhythm."""
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
    """A rhythm that was followed. phase: float64 [samples], in cycles, rising. ends: where cycles end, in samples.
    cycle, uneven: median of their lengths, and its median deviation over it. strength: of the rhythm, over the mean."""

    phase: FloatArray
    ends: FloatArray
    cycle: float
    uneven: float
    strength: float

    @property
    def length(self) -> float:
        """Of an ordinary cycle. Where they are alike their middle is it, whatever was counted while the job saved."""
        return self.cycle if self.uneven <= EVEN else ordinary(np.diff(self.ends))

    def like(self, other: _Followed) -> bool:
        """Whether the two are of one length."""
        return abs(self.cycle / other.cycle - 1.0) <= ALIKE


def _follow(spectrum: npt.NDArray[np.complex128], guess: float) -> _Followed | None:
    """What repeats at about this frequency; None where it fades, or where its cycles are not alike."""
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
    """Share of the power that stands at whole orders; 0 where that is too little, or where something repeats less often
    than these cycles do."""
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
    # Harmonics beyond what the samples resolve are mirrored, and may come to stand between whole orders.
    mirrors = np.abs((np.arange(2, ORDERS + 1) + 0.5 * cycle) % cycle - 0.5 * cycle)
    for part in DIVISORS:
        if per_order < APART_BINS * part:
            continue
        for order in (k / part for k in range(1, 2 * part) if k % part and k / part < 0.5 * cycle):
            line, above = _line(power, order * per_order)
            mirrored = float(np.min(np.abs(mirrors - order))) * per_order <= MIRROR_BINS
            # Halves that differ and the harmonic of a rhythm without halves look the same.
            if above >= CLEAR and line >= BETWEEN * comb and (part == 2 or not mirrored):
                return 0.0
    return comb / total


def _line(power: FloatArray, place: float) -> tuple[float, float]:
    """(power of the line at this place above what lies beside it, its height over that)."""
    at, half = round(place), 2
    if at - 6 < 1 or at + 7 > len(power):
        return 0.0, 0.0
    beside = float(np.median(np.concatenate([power[at - 6 : at - half], power[at + half + 1 : at + 7]])))
    here = power[at - half : at + half + 1]
    return max(0.0, float(here.sum()) - (2 * half + 1) * beside), float(here.max()) / max(beside, 1e-300)


def _mirrored(cycle: float) -> float:
    """The most that is left, in windows, of rhythms faster than the samples that look as if they had this cycle.

    A part that repeats f times a sample is left with sin(pi f) / (pi f) of its strength, which is one at most.
    """
    apparent = 1.0 / cycle
    return MIRRORED * float(np.abs(np.sinc(1.0 - apparent)) + np.abs(np.sinc(1.0 + apparent)))
