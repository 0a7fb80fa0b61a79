"""A sliding window over the iteration time, the simple alternative in Greyhound's evaluation (ATC 2025, section 7).

If the mean time of the newest iterations exceeds that of the iterations before by 10 %, the job is slow. Its slow
ranks compute 10 % longer than the median of their role.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np

from benchmarks.detection.baselines.history import JobHistory, Rule, worst_first
from scheduler_feedback.core.telemetry.telemetry import Shape
from scheduler_feedback.sim.world.arrays import FloatArray

WINDOW_STEPS = 10
CHANGE = 0.10


def changed(times: Sequence[float], window: int = WINDOW_STEPS) -> bool:
    """Return whether the mean of the newest `window` times exceeds the mean of as many times before them by 10 %."""
    if len(times) < 2 * window:
        return False
    return sum(times[-window:]) >= (1.0 + CHANGE) * sum(times[-2 * window : -window])


def slow_ranks(compute: FloatArray, shape: Shape) -> list[int]:
    """Return the ranks whose computing time exceeds the median of their role by 10 %, the slowest first."""
    ratio = np.ones(len(compute))
    for role in np.unique(shape.roles):
        members = shape.roles == role
        ratio[members] = compute[members] / np.median(compute[members])
    return worst_first(ratio, ratio > 1.0 + CHANGE)


class SlidingWindow(Rule):
    name: ClassVar[str] = "sliding_window"
    every_seconds: ClassVar[float] = 0.0

    def __init__(self) -> None:
        self._times: dict[str, deque[float]] = {}
        self._asked: dict[str, bool] = {}

    def note(self, history: JobHistory) -> None:
        times = self._times.setdefault(history.shape.job, deque(maxlen=2 * WINDOW_STEPS))
        for seconds in history.new:
            times.append(seconds)
            if changed(list(times)):
                self._asked[history.shape.job] = True

    def judge(self, history: JobHistory) -> Iterable[int | str]:
        if not self._asked.pop(history.shape.job, False):
            return []
        return slow_ranks(history.medians(WINDOW_STEPS), history.shape)

    def forget(self, job: str) -> None:
        self._times.pop(job, None)
        self._asked.pop(job, None)
