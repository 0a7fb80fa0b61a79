"""Spread of values around their median, and spread of the other ranks' times."""

from __future__ import annotations

import numpy as np

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.detectors.stats.medians import column_medians, median, row_medians

MAD_TO_SIGMA = 1.4826
"""Factor from the median absolute deviation to the standard deviation, for a normal distribution."""


def spread(values: FloatArray) -> float:
    """Return the standard deviation around the median, estimated so that outliers hardly change it."""
    return MAD_TO_SIGMA * median(np.abs(values - median(values)))


def spread_of_others(shifts: FloatArray, rank: int) -> float:
    """Return by how much the other ranks deviate from each other (root mean square), over the newest windows.

    shifts: [windows, n]. The result includes outliers on purpose: bursts that affect different ranks in turn must
    count. With fewer than three other ranks, their variation in time counts as well.
    """
    others = np.delete(shifts, rank, axis=1)
    across = others - row_medians(others)[:, None]
    result = float(np.sqrt(np.mean(across**2)))
    if others.shape[1] < 3 and len(others) > 1:
        in_time = others - column_medians(others)
        result = max(result, float(np.sqrt(np.mean(in_time**2))))
    return result
