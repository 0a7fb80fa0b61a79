"""Chorus: how long iterations are, told from several nodes that take their samples at different moments.

Samples of one node can't tell a rhythm from its mirror images: those whose frequencies differ by a whole number a
sample look alike. To nodes that sample at other moments each of them comes at another phase, and in one iteration all
ranks of a role move their bytes together: only the true frequency is in phase on all nodes. So their samples are fitted
with one sinusoid for each frequency up to far above Nyquist's (a Lomb-Scargle periodogram in which the nodes of
a role share amplitude and phase), and the strongest is looked at: is it a line, does it fit all nodes, do its mirror
images fit less well, and is there nothing at its halves, thirds and quarters, of which it would be a harmonic.

Samples are means over their windows, which damps what is fast by the reciprocal of its frequency and hides nothing but
what fits into a window a whole number of times. Iterations of unequal lengths show no line: they are followed instead
(rhythm.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.telemetry.gang_attempts import FloatArray, IntArray
from scheduler_feedback.core.telemetry.telemetry import FEATURE, Float32Array, IndexArray, Shape

VOICES = 16
"""Nodes' roles that are listened to: as many tell a mirror image from a rhythm wherever two nodes do."""

KEPT, LEAST_SAMPLES = 512, 64
LEAST_KNOWN = 0.8
LEAST_CYCLES, LOWEST_CYCLES = 32, 6
"""Over the whole time: of what is told, and of what it may be a harmonic of. A line is as wide as one of them, so that
of fewer its place is not known to two per cent; those are long enough to be followed."""

MOST_A_SAMPLE = 6.0
"""Iterations that fit into a sample, at most: the window leaves a twentieth of a rhythm as fast as that."""

FINER = 4
"""Places of the spectrum for each that the time tells apart."""

STEADY = 0.05
"""A node samples at one moment of each window: standard deviation, as a share of the window."""

ALIKE, RIVAL = 0.97, 0.95
"""Share of the line's power, over all nodes, that is in phase; and at most, of that, what a mirror image has."""

CLEAR = 100.0
"""Times above what lies beside it. Of noise the highest of ten thousand places stands ten times above its middle."""

SUBHARMONIC = 0.05
DIVISORS = (2, 3, 4)
WIDTH, BESIDE = 2.5, 40.0
"""Half of a line's width under a Hann window, and how far to its sides one looks, in cycles over the whole time."""


@dataclass(slots=True)
class Voices:
    """What some of one job's nodes move: one voice for each role that a node has ranks of.

    members: places of each voice's ranks; role [voices]. ring: float32 [KEPT, voices], means over a voice's ranks.
    lag, square: float64 [voices], sums of how long before the windows' ends they were sampled, in windows, and of its
    square; heard: in how many windows that was known; taken: windows so far. counter: the one that is listened to.
    """

    shape: Shape
    members: tuple[IndexArray, ...] = field(init=False)
    role: IntArray = field(init=False)
    ring: Float32Array = field(init=False)
    lag: FloatArray = field(init=False)
    square: FloatArray = field(init=False)
    heard: FloatArray = field(init=False)
    taken: int = 0
    counter: str = ""

    def __post_init__(self) -> None:
        by_voice: dict[tuple[int, str], list[int]] = {}
        for rank, (role, node) in enumerate(zip(self.shape.roles.tolist(), self.shape.nodes, strict=True)):
            by_voice.setdefault((role, node), []).append(rank)
        of_role: dict[int, list[list[int]]] = {}
        for (role, _), ranks in sorted(by_voice.items()):
            of_role.setdefault(role, []).append(ranks)
        # Roles in turn, the largest first: one voice of a role alone has nobody to be in phase with.
        largest = sorted((role for role in of_role if len(of_role[role]) > 1), key=lambda role: -len(of_role[role]))
        most = VOICES // max(1, min(len(largest), VOICES // 4))
        chosen = [(role, ranks) for role in largest for ranks in of_role[role][:most]][:VOICES]
        self.role = np.array([role for role, _ in chosen], np.int64)
        self.members = tuple(np.array(ranks, np.intp) for _, ranks in chosen)
        self.ring = np.full((KEPT, len(chosen)), np.nan, np.float32)
        self._silence()

    def take(self, values: Float32Array, lag_seconds: Float32Array, seconds: float) -> None:
        """One more window of so many seconds: [features, ranks], and how long before its end each rank was sampled."""
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
                self.heard[voice] += 1.0

    def forget(self) -> None:
        """Samples are of another length from now on."""
        self.ring[:] = np.nan
        self.taken = 0
        self._silence()

    def period(self, seconds: float) -> float | None:
        """Seconds of an iteration; None where no rhythm is sure. seconds: of a window."""
        count = min(self.taken, KEPT)
        heard = np.maximum(self.heard, 1.0)
        lag = self.lag / heard
        steady = self.square / heard - lag**2 <= STEADY**2
        course = np.roll(self.ring, -(self.taken % KEPT), axis=0)[KEPT - count :].T.astype(np.float64)
        known = np.isfinite(course)
        if count < LEAST_SAMPLES:
            return None
        sung = steady & (2 * self.heard > self.taken) & (known.mean(axis=1) >= LEAST_KNOWN)
        if sung.sum() < 2:
            return None
        found = strongest(_even(course[sung], known[sung]), -lag[sung], self.role[sung])
        return None if found is None else seconds / found

    def _silence(self) -> None:
        self.lag, self.square, self.heard = (np.zeros(len(self.members)) for _ in range(3))


COUNTERS = ("nvlink_bytes", "nic_transmit_bytes")


def strongest(course: FloatArray, phase: FloatArray, role: IntArray) -> float | None:
    """Cycles a sample of the rhythm that all voices share; None where none is sure.

    course [voices, samples], around zero; sample i of a voice was taken at i + phase (in samples). Voices of a role are
    in phase.
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
            heard = spectrum[voice, places % size]
            together += heard * np.exp(-2j * math.pi * frequency * phase[voice])
            voices += np.abs(heard) ** 2
        line += np.abs(together) ** 2 / len(of_role)
    place = int(np.argmax(np.where(frequency >= LEAST_CYCLES / count, line, 0.0)))
    here, height, width = frequency[place], float(line[place]), WIDTH / count
    if not height > 0 or height < ALIKE * float(voices[place]):
        return None
    away = np.abs(frequency - here)
    beside = line[(away > 2.0 * width) & (away < BESIDE / count)]
    if not len(beside) or height < CLEAR * float(np.median(beside)):
        return None
    mirrors = np.minimum(np.abs(_around(frequency - here)), np.abs(_around(frequency + here))) < width
    if float(line[mirrors & (away > 2.0 * width)].max(initial=0.0)) > RIVAL * height:
        return None
    for divisor in DIVISORS:
        part = here / divisor
        if min(abs(_around(part - here)), abs(_around(part + here))) < 2.0 * width:
            return None  # a mirror image of the line stands there, and would hide another one
        if float(line[np.abs(frequency - part) < width].max(initial=0.0)) > SUBHARMONIC * height:
            return None
    return float(here)


def _around(value: npt.NDArray[np.float64] | float) -> npt.NDArray[np.float64]:
    """To the nearest whole number."""
    return np.asarray(value - np.round(value), np.float64)


def _even(course: FloatArray, known: npt.NDArray[np.bool_]) -> FloatArray:
    """[voices, samples]: each over its mean, less one, with what is missing filled in."""
    places = np.arange(course.shape[1])
    filled = np.stack([np.interp(places, places[k], row[k]) for row, k in zip(course, known, strict=True)])
    mean = filled.mean(axis=1, keepdims=True)
    found: FloatArray = np.divide(filled, mean, out=np.ones_like(filled), where=mean > 0) - 1.0
    return found
