"""The job gate: whether a job is slower than it was, and how long its iterations are, where it reports no steps.

Bytes over NVLink and NICs come in a rhythm of their own: what an iteration moves does not change, so that their mean
rate falls as iterations get longer, whatever the sampling. Where samples come faster than iterations, the length of an
iteration is that of the rate's rhythm.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from scheduler_feedback.core.telemetry import FEATURE, Float32Array
from scheduler_feedback.detectors.rhythm import rhythm

RATES = ("nvlink_bytes", "nic_transmit_bytes")
BEST = 16
LEAST_WARM_UP, WARM_UP, WARM_UP_SECONDS = 8, 24, 240.0
"""The best is the highest mean of sixteen windows. Two dozen give one to compare with; eight of half a minute will."""

LOOKS = (2, 4, 8, 16)
LESS_SIGMAS = 4.0
"""The present is the mean of as many newest windows as it takes to be below the best by four standard errors: a window
that is shorter than an iteration, or not much longer, varies by the phase that it falls into."""

KEPT = 512
COARSER = 4
"""So many samples are kept, and as many means of four of them: an iteration of half a minute shows in samples of a
second only over more of them, and one of three seconds needs them as they are."""

AGAIN_WINDOWS, AGAIN_PART = 16, 4
"""A look takes some milliseconds. It is due again after sixteen windows, and after a quarter of all those before."""

AGREE = 0.03
"""Two looks at one rhythm that differ by more than this are no finding."""


@dataclass(slots=True)
class JobGate:
    """One job without step reports. signals: for each counter its mean over the ranks in each window in which half of
    them are known; evenly: the same in every window, NaN where not known; coarsely: means of COARSER of those.
    period_seconds: length of an iteration, by the newest look; None where none is sure."""

    signals: dict[str, deque[float]] = field(default_factory=lambda: {name: deque(maxlen=KEPT) for name in RATES})
    evenly: dict[str, deque[float]] = field(default_factory=lambda: {name: deque(maxlen=KEPT) for name in RATES})
    coarsely: dict[str, deque[float]] = field(default_factory=lambda: {name: deque(maxlen=KEPT) for name in RATES})
    best: dict[str, float] = field(default_factory=dict)
    taken: int = 0
    looked: int = 0
    window_seconds: float = 0.0
    period_seconds: float | None = None

    def take(self, values: Float32Array, seconds: float = 1.0) -> None:
        """One window of this job's counters, of so many seconds: [features, ranks]."""
        if seconds != self.window_seconds:
            self.window_seconds = seconds
            self.taken = self.looked = 0
            for ring in (*self.evenly.values(), *self.coarsely.values()):
                ring.clear()
        self.taken += 1
        for name, ring in self.signals.items():
            evenly = self.evenly[name]
            row = values[FEATURE[name]]
            known = row[np.isfinite(row)]
            if len(known) < max(1, len(row) // 2):
                evenly.append(math.nan)
            else:
                ring.append(float(known.mean()))
                evenly.append(ring[-1])
                if len(ring) >= self._enough():
                    recent = float(np.mean(list(ring)[-BEST:]))
                    self.best[name] = max(self.best.get(name, 0.0), recent)
            if self.taken % COARSER == 0:
                newest = [evenly[-place] for place in range(1, min(COARSER, len(evenly)) + 1)]
                self.coarsely[name].append(sum(newest) / len(newest))

    @property
    def due(self) -> int:
        """By how many windows a look at the rhythm is overdue; below zero where it is too soon."""
        return self.taken - self.looked - max(AGAIN_WINDOWS, self.looked // AGAIN_PART)

    def look(self) -> None:
        """Look for the rhythm anew."""
        self.looked = self.taken
        self.period_seconds = None
        for name in reversed(RATES):  # what goes over the network pauses most
            found = [
                told
                for ring, seconds in (
                    (self.coarsely[name], COARSER * self.window_seconds),
                    (self.evenly[name], self.window_seconds),
                )
                if (told := rhythm(np.array(ring), seconds)) is not None
            ]
            if found and abs(found[0].seconds / found[-1].seconds - 1.0) > AGREE:
                return
            if found:
                self.period_seconds = max(found, key=lambda told: len(told.ends)).seconds
                return

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
