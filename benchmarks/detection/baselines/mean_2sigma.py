"""Mean plus two standard deviations.

Source: Aegis (NSDI 2025), section 4: a node's metric is abnormal in an interval if it exceeds the mean of its peers by
two standard deviations. Aegis uses intervals of ten minutes; here the interval is one minute.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from benchmarks.detection.baselines.history import JobHistory, Rule, worst_first
from benchmarks.detection.baselines.nvrx import LEAST_STEPS
from scheduler_feedback.sim.world.arrays import BoolArray, FloatArray

SIGMAS = 2.0


def flagged(values: FloatArray) -> BoolArray:
    """Return for each rank whether its value exceeds the mean by two standard deviations: bool [ranks]."""
    return np.asarray(values > values.mean() + SIGMAS * values.std())


class Mean2Sigma(Rule):
    name: ClassVar[str] = "mean_2sigma"

    def judge(self, history: JobHistory) -> Iterable[int | str]:
        steps = max(history.since(history.now - self.every_seconds), LEAST_STEPS)
        if len(history.ends) < steps:
            return []
        values = history.compute(steps)
        known = np.isfinite(values)
        means = np.where(known, values, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
        means = np.where(known.any(axis=0), means, means.max(initial=0.0, where=known.any(axis=0)))
        return worst_first(means, flagged(means))
