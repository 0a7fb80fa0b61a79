"""Medians and means of all groups of columns at once, for groups of any size, in arrays of shape [features, N].

np.partition is slow for many short rows: each row costs more for the call than for the work. Small groups are therefore
arranged with their members on the first axis, and a network of minima and maxima sorts all groups at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.telemetry.telemetry import Float32Array, Grouping
from scheduler_feedback.detectors.stats.validity_mask import ValidityMask, ValidityMasks

NETWORK_SIZE = 16
"""Largest group for which a sorting network is faster than partitioning (measured: five times faster at 8 members)."""

CELLS_AT_ONCE = 1 << 21
"""Maximum number of values that are sorted at once (8 MiB): all features of 80,000 ranks. With a smaller limit the many
calls for different group sizes take twice as long."""


def group_median(values: Float32Array, grouping: Grouping) -> Float32Array:
    """Return the lower median of each group's known members: float32 [features, N] -> [features, groups].

    NaN for a group without known members. If there are two middle values, the result is the lower one and not their
    mean, so that it is the value of a member.
    """
    knowns, result = ValidityMasks(grouping), np.empty((len(values), len(grouping)), np.float32)
    by_known: dict[ValidityMask, list[int]] = {}
    for feature, row in enumerate(values):
        by_known.setdefault(knowns.of(row), []).append(feature)
    for known, features in by_known.items():
        result[features] = known_median(values, features, grouping, known)
    return result


def known_median(
    values: Float32Array, features: Sequence[int], grouping: Grouping, known: ValidityMask
) -> Float32Array:
    """Return the lower median of each group, for features whose samples are missing in the same columns: [features,
    groups]."""
    columns = values.shape[1]
    at_once = max(1, min(len(features), CELLS_AT_ONCE // max(columns, 1)))
    padded = np.empty((at_once, columns + 2), np.float32)
    padded[:, columns:] = (-np.inf, np.inf)
    result = np.empty((len(features), len(grouping)), np.float32)
    for first in range(0, len(features), at_once):
        rows = features[first : first + at_once]
        for place, feature in enumerate(rows):
            padded[place, :columns] = values[feature]
            if not known.whole:
                known.fill(padded[place, :columns])
        found = result[first : first + len(rows)]
        for bucket in grouping.buckets:
            if bucket.index.shape[1] <= NETWORK_SIZE:
                members = padded[: len(rows)].take(bucket.index.T, axis=1, mode="clip")
                found[:, bucket.group] = _sorted(np.ascontiguousarray(members.transpose(1, 0, 2)))[bucket.middle]
            else:
                members = padded[: len(rows)].take(bucket.index, axis=1, mode="clip")
                members.partition(bucket.middle, axis=2)
                found[:, bucket.group] = members[:, :, bucket.middle]
    if not known.whole:
        result[:, known.sizes == 0] = np.nan
    return result


def usual_value(values: Float32Array, usual: float, grouping: Grouping, known: ValidityMask) -> bool:
    """Return whether more than half of the known members of every group have the value `usual`. It is then the median.

    Error counters are zero nearly everywhere, and this test is far cheaper than a median.
    """
    unlike = values != usual
    if not known.whole:
        unlike &= known.of
    if 4 * np.count_nonzero(unlike) > len(values):
        return False
    counts = np.bincount(grouping.of[unlike], minlength=len(grouping))
    return bool((2 * counts < np.maximum(known.sizes, 1)).all())


def group_mean(values: Float32Array, grouping: Grouping) -> Float32Array:
    """Return the mean of each group's known members: float32 [features, N] -> [features, groups].

    NaN for a group without known members.
    """
    order = grouping.order
    known = np.isfinite(values)
    if known.all():
        sums = np.add.reduceat(values[:, order], grouping.starts, axis=1)
        return (sums / grouping.sizes).astype(np.float32)
    sums = np.add.reduceat(np.where(known, values, 0.0)[:, order], grouping.starts, axis=1)
    counts = np.add.reduceat(known[:, order].astype(np.float32), grouping.starts, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (sums / counts).astype(np.float32)


def _sorted(members: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Sort the values along the first axis with a fixed network of comparisons (Batcher's odd-even merge)."""
    low = np.empty(members.shape[1:], np.float32)
    for a, b in _network(len(members)):
        np.minimum(members[a], members[b], out=low)
        np.maximum(members[a], members[b], out=members[b])
        members[a] = low
    return members


def _network(size: int) -> list[tuple[int, int]]:
    """Return the pairs of places that a sorting network for `size` members compares and exchanges, in order (Knuth,
    TAOCP 3, algorithm 5.2.2M)."""
    pairs = []
    top = 1 << max(size - 1, 1).bit_length() >> 1
    p = max(top, 1)
    while p > 0:
        q, r, d = max(top, 1), 0, p
        while d > 0:
            pairs += [(i, i + d) for i in range(size - d) if i & p == r]
            d, q, r = q - p, q >> 1, p
        p >>= 1
    return pairs
