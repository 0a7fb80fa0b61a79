"""NVIDIA Resiliency Extension, straggler detection: relative performance scores.

Source: nvidia-resiliency-ext, docs "Straggler Detection" and straggler/reporting.py: a section's score on a rank is the
fastest rank's median over its own median; ranks under the threshold (0.75 by default) are stragglers. No persistence;
a report once a minute.
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
    """Return the relative scores of ranks by their medians, [ranks]."""
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
