"""Spread of values around their median, and of the other ranks' times."""

from __future__ import annotations

import numpy as np

from scheduler_feedback.core.telemetry.gang_attempts import FloatArray
from scheduler_feedback.detectors.stats.medians import column_medians, median, row_medians

MAD_TO_SIGMA = 1.4826
"""Ratio of the standard deviation of a normal distribution to its median absolute deviation."""


def spread(values: FloatArray) -> float:
    """Return the robust standard deviation around the median."""
    return MAD_TO_SIGMA * median(np.abs(values - median(values)))


def spread_of_others(shifts: FloatArray, rank: int) -> float:
    """Return the root mean square deviation of the other ranks from each other, over the newest windows: [windows, n].

    It is not robust on purpose: it must include bursts that affect different ranks in turn. Fewer than three others
    cannot deviate visibly from each other, so that their variation in time counts as well.
    """
    others = np.delete(shifts, rank, axis=1)
    across = others - row_medians(others)[:, None]
    result = float(np.sqrt(np.mean(across**2)))
    if others.shape[1] < 3 and len(others) > 1:
        in_time = others - column_medians(others)
        result = max(result, float(np.sqrt(np.mean(in_time**2))))
    return result
