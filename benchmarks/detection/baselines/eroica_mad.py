"""Median plus five median absolute deviations, once the job is slower than its best: EROICA (NSDI 2026).

A diagnosis starts if the mean time of 50 iterations exceeds the smallest mean so far by 5 %. A worker is then
abnormal if its time in a function exceeds the workers' median by 5 median absolute deviations (MAD). EROICA profiles
every function; here there are two, computing and waiting.
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
    """Return for each rank whether its value exceeds the median plus 5 median absolute deviations: bool [ranks]."""
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
