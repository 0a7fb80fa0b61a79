"""Slow drift: tests whether healthy ranks of the job differ about as much as the suspect, averaged over its alarm.

The running sum of an alarm (cusum.py) adds up windows as if their noise were independent. If the ranks of a job drift
up and down slowly, all windows of one drift are slow. The mean over the whole alarm shows it: independent noise
averages out over the windows, and the other ranks are then nearly equal. Ranks that drift differ as before.
"""

from __future__ import annotations

import numpy as np

from scheduler_feedback.detectors.stats.spread import spread
from scheduler_feedback.detectors.steps.places import LEAST_PEERS, middle_of_others
from scheduler_feedback.detectors.straggler.alarm_case import Case

DRIFT_SIGMAS = 5.0
"""A rank is accused only if its mean excess is at least this many standard deviations of the other ranks' means. Among
2,500 drifts of normal size, as 64 ranks have in some hundreds of steps, one in a thousand jobs has a larger one by
chance."""


def sigmas_of_drift(case: Case) -> float:
    """Return the suspect's mean excess over its own past since the alarm began, in standard deviations of those of the
    ranks without an alarm; infinity if these are fewer than LEAST_PEERS."""
    logs = np.log(np.maximum(case.mean("compute"), 1e-9) / np.maximum(case.baseline.reference, 1e-9))
    excess = logs - middle_of_others(logs, case.where)
    others = np.delete(excess, sorted(case.alarmed | {case.rank}))
    if len(others) < LEAST_PEERS:
        return np.inf
    return float(excess[case.rank]) / max(spread(others), 1e-9)
