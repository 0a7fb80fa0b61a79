"""Step times that a recorded job would have had without the slowness of the accused ranks, from each rank's own time.

Operations, if the trace has them, give a better estimate: see ``operation_replay.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray, IntArray
from scheduler_feedback.core.telemetry.telemetry import Shape
from scheduler_feedback.detectors.steps.places import places

Accusations = Mapping[int, Sequence[tuple[int, int]]]
"""For each accused rank, by index: first and last step of each interval in which it is accused."""


def longest_of(seconds: FloatArray) -> FloatArray:
    """Return the length of each step: the longest of its ranks' times; NaN if no rank's time is known.

    seconds: [k steps, n ranks]. Returns [k].
    """
    known = np.isfinite(seconds)
    longest = np.where(known, seconds, -np.inf).max(axis=1, initial=-np.inf)
    found: FloatArray = np.where(known.any(axis=1), longest, np.nan)
    return found


def slowdown_to_equal_peers(seconds: FloatArray, own: FloatArray) -> float:
    """Return the mean step time divided by the mean step time if all ranks had the same own time.

    seconds, own: [k steps, n ranks], in one unit; NaN if unknown. Both means are over the steps in which the own time
    of a rank is known. NaN if there is no such step.
    """
    longest, known = longest_of(seconds), np.isfinite(own)
    rows = known.any(axis=1) & np.isfinite(longest)
    if not rows.any():
        return float("nan")
    longest, own = longest[rows], own[rows]
    shared = np.maximum(longest - np.nanmax(own, axis=1), 0.0)
    return float(longest.mean() / max((shared + np.nanmean(own, axis=1)).mean(), 1e-12))


def without_seconds(
    shape: Shape, number: IntArray, seconds: FloatArray, own: FloatArray, accused: Accusations
) -> float:
    """Return the mean step time if each accused rank had its peers' median own time while it is accused.

    The mean is over all steps with a known length, like the job's mean step time. The peers are the ranks of the role
    that are never accused; if there are none, those of the whole job. The median is over the peers whose own time in
    the step is known. A step keeps its length if the own times are unknown.

    number: step numbers [k]. seconds, own: [k steps, n ranks], in one unit; NaN if unknown. Returns NaN if no own time
    is known.
    """
    longest, known = longest_of(seconds), np.isfinite(own)
    if not (known.any(axis=1) & np.isfinite(longest)).any():
        return float("nan")
    without, where = own.copy(), places(shape)
    for rank, intervals in accused.items():
        rows = np.zeros(len(number), np.bool_)
        for first, last in intervals:
            rows |= (number >= first) & (number <= last)
        peers = [r for r in where.roles[where.role[rank]].tolist() if r not in accused]
        peers = peers or [r for r in range(own.shape[1]) if r not in accused]
        if not peers:
            continue
        rows &= known[:, rank] & known[:, peers].any(axis=1)
        if rows.any():
            middle = np.nanmedian(own[np.ix_(rows, peers)], axis=1)
            without[rows, rank] = np.minimum(without[rows, rank], middle)
    # A step is as long as the largest own time and the time that all ranks share, such as transfers.
    largest, then = (np.where(known, values, -np.inf).max(axis=1) for values in (own, without))
    gain = np.where(known.any(axis=1), largest, 0.0) - np.where(known.any(axis=1), then, 0.0)
    return float(np.nanmean(longest - gain))
