"""NVIDIA Resiliency Extension, straggler detection: relative performance scores.

Source: nvidia-resiliency-ext, docs "Straggler Detection" and straggler/reporting.py: a rank's score in
a section of the program is the fastest rank's median time divided by its own. Ranks below the threshold (0.75 by
default) are stragglers. The rule runs once a minute and keeps no state.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from benchmarks.detection.baselines.history import JobHistory, Rule, worst_first
from scheduler_feedback.sim.world.arrays import FloatArray

THRESHOLD = 0.75
LEAST_STEPS = 3


def scores(medians: FloatArray) -> FloatArray:
    """Return each rank's relative score: the smallest of the medians divided by the rank's median, [ranks]."""
    return np.asarray(medians.min() / medians)


class Nvrx(Rule):
    name: ClassVar[str] = "nvrx"

    def judge(self, history: JobHistory) -> Iterable[int | str]:
        steps = history.since(history.now - self.every_seconds)
        if steps < LEAST_STEPS:
            steps = min(LEAST_STEPS, len(history.ends))
        if steps < LEAST_STEPS:
            return []
        medians = history.medians(steps)
        return worst_first(medians, scores(medians) < THRESHOLD)
