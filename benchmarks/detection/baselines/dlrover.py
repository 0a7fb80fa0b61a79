"""DLRover's node check: twice the median.

Source: dlrover, master/elastic_training/rdzv_manager.py, NetworkCheckRendezvousManager: a node whose time exceeds
twice the median is a straggler. DLRover tests pairs of nodes at start-up only; here the rule runs once a minute, on
the ranks' own times.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from benchmarks.detection.baselines.history import JobHistory, Rule, worst_first
from benchmarks.detection.baselines.nvrx import LEAST_STEPS
from scheduler_feedback.sim.world.arrays import BoolArray, FloatArray

FACTOR = 2.0


def flagged(times: FloatArray) -> BoolArray:
    """Return for each rank whether its time exceeds twice the median of all times: bool [ranks]."""
    return np.asarray(times > FACTOR * np.median(times))


class Dlrover(Rule):
    name: ClassVar[str] = "dlrover"

    def judge(self, history: JobHistory) -> Iterable[int | str]:
        steps = max(history.since(history.now - self.every_seconds), LEAST_STEPS)
        if len(history.ends) < steps:
            return []
        medians = history.medians(steps)
        return worst_first(medians, flagged(medians))
