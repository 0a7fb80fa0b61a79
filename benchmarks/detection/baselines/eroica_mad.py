"""Median plus five median absolute deviations, once the job is slower than its best: EROICA (NSDI 2026).

If the mean of 50 iterations exceeds the best such mean by 5 %, a diagnosis starts. In it, a worker is abnormal if its
time in a function exceeds M + 5 MAD of all workers. EROICA profiles every function; telemetry has two: computing and
waiting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from benchmarks.detection.baselines.history import JobHistory, Rule, worst_first
from scheduler_feedback.sim.world.arrays import BoolArray, FloatArray

ITERATIONS = 50
SLOWER = 0.05
DEVIATIONS = 5.0


def flagged(values: FloatArray) -> BoolArray:
    """Return which values exceed M + 5 MAD, bool [ranks]."""
    middle = np.median(values)
    return np.asarray(values > middle + DEVIATIONS * np.median(np.abs(values - middle)))


class EroicaMad(Rule):
    name: ClassVar[str] = "eroica_mad"
    every_seconds: ClassVar[float] = 30.0

    def __init__(self) -> None:
        self._times: dict[str, deque[float]] = {}
        self._best: dict[str, float] = {}

    def note(self, history: JobHistory) -> None:
        job = history.shape.job
        times = self._times.setdefault(job, deque(maxlen=ITERATIONS))
        for seconds in history.new:
            times.append(seconds)
            if len(times) == ITERATIONS:
                self._best[job] = min(self._best.get(job, np.inf), float(np.mean(times)))

    def judge(self, history: JobHistory) -> Iterable[int | str]:
        job = history.shape.job
        times = self._times.get(job)
        if times is None or len(times) < ITERATIONS or np.mean(times) <= (1 + SLOWER) * self._best[job]:
            return []
        steps = min(ITERATIONS, len(history.ends))
        computing = history.medians(steps)
        return worst_first(computing, flagged(computing) | flagged(history.waiting(steps)))

    def forget(self, job: str) -> None:
        self._times.pop(job, None)
        self._best.pop(job, None)
