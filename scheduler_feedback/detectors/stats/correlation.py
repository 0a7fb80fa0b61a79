"""Correlation of two series by window: whether a job's loss rises and falls with the load of another job, beyond
chance.

The null distribution comes from circular shifts of one series against the other: a shifted copy has the same starts,
stops and pauses, at the wrong times.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from scheduler_feedback.core.telemetry.gang_attempts import FloatArray

KEPT_WINDOWS = 720
LEAST_WINDOWS = 18
LEAST_STATE = 3
"""Number of windows that are kept; minimum number of windows for a correlation; minimum number of windows with a busy
neighbour, and with an idle neighbour."""

SLOW_SAMPLING_SECONDS = 20.0
SLOW_LEAST_WINDOWS = 10
SLOW_LEAST_STATE = 2
"""Minimum numbers for sampling intervals of SLOW_SAMPLING_SECONDS and more. Many steps end in each window."""

LEAST_SHIFTS = 160
MOST_FINER = 12
"""Steps end between two samples of a slow counter. Both series are interpolated to a finer grid, which gives enough
shifts to resolve a probability of one in a hundred."""

LATE = 2
"""Samples and ends of steps can be assigned to a window or to the next."""

CHANCE = 0.01
GUARD_SHARE = 0.05
LEAST_CORRELATION = 0.35
"""At most one shift in a hundred may correlate as well. Shifts below a twentieth of the time are excluded, because they
are nearly the original. A correlation below a third explains a tenth of the variance, whatever its probability."""


@dataclass(slots=True)
class Means:
    """Mean of the values in each window: a ring of KEPT_WINDOWS, newest last. A long window contains many steps."""

    total: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_WINDOWS))
    count: deque[int] = field(default_factory=lambda: deque(maxlen=KEPT_WINDOWS))

    def window(self, until: int) -> None:
        """Append a window. Fill up with unknown windows to `until` in all."""
        for _ in range(max(1, min(until, KEPT_WINDOWS) - len(self.total))):
            self.total.append(0.0)
            self.count.append(0)

    def add(self, index: int, value: float) -> None:
        """Add one value to a window."""
        self.total[index] += value
        self.count[index] += 1

    def values(self) -> FloatArray:
        """Return the means: [windows], NaN without a value."""
        count = np.array(self.count, np.float64)
        total = np.array(self.total, np.float64)
        found: FloatArray = np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)
        return found


def least(window_seconds: float) -> tuple[int, int]:
    """Return two minimum numbers of windows: of all, and of windows with a busy (and with an idle) neighbour."""
    if window_seconds >= SLOW_SAMPLING_SECONDS:
        return SLOW_LEAST_WINDOWS, SLOW_LEAST_STATE
    return LEAST_WINDOWS, LEAST_STATE


def correlate(
    victim: FloatArray, sent: FloatArray, least_windows: int, least_state: int, late: int = LATE
) -> tuple[float, float, float] | None:
    """Return the correlation, the probability of one as high by chance, and the victim's loss while the neighbour is
    busy.

    late: most windows by which the victim may follow the neighbour; half as many by which it may precede it.

    None if too few windows are known, or if one of the series never changes.
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


def pauses(sent: FloatArray) -> tuple[int, int]:
    """Return the number of windows since the neighbour was last busy, and its longest pause in windows.

    (0, 0) if its load never changes.
    """
    sent = sent[np.isfinite(sent)]
    if not len(sent):
        return 0, 0
    busy = np.flatnonzero(sent > (np.quantile(sent, 0.05) + np.quantile(sent, 0.95)) / 2)
    if not len(busy):
        return 0, 0
    return len(sent) - 1 - int(busy[-1]), int(np.diff(busy).max(initial=1)) - 1


def grown(values: FloatArray, least_windows: int, least_state: int) -> float:
    """Return the difference between high and low values of the windows; 0 if too few are known. values: NaN if
    unknown."""
    values = values[~np.isnan(values)]
    if len(values) < least_windows:
        return 0.0
    values.sort()
    return float(values[-least_state] - values[len(values) // 5])


def pad(ring: deque[float], length: int, value: float) -> None:
    """Pad a ring at its front with `value` up to this length. The ring began later than other rings."""
    missing = min(length, ring.maxlen or length) - len(ring)
    for _ in range(max(0, missing)):
        ring.appendleft(value)
