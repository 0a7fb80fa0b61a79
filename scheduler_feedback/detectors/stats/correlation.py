"""Correlation of two series, window by window: does a job's loss rise and fall with the load of another job?

Chance is measured by circular shifts of one series against the other. A shifted copy has the same starts, stops and
pauses as the original, but at the wrong times.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray

KEPT_WINDOWS = 720
"""Maximum number of windows in a series. Older windows are dropped."""

LEAST_WINDOWS = 18
"""A correlation is computed only from at least this many windows."""

LEAST_STATE = 3
"""A correlation is computed only if the neighbour was busy in at least this many windows, and idle in at least as
many."""

SLOW_SAMPLING_SECONDS = 20.0
"""Length of a window, in seconds, from which the two SLOW constants below apply. Many steps end in each such window."""

SLOW_LEAST_WINDOWS = 10
"""Used instead of LEAST_WINDOWS if windows are long."""

SLOW_LEAST_STATE = 2
"""Used instead of LEAST_STATE if windows are long."""

LEAST_SHIFTS = 160
"""Number of circular shifts to aim for: enough to measure a probability of one in a hundred."""

MOST_FINER = 12
"""Maximum number of points into which a window is interpolated, to get LEAST_SHIFTS shifts from few windows."""

LATE = 2
"""Maximum delay, in windows, of a victim's loss after a neighbour's load: a sample can fall into the next window."""

CHANCE = 0.01
"""A correlation counts only if at most this share of the circular shifts correlates as well: one in a hundred."""

GUARD_SHARE = 0.05
"""Circular shifts shorter than this share of the series are not used, because they are nearly the original."""

LEAST_CORRELATION = 0.35
"""A verdict needs at least this correlation. A correlation of a third explains only a tenth of the variance of the
victim's loss."""

LEAST_LEAD = 0.05
"""A neighbour explains a loss better than another one only if its correlation is higher by this much. The test is
repeated with each window. Of two neighbours with equal loads, whose samples differ only by noise, one would otherwise
be better by chance at some time."""


class Means:
    """Mean of the values in each window. Contains the newest KEPT_WINDOWS windows, newest last."""

    __slots__ = ("_count", "_counts", "_totals")

    def __init__(self) -> None:
        self._count = 0  # windows so far
        self._totals: FloatArray = np.zeros(KEPT_WINDOWS)  # as rings
        self._counts = np.zeros(KEPT_WINDOWS, np.int32)

    def __len__(self) -> int:
        """Return the number of windows that are kept now."""
        return min(self._count, KEPT_WINDOWS)

    def window(self, until: int) -> None:
        """Append a window without values. If there are fewer than `until` windows, append empty windows up to that
        number."""
        for _ in range(max(1, min(until, KEPT_WINDOWS) - len(self))):
            place = self._count % KEPT_WINDOWS
            self._totals[place], self._counts[place] = 0.0, 0
            self._count += 1

    def add(self, first: int, until: int, value: float) -> None:
        """Add one value to each window from `first` to before `until`, counted from the oldest one."""
        oldest = self._count - len(self)
        begin, end = (oldest + first) % KEPT_WINDOWS, (oldest + first) % KEPT_WINDOWS + until - first
        for part in (slice(begin, end), slice(0, end - KEPT_WINDOWS)) if end > KEPT_WINDOWS else (slice(begin, end),):
            self._totals[part] += value
            self._counts[part] += 1

    def values(self) -> FloatArray:
        """Return the mean of each window, oldest first; NaN for a window without values."""
        found = np.divide(self._totals, self._counts, out=np.full(KEPT_WINDOWS, np.nan), where=self._counts > 0)
        oldest = self._count - len(self)
        ordered: FloatArray = np.roll(found, -(oldest % KEPT_WINDOWS))[: len(self)]
        return ordered


def least(window_seconds: float) -> tuple[int, int]:
    """Return the minimum number of windows for a correlation, and the minimum number of windows in each state of the
    neighbour (busy, idle)."""
    if window_seconds >= SLOW_SAMPLING_SECONDS:
        return SLOW_LEAST_WINDOWS, SLOW_LEAST_STATE
    return LEAST_WINDOWS, LEAST_STATE


def correlate(
    victim: FloatArray, sent: FloatArray, least_windows: int, least_state: int, late: int = LATE
) -> tuple[float, float, float] | None:
    """Return three numbers: the correlation, the probability that chance gives one as high, and the victim's loss while
    the neighbour is busy.

    Returns None if too few windows are known, or if one of the series never changes. late: maximum number of windows by
    which the victim may follow the neighbour; it may precede the neighbour by half as many.
    """
    length = min(len(victim), len(sent))
    victim, sent = victim[len(victim) - length :], sent[len(sent) - length :]
    known = np.flatnonzero(np.isfinite(victim) & np.isfinite(sent))
    if len(known) < least_windows:
        return None
    victim, sent = victim[known[0] : known[-1] + 1].copy(), sent[known[0] : known[-1] + 1]
    holes = ~np.isfinite(victim)
    if holes.any():
        places = np.arange(len(victim))
        victim[holes] = np.interp(places[holes], places[~holes], victim[~holes])
    if len(victim) < least_windows:
        return None
    middle = float((np.quantile(sent, 0.05) + np.quantile(sent, 0.95)) / 2)
    busy = sent > middle
    if min(int(busy.sum()), int((~busy).sum())) < least_state:
        return None
    cost = float(np.median(victim[busy]) - np.median(victim[~busy]))
    finer = min(MOST_FINER, -(-LEAST_SHIFTS // len(victim)))
    if finer > 1:
        fine = np.arange(0, len(victim) - 1, 1 / finer)
        victim, sent = (np.interp(fine, np.arange(len(values)), values) for values in (victim, sent))
    # One huge stall must not determine the correlation.
    high = float(np.quantile(victim, 0.98))
    victim = np.minimum(victim, high)
    if victim.std() <= 1e-9 or sent.std() <= 1e-9 * max(float(np.abs(sent).max()), 1e-9):
        return None
    y, x = (victim - victim.mean()) / victim.std(), (sent - sent.mean()) / sent.std()
    length = len(y)
    shifted = np.fft.irfft(np.fft.rfft(y) * np.conj(np.fft.rfft(x)), length) / length
    guard = max(2, round(GUARD_SHARE * length))
    lags = np.arange(-finer * late // 2, finer * late + 1)
    here = float(shifted[lags].max())
    null = shifted[guard : length - guard]
    chance = float((1 + np.sum(null >= here)) / (1 + len(null)))
    return here, chance, cost


def explains_better(victim: FloatArray, one: FloatArray, other: FloatArray, late: int = LATE) -> bool:
    """Return whether the load `one` explains the victim's loss better than the load `other`: by LEAST_LEAD, and beyond
    chance.

    The loss is correlated with the difference of both loads, each in standard deviations and at the delay at which it
    correlates best. Chance is measured by circular shifts. All series have one value for each window, newest last; NaN
    if unknown. late: as in `correlate`.
    """
    length = min(len(victim), len(one), len(other))
    series = np.stack([values[len(values) - length :] for values in (victim, one, other)])
    series = series[:, np.isfinite(series).all(axis=0)]
    if series.shape[1] < LEAST_WINDOWS or (series.std(axis=1) <= 1e-9 * np.abs(series).max(axis=1)).any():
        return False
    series[0] = np.minimum(series[0], np.quantile(series[0], 0.98))
    loss, *loads = (series - series.mean(axis=1, keepdims=True)) / series.std(axis=1, keepdims=True)
    lags = range(-late // 2, late + 1)
    best, rival = (max((np.roll(load, lag) for lag in lags), key=lambda moved: float(moved @ loss)) for load in loads)
    shifted = np.fft.irfft(np.fft.rfft(loss) * np.conj(np.fft.rfft(best - rival)), len(loss))
    guard = max(2, round(GUARD_SHARE * len(loss)))
    null = shifted[guard : len(loss) - guard]
    lead = float(shifted[0]) / len(loss)
    return lead >= LEAST_LEAD and float((1 + np.sum(null >= shifted[0])) / (1 + len(null))) < CHANCE


def pauses(sent: FloatArray) -> tuple[int, int]:
    """Return the number of windows since the neighbour was last busy, and its longest pause in windows.

    Returns (0, 0) if its load never changes.
    """
    sent = sent[np.isfinite(sent)]
    if not len(sent):
        return 0, 0
    busy = np.flatnonzero(sent > (np.quantile(sent, 0.05) + np.quantile(sent, 0.95)) / 2)
    if not len(busy):
        return 0, 0
    return len(sent) - 1 - int(busy[-1]), int(np.diff(busy).max(initial=1)) - 1


def grown(values: FloatArray, least_windows: int, least_state: int) -> float:
    """Return by how much the highest values exceed the low ones; 0 if too few values are known.

    values: one value for each window, NaN if unknown.
    """
    values = values[~np.isnan(values)]
    if len(values) < least_windows:
        return 0.0
    values.sort()
    return float(values[-least_state] - values[len(values) // 5])


def pad(ring: deque[float], length: int, value: float) -> None:
    """Insert `value` at the front of a ring until it has this length. Used for a ring that was started later than the
    others."""
    missing = min(length, ring.maxlen or length) - len(ring)
    for _ in range(max(0, missing)):
        ring.appendleft(value)
